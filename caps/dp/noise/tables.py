"""Finite laws as Walker alias tables with integer weights (Walker 1977; Vose 1991), and their exact errors.

A draw from a table of 2^p buckets takes p uniform index bits and one biased coin. Bucket b yields its code with
probability T / 2^80, where T is its threshold, and its alias otherwise. The coin takes fair digits d_1, d_2, .. up to
the first 0, at position J, and shows digit J of T / 2^80 = 0.t_1 t_2 .. t_80. This is exact, because J = j has
probability 2^-j.

Probabilities are integers in units of 2^-240, and everything else is computed with 60 decimal digits. Decimal
arithmetic, including `exp`, is correctly rounded by its specification, so every party computes the same table on any
hardware.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from caps.dp.noise.fixed import ONE, PRECISION
from caps.errors import DomainError

VERSION = "caps/v1/noise"

DIGITS = 80
"""The number of fair digits behind a biased coin, and so the number of bits of a threshold."""

COIN = (4, 4, 5)
"""How a circuit groups the digits: the first 0 is sought in blocks of 4, blocks of 4 blocks, and 5 of those.

Among the groupings tried, this one has the least product of ANDs and rounds: 130 and 7, against 152 and 12 for a
Brent-Kung prefix over all digits.
"""

COIN_ANDS = 130
"""ANDs of one coin: 104 to find the first 0, 26 to pick the threshold's bit there."""

LIMIT = Fraction(1, 2**80)
"""The largest total variation distance of a sample from its law."""

CONTEXT = Context(prec=60)
ERROR = Fraction(1, 10**50)
"""A bound on the absolute error of a probability: more than 2^73 units of 2^-240, and 10^9 last units of CONTEXT."""

GRAIN_BITS = 160
GRAINS = 1 << GRAIN_BITS
"""Bounds are multiples of 2^-160."""


def decimal(value: Fraction) -> Decimal:
    """The fraction, to 60 digits."""
    return CONTEXT.divide(Decimal(value.numerator), Decimal(value.denominator))


def upward(value: Decimal) -> Fraction:
    """An exact upper bound, a multiple of 2^-160."""
    grains = CONTEXT.multiply(value, Decimal(GRAINS)).to_integral_value(ROUND_CEILING)
    return Fraction(int(grains) + 1, GRAINS)


def draw_ands(index_bits: int, width: int) -> int:
    """ANDs of one draw on shares: the one-hot index, the coin, and the choice between a code and its alias."""
    return (1 << index_bits) - index_bits - 1 + COIN_ANDS + width


@dataclass(frozen=True, slots=True, eq=False)
class AliasTable:
    """A law on `width`-bit codes, known to all parties. Make one with `alias_table`.

    `thresholds[j, b]` is digit t_(j+1) of bucket b's threshold; `codes` and `aliases` are what the bucket yields.
    `distance` is an upper bound on the total variation distance to the requested law.
    """

    law: str
    index_bits: int
    width: int
    codes: npt.NDArray[np.uint64]
    aliases: npt.NDArray[np.uint64]
    thresholds: npt.NDArray[np.uint8]
    distance: Fraction
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        for array in (self.codes, self.aliases, self.thresholds):
            array.flags.writeable = False
        head = f"{VERSION}/alias {self.law} p={self.index_bits} w={self.width} tv={self.distance}"
        object.__setattr__(self, "digest", digest(head, self.codes, self.aliases, np.packbits(self.thresholds, axis=1)))

    @property
    def ands(self) -> int:
        """ANDs of one draw on shares."""
        return draw_ands(self.index_bits, self.width)

    def masses(self) -> dict[int, int]:
        """The actual law of a draw: the weight of every code out of 2^(80 + index_bits)."""
        return _masses(self.codes.tolist(), self.aliases.tolist(), _integers(self.thresholds))


def digest(head: str, *arrays: npt.NDArray[np.unsignedinteger]) -> str:
    """SHA-256 of a description and of words in little-endian order, as hex: what parties compare before use."""
    hashed = hashlib.sha256(head.encode())
    for array in arrays:
        hashed.update(b"\0" + np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return hashed.hexdigest()


def alias_table(law: str, codes: Sequence[int], probabilities: Sequence[int]) -> AliasTable:
    """The table of a law on distinct codes. If the probabilities sum to less than 1, codes[0] gets the rest.

    Probabilities are in units of 2^-240, each off by at most ERROR. Weights are multiples of 2^-(80 + p), rounded so
    that they sum to 1 and none is off by a whole unit. The distance is then computed from the finished table, exactly
    up to the errors of the probabilities, and a table above LIMIT is refused.
    """
    index_bits = max(1, (len(codes) - 1).bit_length())
    buckets, total = 1 << index_bits, 1 << (DIGITS + index_bits)
    outside = ONE - sum(probabilities)
    error = ERROR * (buckets + 1)
    if len(set(codes)) != len(codes) or min(codes) < 0 or min(probabilities) < 0 or Fraction(outside, ONE) < -error:
        raise DomainError(f"{law} is not a law on distinct codes")
    outside = max(outside, 0)
    cut = PRECISION - DIGITS - index_bits
    exact = [probabilities[0] + outside, *probabilities[1:]]
    weights = [q >> cut for q in exact]
    lost = [q & ((1 << cut) - 1) for q in exact]
    most_lost = sorted(range(len(codes)), key=lost.__getitem__, reverse=True)
    for k in most_lost[: total - sum(weights)]:
        weights[k] += 1
    padded = [*codes, *[codes[0]] * (buckets - len(codes))]
    donors, thresholds = _fill(weights + [0] * (buckets - len(codes)))
    aliases = [padded[donor] for donor in donors]
    found = _masses(padded, aliases, thresholds)
    off = outside + sum(abs((found.get(c, 0) << cut) - q) for c, q in zip(codes, probabilities, strict=True))
    distance = Fraction(ceil((Fraction(off, ONE) + error) / 2 * GRAINS) + 1, GRAINS)
    if sum(found.values()) != total or distance > LIMIT:
        raise DomainError(f"the table of {law} is 2^{log2(distance):.2f} from its law, which is above 2^-80")
    return AliasTable(
        law,
        index_bits,
        max(1, max(codes).bit_length()),
        np.array(padded, np.uint64),
        np.array(aliases, np.uint64),
        _digits(thresholds),
        distance,
    )


def _fill(weights: list[int]) -> tuple[list[int], list[int]]:
    """Share out the weights so that every bucket holds 2^80, from itself and one donor; (donors, own parts)."""
    capacity = 1 << DIGITS
    left, donors, own = list(weights), list(range(len(weights))), [0] * len(weights)
    scarce = [b for b, weight in enumerate(left) if weight < capacity]
    ample = [b for b, weight in enumerate(left) if weight > capacity]
    while scarce:
        bucket, donor = scarce.pop(), ample[-1]
        own[bucket], donors[bucket] = left[bucket], donor
        left[donor] -= capacity - left[bucket]
        if left[donor] <= capacity:
            ample.pop()
            if left[donor] < capacity:
                scarce.append(donor)
    return donors, own


def _digits(thresholds: list[int]) -> npt.NDArray[np.uint8]:
    """Digit j of every threshold in row j, the highest first."""
    octets = np.frombuffer(b"".join(t.to_bytes(DIGITS // 8) for t in thresholds), np.uint8)
    return np.ascontiguousarray(np.unpackbits(octets.reshape(-1, DIGITS // 8), axis=1).T)


def _integers(thresholds: npt.NDArray[np.uint8]) -> list[int]:
    return [int("".join(map(str, column)), 2) for column in thresholds.T.tolist()]


def _masses(codes: Sequence[int], aliases: Sequence[int], thresholds: Sequence[int]) -> dict[int, int]:
    masses: dict[int, int] = {}
    for code, alias, threshold in zip(codes, aliases, thresholds, strict=True):
        masses[code] = masses.get(code, 0) + threshold
        masses[alias] = masses.get(alias, 0) + (1 << DIGITS) - threshold
    return {code: mass for code, mass in masses.items() if mass}
