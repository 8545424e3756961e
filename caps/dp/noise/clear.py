"""The samplers in the clear: the same random bits give the same noise as `services.mpc_server.engine.sampling`.

A source returns bits by label. The label of a draw is the path of the step that makes it on shares, so a test that
knows the servers' keys can give this module the same bits. Bits come as planes (caps.shares.ring): plane j holds bit j
of every element. Every sampler takes (source, label, plan, shape) and returns 64-bit integers of that shape.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.noise.tables import DIGITS, AliasTable
from caps.errors import LabelReused
from caps.shares.prss import SEED_BYTES, expand
from caps.shares.ring import Z64, Words, plane_words, planes_to_words

Shape: TypeAlias = tuple[int, ...]
Integers: TypeAlias = npt.NDArray[np.int64]

WORD = 64


class BitSource(Protocol):
    """A source of random bits."""

    def bits(self, label: bytes, width: int, shape: Shape) -> Words:
        """`width` uniform bits for each element, as planes of shape (width, plane_words(size)). Use a label once."""
        ...


@dataclass(slots=True, repr=False)
class FreshBits:
    """Bits from the operating system, with a separate seed for every label. Tests pass another `entropy`."""

    entropy: Callable[[int], bytes] = secrets.token_bytes
    _used: set[bytes] = field(default_factory=set)

    def bits(self, label: bytes, width: int, shape: Shape) -> Words:
        """See BitSource.bits."""
        if label in self._used:
            raise LabelReused(f"label {label.decode()} has already been used")
        self._used.add(label)
        return expand(self.entropy(SEED_BYTES), label, (width, plane_words(prod(shape))), Z64)


def alias_codes(table: AliasTable, index: Words, digits: Words, count: int) -> Words:
    """Codes from the planes of `count` indices and of their 80 digits."""
    bucket = planes_to_words(index, count).astype(np.intp)
    position = _first_zero(digits, count)
    # All digits are 1 with probability 2^-80; the coin then shows 0, like an inner product without a position.
    found = position < DIGITS
    keep = found & (table.thresholds[np.where(found, position, 0), bucket] != 0)
    return np.where(keep, table.codes[bucket], table.aliases[bucket])


def _first_zero(digits: Words, count: int) -> npt.NDArray[np.intp]:
    """The number of digits, lowest plane first, before the first 0."""
    position = np.zeros(count, np.intp)
    for start in range(0, DIGITS, WORD):
        ones = planes_to_words(digits[start : start + WORD], count)
        lowest_zero = ~ones & (ones + np.uint64(1))
        run = np.where(lowest_zero == 0, WORD, np.bitwise_count(lowest_zero - np.uint64(1)))
        position += np.where(position == start, run, 0)
    return position


def alias_draw(source: BitSource, label: bytes, table: AliasTable, shape: Shape) -> Words:
    """Codes drawn from a table."""
    index = source.bits(label + b"/index", table.index_bits, shape)
    digits = source.bits(label + b"/digits", DIGITS, shape)
    return alias_codes(table, index, digits, prod(shape)).reshape(shape)


def discrete_gaussian(source: BitSource, label: bytes, plan: GaussianPlan, shape: Shape) -> Integers:
    """Integers x with probability proportional to exp(-x^2 / (2 sigma2)), within plan.distance."""
    every = (len(plan.coefficients), *shape)
    magnitude = alias_draw(source, label + b"/magnitude", plan.table, every).astype(np.int64)
    sign = planes_to_words(source.bits(label + b"/sign", 1, every), prod(every)).reshape(every)
    signed = np.where(sign == 1, -magnitude, magnitude)
    total: Integers = np.tensordot(np.array(plan.coefficients), signed, 1)
    return total


def geometric(source: BitSource, label: bytes, plan: GeometricPlan, shape: Shape) -> Integers:
    """Integers g >= 0 with probability proportional to exp(-g / scale), within plan.distance."""
    total, position = np.zeros(shape, np.uint64), 0
    for i, table in enumerate(plan.tables):
        total += alias_draw(source, label + b"/" + str(i).encode(), table, shape) << np.uint64(position)
        position += table.index_bits
    return total.astype(np.int64)


def discrete_laplace(source: BitSource, label: bytes, plan: LaplacePlan, shape: Shape) -> Integers:
    """Integers x with probability proportional to exp(-|x| / scale), within plan.distance."""
    first, second = geometric(source, label, plan.geometric, (2, *shape))
    difference: Integers = np.asarray(first - second)
    return difference


def gumbel(source: BitSource, label: bytes, plan: GumbelPlan, shape: Shape) -> Integers:
    """Integers that follow beta * Gumbel as GumbelPlan says."""
    codes = alias_draw(source, label + b"/cell", plan.table, shape)
    low_planes = source.bits(label + b"/low", plan.least + plan.free, shape)
    low = planes_to_words(low_planes, prod(shape)).reshape(shape)
    places, least = np.uint64(plan.width - plan.least), np.uint64(plan.least)
    one = np.uint64(1)
    mask = (codes >> places << least) | ((one << least) - one)
    start = (codes & ((one << places) - one)) << least
    unused = WORD - plan.width
    top = ((start | (low & mask)) << np.uint64(unused)).astype(np.int64)
    return np.right_shift(top, np.int64(unused))
