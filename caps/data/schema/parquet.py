"""What a Parquet file would unfold to, from its footer and all its page headers, before anything is unfolded.

The adversary wrote the file. It is small, and says or hides that it is large: pages that decompress to gigabytes, rows
and columns without end, a footer that claims less than the pages contain, many chunks that share their pages, metadata
that take longer to read than the table. So page headers are followed, not the footer's sums; all pages together are
read once; and what remains is what the decompressor may do with one page, which is bounded by its header: every codec
here writes into a buffer of exactly the size in the header and fails if there is more.

Expansion without a compressor is bounded too. A page of equal values takes no space, so each value counts as a word of
memory. A dictionary's entries stay in one place, whatever refers to them; there may be no more of them than bytes, and
the reader adds up the lengths of all texts before it looks at one. Texts that share prefixes with each other
(DELTA_BYTE_ARRAY) can grow quadratically: that encoding is refused.

Field numbers, codecs and encodings are those of parquet.thrift (https://github.com/apache/parquet-format).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from caps.data.schema.limits import Limits, Unfolding
from caps.errors import DomainError

PARQUET_MAGIC = b"PAR1"
"""What a Parquet file begins and ends with."""
NOT_PARQUET = "the file is not valid Parquet"
_MAX_FOOTER = 1 << 24
_MAX_FIELDS = 1 << 21
"""The most fields and elements in a footer: a few seconds of reading."""
_MAX_PAGE_HEADER = 1 << 16
_MAX_DEPTH = 16
_WORD = 16
"""Bytes of a value in memory: what polars needs for a text."""
_CODECS = frozenset({0, 1, 2, 4, 6, 7})
"""Uncompressed, Snappy, gzip, Brotli, Zstandard, LZ4 in raw blocks."""
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_HEADERS = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_V2: (8, 4)}
"""The fields of a page header, and of its encoding in it, by the type of the page."""
_SHARED_PREFIXES = 7
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8, 9})
"""Plain, dictionary, run length, delta of integers, delta of lengths, dictionary, split bytes."""


def check_parquet(data: npt.NDArray[np.uint8], limits: Limits, unfolding: Unfolding) -> list[int]:
    """Returns the rows of each row group. Raises DomainError if a page is not where it should be or a limit passed."""
    try:
        return _walk(data, limits, unfolding)
    except (IndexError, KeyError, TypeError, AttributeError):
        raise DomainError(NOT_PARQUET) from None


def _walk(data: npt.NDArray[np.uint8], limits: Limits, unfolding: Unfolding) -> list[int]:
    view = data.data
    length = int.from_bytes(view[-8:-4], "little")
    start = len(view) - 8 - length
    if start < len(PARQUET_MAGIC):
        raise DomainError(NOT_PARQUET)
    if length > _MAX_FOOTER:
        raise DomainError(f"the Parquet file has more than {_MAX_FOOTER} bytes of metadata")
    footer = _Thrift(view[: start + length], start, _MAX_FIELDS).struct()
    if len(footer[2]) > limits.columns + 1:
        raise DomainError(f"the table has more than {limits.columns} columns")
    rows, packed, groups = 0, 0, []
    for group in footer[4]:
        if group[3] < 0 or len(group[1]) >= len(footer[2]):
            raise DomainError(NOT_PARQUET)
        rows += group[3]
        groups.append(int(group[3]))
        if rows > limits.rows:
            raise DomainError(f"the table has more than {limits.rows} rows")
        for chunk in group[1]:
            about = chunk[3]
            if len(about[3]) != 1:
                raise DomainError("the Parquet table has a nested column; only flat tables can be read")
            if about[4] not in _CODECS:
                raise DomainError("the Parquet file is compressed in a way that is not read; use Zstandard or Snappy")
            packed += about[7]
            if about[7] < 0 or packed > len(view):  # chunks that share pages could be walked without end
                raise DomainError(NOT_PARQUET)
            values = _walk_pages(view[:start], min(about[9], about.get(11, about[9])), about[7], unfolding)
            if values != group[3]:
                raise DomainError(NOT_PARQUET)
    if rows != footer[3]:
        raise DomainError(NOT_PARQUET)
    return groups


def _walk_pages(view: memoryview, at: int, length: int, unfolding: Unfolding) -> int:
    """Returns the number of values in a column chunk, and counts what they unfold to."""
    end = at + length
    values = 0
    if at < len(PARQUET_MAGIC) or end > len(view):
        raise DomainError(NOT_PARQUET)
    while at < end:
        reader = _Thrift(view[: min(end, at + _MAX_PAGE_HEADER)], at, _MAX_PAGE_HEADER)
        page = reader.struct()
        header, encoding = _HEADERS[page[1]]
        count = page[header][1]
        if page[header][encoding] == _SHARED_PREFIXES:
            raise DomainError("the Parquet file has texts in DELTA_BYTE_ARRAY encoding, which is not read; use PLAIN")
        if min(page[2], page[3], count) < 0 or page[header][encoding] not in _ENCODINGS:
            raise DomainError(NOT_PARQUET)
        at = reader.at + page[3]
        if page[1] == _DICTIONARY:
            if count > page[2]:
                raise DomainError(NOT_PARQUET)
            unfolding.add(page[2])
        else:
            values += count
            # A repeated value takes no space in a page but a word in memory.
            unfolding.add(max(page[2], _WORD * count))
    if at != end:
        raise DomainError(NOT_PARQUET)
    return values


class _Thrift:
    """Reads structs of Thrift's compact protocol as dictionaries by field number. Raises IndexError if data ends, or
    there are more than `most` fields and elements.
    """

    def __init__(self, data: memoryview, at: int, most: int) -> None:
        self._data = data
        self.at = at
        self._left = most
        self._depth = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        self._deeper()
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return fields

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise IndexError

    def _value(self, kind: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise IndexError
        return self._READERS[kind](self)

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise IndexError

    def _integer(self) -> int:
        zigzag = self._unsigned()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _bytes(self, length: int | None = None) -> None:
        """Texts and doubles are passed over: nothing here depends on them."""
        length = self._unsigned() if length is None else length
        self.at += length
        if self.at > len(self._data):
            raise IndexError

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if count > self._left:
            raise IndexError
        self._deeper()
        values = [self._value(head & 15) for _ in range(count)]
        self._depth -= 1
        return values

    def _map(self) -> None:
        raise TypeError  # parquet.thrift has no maps

    _READERS: ClassVar[dict[int, Callable[[_Thrift], Any]]] = {
        1: _byte,
        2: _byte,
        3: _byte,
        4: _integer,
        5: _integer,
        6: _integer,
        7: lambda self: self._bytes(8),
        8: _bytes,
        9: _list,
        10: _list,
        11: _map,
        12: struct,
    }
