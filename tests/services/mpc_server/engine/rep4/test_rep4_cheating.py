"""One of four servers cheats, in any message of any verb or in what it computes: never a wrong result.

Whoever notices names a pair with the culprit in it, and nothing is opened that depends on what was altered.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from caps.basics.schemes import REP4
from caps.dp.bounds import DEVIATION_SOUNDNESS, MOST_SESSIONS
from caps.errors import CheatingDetected, CheatingUnresolved, LocalError
from caps.shares.ring import Z16, Z64
from services.mpc_server.channel import TAG_BYTES
from services.mpc_server.engine import verbs
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.rep4 import arithmetic, boolean, checks, conversion, joint, matrices, signs
from services.mpc_server.engine.rep4.checks import Comparisons
from services.mpc_server.engine.shares import AShare, BShare
from services.mpc_server.testing.world import Failed, Recorder, World
from services.mpc_server.transport.memory import Message
from tests.kit.cases.all import CASES
from tests.kit.cases.base import Call, Source
from tests.kit.cheating import Table, cheat

pytestmark = pytest.mark.chaos

PARTIES = range(REP4.parties)
NAMES = sorted(one.__name__ for one in verbs.VERBS if one.__name__ in CASES)
PROTOCOLS = ["check_one_hot", "count", "error_scores", "less_than", "noisy_argmax", "tag_rows", "to_bits"]


class Small(Source):
    def count(self, low: int = 1, high: int = 150) -> int:
        return super().count(low, min(high, low + 4))


def small(name: str, seed: int) -> Call:
    return CASES[name][1](Small(np.random.default_rng(seed), np.random.default_rng(seed)))


def tag(path: bytes) -> bytes:
    return hashlib.blake2b(path, digest_size=TAG_BYTES).digest()


async def opened(ctx: Context, result: Any) -> Any:
    """What is behind shares, opened one after another."""
    if isinstance(result, AShare):
        return await verbs.reveal(ctx, result)
    if isinstance(result, BShare):
        return await verbs.reveal_bits(ctx, result, ring=Z64)
    if isinstance(result, tuple):
        return [await opened(ctx.step(number), one) for number, one in enumerate(result)]
    return result


@dataclass
class Trial:
    """A protocol whose result is opened, and what every party opened."""

    name: str
    call: Call
    seed: int = 1
    seen: dict[int, Any] = field(default_factory=dict)

    async def _protocol(self, ctx: Context, *args: Any, **kwargs: Any) -> None:
        result = await CASES[self.name][0](ctx.step("run"), *args, **kwargs)
        self.seen[ctx.party] = await opened(ctx.step("open"), result)

    def run(self, interceptor: Any = None) -> tuple[BaseException | None, ...]:
        """What each party raised, if any did."""
        self.seen = {}
        try:
            World(self.seed, scheme=REP4, interceptor=interceptor).run(
                self._protocol, *self.call.args, **self.call.kwargs
            )
        except Failed as failed:
            return failed.errors
        return (None,) * len(PARTIES)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return np.array_equal(one, other)


def judge(trial: Trial, expected: Any, errors: tuple[BaseException | None, ...], culprit: int) -> bool:
    """Whether honest parties noticed. What they opened must be right, and whom they name a pair with the culprit."""
    honest = [party for party in PARTIES if party != culprit]
    for party in honest:
        if party in trial.seen:
            assert same(trial.seen[party], expected), f"S{party + 1} opened something wrong"
    found = [errors[party].pair for party in honest if isinstance(errors[party], CheatingDetected)]
    named = [pair for pair in found if pair is not None]
    assert all(culprit in pair for pair in named), f"S{culprit + 1} cheated, {named} were named"
    if any(errors[party] is not None for party in honest):
        assert named, errors
    return bool(named)


def flipped(payload: bytes, rng: np.random.Generator) -> bytes:
    octets = bytearray(payload)
    octets[rng.integers(len(octets))] ^= 1 << rng.integers(8)
    return bytes(octets)


def drawn(payload: bytes, rng: np.random.Generator) -> bytes:
    return rng.bytes(len(payload))


def top(payload: bytes, rng: np.random.Generator) -> bytes:
    """The top bit of every byte."""
    return bytes(octet ^ 0x80 for octet in payload)


def zeroed(payload: bytes, rng: np.random.Generator) -> bytes:
    return bytes(len(payload))


WAYS = (flipped, drawn, top, zeroed)


def alter(chosen: Message, way: Callable[[bytes, np.random.Generator], bytes], rng: np.random.Generator) -> Any:
    def interceptor(message: Message) -> bytes:
        if (message.source, message.dest, message.round) == (chosen.source, chosen.dest, chosen.round):
            return way(message.payload, rng)
        return message.payload

    return interceptor


@pytest.mark.drawn(5)
@pytest.mark.parametrize(("name", "narrow"), [*((name, matrices.NARROW) for name in NAMES), ("gram_cells", 0)])
def test_every_altered_message_of_a_verb_is_noticed_before_the_opening(
    name: str, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "NARROW", narrow)
    rng = np.random.default_rng(5)
    trial = Trial(name, small(name, 3))
    recorder = Recorder()
    assert not any(trial.run(recorder))
    expected, noticed = trial.seen[0], defaultdict(list)
    openings = {tag(b"/test/open"), *(tag(b"/test/open/%d" % n) for n in range(20))}
    if name in ("reveal", "reveal_bits"):
        openings.add(tag(b"/test/run"))
    tags = [tag(b"/guard/check%d/all/%b" % (n, part)) for n in range(9) for part in (b"told", b"heard")]
    for message in recorder.messages:
        for way in WAYS:
            altered = alter(message, way, rng)
            if altered(message) == message.payload:
                continue
            after = Recorder()

            def both(one: Message, altered: Any = altered, after: Recorder = after) -> bytes:
                after(one)
                return altered(one)

            errors = trial.run(both)
            kind = "open" if message.tag in openings else "check" if message.tag in tags else "verb"
            noticed[kind].append(judge(trial, expected, errors, message.source))
            if kind == "verb":
                assert not any(one.tag in openings for one in after.messages), "something was opened"
                assert not trial.seen
    assert noticed["open"]
    for found in noticed.values():
        assert all(found)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_altered_messages_of_protocols_are_noticed(name: str) -> None:
    rng = np.random.default_rng(6)
    trial = Trial(name, small(name, 4))
    recorder = Recorder()
    assert not any(trial.run(recorder))
    expected = trial.seen[0]
    for number in rng.choice(len(recorder.messages), min(40, len(recorder.messages)), replace=False):
        message = recorder.messages[number]
        assert judge(trial, expected, trial.run(alter(message, flipped, rng)), message.source)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("culprit", PARTIES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_server_that_alters_all_it_sends_from_some_point_on_is_noticed(name: str, culprit: int) -> None:
    trial = Trial(name, small(name, 8))
    recorder = Recorder()
    assert not any(trial.run(recorder))
    expected = trial.seen[0]
    last = max(message.round for message in recorder.messages)
    for start in range(0, last + 1, max(1, last // 4)):
        rng = np.random.default_rng(start)
        altered: list[Message] = []

        def interceptor(
            message: Message, start: int = start, rng: np.random.Generator = rng, altered: list[Message] = altered
        ) -> bytes:
            if message.source != culprit or message.round < start:
                return message.payload
            altered.append(message)
            return drawn(message.payload, rng)

        assert judge(trial, expected, trial.run(interceptor), culprit) == bool(altered)


# What a server computes -----------------------------------------------------------------------------------------------


def disturbed(words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One word is another."""
    other = np.array(words, copy=True, order="C")
    flat = other.reshape(-1)
    if flat.size:
        flat[rng.integers(flat.size)] ^= flat.dtype.type(1 << int(rng.integers(8 * flat.itemsize)))
    return other


@contextmanager
def replaced(where: Any, name: str, wrapper: Callable[[Any], Any]) -> Iterator[None]:
    with patch.object(where, name, wrapper(getattr(where, name))):
        yield


def in_terms(culprit: int, rng: np.random.Generator) -> Any:
    """Products, at sender and backup alike."""

    def wrapper(original: Any) -> Any:
        def terms(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            party = args[0].party if isinstance(args[0], Context) else args[0].owner.party
            return {n: disturbed(term, rng) for n, term in found.items()} if party == culprit else found

        return terms

    return wrapper


def lies_in_products(culprit: int, rng: np.random.Generator) -> list[Any]:
    wrapper = in_terms(culprit, rng)
    return [
        replaced(arithmetic, "product_terms", wrapper),
        replaced(matrices, "product_terms", wrapper),
        replaced(boolean, "bit_terms", wrapper),
        replaced(conversion, "crossed", wrapper),
        replaced(signs, "crossed", wrapper),
    ]


def lies_in_halves(culprit: int, rng: np.random.Generator) -> list[Any]:
    """What is converted."""

    def wrapper(original: Any) -> Any:
        def half(share: Any) -> Any:
            return disturbed(original(share), rng) if share.owner.party == culprit else original(share)

        return half

    return [replaced(conversion, "known_half", wrapper), replaced(signs, "known_half", wrapper)]


def lies_in_masks(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Masks drawn from another key, consistently in what it keeps and sends."""

    def wrapper(original: Any) -> Any:
        def masks(ctx: Context, *args: Any) -> Any:
            found = original(ctx, *args)
            if ctx.party == culprit:
                return {number: disturbed(words, rng) for number, words in found.items()}
            return found

        return masks

    return [replaced(joint, "_masks", wrapper)]


def lies_in_gram(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Gram matrices, in what is shown to the backup and sent to the receiver; and it vouches for anything."""

    def grams(original: Any) -> Any:
        def found(ctx: Context, parts: Any, terms: Any, modulo: Any) -> Any:
            matrices_found = original(ctx, parts, terms, modulo)
            for whole in matrices_found.values() if ctx.party == culprit else ():
                row, column = rng.integers(len(whole), size=2)
                whole[row, column] ^= whole.dtype.type(1 << (modulo.bits - 1))
                whole[column, row] = whole[row, column]
            return matrices_found

        return found

    def right(original: Any) -> Any:
        return lambda ctx, *args: ctx.party == culprit or original(ctx, *args)

    return [replaced(matrices, "_grams", grams), replaced(matrices, "_right", right)]


def lies_in_digests(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Digests of other messages than it received or vouches for."""

    def wrapper(original: Any) -> Any:
        def file(self: Comparisons, path: bytes, joints: Any, messages: Any) -> None:
            if self._party == culprit:
                messages = {n: memoryview(drawn(bytes(message), rng)) for n, message in messages.items()}
            original(self, path, joints, messages)

        return file

    return [replaced(Comparisons, "file", wrapper)]


def in_totals(lie: Callable[[Comparisons, Context, int], int]) -> Any:
    def wrapper(original: Any) -> Any:
        async def told(self: Comparisons, ctx: Context, own: int) -> Any:
            return await original(self, ctx, lie(self, ctx, own))

        return told

    return replaced(Comparisons, "_told", wrapper)


def lies_in_totals(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Another total than its digests have, the same to all."""
    return [in_totals(lambda guard, _, own: own ^ (1 << 77) if guard._party == culprit else own)]


def lies_in_all_totals(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Random totals, also while the first wrong step is looked for."""
    return [
        in_totals(lambda guard, _, own: int.from_bytes(rng.bytes(16), "little") if guard._party == culprit else own)
    ]


def lies_in_the_first_total(culprit: int, rng: np.random.Generator) -> list[Any]:
    """A wrong total, and right ones while the first wrong step is looked for."""

    def lie(guard: Comparisons, ctx: Context, own: int) -> int:
        return own ^ 1 if guard._party == culprit and ctx.path.endswith(b"/all") else own

    return [in_totals(lie)]


def lies_to_hide_the_first_wrong_step(culprit: int, rng: np.random.Generator) -> list[Any]:
    """Wrong products; then it adds to its totals what was wrong in the first, so that steps before look right."""
    wrong = {}

    def wrapper(original: Any) -> Any:
        async def told(self: Comparisons, ctx: Context, own: int) -> Any:
            if self._party == culprit and not ctx.path.endswith(b"/all"):
                own ^= wrong["sum"]
            totals = await original(self, ctx, own)
            if self._party == culprit and ctx.path.endswith(b"/all"):
                wrong["sum"] = int(np.bitwise_xor.reduce(np.array(list(totals.values()), object)))
            return totals

        return told

    return [*lies_in_products(culprit, rng), replaced(Comparisons, "_told", wrapper)]


LIES = [
    lies_in_products,
    lies_in_halves,
    lies_in_masks,
    lies_in_gram,
    lies_in_digests,
    lies_in_totals,
    lies_in_all_totals,
    lies_in_the_first_total,
    lies_to_hide_the_first_wrong_step,
]


@pytest.mark.drawn(12)
@pytest.mark.parametrize("culprit", PARTIES)
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_server_that_computes_something_else_is_noticed_or_harmless(
    lie: Any, culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One of the Gram matrices is as narrow as backups compute, and one is shown to them.
    monkeypatch.setattr(matrices, "NARROW", 5)
    noticed = 0
    for name in [*NAMES, "to_bits", "noisy_argmax", "check_one_hot"]:
        for seed in range(2):
            trial = Trial(name, small(name, 20 + seed))
            assert not any(trial.run())
            expected = trial.seen[culprit]
            lies = lie(culprit, np.random.default_rng(seed))
            for one in lies:
                one.__enter__()
            try:
                errors = trial.run()
            finally:
                for one in lies:
                    one.__exit__(None, None, None)
            noticed += judge(trial, expected, errors, culprit)
    assert noticed


@pytest.mark.parametrize("name", ["count", "gram_cells"])
def test_cheating_with_wide_gram_matrices_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test_cheating` has it for narrow ones."""
    monkeypatch.setattr(matrices, "NARROW", 0)
    table = Table(REP4.name)
    cheat(table, REP4, name, runs=40)
    assert not table.found, "\n".join(map(str, table.found))


def test_no_error_of_a_gram_matrix_passes_a_backup() -> None:
    """Errors that random combinations miss most easily: one bit, the top bit, on and off the diagonal, of rank one."""
    rng = np.random.default_rng(9)
    x = rng.integers(0, 1 << 16, (50, 7)).astype(np.uint16)
    upper = np.triu_indices(7)
    seen, labels = [], count()

    async def judged(ctx: Context, share: AShare) -> None:
        for term in matrices.TERMS:
            if term.joint.backup != ctx.party:
                continue
            right = term.signed(matrices._grams(ctx, [share], {0: term}, Z16)[0])[upper]
            assert matrices._right(ctx.step(next(labels)), [share], term, right, Z16)
            for _ in range(60):
                wrong = right.copy()
                places = rng.choice(wrong.size, int(rng.integers(1, 4)), replace=False)
                wrong[places] ^= np.uint16(1 << int(rng.integers(16)))
                seen.append(matrices._right(ctx.step(next(labels)), [share], term, wrong, Z16))
            v = rng.integers(0, 2, 7).astype(np.uint16)
            if v.any():
                wrong = right + (np.outer(v, v)[upper] << np.uint16(15))
                seen.append(matrices._right(ctx.step(next(labels)), [share], term, wrong, Z16))
        await ctx.exchange([], [])

    World(2, scheme=REP4).run(judged, x)
    assert len(seen) > 300
    assert not any(seen)


def test_a_gram_matrix_is_checked_by_so_many_coins_that_the_sender_lacks() -> None:
    """So many that the bound of `matrices` holds for 2^10 sessions, with room: for more than servers take part in."""
    bound = matrices.CHECK_ROWS * Fraction(2) ** (1 - matrices.CHECK_ROWS) + Fraction(2) ** -matrices.CHECK_ROWS
    assert bound < Fraction(2) ** -54
    assert MOST_SESSIONS * bound < DEVIATION_SOUNDNESS
    drawn = {}

    async def coins(ctx: Context) -> None:
        for sender in PARTIES:
            if sender != ctx.party:
                drawn[ctx.party, sender] = matrices._coins(ctx.step(sender), sender, 9)
            else:
                with pytest.raises(KeyError):
                    matrices._coins(ctx.step(sender), sender, 9)
        await ctx.exchange([], [])

    World(2, scheme=REP4).run(coins)
    assert all(found.shape == (9, matrices.CHECK_ROWS) for found in drawn.values())
    assert all(np.array_equal(drawn[party, 0], drawn[1, 0]) for party in (2, 3))


def test_a_check_with_few_combinations_fails_as_often_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two combinations in place of 64, an error of one bit on the diagonal passes with probability 1/4."""
    draws = np.random.default_rng(10)
    monkeypatch.setattr(matrices, "_coins", lambda _, __, columns: draws.integers(0, 2, (columns, 2)).astype(np.uint8))
    x = draws.integers(0, 1 << 16, (5, 3)).astype(np.uint16)
    upper = np.triu_indices(3)
    passed = []

    async def judged(ctx: Context, share: AShare) -> None:
        term = matrices.TERMS[0]
        if ctx.party == term.joint.backup:
            wrong = matrices._grams(ctx, [share], {0: term}, Z16)[0][upper]
            wrong[0] ^= np.uint16(1 << 15)
            passed.extend(matrices._right(ctx, [share], term, wrong, Z16) for _ in range(2000))
        await ctx.exchange([], [])

    World(2, scheme=REP4).run(judged, x)
    assert 0.25 - 0.05 < np.mean(passed) < 0.25 + 0.05


# What an abort tells --------------------------------------------------------------------------------------------------


async def two_products(ctx: Context, x: AShare, y: AShare) -> np.ndarray:
    """The second depends on the first."""
    z = await verbs.multiply(ctx.step("first"), x, y)
    for number in range(3):
        z = await verbs.multiply(ctx.step(f"next{number}"), z, y)
    return await verbs.reveal(ctx.step("open"), z)


@pytest.mark.parametrize("culprit", PARTIES)
def test_an_abort_is_the_same_whatever_the_secrets(culprit: int) -> None:
    """After a wrong message honest servers differ in products where the secret is 1, and agree where it is 0."""
    shapes, pairs = [], []
    for secret in (0, 1, 12345):
        recorder = Recorder()

        def interceptor(message: Message, recorder: Recorder = recorder) -> bytes:
            recorder(message)
            if message.source == culprit and message.round == 0:
                return bytes([message.payload[0] ^ 1]) + message.payload[1:]
            return message.payload

        y = np.full(5, secret, np.uint64)
        with pytest.raises(Failed) as caught:
            World(3, scheme=REP4, interceptor=interceptor).run(two_products, y, y)
        shapes.append([(m.source, m.dest, m.round, m.tag, len(m.payload)) for m in recorder.messages])
        pairs.append([getattr(error, "pair", None) for error in caught.value.errors])
    assert shapes[0] == shapes[1] == shapes[2]
    assert pairs[0] == pairs[1] == pairs[2]
    assert not any(one[3] == tag(b"/test/open") for one in shapes[0])


def test_totals_of_a_failed_check_do_not_depend_on_what_followed() -> None:
    """What S1 is told in a check, under keys that it lacks, XORs to a word that only the first wrong message decides.

    S1 alters a message to S2. Whether later products differ among S2, S3 and S4 depends on the secret; but the digests
    that S1 could compute itself, for all values the secret may have, do not show which it is.
    """
    words = []
    for secret in (0, 1):
        sums: dict[int, set[int]] = defaultdict(set)
        for seed in range(40):
            totals = {}

            def interceptor(message: Message, totals: dict[int, bytes] = totals) -> bytes:
                if message.tag == tag(b"/guard/check0/all/told") and message.dest == 0:
                    totals[message.source] = message.payload
                if message.source == 0 and message.round == 0:
                    return bytes([message.payload[0] ^ 1]) + message.payload[1:]
                return message.payload

            y = np.full(5, secret, np.uint64)
            with pytest.raises(Failed):
                World(seed, scheme=REP4, interceptor=interceptor).run(two_products, y, y)
            combined = np.bitwise_xor.reduce([np.frombuffer(one, np.uint8) for one in totals.values()])
            for place, octet in enumerate(combined):
                sums[place].add(int(octet))
        words.append(sums)
    assert all(len(found) > 25 for sums in words for found in sums.values())


def leaves_in(name: str, culprit: int) -> Any:
    """A server that goes away instead of taking part in a round of a check."""

    def wrapper(original: Any) -> Any:
        async def step(self: Comparisons, *args: Any) -> Any:
            if self._party == culprit:
                raise LocalError("it has seen enough")
            return await original(self, *args)

        return step

    return replaced(Comparisons, name, wrapper)


@pytest.mark.parametrize("name", ["_blame", "_disputed"])
@pytest.mark.parametrize("culprit", PARTIES)
def test_who_leaves_after_a_failed_check_does_not_undo_it(name: str, culprit: int) -> None:
    """Every honest server knows that the run is over, though not who is in question."""
    trial, altered = Trial("multiply", small("multiply", 5)), []

    def interceptor(message: Message) -> bytes:
        if message.source == culprit and not altered:
            altered.append(message.tag)
            return top(message.payload, np.random.default_rng(0))
        return message.payload

    with leaves_in(name, culprit):
        errors = trial.run(interceptor)
    assert altered
    assert not trial.seen
    honest = [error for party, error in enumerate(errors) if party != culprit]
    assert all(isinstance(error, CheatingUnresolved) for error in honest), errors
    assert {error.pair for error in honest} == {None}


# The guard itself -----------------------------------------------------------------------------------------------------


async def branches(ctx: Context, x: AShare, y: AShare) -> Any:
    """Two branches that open, one behind the other, so that checks overlap."""

    async def chain(ctx: Context, length: int) -> Any:
        z = x
        for number in range(length):
            z = await verbs.multiply(ctx.step(f"factor{number}"), z, y)
        return await verbs.reveal(ctx.step("open"), z)

    return tuple(await together(*(chain(ctx.step(f"chain{n}"), n) for n in (1, 2, 3, 5))))


def test_checks_of_branches_overlap() -> None:
    x = np.arange(1, 6, dtype=np.uint64)
    outcome = World(1, scheme=REP4).run(branches, x, x)
    for found, power in zip(outcome.value, (2, 3, 4, 6), strict=True):
        assert np.array_equal(found, x**power)


def test_in_overlapping_checks_the_first_wrong_message_is_found() -> None:
    x = np.arange(1, 6, dtype=np.uint64)
    recorder = Recorder()
    World(1, scheme=REP4, interceptor=recorder).run(branches, x, x)
    rng = np.random.default_rng(3)
    for message in recorder.messages:
        with pytest.raises(Failed) as caught:
            World(1, scheme=REP4, interceptor=alter(message, drawn, rng)).run(branches, x, x)
        honest = [error for party, error in enumerate(caught.value.errors) if party != message.source]
        named = [error.pair for error in honest if isinstance(error, CheatingDetected) and error.pair is not None]
        assert named
        assert all(message.source in pair for pair in named)


async def many(ctx: Context, x: AShare) -> Any:
    for number in range(40):
        x = await verbs.multiply(ctx.step(f"factor{number}"), x, x)
    return await verbs.reveal(ctx.step("open"), x)


def test_many_steps_are_checked_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_MOST_STEPS", 7)
    outcome = World(1, scheme=REP4).run(many, np.full(3, 3, np.uint64))
    assert outcome.check_rounds == 2 * 6
    assert outcome.check_sent == (6 * 144,) * 4


def test_what_is_checked_costs_no_round_again() -> None:
    async def twice(ctx: Context, x: AShare) -> Any:
        product = await verbs.multiply(ctx.step("product"), x, x)
        return tuple([await verbs.reveal(ctx.step(f"open{n}"), product) for n in range(3)])

    outcome = World(1, scheme=REP4).run(twice, np.arange(3, dtype=np.uint64))
    assert outcome.check_rounds == 2
    assert outcome.rounds == 1 + 2 + 3


def test_two_servers_have_keys_that_the_others_lack() -> None:
    world = World(1, scheme=REP4)
    guards = [world.runtime(channel).context.guard for channel in world.channels()]
    message = memoryview(b"message")
    found = {(p, q): guards[p]._digests[q].of(b"", message) for p in PARTIES for q in PARTIES if p != q}
    assert all(found[p, q] == found[q, p] for p, q in found)
    assert len(set(found.values())) == 6
