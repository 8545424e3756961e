"""Checks the shape of an owner's table and turns it into a lazy frame of text, numbers and booleans.

polars reads CSV fast but accepts short rows, stray quotes and repeated headers. So array operations check the bytes
first, and polars only sees files on which all readers agree. A Parquet file can decompress to any size, so all its
page headers are read first. Error messages of polars may quote data, so none is passed on.
"""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.schema.columns import Column
from caps.errors import DomainError

Table: TypeAlias = Mapping[str, Any] | pl.DataFrame | str | os.PathLike[str] | bytes | BinaryIO
"""Arrays by column name, a frame, or a CSV or Parquet file given as path, bytes or binary stream."""

_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises when it reads a file: the messages may quote data. Some damaged files make it panic."""

PARQUET_MAGIC = b"PAR1"
"""What a Parquet file begins and ends with."""
_CHUNK = 1 << 22
_MAX_HEADER = 1 << 20
_MAX_FOOTER = 1 << 26
_MAX_PAGE_HEADER = 1 << 20
_NOT_PARQUET = "the file is not valid Parquet"
_STRAY = "the file has a carriage return that is neither quoted nor followed by a newline"
_BAD_ROW = "a row does not have the header's {} fields"
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


@dataclass(frozen=True)
class Limits:
    """The largest table that is read; `bytes` bounds the file and, for Parquet, its decompressed size."""

    rows: int = 100_000_000
    bytes: int = 16 << 30
    field: int = 1 << 16
    """The most bytes in one field of a CSV."""


def lazy_frame(
    table: Table,
    columns: Sequence[Column],
    *,
    extra: str,
    separator: str,
    limits: Limits,
    days: Collection[str] = (),
) -> tuple[pl.LazyFrame, int]:
    """Returns the requested columns, in order, and the number of rows. Raises DomainError unless each is there once.

    The columns are named by position, because polars reads some names, "*" for one, as patterns. In Parquet, columns
    named in `days` may be dates or times.
    """
    if isinstance(table, pl.DataFrame):
        table = {name: table[name] for name in table.columns}
    if not isinstance(table, Mapping):
        source, data = _bytes(table, limits)
        if is_parquet(data):
            return _parquet(source, data, columns, extra, limits, days)
        return _csv(source, data, columns, extra, separator, limits)
    _check_header(list(table), columns, extra)
    series = [_series(table[column.name], column) for column in columns]
    if len({len(one) for one in series}) > 1:
        raise DomainError("the table's columns differ in length")
    if len(series[0]) > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return pl.LazyFrame([one.alias(str(position)) for position, one in enumerate(series)]), len(series[0])


def collected(lazy: pl.LazyFrame, rows: int) -> pl.DataFrame:
    """Returns the rows of a lazy frame. Raises DomainError if they cannot be read or their number is wrong."""
    with suppress(*_POLARS_ERRORS):
        frame = lazy.collect(engine="streaming")
        if frame.height == rows:
            return frame
    raise DomainError("the table could not be read")


def _check_header(header: Sequence[object], columns: Sequence[Column], extra: str) -> None:
    if extra not in ("ignore", "refuse"):
        raise DomainError('extra must be "ignore" or "refuse"')
    names = [column.name for column in columns]
    if missing := [name for name in names if name not in header]:
        found = len(names) - len(missing)
        raise DomainError(f"the table has {found} of the {len(names)} required columns; missing: {', '.join(missing)}")
    for name in names:
        if header.count(name) > 1:
            raise DomainError(f"the table has more than one column {name}")
    if extra == "refuse" and (more := len(header) - len(names)):
        raise DomainError(f"the table has {more} column{'s' * (more > 1)} that the schema does not have")


def _series(values: object, column: Column) -> pl.Series:
    if not isinstance(values, pl.Series):
        dtype = getattr(values, "dtype", None)
        array = np.asarray(values, dtype if isinstance(dtype, np.dtype) else object)
        if array.ndim != 1 or array.dtype.kind not in "biufUO":
            raise DomainError(f"column {column.name} must be a flat list of text, numbers or booleans")
        if array.dtype.kind in "biuf":
            return pl.Series(array)
        return _texts(array.tolist(), column)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Null):
        values = values.cast(pl.String)
    if values.dtype == pl.Object:
        return _texts(values.to_list(), column)
    if not (values.dtype.is_numeric() or values.dtype in (pl.String, pl.Boolean)):
        raise DomainError(f"column {column.name} must contain text, numbers or booleans")
    return values


def _texts(values: list[object], column: Column) -> pl.Series:
    def text(value: object) -> str | None:
        if isinstance(value, str):
            return value
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            return None
        if isinstance(value, bool | np.bool_):
            return column.spell(bool(value))
        if isinstance(value, float | np.floating):
            return None if value != value else repr(float(value))  # noqa: PLR0124  NaN alone differs from itself
        if isinstance(value, int | np.integer):
            return str(int(value))
        raise DomainError(f"column {column.name} must contain only text, numbers, booleans and None")

    with suppress(UnicodeError):  # the error quotes the text
        return pl.Series([text(value) for value in values], dtype=pl.String)
    raise DomainError(f"column {column.name} has text that UTF-8 cannot encode")


def is_parquet(data: npt.NDArray[np.uint8]) -> bool:
    """Returns whether a file begins and ends as Parquet does."""
    return data[:4].tobytes() == PARQUET_MAGIC and data[-4:].tobytes() == PARQUET_MAGIC


def _csv(
    source: Path | bytes,
    data: npt.NDArray[np.uint8],
    columns: Sequence[Column],
    extra: str,
    separator: str,
    limits: Limits,
) -> tuple[pl.LazyFrame, int]:
    if len(separator) != 1 or separator not in ",;|\t":
        raise DomainError("the separator must be a comma, semicolon, bar or tab")
    line = bytes(data[:_MAX_HEADER]).split(b"\n", 1)[0]
    if len(line) == _MAX_HEADER:
        raise DomainError("the first line is too long for a header")
    header = _header(line, separator)
    _check_header(header, columns, extra)
    rows = _check_body(data, len(line) + 1, len(header), ord(separator), limits)
    lazy = pl.scan_csv(
        source,
        has_header=False,
        skip_lines=1,
        n_rows=rows,
        separator=separator,
        empty_string_is_null=False,
        glob=False,
        schema={str(position): pl.String for position in range(len(header))},
    )
    at = [str(header.index(column.name)) for column in columns]
    return lazy.select(pl.col(name).alias(str(position)) for position, name in enumerate(at)), rows


def _bytes(source: Any, limits: Limits) -> tuple[Path | bytes, npt.NDArray[np.uint8]]:
    if isinstance(source, str | os.PathLike):
        source = Path(source).absolute()
    elif not isinstance(source, bytes):
        source = _read(source, limits)
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    if size > limits.bytes:
        raise DomainError(f"the file has more than {limits.bytes} bytes")
    if not size:
        raise DomainError("the file is empty")
    return source, np.memmap(source, np.uint8, "r") if isinstance(source, Path) else np.frombuffer(source, np.uint8)


def _read(stream: BinaryIO, limits: Limits) -> bytes:
    parts, size = [], 0
    while size <= limits.bytes and (part := stream.read(_CHUNK)):  # may return less than requested
        if not isinstance(part, bytes):
            raise DomainError("a table must be read from a binary stream, not a text stream")
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _header(line: bytes, separator: str) -> list[str]:
    if not _is_utf8(codecs.getincrementaldecoder("utf-8")(), line, final=True):
        raise DomainError("the file is not in UTF-8")
    with suppress(csv.Error, StopIteration):
        return next(csv.reader([line.decode("utf-8-sig").removesuffix("\r")], delimiter=separator, strict=True))
    raise DomainError("the first line is not a valid CSV header")


def _check_body(data: npt.NDArray[np.uint8], start: int, fields: int, separator: int, limits: Limits) -> int:
    """Returns the number of rows from `start` on. Raises DomainError if one is badly quoted or has too many fields or
    too few.
    """
    end = len(data)
    if fields > 1:  # with one field an empty line is a row
        tail = bytes(data[max(start, end - _CHUNK) :])
        blank = tail[len(tail.rstrip(b"\r\n")) :]
        end -= len(blank)
        if b"\r" in blank.replace(b"\r\n", b""):
            raise DomainError(_STRAY)
    if start >= end:
        return 0
    decoder = codecs.getincrementaldecoder("utf-8")()
    quoted, rows, pending, last = False, 0, 0, start - 1
    for at in range(start, end, _CHUNK):
        stop = min(at + _CHUNK, end)
        part = data[at:stop]
        if not _is_utf8(decoder, bytes(part), stop == end):
            raise DomainError("the file is not in UTF-8")
        breaks, quotes, returns = (part == separator) | (part == _NEWLINE), part == _QUOTE, part == _RETURN
        if quoted or quotes.any():
            inside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(quoted)) & 1 == 1
            breaks &= ~inside
            returns &= ~inside
            before = data[np.flatnonzero(quotes & inside) + at - 1]
            closing = np.flatnonzero(quotes & ~inside) + at + 1
            after = data[closing[closing < end]]
            if not (
                np.isin(before, (separator, _NEWLINE, _QUOTE)).all()
                and np.isin(after, (separator, _NEWLINE, _QUOTE, _RETURN)).all()
            ):
                raise DomainError("the file has a quote inside a field that is not quoted")
            quoted = bool(inside[-1])
        following = np.flatnonzero(returns) + at + 1
        if (data[following[following < len(data)]] != _NEWLINE).any() or len(data) in following[-1:]:
            raise DomainError(_STRAY)
        ends = np.flatnonzero(breaks) + at
        if max(np.diff(ends, prepend=last).max(initial=0), stop - (ends[-1] if len(ends) else last)) > limits.field + 1:
            raise DomainError(f"a field has more than {limits.field} bytes")
        lines = np.flatnonzero(data[ends] == _NEWLINE)
        if (np.diff(lines, prepend=-1 - pending) != fields).any():
            raise DomainError(_BAD_ROW.format(fields))
        pending = len(ends) - 1 - int(lines[-1]) if len(lines) else pending + len(ends)
        last = int(ends[-1]) if len(ends) else last
        rows += len(lines)
        if rows > limits.rows:
            raise DomainError(f"the table has more than {limits.rows} rows")
    if quoted:
        raise DomainError("the file ends inside a quoted field")
    if last < end - 1 or pending:
        rows += 1
        if pending + 1 != fields:
            raise DomainError(_BAD_ROW.format(fields))
    if rows > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return rows


def _is_utf8(decoder: codecs.IncrementalDecoder, part: bytes, final: bool) -> bool:
    with suppress(UnicodeDecodeError):  # the error quotes the data
        decoder.decode(part, final)
        return True
    return False


def _parquet(
    source: Path | bytes,
    data: npt.NDArray[np.uint8],
    columns: Sequence[Column],
    extra: str,
    limits: Limits,
    days: Collection[str],
) -> tuple[pl.LazyFrame, int]:
    """Reads the file's own size figures first, so that its decompressed size is known before a page is decompressed."""
    rows = _check_parquet(data, limits)
    lazy = pl.scan_parquet(source, glob=False)
    with suppress(*_POLARS_ERRORS):
        schema = lazy.collect_schema()
        header = schema.names()
        _check_header(header, columns, extra)
        return lazy.select(
            _plain_values(pl.nth(header.index(column.name)), schema[column.name], column, days).alias(str(position))
            for position, column in enumerate(columns)
        ), rows
    raise DomainError(_NOT_PARQUET)


def _plain_values(values: pl.Expr, dtype: pl.DataType, column: Column, days: Collection[str]) -> pl.Expr:
    if column.name in days and dtype in (pl.Date, pl.Datetime):
        return values
    if dtype in (pl.Categorical, pl.Enum, pl.Null):
        return values.cast(pl.String)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Boolean)):
        raise DomainError(f"column {column.name} must contain text, numbers or booleans")
    return values


def _check_parquet(data: npt.NDArray[np.uint8], limits: Limits) -> int:
    """Returns the number of rows. Raises DomainError if a page is not where it should be, or the limits are exceeded.

    The walk follows the page headers, because a footer can claim less than the pages contain. Field numbers are those
    of parquet.thrift (https://github.com/apache/parquet-format).
    """
    try:
        return _walk_parquet(data, limits)
    except (IndexError, KeyError, TypeError, RecursionError):
        raise DomainError(_NOT_PARQUET) from None


def _walk_parquet(data: npt.NDArray[np.uint8], limits: Limits) -> int:
    length = int.from_bytes(data[-8:-4].tobytes(), "little")
    start = len(data) - 8 - length
    if start < len(PARQUET_MAGIC) or length > _MAX_FOOTER:
        raise DomainError(_NOT_PARQUET)
    footer = _Thrift(data[start : start + length].tobytes()).struct()
    rows, unpacked, leaves = 0, 0, 1
    for group in footer[4]:
        rows += group[3]
        leaves = max(leaves, len(group[1]))
        for chunk in group[1]:
            about = chunk[3]
            if len(about[3]) != 1:
                raise DomainError("the Parquet table has a nested column; only flat tables can be read")
            values, size = _walk_pages(data, min(about[9], about.get(11, about[9])), about[7])
            if values != group[3]:
                raise DomainError(_NOT_PARQUET)
            unpacked += size
    if rows != footer[3]:
        raise DomainError(_NOT_PARQUET)
    if rows > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    # A repeated value takes no space in a page but a word in memory.
    if max(unpacked, 8 * rows * leaves) > limits.bytes:
        raise DomainError(f"the table decompresses to more than {limits.bytes} bytes")
    return rows


def _walk_pages(data: npt.NDArray[np.uint8], at: int, length: int) -> tuple[int, int]:
    """Returns the number of values and of decompressed bytes in a column chunk."""
    end = at + length
    values = size = 0
    if at < len(PARQUET_MAGIC) or end > len(data):
        raise DomainError(_NOT_PARQUET)
    while at < end:
        reader = _Thrift(data[at : min(end, at + _MAX_PAGE_HEADER)].tobytes())
        page = reader.struct()
        if min(page[2], page[3]) < 0:
            raise DomainError(_NOT_PARQUET)
        at += reader.at + page[3]
        size += page[2]
        values += next((page[kind][1] for kind in (5, 8) if kind in page), 0)
    if at != end:
        raise DomainError(_NOT_PARQUET)
    return values, size


class _Thrift:
    """Reads structs of Thrift's compact protocol as dictionaries by field number. Raises IndexError if data ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
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

    def _bytes(self, length: int | None = None) -> bytes:
        length = self._unsigned() if length is None else length
        if self.at + length > len(self._data):
            raise IndexError
        self.at += length
        return self._data[self.at - length : self.at]

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if count > len(self._data):
            raise IndexError
        return [self._value(head & 15) for _ in range(count)]

    def _map(self) -> dict[int, Any]:
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
