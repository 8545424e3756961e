"""One party that cheats, in any protocol: what it sends, draws, multiplies or knows is altered at chosen places.

A protocol runs at all parties in one thread, without an event loop, so thousands of runs take minutes. First it runs
honestly; that run says where one could cheat (`Place`), what every party opens and what comes out. In an altered run
one party, the culprit, cheats at one place or several. Whoever is not stopped goes on as long as messages reach it: the
culprit may delay a message that says "abort", and so does this kit, until nothing else can happen.

What an honest party opens, and what it is left with, must be as in the honest run; or it must have given up before.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import coroutine
from typing import Any
from unittest.mock import patch

import numpy as np

from caps.basics.schemes import Scheme
from caps.errors import CheatingDetected, CheatingUnresolved, PeerAborted, PeerError, PeerLost, PeerViolation
from caps.shares.prss import Prss
from caps.shares.ring import Z64, Ring, Words, pack_bits
from services.mpc_server.channel import Buffers, Traffic
from services.mpc_server.engine import runtime as runtimes
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.guard import Guard
from services.mpc_server.engine.keys import randomness
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.engine.shares import AShare, BShare, Owner, RowShare
from services.mpc_server.engine.verbs import COMPARED, VERBS, reveal, reveal_bits
from services.mpc_server.testing.world import World
from tests.kit.cases.all import CASES
from tests.kit.cases.base import Call, Source

OPENINGS = (reveal, reveal_bits)
PROTOCOLS = sorted(
    name
    for name, declared in REGISTRY.items()
    if not declared.module.startswith("paper") and name not in {verb.__name__ for verb in COMPARED}
)
"""All that a study may run."""


class Small(Source):
    """Draws small sizes: what is altered matters here, not how much there is."""

    def count(self, low: int = 1, high: int = 150) -> int:
        return super().count(low, min(high, low + 3))

    def shape(self) -> tuple[int, ...]:
        return (self.count(1, 4),)


# Where and how ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Something a party does that could be done otherwise.

    kind: a `message` on its way; a message and the `copy` that its sender keeps; a `mask` or other draw from the key
    of one component; a `factor`, one component of what a verb is given; the `key` of a component. number: which of
    these, in the order in which the party does them.
    """

    kind: str
    party: int
    number: int
    octets: int
    what: str = field(compare=False)


def flipped(octets: Words, rng: np.random.Generator) -> None:
    """One bit."""
    octets[rng.integers(len(octets))] ^= np.uint8(1 << rng.integers(8))


def top_flipped(octets: Words, rng: np.random.Generator) -> None:
    """The top bit of a word: twice this error is none, so that a random combination misses it half of the time."""
    size = _word(octets, rng)
    octets[size * rng.integers(len(octets) // size) + size - 1] ^= np.uint8(0x80)


def replaced(octets: Words, rng: np.random.Generator) -> None:
    """One word."""
    size = _word(octets, rng)
    start = size * rng.integers(len(octets) // size)
    octets[start : start + size] = rng.integers(0, 256, size, np.uint8)


def increased(octets: Words, rng: np.random.Generator) -> None:
    """One word by a small number."""
    words = _words(octets, _word(octets, rng))
    words[rng.integers(len(words))] += words.dtype.type(rng.integers(1, 4))


def shifted(octets: Words, rng: np.random.Generator) -> None:
    """All words by one number."""
    words = _words(octets, _word(octets, rng))
    words += words.dtype.type(rng.integers(1, 256))


def zeroed(octets: Words, rng: np.random.Generator) -> None:
    """All of it."""
    octets[:] = 0


def drawn(octets: Words, rng: np.random.Generator) -> None:
    """All of it, at random."""
    octets[:] = rng.integers(0, 256, len(octets), np.uint8)


def swapped(octets: Words, rng: np.random.Generator) -> None:
    """The two halves: of rows, these are other rows."""
    half = len(octets) // 2
    octets[:half], octets[half : 2 * half] = octets[half : 2 * half].copy(), octets[:half].copy()


def balanced(octets: Words, rng: np.random.Generator) -> None:
    """Two words, so that their sum is right."""
    words = _words(octets, _word(octets, rng))
    error = words.dtype.type(rng.integers(1, 256))
    words[0] += error
    words[-1] -= error


def _word(octets: Words, rng: np.random.Generator) -> int:
    return int(rng.choice([size for size in (1, 2, 4, 8) if len(octets) >= size]))


def _words(octets: Words, size: int) -> Words:
    return octets[: len(octets) // size * size].view(f"<u{size}")


WAYS: Sequence[Callable[[Words, np.random.Generator], None]] = (
    flipped,
    top_flipped,
    replaced,
    increased,
    shifted,
    zeroed,
    drawn,
    swapped,
    balanced,
)
"""How bytes are altered. Each changes them in place."""


class Plan:
    """What a culprit does: alters what is at some places, each in a way drawn from a seed."""

    def __init__(self, places: Sequence[Place], seed: int) -> None:
        self.places = {(place.kind, place.number): place for place in places}
        self._rng = np.random.default_rng(seed)
        self._seen: dict[int, list[bytes]] = {}
        self.altered = False
        """Whether anything became other than it would have been."""

    def wants(self, kind: str, number: int) -> bool:
        return (kind, number) in self.places

    def saw(self, payload: bytes) -> None:
        """Remember a message, which may be sent again in place of another."""
        self._seen.setdefault(len(payload), []).append(payload)

    def alter(self, octets: Words, *, replay: bool = False) -> None:
        """Change some bytes; if that is impossible in the way that was drawn, then in another."""
        before = octets.copy()
        for _ in range(8):
            others = [seen for seen in self._seen.get(len(octets), ()) if seen != before.tobytes()] if replay else []
            if others and self._rng.random() < 0.15:
                octets[:] = np.frombuffer(others[self._rng.integers(len(others))], np.uint8)
            else:
                WAYS[self._rng.integers(len(WAYS))](octets, self._rng)
            if not np.array_equal(octets, before):
                self.altered = True
                return

    def altered_words(self, words: Words) -> Words:
        """Other words in place of these."""
        octets = np.frombuffer(bytearray(np.ascontiguousarray(words).tobytes()), np.uint8)
        self.alter(octets)
        return octets.view(words.dtype).reshape(words.shape)


# One run ------------------------------------------------------------------------------------------------------------


class Run:
    """What happens in one run: who does what where, what is opened, and who ends how."""

    def __init__(
        self, scheme: Scheme, culprit: int | None = None, plan: Plan | None = None, *, guarded: bool = True
    ) -> None:
        """guarded: whether the scheme's checks are made; without them it is worth no more than one without any."""
        self.scheme = scheme
        self.guarded = guarded
        self.culprit = culprit
        self._plan = plan
        self._counts: Counter[tuple[str, int]] = Counter()
        self.places: list[Place] = []
        self.opened: dict[tuple[int, bytes], bytes] = {}
        """By party and step, a digest of the shares that a party began to open."""
        self.inboxes: dict[tuple[int, int], deque[tuple[bytes, bytearray]]] = {
            (source, dest): deque() for source in range(scheme.parties) for dest in scheme.peers_of(source)
        }
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}

    def at(self, kind: str, party: int, octets: int, what: str) -> Plan | None:
        """Note that a party is at a place. If it is to cheat here, the plan."""
        number = self._counts[kind, party]
        self._counts[kind, party] += 1
        if self._plan is None:
            if octets:
                self.places.append(Place(kind, party, number, octets, what))
            return None
        return self._plan if party == self.culprit and self._plan.wants(kind, number) else None

    def post(self, source: int, dest: int, tag: bytes, pieces: Buffers) -> None:
        """Send a message: as it is, altered on its way, or altered together with its sender's copy."""
        size = sum(piece.nbytes for piece in pieces)
        what = f"to S{dest + 1}"
        plan = self.at("copy", source, size if any(not piece.readonly for piece in pieces) else 0, what)
        if plan is not None:
            for piece in pieces:
                if not piece.readonly:
                    plan.alter(np.frombuffer(piece, np.uint8))
        payload = bytearray().join(pieces)
        plan = self.at("message", source, size, what)
        if plan is not None:
            plan.alter(np.frombuffer(payload, np.uint8), replay=True)
        elif source == self.culprit and self._plan is not None:
            self._plan.saw(bytes(payload))
        self.inboxes[source, dest].append((tag, payload))

    def draw(self, party: int, component: int, label: bytes, words: Words) -> Words:
        """What a party draws from a component's key."""
        plan = self.at("mask", party, words.nbytes, f"{label.decode()} of component {component}")
        return words if plan is None else plan.altered_words(words)

    def given(self, party: int, name: str, arguments: Sequence[Any]) -> list[Any]:
        """What a party gives to a verb."""
        return [
            self._share(party, name, argument) if isinstance(argument, AShare | BShare | RowShare) else argument
            for argument in arguments
        ]

    def _share(self, party: int, name: str, share: Any) -> Any:
        components, changed = list(share.components), False
        for i, words in enumerate(components):
            plan = self.at("factor", party, words.nbytes, f"component {self.scheme.held[party][i]} given to {name}")
            if plan is not None:
                components[i], changed = plan.altered_words(words), True
        if not changed:
            return share
        if isinstance(share, BShare):
            return BShare(share.owner, share.shape, *components)
        return type(share)(share.owner, *components)

    def key(self, party: int, component: int, secret: bytes) -> bytes:
        """The secret that a party uses for a component."""
        plan = self.at("key", party, len(secret), f"secret of component {component}")
        return secret if plan is None else plan.altered_words(np.frombuffer(secret, np.uint8)).tobytes()

    def opens(self, ctx: Context, share: Any) -> None:
        """A party is about to open a share: all that it depends on was validated."""
        digest = hashlib.blake2b(digest_size=16)
        used = pack_bits(np.ones((1, share.size), np.uint8)) if isinstance(share, BShare) else None
        for words in share.components:
            # Planes are whole words; what stands in bits of no element is neither right nor wrong.
            digest.update(np.ascontiguousarray(words if used is None else words & used).data)
        self.opened[ctx.party, ctx.path] = digest.digest()


class Wire:
    """One party's end of a channel on which messages are moved by hand."""

    def __init__(self, run: Run, party: int) -> None:
        self._run = run
        self.party = party
        self.traffic = Traffic()

    def secret_with(self, peer: int) -> bytes:
        raise NotImplementedError

    async def exchange(
        self, tag: bytes, outgoing: Mapping[int, Buffers], incoming: Mapping[int, int]
    ) -> Mapping[int, memoryview]:
        for peer, pieces in outgoing.items():
            self._run.post(self.party, peer, tag, pieces)
        self.traffic.rounds += 1
        arrived = {}
        for peer, (named, payload) in (await _arrival(incoming)).items():
            if named != tag:
                raise PeerViolation(peer, "message with another tag")
            if len(payload) != incoming[peer]:
                raise PeerViolation(peer, f"message of {len(payload)} bytes, not {incoming[peer]}")
            arrived[peer] = memoryview(payload)
        return arrived

    async def abort(self, cause: str, blames: int | None = None) -> None:
        pass

    async def close(self) -> None:
        pass


@coroutine
def _arrival(incoming: Mapping[int, int]) -> Generator[Any, Any, Any]:
    return (yield incoming)


def drive(run: Run, executions: Mapping[int, Coroutine[Any, Any, Any]]) -> None:
    """Move messages until every party has ended."""
    waiting: dict[int, Mapping[int, int]] = {}

    def advance(party: int, replies: Any, error: BaseException | None = None) -> None:
        execution = executions[party]
        try:
            waiting[party] = execution.send(replies) if error is None else execution.throw(error)
        except StopIteration as finished:
            run.results[party] = finished.value
        except Exception as failed:  # noqa: BLE001 - whatever a party ends with is an outcome
            run.errors[party] = failed

    for party in executions:
        advance(party, None)
    while waiting:
        ready = [p for p, incoming in waiting.items() if all(run.inboxes[peer, p] for peer in incoming)]
        for party in ready:
            advance(party, {peer: run.inboxes[peer, party].popleft() for peer in waiting.pop(party)})
        if not ready:
            for party, incoming in list(waiting.items()):
                missing = [peer for peer in incoming if not run.inboxes[peer, party] and peer not in waiting]
                if missing:
                    del waiting[party]
                    failed = missing[0] in run.errors
                    advance(party, None, (PeerAborted if failed else PeerLost)(missing[0], "the other end is gone"))
                    break
            else:
                raise AssertionError("parties wait for each other")


class _Prss(Prss):
    """Draws as any other; what is drawn may be altered."""

    __slots__ = ("party", "run")

    def replicated(self, label: bytes, shape: tuple[int, ...], ring: Ring) -> tuple[Words, ...]:
        drawn = super().replicated(label, shape, ring)
        return tuple(self.run.draw(self.party, c, label, words) for c, words in zip(self.keys, drawn, strict=True))

    def component(self, number: int, label: bytes, shape: tuple[int, ...], ring: Ring) -> Words:
        return self.run.draw(self.party, number, label, super().component(number, label, shape, ring))


@contextmanager
def watched(run: Run) -> Iterator[None]:
    """Have all that parties draw, multiply and open pass by a run."""

    def keys(owner: Owner, secrets: Mapping[int, bytes], scope: bytes) -> Prss:
        secrets = {c: run.key(owner.party, c, secret) for c, secret in secrets.items()}
        prss = _Prss(randomness(owner, secrets, scope).keys)
        prss.run, prss.party = run, owner.party
        return prss

    def passing(verb: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
        async def call(ctx: Context, *arguments: Any, **choices: Any) -> Any:
            arguments = run.given(ctx.party, verb.__name__, arguments)
            if verb in OPENINGS:
                run.opens(ctx, arguments[0])
            return await implementation(ctx, *arguments, **choices)

        return call

    validate = Guard.validate

    async def stubborn(guard: Guard) -> None:
        """A culprit goes on although its own check failed."""
        if not run.guarded:
            return
        try:
            await validate(guard)
        except PeerViolation:
            if guard._ctx.party != run.culprit:
                raise
            guard._running.clear()

    with ExitStack() as stack:
        stack.enter_context(patch.object(runtimes, "randomness", keys))
        stack.enter_context(patch.object(Guard, "validate", stubborn))
        for verb in VERBS:
            if verb.__name__ != "guard":
                known = verb._implementations
                stack.enter_context(patch.dict(known, {run.scheme.name: passing(verb, known[run.scheme.name])}))
        yield


async def opened(ctx: Context, result: Any) -> Any:
    """All shares in a result, opened."""
    if isinstance(result, tuple | list):
        return tuple(await together(*(opened(ctx.step(i), part) for i, part in enumerate(result))))
    if isinstance(result, AShare):
        return await reveal(ctx, result)
    if isinstance(result, BShare):
        return await reveal_bits(ctx, result, ring=Z64)
    return result


def perform(run: Run, name: str, call: Call) -> Run:
    """A protocol of the registry, and the opening of what it returns, at all parties."""
    world = World(1, scheme=run.scheme)

    async def whole(ctx: Context, arguments: Sequence[Any]) -> Any:
        result = await CASES[name][0](ctx.step("test"), *arguments, **call.kwargs)
        return await opened(ctx.step("opened"), result)

    with watched(run):
        parties = [world.runtime(Wire(run, p)) for p in range(run.scheme.parties)]
        contexts = [party.context for party in parties]
        inputs = [world.share(contexts, argument) for argument in call.args]
        drive(
            run,
            {p: parties[p].execute(whole(contexts[p], [share[p] for share in inputs])) for p in range(len(parties))},
        )
    return run


# What becomes of it -------------------------------------------------------------------------------------------------

RIGHT, CAUGHT, ENDED = "right", "caught", "ended"
WRONG, REFUSED, OPENED, MISNAMED, CRASHED = "wrong", "refused", "opened", "misnamed", "crashed"
OUTCOMES = {
    RIGHT: "every honest server has the right result",
    CAUGHT: "an honest server gave up and named the culprit",
    ENDED: "the culprit itself gave up",
    WRONG: "an honest server has a wrong result",
    REFUSED: "an honest holder's contribution is refused",
    OPENED: "something false was opened before a server gave up",
    MISNAMED: "an honest server named only honest servers",
    CRASHED: "an honest server failed otherwise",
}
ALLOWED = {RIGHT, CAUGHT, ENDED}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


def refuses(got: Any, honest: Any) -> bool:
    """Whether a verdict on a contribution is no that should be yes."""
    if isinstance(honest, tuple):
        return any(map(refuses, got, honest))
    flags = np.asarray(honest)
    return flags.dtype == bool and flags.shape == np.shape(got) and bool((flags & ~np.asarray(got)).any())


def named(error: BaseException) -> set[int]:
    """Whom an error says to have cheated."""
    if isinstance(error, CheatingDetected) and error.pair is not None:
        return set(error.pair)
    assert isinstance(error, PeerError)
    return {error.party}


def judged(run: Run, honest: Run) -> str:
    """The outcome of an altered run, the worst if there are several."""
    parties = [p for p in range(run.scheme.parties) if p != run.culprit]
    verdicts = []
    for party in parties:
        if party in run.results and not same(run.results[party], honest.results[party]):
            verdicts.append(REFUSED if refuses(run.results[party], honest.results[party]) else WRONG)
    for (party, step), digest in run.opened.items():
        if party != run.culprit and honest.opened.get((party, step)) != digest:
            verdicts.append(OPENED)
    for party in parties:
        error = run.errors.get(party)
        if error is None or (isinstance(error, PeerAborted | PeerLost) and error.party != run.culprit):
            continue  # it has its result, or it heard from an honest server that gave up
        if isinstance(error, CheatingUnresolved):
            verdicts.append(CAUGHT)
        elif not isinstance(error, PeerError):
            verdicts.append(CRASHED)
        elif run.culprit not in named(error):
            verdicts.append(MISNAMED)
        else:
            verdicts.append(ENDED if isinstance(error, PeerAborted | PeerLost) else CAUGHT)
    for outcome in (WRONG, REFUSED, OPENED, CRASHED, MISNAMED, CAUGHT, ENDED):
        if outcome in verdicts:
            return outcome
    return RIGHT


@dataclass
class Found:
    """One altered run that must not be: enough to repeat it."""

    scheme: str
    protocol: str
    drawn: int
    places: tuple[Place, ...]
    seed: int
    outcome: str

    def __str__(self) -> str:
        where = "; ".join(f"S{p.party + 1} {p.kind} {p.number} ({p.what}, {p.octets} bytes)" for p in self.places)
        return f"{self.outcome}: {self.scheme} {self.protocol}, drawn {self.drawn}, {where}, seed {self.seed}"


@dataclass
class Table:
    """How altered runs of a scheme ended."""

    scheme: str
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By protocol and outcome."""
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of place and outcome."""
    found: list[Found] = field(default_factory=list)
    places: int = 0
    """Places at which a run was altered, each counted once."""

    @property
    def runs(self) -> int:
        return self.counts.total()

    def outcome(self, outcome: str) -> int:
        """Runs that ended so."""
        return sum(count for (_, found), count in self.counts.items() if found == outcome)

    def __str__(self) -> str:
        seen = [outcome for outcome in OUTCOMES if self.outcome(outcome)]
        lines = [f"{self.scheme}: {self.runs} altered runs at {self.places} places"]
        lines += [
            f"  {self.outcome(outcome):>7} {100 * self.outcome(outcome) / self.runs:6.2f} %  {OUTCOMES[outcome]}"
            for outcome in seen
        ]
        lines.append(f"  {'':<20}" + "".join(f"{outcome:>10}" for outcome in seen))
        for counts in (self.by_kind, self.counts):
            for name in sorted({name for name, _ in counts}):
                lines.append(f"  {name:<20}" + "".join(f"{counts[name, outcome]:>10}" for outcome in seen))
        return "\n".join(lines)


def drawn_call(name: str, drawn: int) -> Call:
    return CASES[name][1](Small(np.random.default_rng(drawn), np.random.default_rng(drawn)))


def cheat(table: Table, scheme: Scheme, name: str, *, runs: int, seed: int = 1) -> None:
    """Alter a protocol so often: each message and each other place in turn, then several of one culprit's at once."""
    rng = np.random.default_rng([seed, *name.encode()])
    done = drawn = 0
    while done < runs:
        drawn += 1
        call = drawn_call(name, drawn)
        honest = perform(Run(scheme), name, call)
        assert not honest.errors, honest.errors
        places = [honest.places[i] for i in rng.permutation(len(honest.places))]
        # Messages first: there are fewer of them than of draws and factors, and each is to be altered.
        places.sort(key=lambda place: place.kind not in ("message", "copy"))
        share = max(1, min(len(places), (runs - done + 1) // 2 if drawn < 3 else runs - done))
        for place in _mixed(places)[:share]:
            chosen = [place]
            if rng.random() < 0.25:
                own = [other for other in honest.places if other.party == place.party]
                chosen += [own[i] for i in rng.integers(len(own), size=rng.integers(1, 4))]
            number = int(rng.integers(1 << 32))
            run, altered = altered_run(scheme, name, call, chosen, number)
            if not altered:
                continue
            outcome = judged(run, honest)
            table.counts[name, outcome] += 1
            table.by_kind[place.kind, outcome] += 1
            table.places += 1
            done += 1
            if outcome not in ALLOWED:
                table.found.append(Found(scheme.name, name, drawn, tuple(chosen), number, outcome))


def _mixed(places: Sequence[Place]) -> list[Place]:
    """Half of them messages, half others, as long as there are both."""
    sent = [place for place in places if place.kind in ("message", "copy")]
    others = [place for place in places if place.kind not in ("message", "copy")]
    both = [place for pair in zip(sent, others, strict=False) for place in pair]
    return both + sent[len(others) :] + others[len(sent) :]


def altered_run(
    scheme: Scheme, name: str, call: Call, places: Sequence[Place], seed: int, *, guarded: bool = True
) -> tuple[Run, bool]:
    """One run in which the party of these places cheats there; and whether that made any difference to what it did."""
    plan = Plan(places, seed)
    run = perform(Run(scheme, places[0].party, plan, guarded=guarded), name, call)
    return run, plan.altered
