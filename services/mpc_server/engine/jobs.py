"""The large local work of counting and checking: sums over rows, of which any range can be computed by itself.

A job is made of a party's own components and of what is public. It has no keys, draws nothing and sends nothing, so it
can be cut into ranges of rows, and each of them be computed, or computed again, by any process of that party
(`workers`). Sums are exact integers modulo 2^64, of which more bits are right than are needed. That is what finds a
wrong one: for a sum T that is off by E in a needed bit, that is by an odd multiple of 2^v with v < 24, and r of uniform
words of 64 bits that only the leader knows, T r is right with probability at most 2^(v - 64), below 2^-40 (Freivalds
1977, in Z_2^64). What T r should be follows from the components without the product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.shares.prss import expand
from caps.shares.ring import Z8, Z64, Ring, Words, ring_of
from services.mpc_server.engine.kernels import (
    BLOCK_ROWS,
    Doubles,
    centred,
    is_one_factor,
    subset_totals,
    times_words,
)

Coins: TypeAlias = npt.NDArray[np.uint8]
COINS = b"caps/v1/compute/coins"


class Job(ABC):
    """A list of matrices, each a sum over rows."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows that are summed."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """Words of a row of a component."""

    @property
    @abstractmethod
    def products(self) -> int:
        """Multiplications of words that a row takes, or what takes as long."""

    @property
    @abstractmethod
    def secret_words(self) -> int:
        """Words by which the sums are combined when they are checked."""

    @abstractmethod
    def part(self, rows: slice) -> Job:
        """The same for some of the rows, from a multiple of BLOCK_ROWS on."""

    @abstractmethod
    def totals(self) -> list[Words]:
        """The sums, modulo 2^64."""

    @abstractmethod
    def foretold(self, secret: Words) -> list[Words]:
        """What the sums times the secret are."""

    @abstractmethod
    def shapes(self) -> list[tuple[int, int]]:
        """Of the sums."""

    def right(self, totals: Sequence[Words], secret: Words, foretold: Sequence[Words]) -> bool:
        """Whether sums that somebody else computed are as foretold."""
        if [(one.shape, one.dtype) for one in totals] != [(shape, Z64.dtype) for shape in self.shapes()]:
            return False
        return all(np.array_equal(one @ secret, told) for one, told in zip(totals, foretold, strict=True))

    @property
    def result_bytes(self) -> int:
        """Bytes of the sums."""
        return Z64.dtype.itemsize * sum(map(prod, self.shapes()))


@dataclass(frozen=True, slots=True)
class Mix:
    """A matrix made of a party's components, by their places: one of them, or two that are added or subtracted."""

    first: int
    second: int | None = None
    opposite: bool = False

    def of(self, components: Sequence[Words]) -> Words:
        """The mixed words."""
        if self.second is None:
            return components[self.first]
        mixed = np.subtract if self.opposite else np.add
        return np.asarray(mixed(components[self.first], components[self.second]))


@dataclass(frozen=True, slots=True)
class Grams(Job):
    """x^T x modulo 2^k for each mix x of components of a matrix that comes in parts, side by side."""

    parts: tuple[tuple[Words, ...], ...]
    mixes: tuple[Mix, ...]
    modulo: Ring

    def __post_init__(self) -> None:
        assert is_one_factor(self.modulo), "sums are exact modulo 2^64 only if words are single factors"

    @property
    def rows(self) -> int:
        return len(self.parts[0][0])

    @property
    def columns(self) -> int:
        return sum(part[0].shape[1] for part in self.parts)

    @property
    def products(self) -> int:
        return len(self.mixes) * self.columns**2

    @property
    def secret_words(self) -> int:
        return self.columns

    def part(self, rows: slice) -> Grams:
        return replace(self, parts=tuple(tuple(words[rows] for words in part) for part in self.parts))

    def shapes(self) -> list[tuple[int, int]]:
        return [(self.columns, self.columns)] * len(self.mixes)

    def totals(self) -> list[Words]:
        totals = [np.zeros(shape, Z64.dtype) for shape in self.shapes()]
        for place, floats in self._mixed():
            totals[place] += (floats.T @ floats).astype(np.int64).view(Z64.dtype)
        return totals

    def foretold(self, secret: Words) -> list[Words]:
        found = [np.zeros(self.columns, Z64.dtype) for _ in self.mixes]
        for place, floats in self._mixed():
            found[place] += times_words(floats.T, times_words(floats, secret))
        return found

    def _mixed(self) -> Iterator[tuple[int, Doubles]]:
        """Blocks of rows of each mix, as centred integers. A block is made once for all of them."""
        ends = np.cumsum([0, *(part[0].shape[1] for part in self.parts)])
        buffer = np.empty((min(BLOCK_ROWS, self.rows), ends[-1]))
        for start in range(0, self.rows, BLOCK_ROWS):
            block = [[np.asarray(words[start : start + BLOCK_ROWS]) for words in part] for part in self.parts]
            floats = buffer[: self.rows - start]
            for place, mix in enumerate(self.mixes):
                for components, (first, last) in zip(block, pairwise(ends), strict=True):
                    floats[:, first:last] = centred(mix.of(components), self.modulo)
                yield place, floats


@dataclass(frozen=True, slots=True)
class BlockSums:
    """Spreads rows to their entries and the sums of blocks of them, transposed: numpy adds long columns faster."""

    sizes: tuple[int, ...]

    @property
    def columns(self) -> int:
        """Entries and sums of a row."""
        return sum(self.sizes) + len(self.sizes)

    def __call__(self, part: Words, buffer: Words) -> Words:
        width = sum(self.sizes)
        filled = buffer[:, : len(part)]
        filled[:width] = part.T
        for total, (start, stop) in zip(filled[width:], pairwise(np.cumsum([0, *self.sizes])), strict=True):
            np.add.reduce(filled[start:stop], axis=0, dtype=part.dtype, out=total)
        return filled


@dataclass(frozen=True, slots=True, repr=False)
class RowCoins:
    """Public coins of rows, `count` for each, that follow from a seed; a block of rows has coins of its own."""

    seed: bytes
    label: bytes
    count: int

    def __call__(self, start: int, rows: int) -> Coins:
        return coins(self.seed, b"%b/rows/%d" % (self.label, start), rows, self.count)


def coins(seed: bytes, label: bytes, rows: int, count: int) -> Coins:
    """Rows of `count` public random bits."""
    octets = expand(seed, COINS + label, (rows, count // 8), Z8)
    return np.unpackbits(octets.view(np.uint8), axis=1)


@dataclass(frozen=True, slots=True)
class Quadratic:
    """(the sum of left[c] v_c) * (the sum of right[c] v_c + constant), elementwise, for components v_c."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    constant: int = 0

    def of(self, components: Sequence[Words]) -> Words:
        """Its words, in an array of their own."""
        left, right = _weighted(self.left, components), _weighted(self.right, components)
        factor = right + _word(self.constant, right) if self.constant else right
        return np.asarray(left * factor)


def _weighted(weights: Sequence[int], components: Sequence[Words]) -> Words:
    terms = [
        words if weight == 1 else words * _word(weight, words)
        for weight, words in zip(weights, components, strict=True)
        if weight
    ]
    return reduce(np.add, terms)


def _word(number: int, like: Words) -> np.unsignedinteger[Any]:
    return like.dtype.type(number % (1 << ring_of(like).bits))


_SPREADING = 4
"""Times that a deviation takes as long as a product of a Gram matrix, with all that is done to spread and square it."""


@dataclass(frozen=True, slots=True)
class Deviations(Job):
    """R V, transposed, for each V that is a quadratic function of what rows are spread to; R are public coins of rows.

    first: the number of the first row, which says what its coins are.
    """

    components: tuple[Words, ...]
    forms: tuple[Quadratic, ...]
    spread: Callable[[Words, Words], Words]
    spread_columns: int
    row_coins: Callable[[int, int], Coins]
    combinations: int
    first: int = 0

    @property
    def rows(self) -> int:
        return len(self.components[0])

    @property
    def columns(self) -> int:
        return int(self.components[0].shape[1])

    @property
    def products(self) -> int:
        return _SPREADING * len(self.forms) * self.spread_columns * self.combinations

    @property
    def secret_words(self) -> int:
        return self.combinations

    def part(self, rows: slice) -> Deviations:
        start = rows.indices(self.rows)[0]
        assert start % BLOCK_ROWS == 0, "coins belong to whole blocks"
        return replace(self, components=tuple(words[rows] for words in self.components), first=self.first + start)

    def shapes(self) -> list[tuple[int, int]]:
        return [(self.spread_columns, self.combinations)] * len(self.forms)

    def totals(self) -> list[Words]:
        totals = [np.zeros(shape, Z64.dtype) for shape in self.shapes()]
        for place, values, chosen in self._values():
            totals[place] += subset_totals(values, chosen)
        return totals

    def foretold(self, secret: Words) -> list[Words]:
        found = [np.zeros(self.spread_columns, Z64.dtype) for _ in self.forms]
        last: tuple[Coins, Words] | None = None
        for place, values, chosen in self._values():
            if last is None or last[0] is not chosen:
                last = chosen, times_words(chosen.astype(np.float64), secret)
            ring = ring_of(values)
            found[place] += times_words(ring.signed(values).astype(np.float64), last[1], bits=ring.bits)
        return found

    def _values(self) -> Iterator[tuple[int, Words, Coins]]:
        """Blocks of rows of each V, transposed, with their coins."""
        dtype = self.components[0].dtype
        shape = len(self.components), self.spread_columns, min(self.rows, BLOCK_ROWS)
        buffers = np.empty(shape, dtype)
        for start in range(0, self.rows, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            spread = [
                self.spread(np.asarray(words[block]), buffer)
                for words, buffer in zip(self.components, buffers, strict=True)
            ]
            chosen = self.row_coins(self.first + start, spread[0].shape[1])
            for place, form in enumerate(self.forms):
                yield place, form.of(spread), chosen
