"""Checks the shape of an owner's table and turns it into a lazy frame of text, numbers and booleans.

polars reads CSV fast but accepts short rows, stray quotes and repeated headers. So array operations check the bytes
first, and polars only sees files on which all readers agree. A Parquet file can decompress to any size, so
`caps.data.schema.parquet` reads all its page headers first. Other packed formats are refused. Error messages of polars
may quote data, so none is passed on.
"""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.schema.columns import Column
from caps.data.schema.limits import Limits, Unfolding
from caps.data.schema.parquet import NOT_PARQUET, PARQUET_MAGIC, check_parquet
from caps.errors import DomainError

Table: TypeAlias = Mapping[str, Any] | pl.DataFrame | str | os.PathLike[str] | bytes | BinaryIO
"""Arrays by column name, a frame, or a CSV or Parquet file given as path, bytes or binary stream."""

_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises when it reads a file: the messages may quote data. Some damaged files make it panic."""

_CHUNK = 1 << 22
_MAX_HEADER = 1 << 20
_PACKED = {
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"x\x01": "compressed with zlib",
    b"x\x9c": "compressed with zlib",
    b"x\xda": "compressed with zlib",
    b"PK\x03\x04": "a ZIP archive, for example an Excel workbook",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
}
"""Formats that are not read, by the bytes they begin with. polars would silently unpack some of them, to any size."""
_STRAY = "the file has a carriage return that is neither quoted nor followed by a newline"
_BAD_ROW = "a row does not have the header's {} fields"
_LONG_FIELD = "a field has more than {} bytes"
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


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
        for start, packed in _PACKED.items():
            if data[: len(start)].tobytes() == start:
                raise DomainError(f"the file is {packed}; send it as plain CSV or as Parquet")
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
    if len(header) > limits.columns:
        raise DomainError(f"the table has more than {limits.columns} columns")
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
            raise DomainError(_LONG_FIELD.format(limits.field))
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
    """Reads the file's own size figures first, so that its decompressed size is known before a page is decompressed,
    and the lengths of texts before the texts, because a long one in a dictionary may be every row's.
    """
    unfolding = Unfolding(len(data), limits)
    rows = check_parquet(data, limits, unfolding)
    lazy = pl.scan_parquet(source, glob=False)
    with suppress(*_POLARS_ERRORS):
        schema = lazy.collect_schema()
        header = schema.names()
        _check_header(header, columns, extra)
        lazy = lazy.select(
            _plain_values(pl.nth(header.index(column.name)), schema[column.name], column, days).alias(str(position))
            for position, column in enumerate(columns)
        )
        _check_texts(lazy, limits, unfolding)
        return lazy, rows
    raise DomainError(NOT_PARQUET)


def _check_texts(lazy: pl.LazyFrame, limits: Limits, unfolding: Unfolding) -> None:
    lengths = pl.selectors.string().str.len_bytes().cast(pl.Int64)
    for column in lazy.select(lengths.max().name.suffix(" max"), lengths.sum()).collect(engine="streaming"):
        found = column.item() or 0
        if not column.name.endswith("max"):
            unfolding.add(found)
        elif found > limits.field:
            raise DomainError(_LONG_FIELD.format(limits.field))


def _plain_values(values: pl.Expr, dtype: pl.DataType, column: Column, days: Collection[str]) -> pl.Expr:
    if column.name in days and dtype in (pl.Date, pl.Datetime):
        return values
    if dtype in (pl.Categorical, pl.Enum, pl.Null):
        return values.cast(pl.String)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Boolean)):
        raise DomainError(f"column {column.name} must contain text, numbers or booleans")
    return values
