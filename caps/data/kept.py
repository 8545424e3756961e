"""Codes of a table, kept while they are needed: in memory if they are few, else in a file without a name.

A code takes one byte where the domain allows that, so 10^7 rows of 30 columns are 300 MB. The file is read through a
mapping whose pages are given back block by block.
"""

from __future__ import annotations

import mmap
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from caps.data.domain import Domain

IN_MEMORY = 64 << 20
"""The most bytes of codes that are kept in memory."""

SmallCodes = npt.NDArray[np.signedinteger[Any]]
"""`Codes`, of any signed type that has room for them."""


class Keeper:
    """Takes blocks of codes, and returns them as one array. folder: where a file may be made; it has no name there."""

    def __init__(self, domain: Domain, folder: Path | None = None) -> None:
        self._width, self._folder = len(domain.attributes), folder
        self._type = next(kind for kind in (np.int8, np.int16, np.int32) if max(domain.sizes) <= np.iinfo(kind).max)
        self._parts: list[SmallCodes] = []
        self._bytes = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:  # a mapping outlives its file
            self._file.close()

    def add(self, codes: npt.NDArray[np.signedinteger[Any]]) -> None:
        """Some more rows."""
        block: SmallCodes = np.ascontiguousarray(codes).astype(self._type, copy=False)
        self._bytes += block.nbytes
        if self._file is None and self._bytes > IN_MEMORY:
            self._file = _unnamed(self._folder)
            for part in self._parts:
                self._file.write(part.data)
            self._parts.clear()
        if self._file is None:
            self._parts.append(block)
        else:
            self._file.write(block.data)

    def codes(self) -> SmallCodes:
        """All rows."""
        if self._file is None:
            return np.concatenate([np.empty((0, self._width), self._type), *self._parts])
        self._file.flush()
        return np.memmap(self._file, self._type, "r").reshape(-1, self._width)


def give_back(codes: npt.NDArray[Any]) -> None:
    """Let the system take back the memory in which rows of a file were read. They can be read again."""
    base: Any = codes
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        with suppress(ValueError, OSError):
            base.madvise(mmap.MADV_DONTNEED)


def selected(codes: SmallCodes, rows: npt.NDArray[np.int64], domain: Domain, folder: Path | None = None) -> SmallCodes:
    """Some rows of kept codes, in this order."""
    if len(rows) == len(codes) and np.array_equal(rows, np.arange(len(rows))):
        return codes
    with Keeper(domain, folder) as keeper:
        for start in range(0, len(rows), _ROWS):
            keeper.add(codes[rows[start : start + _ROWS]])
        return keeper.codes()


_ROWS = 1 << 16


def _unnamed(folder: Path | None) -> BinaryIO:
    with suppress(OSError):
        return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()
