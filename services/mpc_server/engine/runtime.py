"""One party's side of a session: drives protocols by exchanges on a channel, and checks them before results leave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from caps.basics.schemes import Scheme
from caps.errors import CapsError, CheatingDetected, CheatingUnresolved, PeerError
from caps.shares.ring import Words
from services.mpc_server.channel import TAG_BYTES, Channel
from services.mpc_server.engine.context import Branch, Context, Replies, Round
from services.mpc_server.engine.guard import guard
from services.mpc_server.engine.keys import randomness
from services.mpc_server.engine.shares import Owner
from services.mpc_server.engine.workers import IN_PROCESS, Workers

T = TypeVar("T")


class Runtime:
    """One party's side of a study's session: drives its protocols, one at a time, by exchanges on its channel."""

    __slots__ = ("channel", "context")

    def __init__(
        self,
        channel: Channel,
        *,
        study: bytes,
        scheme: Scheme,
        scope: bytes,
        secrets: Mapping[int, bytes],
        session: Mapping[int, bytes],
        workers: Workers = IN_PROCESS,
    ) -> None:
        """`secrets[c]`: what the holders of component c share in the study; `session[c]`: what in this session alone.

        Noise follows from the first, so that it is the same if a step is repeated. Masks and coins follow from the
        second: a server that makes a step fail and behaves differently the next time could otherwise compare what
        others send under the same masks, or know the coins of a check beforehand.

        Pre-conditions: `scope` names all that noise may depend on; no two sessions have the same `session`.
        """
        owner = Owner(channel.party, study, scheme)
        self.channel = channel
        bare = Context(owner, randomness(owner, session, scope), randomness(owner, secrets, scope), workers=workers)
        self.context = replace(bare, checks=guard(bare.step("guard")))

    async def execute(self, protocol: Branch[T]) -> T:
        """Drive a protocol to its result, and check it. On any error the peers are told, and the session is over."""
        protocol = self._checked(protocol)
        try:
            # Wrapping is the ring's own arithmetic; numpy would warn of it where one element is held as a scalar.
            with np.errstate(over="ignore"):
                request = protocol.send(None)
                while True:
                    request = protocol.send(await self._exchange(request))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except CapsError as error:
            found = self._found_out(error)
            await self.channel.abort(str(found), found.party if isinstance(found, PeerError) else None)
            if found is error:
                raise
            raise found from error
        except BaseException as error:
            await self.channel.abort(type(error).__name__)
            raise
        finally:
            protocol.close()

    async def _checked(self, protocol: Branch[T]) -> T:
        result = await protocol
        await self.context.guard.validate()
        return result

    def _found_out(self, error: CapsError) -> CapsError:
        """What ends the session: a server that leaves after a check has failed does not undo that."""
        guard = self.context.guard
        if guard.verdict is not None:
            return guard.verdict
        if guard.failed and isinstance(error, PeerError) and not isinstance(error, CheatingDetected):
            return CheatingUnresolved(error.party)
        return error

    async def _exchange(self, request: Round) -> Replies:
        tag = hashlib.blake2b(b"\0".join(request.names), digest_size=TAG_BYTES).digest()
        if len(request.sends) == len(request.awaits) == 1 and request.sends[0][1].size and request.awaits[0][1]:
            # By far the most frequent round, and the one whose cost is all latency.
            ((target, words),), ((source, size),) = request.sends, request.awaits
            received = await self.channel.exchange(tag, {target: [_octets(words)]}, {source: size})
            return [received[source]]
        outgoing: dict[int, list[memoryview]] = {}
        for peer, words in request.sends:
            if words.size:
                outgoing.setdefault(peer, []).append(_octets(words))
        incoming: dict[int, int] = {}
        for peer, size in request.awaits:
            if size:
                incoming[peer] = incoming.get(peer, 0) + size
        received = await self.channel.exchange(tag, outgoing, incoming)
        replies = []
        offsets = dict.fromkeys(incoming, 0)
        for peer, size in request.awaits:
            if not size:
                replies.append(memoryview(b""))
                continue
            start = offsets[peer]
            offsets[peer] = start + size
            replies.append(received[peer][start : start + size])
        return replies


def _octets(words: Words) -> memoryview:
    return np.ascontiguousarray(words).reshape(-1).data.cast("B")
