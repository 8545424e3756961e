"""Scalars of F_{q^2}, the hash chain that challenges come from, and the pads that hide what verifiers are sent."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from caps.shares.prss import expand
from caps.shares.ring import Z8, Z64
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, powers
from services.mpc_server.engine.rep3_active.proof.sizes import DIGEST_BYTES

Q = (1 << 61) - 1
"""The prime of the field. Functions take another one as a parameter, so that tests can see how a small one fails."""
_CHAIN, _DIGEST = b"caps/v1/chain", b"caps/v1/digest"
_SPARE = np.uint64(3)


class Scalar(NamedTuple):
    """x + y i with i^2 = -1."""

    x: int
    y: int

    def plus(self, other: Scalar, q: int) -> Scalar:
        return Scalar((self.x + other.x) % q, (self.y + other.y) % q)

    def times(self, other: Scalar, q: int) -> Scalar:
        return Scalar(
            (self.x * other.x - self.y * other.y) % q,
            (self.x * other.y + self.y * other.x) % q,
        )

    def power(self, exponent: int, q: int) -> Scalar:
        result, base = ONE, self
        while exponent:
            if exponent & 1:
                result = result.times(base, q)
            base = base.times(base, q)
            exponent >>= 1
        return result

    def words(self) -> Elements:
        return np.array(self, np.uint64)

    def octets(self) -> bytes:
        return self.words().tobytes()


ZERO, ONE = Scalar(0, 0), Scalar(1, 0)


def scalar(words: Elements) -> Scalar:
    """The element that a pair of words holds."""
    return Scalar(int(words[0]), int(words[1]))


def negative(x: Scalar, q: int) -> Scalar:
    return Scalar(-x.x % q, -x.y % q)


def geometric(first: Scalar, ratio: Scalar, count: int, q: int) -> Elements:
    """first, first * ratio, first * ratio^2, ..."""
    return powers(first.words(), ratio.words(), count, q)


def embedded(values: npt.NDArray[np.uint16], q: int) -> Elements:
    """Limbs as elements."""
    out = np.zeros((values.size, 2), np.uint64)
    out[:, 0] = values.reshape(-1)
    if q < 1 << 16:
        out %= np.uint64(q)
    return out


@dataclass(slots=True)
class Pads:
    """What hides the prover's secrets: drawn from a key that it has in common with one verifier."""

    seed: bytes
    q: int
    name: bytes = b"pads"
    _drawn: int = 0

    def _label(self) -> bytes:
        self._drawn += 1
        return b"caps/v1/proof/%b/%d" % (self.name, self._drawn)

    def words(self, count: int) -> Elements:
        """Words below q; that q itself becomes 0 makes them uniform up to one part in 2^60."""
        return (expand(self.seed, self._label(), (count,), Z64).astype(np.uint64) >> _SPARE) % np.uint64(self.q)

    def elements(self, count: int) -> Elements:
        return self.words(2 * count).reshape(count, 2)

    def octets(self, count: int) -> npt.NDArray[np.uint8]:
        return expand(self.seed, self._label(), (count,), Z8).view(np.uint8)


class Chain:
    """A keyed hash of all that the prover sends to the left verifier; challenges are taken from it on the way.

    Its key is not known to the right verifier, which could otherwise test guesses of what was sent.
    """

    def __init__(self, key: bytes, statement: bytes, q: int) -> None:
        self._key, self._q = key, q
        self._state = hashlib.blake2b(statement, key=key, digest_size=32, person=_CHAIN).digest()

    def challenge(self, message: bytes) -> Scalar:
        """An element that depends on every message so far."""
        self._state = hashlib.blake2b(self._state + message, key=self._key, digest_size=32, person=_CHAIN).digest()
        drawn = hashlib.blake2b(self._state, key=self._key, digest_size=16).digest()
        x, y = int.from_bytes(drawn[:8], "little") >> 3, int.from_bytes(drawn[8:], "little") >> 3
        return Scalar(x % self._q, y % self._q)


def digest_of(statement: bytes, challenges: list[Scalar]) -> bytes:
    """What two verifiers compare to see that they were challenged alike."""
    octets = statement + b"".join(one.octets() for one in challenges)
    return hashlib.blake2b(octets, digest_size=DIGEST_BYTES, person=_DIGEST).digest()
