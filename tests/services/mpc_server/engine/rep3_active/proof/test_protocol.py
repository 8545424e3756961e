"""Proofs: what is true is accepted, whatever its size; what is altered anywhere is not, but at the predicted rate."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest

from services.mpc_server.engine.rep3_active.proof import bits, protocol
from services.mpc_server.engine.rep3_active.proof.field import Q, Scalar, scalar
from services.mpc_server.engine.rep3_active.proof.protocol import Verdict, agree, prove
from services.mpc_server.engine.rep3_active.proof.vectors import Vector
from services.mpc_server.engine.workers import Workers
from tests.kit.claims import (
    KINDS,
    LEFT,
    LEFT_KEY,
    PROVER,
    RIGHT,
    RIGHT_KEY,
    Sent,
    accepted,
    bits_claim,
    checked,
    deviations_claim,
    gram_claim,
    matrices_claim,
    proved,
    statements,
    true_claim,
    words_claim,
)


def rng_of(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prover", range(3))
def test_a_true_claim_is_accepted(kind: str, prover: int) -> None:
    assert accepted([KINDS[kind](rng_of(prover), prover)])


@pytest.mark.parametrize("words", [1, 2, 7, 8, 63, 64, 65, 100, 1025, 2000])
def test_gates_of_any_number_are_accepted(words: int) -> None:
    assert accepted([bits_claim(rng_of(words), 0, words)])


def test_many_blocks_of_gates_are_accepted() -> None:
    rng = rng_of(1)
    for words in ((1 << 13) + 5, (1 << 17) + 77):
        claims = [bits_claim(rng, 0, words)]
        assert accepted(claims)
        claims[0].alter((PROVER, LEFT), ("e", None), rng)
        assert not accepted(claims)


def test_large_arrays_of_gates_are_proved_beside_small_ones() -> None:
    """Large ones are cut into blocks where they are, and what is left of them is put together with the others."""
    rng = rng_of(2)
    shapes: list[Any] = [(3, 2), (9, 300), 4096 + 17, 5]
    claims = [bits_claim(rng, 0, shape, double=number != 1) for number, shape in enumerate(shapes)]
    left = statements(claims)[LEFT].planes.left
    assert left is not None
    assert [one.added.shape for one in left] == [(32, 84), (32, 128), (32, 2)]
    assert accepted(claims)
    for claim in claims:
        altered = [bits_claim(rng, 0), claim]
        claim.alter((PROVER, LEFT), ("e", None), rng)
        assert not accepted(altered)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 200])
@pytest.mark.parametrize("ring_bits", [1, 8, 16, 17, 22, 24, 32, 33, 48, 63, 64])
def test_words_of_any_ring_and_number_are_accepted(size: int, ring_bits: int) -> None:
    rng = rng_of(size)
    claims = [
        words_claim(rng, 1, size, bits=ring_bits, terms=1),
        words_claim(rng, 1, size + 3, bits=ring_bits, terms=3, segment=2),
    ]
    assert accepted(claims)
    claims[1].alter((PROVER, LEFT), ("e", None), rng, ring_bits)
    assert not accepted(claims)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 1023, 1025, 2100])
@pytest.mark.parametrize("make", [gram_claim, matrices_claim, deviations_claim])
def test_matrices_of_any_number_of_rows_are_accepted(rows: int, make: object) -> None:
    assert accepted([make(rng_of(rows), 2, rows)])  # type: ignore[operator]


@pytest.mark.parametrize("ring_bits", [5, 16, 22, 24, 32, 64])
def test_matrices_of_any_ring_are_accepted(ring_bits: int) -> None:
    rng = rng_of(ring_bits)
    assert accepted([gram_claim(rng, 0, 9, (1,), bits=ring_bits)])
    assert accepted([gram_claim(rng, 0, 30, (4, 1, 513), bits=ring_bits)])
    assert accepted([matrices_claim(rng, 0, 11, (1, 9), bits=ring_bits)])
    if ring_bits <= 32:
        assert accepted([deviations_claim(rng, 0, 40, 2, bits=ring_bits)])


def test_the_largest_words_are_accepted() -> None:
    """All limbs at their largest: carries are as large as they can be."""
    for ring_bits, make in product((16, 24, 64), (words_claim, gram_claim, matrices_claim, deviations_claim)):
        if make is deviations_claim and ring_bits == 64:
            continue
        drawn = make(rng_of(1), 0, 1030, bits=ring_bits)  # type: ignore[operator]
        left = {name: largest(value, ring_bits) for name, value in drawn.left.items()}
        right = {name: largest(value, ring_bits) for name, value in drawn.right.items() if name != "f"}
        assert accepted([true_claim(drawn.kind, 0, drawn.public, left, right)])


def largest(value: Any, ring_bits: int) -> Any:
    if not isinstance(value, np.ndarray):
        return [largest(one, ring_bits) for one in value]
    return np.full_like(value, (1 << ring_bits) - 1)


def test_claims_of_nothing_are_accepted() -> None:
    rng = rng_of(1)
    nothing = [bits_claim(rng, 0, 0), words_claim(rng, 0, 0), gram_claim(rng, 0, 0), deviations_claim(rng, 0, 0)]
    for claim in nothing[1:]:
        assert accepted([claim])
    assert statements(nothing[:1])[LEFT].size.empty
    assert accepted(nothing)
    assert accepted([*nothing, bits_claim(rng, 0), matrices_claim(rng, 0)])


def test_deviations_in_stages_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the integers were smaller, so that sums have to be cut."""
    from services.mpc_server.engine.rep3_active.proof import deviations, sizes

    for ring_bits in (16, 24):
        claims = [deviations_claim(rng_of(3), 0, 3 * 1024 + 9, 2, bits=ring_bits)]
        with monkeypatch.context() as patched:
            patched.setattr(sizes, "stage_rows", lambda *_: 1024)
            patched.setattr(deviations, "stage_rows", lambda *_: 1024)
            assert statements(claims)[LEFT].size.equations[0].stages == 4
            assert accepted(claims)
            claims[0].alter((PROVER, LEFT), ("e", None), rng_of(4), ring_bits)
            assert not accepted(claims)


@pytest.mark.parametrize("seed", range(6))
def test_all_kinds_at_once_are_accepted(seed: int) -> None:
    rng = rng_of(seed)
    claims = [make(rng, 1) for make in KINDS.values() for _ in range(int(rng.integers(0, 3)))]
    claims = [claims[i] for i in rng.permutation(len(claims))]
    assert accepted(claims)
    wrong = claims[int(rng.integers(len(claims)))]
    wrong.alter((PROVER, LEFT), ("e", None), rng, wrong.public.get("bits", 64))
    assert not accepted(claims)


@pytest.mark.parametrize("roles", [(PROVER,), (LEFT,), (RIGHT,), (PROVER, LEFT), (PROVER, RIGHT)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_an_altered_bit_of_anything_filed_is_rejected(kind: str, roles: tuple[str, ...]) -> None:
    """What one party has in place of the right thing, or the prover and one verifier: a message that was wrong."""
    rng = rng_of(7)
    tried = 0
    for place in KINDS[kind](rng, 0).places():
        for _ in range(3):
            claim = KINDS[kind](rng, 0)
            knows = LEFT if place[0] in claim.left else RIGHT
            if not {PROVER, knows}.issuperset(roles):
                continue
            if roles == (PROVER,) and place[0] in "ef" and claim.kind != "bits":
                continue  # a prover needs these for carries only, and what verifiers have is true
            narrow = place[0] == "lefts" and claim.public.get("left_bits")
            claim.alter(roles, place, rng, narrow or claim.public.get("bits", 64))
            if len(roles) == 2 and claim.holds():
                continue  # both have the same, and it is as true as before
            assert not accepted([claim]), (place, roles)
            tried += 1
    assert tried


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", KINDS)
def test_an_altered_bit_of_the_proof_is_rejected(kind: str) -> None:
    """Coefficients of gates, carries, later coefficients and challenges."""
    rng = rng_of(8)
    claims = [KINDS[kind](rng, 0), bits_claim(rng, 0)]
    of = statements(claims)
    sent = proved(of)
    left, right = checked(of, sent)
    assert agree(left, right)
    for part, step in (("gates", 9), ("shares", 41), ("challenges", 13)):
        whole = getattr(sent, part)
        for at in {*range(0, len(whole), step), len(whole) - 1}:
            octets = bytearray(whole)
            octets[at] ^= 1 << int(rng.integers(8))
            assert not agree(*checked(of, sent._replace(**{part: bytes(octets)}))), (part, at)
    for own, other in ((left, right), (right, left)):
        for at in range(len(own.octets())):
            for bit in range(8):
                octets = bytearray(own.octets())
                octets[at] ^= 1 << bit
                assert not agree(Verdict.read(bytes(octets)), other), (at, bit)


def test_a_proof_is_of_its_claims_and_its_coins_only() -> None:
    claims = [bits_claim(rng_of(1), 0), words_claim(rng_of(1), 0)]
    of, other = statements(claims), statements(claims, seed=b"t" * 32)
    sent = proved(of)
    left, right = checked(of, sent)
    assert agree(left, right)
    assert not agree(*checked({**of, LEFT: other[LEFT]}, sent))
    assert not agree(*checked({**of, RIGHT: other[RIGHT]}, sent))
    assert not agree(*checked(other, sent))
    for wrong in ((RIGHT_KEY, RIGHT_KEY), (LEFT_KEY, LEFT_KEY)):
        assert not agree(*checked(of, sent, wrong))


def test_verdicts_beyond_the_field_are_rejected() -> None:
    one = Verdict(Scalar(0, 0), Scalar(0, 0), bytes(16))
    assert agree(one, one)
    assert not agree(one, Verdict(Scalar(Q, 0), Scalar(0, 0), bytes(16)))
    assert not agree(Verdict(Scalar(0, 0), Scalar(0, Q), bytes(16)), one)


class Forger:
    """A prover of a false claim on gates that makes the most of it: its polynomials differ from the true ones by as
    much as the claim demands, and by two roots more at each halving, chosen as well as a polynomial allows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, q: int) -> None:
        self.q, self.error = q, Scalar(error % q, 0)
        true_cross, true_fold, true_gates = protocol.cross, protocol.fold_left, bits.fold_left

        def gates(parts: Sequence[bits.Part], r: int, q: int, workers: Workers) -> np.ndarray:
            self.error = self.error.times(Scalar(r, 0).power(len(parts[0].added) - 1, q), q)
            return true_gates(parts, r, q, workers)

        def cross(u: Vector, v: Vector, q: int) -> np.ndarray:
            # c (x - 1)(x - 2) has -3 c in the middle.
            c = self.error.times(Scalar(pow(-3, -1, q), 0), q)
            self.added = (c.times(Scalar(2, 0), q), c)
            return np.array(
                [scalar(x).plus(more, q) for x, more in zip(true_cross(u, v, q), self.added, strict=True)], np.uint64
            )

        def fold(u: Vector, r: Scalar, q: int) -> Vector:
            low, high = self.added
            self.error = low.plus(self.error.times(r, q), q).plus(high.times(r.times(r, q), q), q)
            return true_fold(u, r, q)

        monkeypatch.setattr(bits, "fold_left", gates)
        monkeypatch.setattr(protocol, "cross", cross)
        monkeypatch.setattr(protocol, "fold_left", fold)


def test_a_prover_that_knew_the_coin_could_prove_anything_of_its_gates() -> None:
    """So the polynomial of gates is sent before coins are opened."""
    claims = [bits_claim(rng_of(1), 0, 4)]
    claims[0].alter((PROVER, LEFT), ("e", None), rng_of(2))
    of = statements(claims)
    r, blocks = of[PROVER].point(), (1 + of[LEFT].size.gate_coefficients // 2)
    sent = proved(of)
    assert not agree(*checked(of, sent))
    # One wrong gate makes the middle coefficient 8 less than what is claimed; the lowest one can make up for it at r.
    lowest = int.from_bytes(sent.gates[:8], "little")
    forged = (lowest - 8 * pow(r, blocks - 1, Q)) % Q
    gates = forged.to_bytes(8, "little") + sent.gates[8:]
    assert agree(*checked(of, Sent(gates, *prove(of[PROVER], LEFT_KEY, RIGHT_KEY, gates))))
    other = statements(claims, seed=b"t" * 32)
    assert not agree(*checked(other, Sent(gates, *prove(other[PROVER], LEFT_KEY, RIGHT_KEY, gates))))


def within(found: int, trials: int, rate: float) -> bool:
    """Whether a count is what a rate predicts, but for once in a thousand times."""
    return abs(found - trials * rate) <= 3.5 * sqrt(trials * rate * (1 - rate)) + 1


@pytest.mark.drawn(2)
@pytest.mark.statistical
@pytest.mark.parametrize("q", [7, 11, 19, 31])
def test_a_false_claim_is_accepted_at_the_predicted_rate(q: int) -> None:
    """An honest prover's algorithm on a false claim: each challenge of 0 hides the error, and nothing else does.

    The first is a coin of F_q, the others are of F_{q^2}.
    """
    rng = rng_of(q)
    trials = 1500
    claims = [bits_claim(rng, 0, 4)]
    claims[0].alter((PROVER, LEFT), ("e", None), rng)
    rate = 1 - (1 - 1 / q) * (1 - 1 / q**2) ** statements(claims)[LEFT].size.halvings
    found = sum(accepted(claims, q=q, seed=rng.bytes(32), keys=(rng.bytes(32), rng.bytes(32))) for _ in range(trials))
    assert within(found, trials, rate), (found, trials * rate)


@pytest.mark.drawn(1)
@pytest.mark.statistical
@pytest.mark.parametrize("q", [11, 19, 31])
def test_a_forger_succeeds_at_the_predicted_rate(q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = rng_of(q)
    trials, found = 1500, 0
    claims = [bits_claim(rng, 0, 4)]
    claims[0].alter((PROVER, LEFT), ("e", None), rng)
    rate = 1 - (1 - 1 / q) * (1 - 2 / q**2) ** statements(claims)[LEFT].size.halvings
    for _ in range(trials):
        of, keys = statements(claims, q=q, seed=rng.bytes(32)), (rng.bytes(32), rng.bytes(32))
        with monkeypatch.context() as patched:
            Forger(patched, 8, q)
            sent = proved(of, keys)
        found += agree(*checked(of, sent, keys), q)
    assert within(found, trials, rate), (found, trials * rate)


@pytest.mark.parametrize("q", [7, 31, 127, 8191])
def test_true_claims_are_accepted_in_any_field(q: int) -> None:
    rng = rng_of(q)
    for make in KINDS.values():
        assert accepted([make(rng, 0)], q=q)


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kind",
    [
        "bits",
        "words of 22",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gram of 16", "deviations of 16")),
    ],
)
@pytest.mark.parametrize("verifier", [LEFT, RIGHT])
def test_what_a_verifier_sees_does_not_depend_on_what_it_does_not_know(kind: str, verifier: str) -> None:
    """The same claims in the eyes of one verifier, with two different other sides, in a small field."""
    q, trials = 7, 400
    rng = rng_of(11)
    one, drawn = KINDS[kind](rng, 0), KINDS[kind](rng, 0)
    left, right = (one.left, drawn.right) if verifier == LEFT else (drawn.left, one.right)
    left, right = dict(left), dict(right)
    del (right if verifier == LEFT else left)["f" if verifier == LEFT else "e"]
    other = true_claim(one.kind, 0, one.public, left, right)
    assert accepted([one])
    assert accepted([other])
    counts = []
    for claim in (one, other):
        of = statements([claim], q=q)
        views = [_view(of, verifier, rng, q) for _ in range(trials)]
        counts.append(np.array([np.bincount(column, minlength=q) for column in np.array(views).T]))
    first, second = counts
    # Each position has one law for both, and that is the uniform one: chi squared of 6 degrees of freedom exceeds 50
    # less than once in 10^8 times.
    assert ((first - second) ** 2 / np.maximum(first + second, 1)).sum(axis=1).max() < 50
    expected = 2 * trials / q
    assert ((first + second - expected) ** 2 / expected).sum(axis=1).max() < 50


def _view(of: dict, verifier: str, rng: np.random.Generator, q: int) -> np.ndarray:
    """The words below q that a verifier receives: from the prover, and the other verifier's value."""
    keys = rng.bytes(32), rng.bytes(32)
    sent = proved(of, keys)
    left, right = checked(of, sent, keys)
    if verifier == LEFT:
        carries, whole = of[LEFT].size.carry_bytes, of[LEFT].size.secret_bits // 8
        words = np.frombuffer(sent.gates + sent.shares[carries:], "<u8").astype(np.int64)
        # Three bits of each whole byte of carries, as a number below 7: 7 itself is drawn again.
        octets = np.frombuffer(sent.shares, np.uint8, whole).astype(np.int64) & 7
        seen = np.concatenate([np.where(octets == 7, rng.integers(0, 7, whole), octets), words])
        return np.concatenate([seen, np.array(right.value, np.int64)])
    seen = np.frombuffer(sent.challenges, "<u8").astype(np.int64)
    return np.concatenate([seen, np.array(left.value, np.int64)])
