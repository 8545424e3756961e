"""What the engine needs of a transport, and nothing more: one exchange of messages per round.

The engine is written against `Channel`; a transport implements it without importing the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TAG_BYTES = 8
"""Length of the tag that names what a round's messages are; both ends must derive the same one."""

Buffers = Sequence[memoryview]
"""One message in pieces, in order, so that nothing is copied to join them."""


@dataclass
class Traffic:
    """What one party sent and how often it waited, in payload bytes (headers and TLS records not counted)."""

    rounds: int = 0
    sent: int = 0


class Channel(Protocol):
    """One party's end of a session among all servers of a study."""

    @property
    def party(self) -> int:
        """Which party this end is, counted from 0."""

    @property
    def peers(self) -> Collection[int]:
        """The other parties of the session."""

    @property
    def traffic(self) -> Traffic:
        """Counters of this end, updated by every exchange."""

    def secret_with(self, peer: int) -> bytes:
        """32 bytes known to this party and `peer` only, fresh for this session."""

    async def exchange(
        self, tag: bytes, outgoing: Mapping[int, Buffers], incoming: Mapping[int, int]
    ) -> Mapping[int, memoryview]:
        """Run one round: send `outgoing[p]` to each party p, return `incoming[p]` bytes from each p.

        A peer named in neither mapping is neither sent to nor waited for, yet its failure ends the wait.
        The returned views are the caller's: the channel keeps no reference and never reuses their memory.

        Pre-conditions: `len(tag) == TAG_BYTES`; an exchange is awaited to its end before the next begins.
        Raises a `PeerError` naming the party when a peer is lost, stalls, aborts or sends a message with another tag
        or length; after any error the channel is closed and every further exchange raises `SessionClosed`.
        """

    async def abort(self, cause: str, blames: int | None = None) -> None:
        """Tell all peers why this end gives up, then close. `cause` must hold no private value. Idempotent."""

    async def close(self) -> None:
        """End the session in an orderly way. Idempotent."""


async def swap(channel: Channel, name: str, payload: bytes) -> dict[int, bytes]:
    """Send the same control message to all peers; return theirs, which must have the same name and length.

    For what servers tell each other between protocols. Costs one round.
    """
    return await trade(channel, name, dict.fromkeys(channel.peers, payload))


async def trade(channel: Channel, name: str, payloads: Mapping[int, bytes]) -> dict[int, bytes]:
    """The same with a message for each peer; theirs must have its length."""
    tag = hashlib.blake2b(name.encode(), digest_size=TAG_BYTES, person=b"caps/v1/swap").digest()
    outgoing = {peer: [memoryview(payload)] for peer, payload in payloads.items()}
    got = await channel.exchange(tag, outgoing, {peer: len(payload) for peer, payload in payloads.items()})
    return {peer: bytes(got[peer]) for peer in payloads}
