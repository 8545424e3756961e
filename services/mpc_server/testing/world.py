"""All servers in one process, derived from one seed, for testing protocols.

A world shares the inputs, runs the protocol at every party and puts the result together. It also counts:

    >>> import numpy as np
    >>> from services.mpc_server.engine.verbs import multiply
    >>> from services.mpc_server.testing.world import World
    >>> async def cube(ctx, x):
    ...     return await multiply(ctx.step("cube"), x, await multiply(ctx.step("square"), x, x))
    >>> x = np.array([2, 3], np.uint64)
    >>> outcome = World(seed=1).run(cube, x)
    >>> outcome.value.tolist(), outcome.rounds, outcome.sent
    ([8, 27], 2, (32, 32, 32))

The engine cannot tell this world from the real one: it uses the same `Channel`. A world can also tamper: an
interceptor may read, change, delay or drop any message on its way.

    >>> def truncate(message):
    ...     return message.payload[:-1] if message.source == 0 else message.payload
    >>> World(seed=1, interceptor=truncate).run(cube, x)
    Traceback (most recent call last):
    services.mpc_server.testing.world.Failed: ... S3: PeerViolation('S1: message of 15 bytes, not 16')
    World(seed=1)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caps.basics.schemes import REP3, Scheme
from caps.errors import CapsError
from caps.shares.prss import expand
from caps.shares.ring import Words, planes_to_words
from caps.shares.sharing import Algebra, deal, reconstruct
from services.mpc_server.channel import Channel
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare, BShare, component_bits
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.transport.memory import Interceptor, Message, memory_channels

STUDY = hashlib.sha256(b"caps test study").digest()


@dataclass(frozen=True)
class Bits:
    """A secret input of `width`-bit elements, to be XOR-shared."""

    words: Words
    width: int


@dataclass(frozen=True)
class Rows:
    """A secret input of rows of bytes; each party is given its components."""

    octets: Words


class PerParty:
    """An argument that differs from party to party."""

    def __init__(self, *values: Any) -> None:
        self.values = values


@dataclass
class Outcome:
    """The outcome of a run: the reconstructed result, and the declared quantities as measured."""

    value: Any
    rounds: int
    sent: tuple[int, ...]
    """Bytes of the protocol's own messages, by party."""
    inputs: list[list[Any]] = field(repr=False)
    check_rounds: int = 0
    """Rounds of checks before openings and at the end, which are among `rounds`."""
    check_sent: tuple[int, ...] = ()
    """Bytes of these checks, by party."""


class Failed(Exception):
    """At least one party raised; `errors[p]` is what party p raised, or None."""

    def __init__(self, errors: Sequence[BaseException | None]) -> None:
        super().__init__("; ".join(f"S{p + 1}: {e!r}" for p, e in enumerate(errors) if e is not None))
        self.errors = tuple(errors)


def _digest(label: str) -> bytes:
    return hashlib.blake2b(label.encode(), digest_size=32).digest()


class World:
    """Parties whose keys and input sharings all come from `seed`. An error that leaves a run names the seed."""

    def __init__(
        self,
        seed: int = 0,
        *,
        scheme: Scheme = REP3,
        keys: int | None = None,
        interceptor: Interceptor | None = None,
        stall: float = 5.0,
        workers: Workers = IN_PROCESS,
    ) -> None:
        """`keys` gives the parties another session than the seed's: the same shares and noise, masked afresh."""
        self.seed = seed
        self.scheme = scheme
        self._keys = seed if keys is None else keys
        self._interceptor = interceptor
        self._stall = stall
        self._workers = workers
        self._dealt = 0

    def secrets(self, party: int) -> dict[int, bytes]:
        """What a party shares in the study with the other holders of each of its components: noise follows from it."""
        return {component: _digest(f"{self.seed}/component/{component}") for component in self.scheme.held[party]}

    def session(self, party: int) -> dict[int, bytes]:
        """What it shares in a session: masks follow from it."""
        return {component: _digest(f"{self._keys}/session/{component}") for component in self.scheme.held[party]}

    def runtime(self, channel: Channel) -> Runtime:
        """A party of this world, on its end of a channel."""
        party = channel.party
        return Runtime(
            channel,
            study=STUDY,
            scheme=self.scheme,
            scope=b"world",
            secrets=self.secrets(party),
            session=self.session(party),
            workers=self._workers,
        )

    def _entropy(self, size: int) -> bytes:
        self._dealt += 1
        assert size == 32
        return _digest(f"{self.seed}/deal/{self._dealt}")

    def share(self, contexts: Sequence[Context], argument: Any) -> list[Any]:
        """One argument as each party sees it."""
        match argument:
            case PerParty(values=values):
                assert len(values) == self.scheme.parties, "an argument for each party"
                return list(values)
            case Bits(words=words, width=width):
                words = np.asarray(words)
                dealt = deal(
                    component_bits(words, width), entropy=self._entropy, algebra=Algebra.XOR, scheme=self.scheme
                )
                return [c.bits(words.shape, *d.components()) for c, d in zip(contexts, dealt, strict=True)]
            case Rows(octets=octets):
                rows = np.ascontiguousarray(octets)
                dealt = deal(rows, entropy=self._entropy, algebra=Algebra.XOR, scheme=self.scheme)
                return [d.components() for d in dealt]
            case np.ndarray() | np.generic() if argument.dtype.kind == "u":
                dealt = deal(np.asarray(argument), entropy=self._entropy, scheme=self.scheme)
                return [c.share(*d.components()) for c, d in zip(contexts, dealt, strict=True)]
        return [argument] * self.scheme.parties

    def channels(self) -> Sequence[Channel]:
        """Between the parties, with the keys of this world."""
        return memory_channels(scheme=self.scheme, interceptor=self._interceptor, stall=self._stall)

    def run(self, protocol: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
        """Share the unsigned arrays among `args`, run the protocol at every party, reconstruct what it returns."""
        try:
            return asyncio.run(self._run(protocol, args, kwargs))
        except Exception as error:
            error.add_note(f"World(seed={self.seed}{'' if self._keys == self.seed else f', keys={self._keys}'})")
            raise

    async def _run(self, protocol: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
        channels = self.channels()
        parties = [self.runtime(channel) for channel in channels]
        contexts = [party.context.step("test") for party in parties]
        inputs = [self.share(contexts, argument) for argument in args]
        results = await asyncio.gather(
            *(
                parties[p].execute(protocol(contexts[p], *(shares[p] for shares in inputs), **kwargs))
                for p in range(self.scheme.parties)
            ),
            return_exceptions=True,
        )
        errors = [r if isinstance(r, BaseException) else None for r in results]
        if any(errors):
            for error in errors:
                if error is not None and not isinstance(error, CapsError):
                    raise error
            raise Failed(errors)
        for channel in channels:
            await channel.close()
        rounds = {channel.traffic.rounds for channel in channels}
        assert len(rounds) == 1, f"parties disagree on the number of rounds: {rounds}"
        guards = [party.context.guard for party in parties]
        return Outcome(
            self.open(results),
            rounds.pop(),
            tuple(channel.traffic.sent - guard.sent for channel, guard in zip(channels, guards, strict=True)),
            inputs,
            guards[0].rounds,
            tuple(guard.sent for guard in guards),
        )

    def open(self, results: Sequence[Any]) -> Any:
        """The value behind the parties' results; replicated components must agree."""
        first = results[0]
        if isinstance(first, AShare):
            return reconstruct([r.components for r in results], scheme=self.scheme)
        if isinstance(first, BShare):
            planes = reconstruct([r.components for r in results], algebra=Algebra.XOR, scheme=self.scheme)
            return planes_to_words(planes, first.size).reshape(first.shape)
        if isinstance(first, tuple):
            return tuple(self.open(parts) for parts in zip(*results, strict=True))
        for other in results[1:]:
            assert np.array_equal(first, other), "parties opened different values"
        return first


def uniform_words(seed: int, shape: tuple[int, ...], ring: Any) -> Words:
    """Reproducible test data without numpy.random's conventions."""
    return expand(hashlib.sha256(str(seed).encode()).digest(), b"test-data", shape, ring)


@dataclass
class Recorder:
    """An interceptor that keeps every message and changes none."""

    messages: list[Message] = field(default_factory=list)

    def __call__(self, message: Message) -> bytes:
        self.messages.append(message)
        return message.payload
