"""Equations modulo 2^k as equations over the integers, with carries whose bits the two verifiers share.

A number modulo 2^k is cut into limbs of 16 bits. For limb j of an equation, with X the integer that the claims add up
to, X + (carry from limb j - 1) = 2^16 (carry to limb j + 1): the last carry is what is lost modulo 2^k. Every carry is
a number of known width, and a bit is (1 - s s')/2 of a sign that the left verifier knows and one that the right one
knows. If an equation holds in F_q it holds over the integers, as all that enters it is less than 2^60.

Where a sum is too large for that, its terms come in stages: what a stage leaves modulo 2^16 is shared as well and
enters the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from caps.errors import DomainError
from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.field import Scalar, geometric, scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, doubled, scale, signed, total

LIMB = 16
MOST = 1 << 59
"""What the integers of an equation stay below."""
Integers = npt.NDArray[np.int64]


def widths_of(bits: int) -> tuple[int, ...]:
    """Of the limbs of a number modulo 2^bits."""
    return (LIMB,) * ((bits - 1) // LIMB) + ((bits - 1) % LIMB + 1,)


def limbs_of(words: Words, bits: int) -> npt.NDArray[np.uint16]:
    """The limbs of numbers modulo 2^bits, in the last axis."""
    size = 2 if bits <= 16 else 4 if bits <= 32 else 8
    whole = words.astype(f"<u{size}")
    if bits < 8 * size:
        whole &= whole.dtype.type((1 << bits) - 1)
    return np.ascontiguousarray(whole.reshape(-1, 1).view("<u2")[:, : -(-bits // LIMB)])


@dataclass(frozen=True, slots=True)
class Equations:
    """`count` equations modulo 2^bits, in `stages`, about integers of at most `most[j]` in limb j, or from its negative."""

    count: int
    bits: int
    most: tuple[int, ...]
    stages: int = 1
    negative: bool = False

    def __post_init__(self) -> None:
        high = 0
        for most, width in zip(self.most, widths_of(self.bits), strict=True):
            high = most + (high >> width) + (1 << LIMB) + 1
            if high >= MOST:
                raise DomainError("a claim has too many summands for a proof over the integers")

    @property
    def limbs(self) -> int:
        return len(self.most)

    @property
    def size(self) -> int:
        """How many equations over the integers."""
        return self.stages * self.count * self.limbs

    def carry_widths(self) -> tuple[int, ...]:
        """The bits of the carry out of each limb, its sign included."""
        widths, high = [], 0
        for most, width in zip(self.most, widths_of(self.bits), strict=True):
            high = most + (high >> width) + (1 << LIMB) + 1
            widths.append((high >> width).bit_length() + self.negative)
        return tuple(widths)

    def secret_bits(self) -> int:
        """How many bits the prover shares."""
        carries = self.stages * sum(self.carry_widths())
        return self.count * (carries + (self.stages - 1) * sum(widths_of(self.bits)))

    def bits_of(self, sums: Integers) -> npt.NDArray[np.uint8]:
        """The bits of carries, and of what stages leave, for the integers of each stage, equation and limb."""
        widths = widths_of(self.bits)
        carries, rests = np.empty_like(sums), np.zeros_like(sums)
        before: Integers = np.zeros_like(sums[0])
        for stage in range(self.stages):
            carry: Integers = np.zeros_like(sums[0, :, 0])
            for limb, width in enumerate(widths):
                value = sums[stage, :, limb] + before[:, limb] + carry
                if stage < self.stages - 1:
                    rests[stage, :, limb] = value & ((1 << width) - 1)
                carry = value >> width
                carries[stage, :, limb] = carry
            before = rests[stage]
        found = []
        for limb, (width, rest) in enumerate(zip(self.carry_widths(), widths, strict=True)):
            offset = 1 << (width - 1) if self.negative else 0
            found.append(_bits(carries[:, :, limb].reshape(-1) + offset, width))
            found.append(_bits(rests[:-1, :, limb].reshape(-1), rest))
        return np.concatenate(found)

    def bit_weights(self, first: Scalar, ratio: Scalar, q: int) -> tuple[Elements, Scalar]:
        """What each bit counts in the sum of all equations, the first of which counts `first`; and a constant."""
        widths = widths_of(self.bits)
        weights = geometric(first, ratio, self.size, q).reshape(self.stages, self.count, self.limbs, 2)
        found, constant = [], Scalar(0, 0)
        for limb, (width, rest) in enumerate(zip(self.carry_widths(), widths, strict=True)):
            of_carry = _times(weights[:, :, limb], -(1 << rest), q)
            if limb + 1 < self.limbs:
                of_carry = _plus(of_carry, weights[:, :, limb + 1], q)
            found.append(doubled(of_carry, width, np.uint64(q)))
            if self.negative:
                offset = Scalar(-(1 << (width - 1)) % q, 0)
                constant = constant.plus(scalar(total(of_carry, np.uint64(q))).times(offset, q), q)
            if self.stages > 1:
                of_rest = _plus(_times(weights[:-1, :, limb], -1, q), weights[1:, :, limb], q)
                found.append(doubled(of_rest, rest, np.uint64(q)))
        return np.concatenate(found), constant


def left_signs(bits: npt.NDArray[np.uint8], q: int) -> Elements:
    """1 or -1 for each bit."""
    out = np.zeros((len(bits), 2), np.uint64)
    out[:, 0] = np.where(bits, np.uint64(q - 1), np.uint64(1))
    return out


def right_signs(weights: Elements, bits: npt.NDArray[np.uint8] | None, q: int) -> tuple[Elements | None, Scalar]:
    """-w/2 for each bit's weight, or w/2; and the sum of all w/2: so that w (1 - s s')/2 is a constant and a product."""
    halves = weights.copy()
    scale(halves, Scalar((q + 1) // 2, 0).words(), np.uint64(q))
    constant = scalar(total(halves, np.uint64(q)))
    return None if bits is None else signed(halves, 1 - bits, np.uint64(q)), constant


def _bits(values: Integers, width: int) -> npt.NDArray[np.uint8]:
    return ((values[:, None] >> np.arange(width)) & 1).astype(np.uint8).reshape(-1)


def _times(weights: Elements, factor: int, q: int) -> Elements:
    out = np.ascontiguousarray(weights).reshape(-1, 2).copy()
    scale(out, Scalar(factor % q, 0).words(), np.uint64(q))
    return out


def _plus(x: Elements, y: Elements, q: int) -> Elements:
    return (x + y.reshape(-1, 2)) % np.uint64(q)
