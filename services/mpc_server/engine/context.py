"""What a protocol sees: its role, the name of the step it is in, shared randomness, and one way to talk.

A protocol is a coroutine that awaits only messages. It never meets a socket: each round it hands over what it sends
and how much it expects, and whoever drives it (`execute`) moves the bytes. Branches run `together` share their rounds,
so the number of exchanges is the depth of the protocol, not the number of its messages.

Every message and every random draw is named by the path of its step, and a name serves once.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from math import prod
from types import coroutine
from typing import Any, Protocol, TypeVar

import numpy as np

from caps.basics.schemes import Scheme
from caps.errors import CheatingDetected, DomainError, ShareError
from caps.shares.prss import Prss
from caps.shares.ring import PLANE, Ring, Words, plane_words, ring_of
from services.mpc_server.engine.shares import AShare, BShare, Owner, RowShare, Shape
from services.mpc_server.engine.workers import IN_PROCESS, Workers

T = TypeVar("T")


@dataclass(slots=True, repr=False)
class Round:
    """Messages that leave together: names, (peer, words) to send, (peer, bytes) to wait for."""

    names: list[bytes]
    sends: list[tuple[int, Words]]
    awaits: list[tuple[int, int]]


Replies = list[memoryview]
Steps = Generator[Round, Replies, T]
Branch = Coroutine[Round, Replies | None, T]


class Checks(Protocol):
    """What a session's guard (`engine.guard`) does for every scheme."""

    rounds: int
    sent: int
    failed: bool
    verdict: CheatingDetected | None

    async def validate(self) -> None:
        """Return when all that was sent so far is checked; raise if a check fails."""

    async def settle(self) -> None:
        """Validate, if much is waiting to be checked."""


@dataclass(frozen=True, slots=True)
class Context:
    """One party's view of one step of a protocol."""

    owner: Owner
    prss: Prss
    """Masks, coins and permutations: other ones in every session."""
    drawn: Prss
    """What makes noise: the same in every session of a run, so that a step that is repeated has the same noise."""
    path: bytes = b""
    checks: Checks | None = None
    workers: Workers = IN_PROCESS
    """Who does this party's large local work."""

    @property
    def guard(self) -> Checks:
        """What checks the session's messages before anything is opened."""
        assert self.checks is not None, "a context without a session opens nothing"
        return self.checks

    @property
    def party(self) -> int:
        """0 for S1, 1 for S2, and so on."""
        return self.owner.party

    @property
    def scheme(self) -> Scheme:
        """The scheme of the study."""
        return self.owner.scheme

    def step(self, name: str | int) -> Context:
        """The context of a part of this protocol. Names need only be unique among the parts of one step."""
        part = str(name)
        if not part or "/" in part or "#" in part:
            raise DomainError(f"{part!r} cannot name a step")
        path = self.path + b"/" + part.encode()
        return Context(self.owner, self.prss, self.drawn, path, self.checks, self.workers)

    def own(self, *shares: AShare | BShare | RowShare) -> None:
        """Refuse shares of another study or another party."""
        for share in shares:
            if share.owner is not self.owner and share.owner != self.owner:
                raise ShareError(f"{share!r} was given to a protocol of {self.owner!r}")

    def share(self, *components: Words) -> AShare:
        """This party's arithmetic share from its components."""
        return AShare(self.owner, *components)

    def bits(self, shape: Shape, *components: Words) -> BShare:
        """This party's XOR share from the planes of its components."""
        return BShare(self.owner, shape, *components)

    def rows(self, *components: Words) -> RowShare:
        """This party's share of rows of bytes from its components."""
        return RowShare(self.owner, *components)

    def zero(self, shape: Shape, ring: Ring) -> AShare:
        """[[zeros]], each component of which is zero. Local."""
        return self.share(*(np.zeros(shape, ring.dtype) for _ in self.scheme.held[self.party]))

    def zero_bits(self, width: int, shape: Shape) -> BShare:
        """The same for XOR shares. Local."""
        extents = (width, plane_words(prod(shape)))
        return self.bits(shape, *(np.zeros(extents, PLANE) for _ in self.scheme.held[self.party]))

    def public(self, values: Words) -> AShare:
        """[[values]] that everybody knows. Local."""
        return self.zero(values.shape, ring_of(values)) + values

    def fresh(self, name: bytes, shape: Shape, ring: Ring) -> AShare:
        """[[uniformly random elements]] of this session, labelled by this step and a name. Local."""
        return self.share(*self.prss.replicated(self.path + b"#" + name, shape, ring))

    def fresh_bits(self, width: int, shape: Shape) -> BShare:
        """[[w uniformly random bits]] of this session per element. Local."""
        extents = (width, plane_words(prod(shape)))
        return self.bits(shape, *self.prss.replicated(self.path + b"#random", extents, _PLANES))

    def noise_bits(self, width: int, shape: Shape) -> BShare:
        """[[w uniformly random bits]] per element, the same in every session of the run: for noise. Local."""
        extents = (width, plane_words(prod(shape)))
        return self.bits(shape, *self.drawn.replicated(self.path + b"#random", extents, _PLANES))

    @coroutine
    def exchange(
        self, sends: list[tuple[int, Words]], awaits: list[tuple[int, int]]
    ) -> Generator[Round, Replies, Replies]:
        """One round. The only function of the engine that touches the channel."""
        self.prss.claim(self.path + b"#message")
        return (yield Round([self.path], sends, awaits))


_PLANES = Ring(64, PLANE)


@coroutine
def together(*branches: Branch[Any]) -> Generator[Round, Replies, list[Any]]:
    """Run protocols side by side: messages of one round travel in one frame. Results in the order given."""
    results: list[Any] = [None] * len(branches)
    running: list[tuple[int, Branch[Any], Round]] = []

    def advance(index: int, branch: Branch[Any], replies: Replies | None) -> None:
        try:
            running.append((index, branch, branch.send(replies)))
        except StopIteration as finished:
            results[index] = finished.value

    try:
        for index, branch in enumerate(branches):
            advance(index, branch, None)
        while running:
            waiting, running = running, []
            joint = Round([], [], [])
            for _, _, part in waiting:
                joint.names += part.names
                joint.sends += part.sends
                joint.awaits += part.awaits
            replies = yield joint
            start = 0
            for index, branch, part in waiting:
                stop = start + len(part.awaits)
                advance(index, branch, replies[start:stop])
                start = stop
    finally:
        for branch in branches:
            branch.close()
    return results
