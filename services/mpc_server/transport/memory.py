"""All parties in one event loop, for tests and simulations: no sockets, no Hello, otherwise a real `Session`.

An interceptor sees each message of a round before it is delivered, and may change, delay or drop it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import combinations
from secrets import token_bytes
from typing import Final, Literal, NamedTuple

from caps.basics.schemes import REP3, Scheme
from services.mpc_server.channel import Buffers
from services.mpc_server.transport.framing import MAX_PAYLOAD, Frame, Kind
from services.mpc_server.transport.hello import SECRET_BYTES
from services.mpc_server.transport.session import Session


class Message(NamedTuple):
    """One message on its way. `round` counts the messages from `source` to `dest` before it."""

    source: int
    dest: int
    round: int
    tag: bytes
    payload: bytes


class Delay(NamedTuple):
    """Deliver `payload` after some turns of the event loop; later messages from source to dest wait behind it."""

    turns: int
    payload: bytes


DROP: Final = "drop"
"""Deliver neither this message nor anything after it from source to dest, as if the cable had been cut."""

Interceptor = Callable[[Message], bytes | Delay | Literal["drop"]]
"""Says what to deliver in place of a message."""

Pair = tuple[int, int]


def memory_channels(
    secrets: Mapping[Pair, bytes] | None = None,
    interceptor: Interceptor | None = None,
    *,
    scheme: Scheme = REP3,
    stall: float = 60.0,
    max_unread: int = MAX_PAYLOAD,
) -> tuple[Session, ...]:
    """Connected channels for all parties of a scheme, in party order.

    `secrets[i, j]` with i < j is what parties i and j share; given those, nothing here is random.
    Pre-conditions: all channels are used within one event loop.
    """
    if secrets is None:
        secrets = {pair: token_bytes(SECRET_BYTES) for pair in combinations(range(scheme.parties), 2)}
    parties = range(scheme.parties)
    pipes = {(s, d): _Pipe(s, d, interceptor) for s in parties for d in scheme.peers_of(s)}
    sessions = []
    for party in parties:
        peers = scheme.peers_of(party)
        session = Session(
            party,
            {peer: pipes[party, peer] for peer in peers},
            {peer: secrets[min(party, peer), max(party, peer)] for peer in peers},
            stall=stall,
            max_unread=max_unread,
        )
        for peer in peers:
            pipes[peer, party].target = session
        sessions.append(session)
    return tuple(sessions)


class _Pipe:
    """One direction between two parties."""

    congested = False

    def __init__(self, source: int, dest: int, interceptor: Interceptor | None) -> None:
        self.source = source
        self.dest = dest
        self.target: Session
        self._interceptor = interceptor
        self._late: deque[tuple[int, Frame]] = deque()
        self._cut = False

    def send(self, kind: Kind, sequence: int, tag: bytes, pieces: Buffers, size: int) -> None:
        payload = bytearray().join(pieces)
        turns = 0
        if self._interceptor is not None and kind is Kind.ROUND:
            answer = self._interceptor(Message(self.source, self.dest, sequence, tag, bytes(payload)))
            if isinstance(answer, str):
                self._cut = True
            elif isinstance(answer, Delay):
                turns, payload = answer.turns, bytearray(answer.payload)
            else:
                payload = bytearray(answer)
        if self._cut:
            return
        frame = Frame(kind, 0, sequence, tag, payload)
        if turns > 0 or self._late:
            self._late.append((turns, frame))
            if len(self._late) == 1:
                asyncio.get_running_loop().call_soon(self._turn)
        else:
            self.target.receive(self.source, frame)

    def release(self) -> None:
        pass

    def progress(self) -> object:
        return None

    def _turn(self) -> None:
        turns, frame = self._late.popleft()
        if turns > 1:
            self._late.appendleft((turns - 1, frame))
        else:
            self.target.receive(self.source, frame)
        if self._late:
            asyncio.get_running_loop().call_soon(self._turn)
