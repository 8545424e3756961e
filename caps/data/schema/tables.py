"""Checks the shape of an owner's table and reads it as blocks of text, numbers and booleans.

`caps.data.schema.files` turns other formats and encodings into CSV in UTF-8. polars reads CSV fast but accepts short
rows, stray quotes and repeated headers. So array operations check the bytes first, and polars only sees files on which
all readers agree. A Parquet file can decompress to any size, so `caps.data.schema.parquet` reads all its page headers
first. Error messages of polars may quote data, so none is passed on.
"""

from __future__ import annotations

import codecs
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.data.schema import files
from caps.data.schema.columns import Column
from caps.data.schema.limits import Limits, Unfolding
from caps.data.schema.parquet import NOT_PARQUET, check_parquet
from caps.errors import DomainError

BLOCK = 1 << 16
"""The most rows that are read at a time."""


@dataclass(frozen=True)
class Opened:
    """A table about to be read. types: of the columns asked for, which are named by position. rows: how many there are,
    if that is known before. blocks: computes expressions over these columns, a block of rows at a time.
    """

    types: Mapping[str, pl.DataType]
    rows: int | None
    blocks: Callable[[Sequence[pl.Expr]], Iterator[pl.DataFrame]]


class Source(ABC):
    """A table that is elsewhere, for example in a database, and is read in memory that does not grow with its rows."""

    @abstractmethod
    def open(
        self, columns: Sequence[Column], *, extra: str, limits: Limits, held: ExitStack, days: Collection[str]
    ) -> Opened:
        """As `opened`. Raises DomainError, which names the source and never a value or a credential."""


Table: TypeAlias = Mapping[str, Any] | pl.DataFrame | str | os.PathLike[str] | bytes | BinaryIO | Source
"""Arrays by column name, a frame, a file in one of the formats that are read, as path, bytes or binary stream, or a
source."""

_POLARS_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What polars raises when it reads a file: the messages may quote data. Some damaged files make it panic."""

_PART = 1 << 18
"""Row groups of so many rows together are read at a time."""
UNREADABLE = "the table could not be read"
_CHUNK = 1 << 22
_STRAY = "the file has a carriage return that is neither quoted nor followed by a newline"
_BAD_ROW = "a row does not have the header's {} fields"
LONG_FIELD = "a field has more than {} bytes"
_QUOTE, _NEWLINE, _RETURN = b'"\n\r'


class HeaderRefused(DomainError):
    """The table's columns are not those asked for. `missing` are names of the schema, never of the file.

    extra: how many columns of the file are not asked for, if that is refused.
    """

    def __init__(self, what: str, missing: Sequence[str], extra: int) -> None:
        super().__init__(what)
        self.missing, self.extra = tuple(missing), extra


class LineRefused(DomainError):
    """A line of a CSV cannot be read. `line` is its number, for whoever holds the file."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


def opened(
    table: Table,
    columns: Sequence[Column],
    *,
    extra: str,
    encoding: str | None,
    limits: Limits,
    held: ExitStack,
    days: Collection[str] = (),
) -> Opened:
    """Returns the requested columns, in order, for reading. Raises DomainError unless each is there once.

    `held` is open as long as the table is read. The columns are named by position, because polars reads some names, "*"
    for one, as patterns. In Parquet, columns named in `days` may be dates or times.
    """
    if isinstance(table, Source):
        return table.open(columns, extra=extra, limits=limits, held=held, days=days)
    lazy, parts = _lazy_frame(table, columns, extra, encoding, limits, held, days)
    return Opened(dict(lazy.collect_schema()), sum(parts), partial(_blocks, lazy, parts))


def _blocks(lazy: pl.LazyFrame, parts: Sequence[int], expressions: Sequence[pl.Expr]) -> Iterator[pl.DataFrame]:
    """Raises DomainError if the rows cannot be read, or their number is wrong."""
    seen = 0
    with suppress(*_POLARS_ERRORS):
        for frame in _frames(lazy.select(expressions), parts):
            seen += frame.height
            yield from frame.iter_slices(BLOCK)
        if seen == sum(parts):
            return
    raise DomainError(UNREADABLE)


def _frames(lazy: pl.LazyFrame, parts: Sequence[int]) -> Iterator[pl.DataFrame]:
    """One part after the other: of a file that is read in one, polars would have many row groups in memory."""
    if len(parts) == 1:
        yield from lazy.collect_batches(chunk_size=BLOCK, engine="streaming")
        return
    start = 0
    for rows in parts:
        yield lazy.slice(start, rows).collect(engine="streaming")
        start += rows


def _lazy_frame(
    table: Mapping[str, Any] | pl.DataFrame | str | os.PathLike[str] | bytes | BinaryIO,
    columns: Sequence[Column],
    extra: str,
    encoding: str | None,
    limits: Limits,
    held: ExitStack,
    days: Collection[str],
) -> tuple[pl.LazyFrame, list[int]]:
    """The columns asked for, and the numbers of rows of the parts in which they can be read."""
    if isinstance(table, pl.DataFrame):
        table = {name: table[name] for name in table.columns}
    if not isinstance(table, Mapping):
        given, bytes_given = _bytes(table, limits)
        spellings = {column.name: column.spell for column in columns}
        source, data = files.unpacked(
            given, bytes_given, encoding=encoding, spellings=spellings, limits=limits, held=held
        )
        if data is bytes_given and files.format_of(data[:8].tobytes(), data[-8:].tobytes()) == files.PARQUET:
            return _parquet(given, data, columns, extra, limits, days)
        return _csv(source, data, columns, extra, limits)
    check_header(list(table), columns, extra)
    series = [_series(table[column.name], column) for column in columns]
    if len({len(one) for one in series}) > 1:
        raise DomainError("the table's columns differ in length")
    if len(series[0]) > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return pl.LazyFrame([one.alias(str(position)) for position, one in enumerate(series)]), [len(series[0])]


def header_of(path: Path, columns: Sequence[Column], *, encoding: str | None, limits: Limits) -> list[str]:
    """The names in a file's header, for whoever holds the file: in a file without a header they are data."""
    given, bytes_given = _bytes(path, limits)
    spellings = {column.name: column.spell for column in columns}
    with ExitStack() as held:
        _, data = files.unpacked(given, bytes_given, encoding=encoding, spellings=spellings, limits=limits, held=held)
    if data is bytes_given and files.format_of(data[:8].tobytes(), data[-8:].tobytes()) == files.PARQUET:
        check_parquet(data, limits, Unfolding(len(data), limits))
        with suppress(*_POLARS_ERRORS):
            return pl.scan_parquet(path, glob=False).collect_schema().names()
        raise DomainError(NOT_PARQUET)
    return files.header_of(_first_line(data), [column.name for column in columns])[0]


def check_header(header: Sequence[object], columns: Sequence[Column], extra: str) -> None:
    """Raises HeaderRefused with all that is wrong at once."""
    if extra not in ("ignore", "refuse"):
        raise DomainError('extra must be "ignore" or "refuse"')
    names, count = [column.name for column in columns], Counter(header)
    missing = [name for name in names if not count[name]]
    twice = [name for name in names if count[name] > 1]
    wrong = []
    if missing:
        found = len(names) - len(missing)
        wrong.append(f"has {found} of the {len(names)} required columns; missing: {', '.join(missing)}")
    if twice:
        wrong.append(f"has more than one column {', '.join(twice)}")
    more = len(header) - sum(count[name] for name in names)
    if extra == "refuse" and more:
        wrong.append(f"has {more} column{'s' * (more > 1)} that the schema does not have")
    if wrong:
        raise HeaderRefused(f"the table {'; it '.join(wrong)}", missing, more if extra == "refuse" else 0)


def _series(values: object, column: Column) -> pl.Series:
    if not isinstance(values, pl.Series):
        dtype = getattr(values, "dtype", None)
        array = np.asarray(values, dtype if isinstance(dtype, np.dtype) else object)
        if array.ndim == 1 and array.dtype.kind == "M" and column.takes_days:
            return pl.Series(array.astype("datetime64[D]")).cast(pl.Date)
        if array.ndim != 1 or array.dtype.kind not in "biufUO":
            raise DomainError(f"column {column.name} must be a flat list of text, numbers or booleans")
        if array.dtype.kind in "biuf":
            return pl.Series(array)
        return _texts(array.tolist(), column)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Null):
        values = values.cast(pl.String)
    if values.dtype == pl.Object:
        return _texts(values.to_list(), column)
    days = column.takes_days and values.dtype in (pl.Date, pl.Datetime)
    if not (days or values.dtype.is_numeric() or values.dtype in (pl.String, pl.Boolean)):
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
        if isinstance(value, date) and column.takes_days:
            return column.spell(value)
        raise DomainError(f"column {column.name} must contain only text, numbers, booleans and None")

    with suppress(UnicodeError):  # the error quotes the text
        return pl.Series([text(value) for value in values], dtype=pl.String)
    raise DomainError(f"column {column.name} has text that UTF-8 cannot encode")


def _csv(
    source: files.Source,
    data: npt.NDArray[np.uint8],
    columns: Sequence[Column],
    extra: str,
    limits: Limits,
) -> tuple[pl.LazyFrame, list[int]]:
    line = _first_line(data)
    header, separator = files.header_of(line, [column.name for column in columns])
    if len(header) > limits.columns:
        raise DomainError(f"the table has more than {limits.columns} columns")
    check_header(header, columns, extra)
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
    return lazy.select(pl.col(name).alias(str(position)) for position, name in enumerate(at)), [rows]


def _first_line(data: npt.NDArray[np.uint8]) -> bytes:
    line = bytes(data[: files.MAX_HEADER]).split(b"\n", 1)[0]
    if len(line) == files.MAX_HEADER:
        raise DomainError("the first line is too long for a header")
    return line


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
            raise DomainError(files.NOT_UTF8)
        if (part == 0).any():
            raise LineRefused(files.NUL, _line(data, at + int(np.argmax(part == 0))))
        breaks, quotes, returns = (part == separator) | (part == _NEWLINE), part == _QUOTE, part == _RETURN
        if quoted or quotes.any():
            inside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(quoted)) & 1 == 1
            breaks &= ~inside
            returns &= ~inside
            opening = np.flatnonzero(quotes & inside) + at - 1
            closing = np.flatnonzero(quotes & ~inside) + at + 1
            closing = closing[closing < end]
            stray = [
                *opening[~np.isin(data[opening], (separator, _NEWLINE, _QUOTE))][:1],
                *closing[~np.isin(data[closing], (separator, _NEWLINE, _QUOTE, _RETURN))][:1],
            ]
            if stray:
                raise LineRefused("the file has a quote inside a field that is not quoted", _line(data, min(stray)))
            quoted = bool(inside[-1])
        following = np.flatnonzero(returns) + at + 1
        near = following[following < len(data)]
        lone = [*near[data[near] != _NEWLINE][:1], *following[following == len(data)]]
        if lone:
            raise LineRefused(_STRAY, _line(data, lone[0] - 1))
        ends = np.flatnonzero(breaks) + at
        if max(np.diff(ends, prepend=last).max(initial=0), stop - (ends[-1] if len(ends) else last)) > limits.field + 1:
            raise DomainError(LONG_FIELD.format(limits.field))
        lines = np.flatnonzero(data[ends] == _NEWLINE)
        bad = np.flatnonzero(np.diff(lines, prepend=-1 - pending) != fields)
        if len(bad):
            raise LineRefused(_BAD_ROW.format(fields), _line(data, ends[lines[bad[0]]]))
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
            raise LineRefused(_BAD_ROW.format(fields), _line(data, end - 1))
    if rows > limits.rows:
        raise DomainError(f"the table has more than {limits.rows} rows")
    return rows


def _line(data: npt.NDArray[np.uint8], place: int) -> int:
    """The number of the line, from 1, in which a byte is."""
    return 1 + sum(
        int(np.count_nonzero(data[at : min(at + _CHUNK, place)] == _NEWLINE)) for at in range(0, place, _CHUNK)
    )


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
) -> tuple[pl.LazyFrame, list[int]]:
    """Reads the file's own size figures first, so that its decompressed size is known before a page is decompressed,
    and the lengths of texts before the texts, because a long one in a dictionary may be every row's.
    """
    unfolding = Unfolding(len(data), limits)
    parts = _together(check_parquet(data, limits, unfolding))
    lazy = pl.scan_parquet(source, glob=False)
    with suppress(*_POLARS_ERRORS):
        schema = lazy.collect_schema()
        header = schema.names()
        check_header(header, columns, extra)
        lazy = lazy.select(
            plain_values(pl.nth(header.index(column.name)), schema[column.name], column, days).alias(str(position))
            for position, column in enumerate(columns)
        )
        _check_texts(lazy, parts, limits, unfolding)
        return lazy, parts
    raise DomainError(NOT_PARQUET)


def _together(groups: Sequence[int]) -> list[int]:
    """Row groups as parts to read: small ones together, because each part costs a look at all metadata."""
    parts = [0]
    for rows in groups:
        if parts[-1] and parts[-1] + rows > _PART:
            parts.append(0)
        parts[-1] += rows
    return parts


def _check_texts(lazy: pl.LazyFrame, parts: Sequence[int], limits: Limits, unfolding: Unfolding) -> None:
    lengths = pl.selectors.string().str.len_bytes().cast(pl.Int64)
    start = 0
    for rows in parts:
        part = lazy.slice(start, rows).select(lengths.max().name.suffix(" max"), lengths.sum())
        for column in part.collect(engine="streaming"):
            found = column.item() or 0
            if not column.name.endswith("max"):
                unfolding.add(found)
            elif found > limits.field:
                raise DomainError(LONG_FIELD.format(limits.field))
        start += rows


def plain_values(values: pl.Expr, dtype: pl.DataType, column: Column, days: Collection[str]) -> pl.Expr:
    """A column of a typed table as text, numbers or booleans, or a day if it is in `days`. Raises DomainError."""
    if (column.takes_days or column.name in days) and dtype in (pl.Date, pl.Datetime):
        return values
    if dtype in (pl.Categorical, pl.Enum, pl.Null):
        return values.cast(pl.String)
    if not (dtype.is_numeric() or dtype in (pl.String, pl.Boolean)):
        raise DomainError(f"column {column.name} must contain text, numbers or booleans")
    return values
