"""Tables as owners send them, checked for shape and brought to one form: a lazy frame of text, numbers and booleans.

polars reads CSV fast and forgivingly: short rows, stray quotes and repeated headers pass. So the bytes are checked
first, by arrays, and polars only sees files on which all readers agree. Its messages may quote data: none is passed on.
"""

from __future__ import annotations

import codecs
import csv
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.errors import DomainError
from caps.schema.columns import Column

Table: TypeAlias = Mapping[str, Any] | pl.DataFrame | str | os.PathLike[str] | bytes | BinaryIO
"""Arrays by column name, a frame, or a CSV: its path, its bytes, or a binary stream of them."""

_CHUNK = 1 << 22
_MAX_HEADER = 1 << 20
_STRAY = "a carriage return stands outside quotes and not before a newline"
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


@dataclass(frozen=True)
class Limits:
    """The largest table read."""

    rows: int = 100_000_000
    bytes: int = 16 << 30
    field: int = 1 << 16
    """Bytes of one field of a CSV."""


def lazy_frame(
    table: Table, columns: Sequence[Column], *, extra: str, separator: str, limits: Limits
) -> tuple[pl.LazyFrame, int]:
    """The columns asked for, in their order, and the number of rows. Raises DomainError unless each is there once.

    They are named by their positions, for polars takes some names, such as "*", for patterns.
    """
    if isinstance(table, pl.DataFrame):
        table = {name: table[name] for name in table.columns}
    if not isinstance(table, Mapping):
        return _csv(table, columns, extra, separator, limits)
    _check_header(list(table), columns, extra)
    series = [_series(table[column.name], column) for column in columns]
    if len({len(one) for one in series}) > 1:
        raise DomainError("columns of a table must be of the same length")
    if len(series[0]) > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return pl.LazyFrame([one.alias(str(position)) for position, one in enumerate(series)]), len(series[0])


def _check_header(header: Sequence[object], columns: Sequence[Column], extra: str) -> None:
    if extra not in ("ignore", "refuse"):
        raise DomainError('extra columns are to "ignore" or to "refuse"')
    names = [column.name for column in columns]
    for name in names:
        if (times := header.count(name)) != 1:
            raise DomainError(f"the table has no column {name}" if not times else f"the table has two columns {name}")
    if extra == "refuse" and len(header) > len(names):
        raise DomainError(f"the table has {len(header) - len(names)} columns that the schema does not know")


def _series(values: object, column: Column) -> pl.Series:
    if not isinstance(values, pl.Series):
        dtype = getattr(values, "dtype", None)
        array = np.asarray(values, dtype if isinstance(dtype, np.dtype) else object)
        if array.ndim != 1 or array.dtype.kind not in "biufUO":
            raise DomainError(f"column {column.name} must be one list of text, numbers or booleans")
        if array.dtype.kind in "biuf":
            return pl.Series(array)
        return _texts(array.tolist(), column)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Null):
        values = values.cast(pl.String)
    if values.dtype == pl.Object:
        return _texts(values.to_list(), column)
    if not (values.dtype.is_numeric() or values.dtype in (pl.String, pl.Boolean)):
        raise DomainError(f"column {column.name} must be of text, numbers or booleans")
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
        raise DomainError(f"column {column.name} must consist of text, numbers, booleans and None")

    with suppress(UnicodeError):  # holds the text
        return pl.Series([text(value) for value in values], dtype=pl.String)
    raise DomainError(f"column {column.name} has text that UTF-8 cannot write")


def _csv(
    source: Any, columns: Sequence[Column], extra: str, separator: str, limits: Limits
) -> tuple[pl.LazyFrame, int]:
    if len(separator) != 1 or separator not in ",;|\t":
        raise DomainError("a separator is a comma, semicolon, bar or tab")
    source, data = _bytes(source, limits)
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
    while size <= limits.bytes and (part := stream.read(_CHUNK)):  # may return less than it was asked for
        if not isinstance(part, bytes):
            raise DomainError("a CSV is read from a binary stream")
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _header(line: bytes, separator: str) -> list[str]:
    if not _is_utf8(codecs.getincrementaldecoder("utf-8")(), line, final=True):
        raise DomainError("the file is not in UTF-8")
    with suppress(csv.Error, StopIteration):
        return next(csv.reader([line.decode("utf-8-sig").removesuffix("\r")], delimiter=separator, strict=True))
    raise DomainError("the first line is not a header")


def _check_body(data: npt.NDArray[np.uint8], start: int, fields: int, separator: int, limits: Limits) -> int:
    """The number of rows from `start` on. Raises DomainError unless all have these fields, quoted as they should be."""
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
                raise DomainError("a quote stands inside a field that is not quoted")
            quoted = bool(inside[-1])
        following = np.flatnonzero(returns) + at + 1
        if (data[following[following < len(data)]] != _NEWLINE).any() or len(data) in following[-1:]:
            raise DomainError(_STRAY)
        ends = np.flatnonzero(breaks) + at
        if max(np.diff(ends, prepend=last).max(initial=0), stop - (ends[-1] if len(ends) else last)) > limits.field + 1:
            raise DomainError(f"a field has more than {limits.field} bytes")
        lines = np.flatnonzero(data[ends] == _NEWLINE)
        if (np.diff(lines, prepend=-1 - pending) != fields).any():
            raise DomainError(f"a row has not the {fields} fields of the header")
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
            raise DomainError(f"a row has not the {fields} fields of the header")
    if rows > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return rows


def _is_utf8(decoder: codecs.IncrementalDecoder, part: bytes, final: bool) -> bool:
    with suppress(UnicodeDecodeError):  # holds the data
        decoder.decode(part, final)
        return True
    return False
