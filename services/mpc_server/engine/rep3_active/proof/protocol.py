"""The three parts of a proof: the prover's, the left verifier's and the right one's."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.mpc_server.engine.rep3_active.proof import bits
from services.mpc_server.engine.rep3_active.proof.chains import Bits, bits_of
from services.mpc_server.engine.rep3_active.proof.field import (
    ZERO,
    Chain,
    Pads,
    Q,
    Scalar,
    digest_of,
    negative,
    scalar,
)
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, Numbers
from services.mpc_server.engine.rep3_active.proof.sizes import ELEMENT_BYTES, GROUP, Size
from services.mpc_server.engine.rep3_active.proof.statement import Statement
from services.mpc_server.engine.rep3_active.proof.vectors import Vector, cross, fold_left, fold_right
from services.mpc_server.engine.workers import IN_PROCESS, Workers

_LONG = 1 << 14
"""Elements of a vector from which on both are halved side by side: some hundred microseconds of work."""


class Proof(NamedTuple):
    """What the prover sends to the left verifier once coins are known, and to the right one."""

    shares: bytes
    challenges: bytes


class Verdict(NamedTuple):
    """What one verifier tells the other: its vector at the last point, its share of the product, what it was asked."""

    value: Scalar
    share: Scalar
    digest: bytes

    def octets(self) -> bytes:
        return self.value.octets() + self.share.octets() + self.digest

    @staticmethod
    def read(octets: bytes) -> Verdict:
        words = np.frombuffer(octets[: 2 * ELEMENT_BYTES], "<u8")
        return Verdict(scalar(words[:2]), scalar(words[2:]), octets[2 * ELEMENT_BYTES :])


def agree(one: Verdict, other: Verdict, q: int = Q) -> bool:
    """Whether the proof holds: what both verifiers conclude from the same two verdicts."""
    if max(*one.value, *one.share, *other.value, *other.share) >= q:
        return False
    same = one.digest == other.digest
    return same and one.value.times(other.value, q) == one.share.plus(other.share, q)


def gate_shares(planes: bits.Planes, right_key: bytes, q: int = Q, workers: Workers = IN_PROCESS) -> bytes:
    """What the prover sends to the left verifier before it knows the coins: shares of the polynomial of its gates."""
    left, right = planes
    if left is None or right is None:
        return b""
    return _hidden(_outer(bits.coefficients(left, right, q, workers)), _gate_pads(right_key, q))


def prove(
    statement: Statement, left_key: bytes, right_key: bytes, gates: bytes, workers: Workers = IN_PROCESS
) -> Proof:
    """The prover's part once coins are known; it has a key in common with each verifier, and has sent `gates`."""
    q, size = statement.q, statement.size
    chain, pads = Chain(left_key, statement.binding() + gates, q), Pads(right_key, q)
    sent: list[bytes] = []
    asked: list[Scalar] = []

    def ask(message: bytes) -> Scalar:
        sent.append(message)
        asked.append(chain.challenge(message))
        return asked[-1]

    secret = [bits_of(one.equations, one.sums(statement.toss)) for one in statement.sources]
    right_bits = _right_bits(pads, size)
    left_bits = np.concatenate(secret) ^ right_bits if secret else right_bits
    ratio = ask(np.packbits(left_bits).tobytes())
    statement.gates(workers)
    (u, _), (v, _) = workers.each(
        [lambda: statement.left(left_bits, ratio), lambda: statement.right(right_bits, ratio)]
    )
    if size.deviations:
        r = ask(_hidden(_outer(statement.deviation_coefficients(ratio)), pads))
        u, v = statement.with_left(u, ratio, r), statement.with_right(v, r)
    for _ in range(size.halvings):
        r = ask(_hidden(cross(u, v, q), pads))
        u, v = _halved(u, v, r, q, workers)
    x, y, a, b = scalar(u.elements[0]), scalar(v.elements[0]), _mask(left_key, q), _mask(right_key, q)
    ends = (x.times(b, q).plus(y.times(a, q), q), a.times(b, q))
    ask(_hidden(np.array(ends, np.uint64), pads))
    return Proof(b"".join(sent), b"".join(one.octets() for one in asked))


def _halved(u: Vector, v: Vector, r: Scalar, q: int, workers: Workers) -> tuple[Vector, Vector]:
    if len(u.numbers) + len(u.elements) < _LONG:
        workers = IN_PROCESS
    left, right = workers.each([lambda: fold_left(u, r, q), lambda: fold_right(v, r, q)])
    return left, right


def check_left(statement: Statement, key: bytes, gates: bytes, shares: bytes) -> Verdict:
    """The left verifier's part, from what the prover sent it before coins were known, and after."""
    q, size = statement.q, statement.size
    chain = Chain(key, statement.binding() + gates, q)
    asked: list[Scalar] = []
    at = 0

    def taken(length: int) -> tuple[bytes, Scalar]:
        nonlocal at
        at += length
        message = shares[at - length : at]
        asked.append(chain.challenge(message))
        return message, asked[-1]

    carries, ratio = taken(size.carry_bytes)
    left_bits = np.unpackbits(np.frombuffer(carries, np.uint8), count=size.secret_bits)
    u, added = statement.left(left_bits, ratio)
    share = negative(added, q)
    if size.gate_words:
        middle = Scalar(bits.target(size.gate_words) % q, 0)
        share = share.plus(_value(_embedded(np.frombuffer(gates, "<u8")), middle, Scalar(statement.point(), 0), q), q)
    if size.deviations:
        message, r = taken(ELEMENT_BYTES * (2 * GROUP - 2))
        share = _value(_elements(message), share, r, q)
        u = statement.with_left(u, ratio, r)
    for _ in range(size.halvings):
        message, r = taken(2 * ELEMENT_BYTES)
        share = _value(_elements(message), share, r, q)
        u = fold_left(u, r, q)
    message, r = taken(2 * ELEMENT_BYTES)
    share = _last(_elements(message), share, r, q)
    value = scalar(u.elements[0]).plus(_mask(key, q).times(r, q), q)
    return Verdict(value, share, digest_of(statement.binding(), asked))


def check_right(statement: Statement, key: bytes, challenges: bytes) -> Verdict:
    """The right verifier's part, from what the prover sent it and the pads they have in common."""
    q, size = statement.q, statement.size
    pads = Pads(key, q)
    asked = [Scalar(x, y) for x, y in np.frombuffer(challenges, "<u8").reshape(-1, 2).tolist()]
    reduced = iter([Scalar(one.x % q, one.y % q) for one in asked])
    ratio = next(reduced)
    right_bits = _right_bits(pads, size)
    v, added = statement.right(right_bits, ratio)
    share = negative(added, q)
    if size.gate_words:
        gates = _embedded(_gate_pads(key, q).words(size.gate_coefficients))
        share = share.plus(_value(gates, ZERO, Scalar(statement.point(), 0), q), q)
    if size.deviations:
        r = next(reduced)
        share = _value(pads.elements(2 * GROUP - 2), share, r, q)
        v = statement.with_right(v, r)
    for _ in range(size.halvings):
        r = next(reduced)
        share = _value(pads.elements(2), share, r, q)
        v = fold_right(v, r, q)
    r = next(reduced)
    share = _last(pads.elements(2), share, r, q)
    value = scalar(v.elements[0]).plus(_mask(key, q).times(r, q), q)
    return Verdict(value, share, digest_of(statement.binding(), asked))


def _gate_pads(key: bytes, q: int) -> Pads:
    return Pads(key, q, b"gates")


def _right_bits(pads: Pads, size: Size) -> Bits:
    return np.unpackbits(pads.octets(size.carry_bytes), count=size.secret_bits)


def _mask(key: bytes, q: int) -> Scalar:
    """What hides the end of a vector: known to the prover and one verifier."""
    return scalar(Pads(key, q, b"mask").elements(1)[0])


def _hidden(values: Elements, pads: Pads) -> bytes:
    """The left shares of field elements whose right shares are the next pads."""
    flat = values.reshape(-1)
    return ((flat + (np.uint64(pads.q) - pads.words(flat.size))) % np.uint64(pads.q)).tobytes()


def _outer(coefficients: Elements) -> Elements:
    """All coefficients but the middle one, which is claimed."""
    return np.delete(coefficients, len(coefficients) // 2, axis=0)


def _elements(message: bytes) -> Elements:
    return np.frombuffer(message, "<u8").reshape(-1, 2)


def _embedded(words: Numbers) -> Elements:
    return np.stack([words, np.zeros_like(words)], axis=1)


def _value(outer: Elements, middle: Scalar, r: Scalar, q: int) -> Scalar:
    """A polynomial at r, from its coefficients about the middle one."""
    half = len(outer) // 2
    result = ZERO
    for x, y in [*outer[half:][::-1].tolist(), middle, *outer[:half][::-1].tolist()]:
        result = result.times(r, q).plus(Scalar(x, y), q)
    return result


def _last(outer: Elements, lowest: Scalar, r: Scalar, q: int) -> Scalar:
    """A polynomial of degree 2 at r: its lowest coefficient is claimed."""
    (a, b), (c, d) = outer.tolist()
    return Scalar(c, d).times(r, q).plus(Scalar(a, b), q).times(r, q).plus(lowest, q)
