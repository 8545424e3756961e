"""Matrices of words that are not held in memory: their rows are made, or read, when they are needed.

A component of a contribution is expanded from a seed, or is a vector on disk. Where it is long, counting and checking
go through it in blocks of rows, a few times in all, and making a block again takes less time than its products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from caps.errors import ShareError
from caps.shares.ring import Ring, Words
from caps.shares.sharing import Seeded
from services.mpc_server.engine.kernels import BLOCK_ROWS


class Origin(ABC):
    """Where the rows of a matrix come from."""

    def __init__(self, shape: tuple[int, int], ring: Ring) -> None:
        self.shape = shape
        self.ring = ring
        self._last: tuple[int, int, Words] | None = None

    @abstractmethod
    def octets(self, start: int, stop: int) -> bytes | memoryview:
        """Some bytes of the matrix as it is sent: row by row, `ring.itemsize` bytes a word."""

    def packed(self, start: int, stop: int) -> bytes | memoryview:
        """Some rows as they are sent."""
        row = self.shape[1] * self.ring.itemsize
        return self.octets(start * row, stop * row)

    def rows(self, start: int, stop: int) -> Words:
        """Some rows. Those asked for last are kept: columns that are taken apart are asked for one after another."""
        if self._last is None or self._last[:2] != (start, stop):
            words = self.ring.from_bytes(self.packed(start, stop)).reshape(stop - start, self.shape[1])
            words.setflags(write=False)
            self._last = start, stop, words
        return self._last[2]


class SeededOrigin(Origin):
    """A component that is expanded from its seed."""

    def __init__(self, seeded: Seeded, shape: tuple[int, int], ring: Ring) -> None:
        super().__init__(shape, ring)
        self.seeded = seeded

    def octets(self, start: int, stop: int) -> memoryview:
        return self.seeded.octets(self.shape, self.ring, start, stop)


class LongWords:
    """Some rows, and some columns side by side, of a matrix with an origin. It is an array to whoever takes slices.

    A slice is such a matrix again; `np.asarray` makes words of it.
    """

    __slots__ = ("columns", "first", "origin", "shape")
    ndim = 2

    def __init__(self, origin: Origin, rows: slice = slice(None), columns: slice = slice(None)) -> None:
        first, last, _ = rows.indices(origin.shape[0])
        left, right, _ = columns.indices(origin.shape[1])
        self.origin = origin
        self.first = first
        self.columns = slice(left, right)
        self.shape = max(last - first, 0), max(right - left, 0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the words."""
        return self.origin.ring.dtype

    @property
    def size(self) -> int:
        """The number of words."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | tuple[slice, slice]) -> LongWords:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        if not isinstance(rows, slice) or not isinstance(columns, slice) or {rows.step, columns.step} - {None, 1}:
            raise ShareError("of a matrix that is not in memory only ranges of rows and of columns can be taken")
        first, last, _ = rows.indices(self.shape[0])
        left, right, _ = columns.indices(self.shape[1])
        offset = self.columns.start
        return LongWords(
            self.origin, slice(self.first + first, self.first + last), slice(offset + left, offset + right)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Words:
        words = self.origin.rows(self.first, self.first + self.shape[0])[:, self.columns]
        return words if dtype is None and not copy else np.array(words, dtype)

    def setflags(self, *, write: bool) -> None:
        """Nothing is ever written."""

    def blocks(self) -> Iterator[Words]:
        """All rows, in blocks."""
        for start in range(0, self.shape[0], BLOCK_ROWS):
            yield np.asarray(self[start : start + BLOCK_ROWS])

    def sum(self, axis: int, dtype: Any) -> Words:
        """As of an array."""
        sums = [block.sum(axis, dtype=dtype) for block in self.blocks()]
        return np.asarray(sum(sums[1:], start=sums[0])) if axis == 0 else np.concatenate(sums)


def long_words(origin: Origin) -> Words:
    """A matrix with an origin, to be used as an array of which only slices are taken."""
    return cast(Words, LongWords(origin))
