"""Tables as people have them: a file in any format that is read becomes plain CSV in UTF-8, or is Parquet.

A file's format is what its first bytes say. Its encoding is what its byte order mark says, else what the owner says,
else UTF-8: nothing else is guessed, because a wrong guess would change categories silently. Its separator is the one
under which most of the columns asked for are in the header. What is unpacked goes to a file without a name.
"""

from __future__ import annotations

import codecs
import csv
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import date
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.schema import workbook
from caps.data.schema.limits import Limits, Unfolding
from caps.data.schema.parquet import PARQUET_MAGIC
from caps.errors import DomainError

Source: TypeAlias = Path | bytes | BinaryIO
"""A file by its path, its bytes, or, without a name, by its handle."""
Data: TypeAlias = npt.NDArray[np.uint8]

CSV, GZIP, PARQUET, XLSX = "CSV", "gzip", "Parquet", "Excel"
ENCODINGS: Mapping[str, str] = {
    "utf-8": "utf-8",
    "utf-16": "utf-16",
    "utf-16-le": "utf-16-le",
    "utf-16-be": "utf-16-be",
    "cp1252": "windows-1252",
    "iso8859-1": "iso-8859-1",
}
"""The encodings that are read, by Python's names: the names that a Content-Type gives them."""
SEPARATORS = ",;\t|"
MAX_HEADER = 1 << 20
NUL = "the file has a NUL byte, so it is not text in UTF-8; if it is in UTF-16, say utf-16-le or utf-16-be"
NOT_UTF8 = "the file is not in UTF-8; if it is in another encoding, say in which: windows-1252 is Excel's in the West"
_CHUNK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_UNREAD = {
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard",
    b"x\x01": "compressed with zlib",
    b"x\x9c": "compressed with zlib",
    b"x\xda": "compressed with zlib",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
}
"""Formats that are not read, by the bytes they begin with. polars would silently unpack some of them, to any size."""
_MISSPELLED = "the file is not in the encoding that it is said to be in"
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def format_of(start: bytes, end: bytes) -> str:
    """The format of a file that begins and ends with these bytes. Raises DomainError if it is one that is not read."""
    for magic, what in _UNREAD.items():
        if start.startswith(magic):
            raise DomainError(f"the file is {what}; save it as CSV, Excel (.xlsx) or Parquet")
    if start.startswith(workbook.ZIP_MAGIC):
        return XLSX
    if start.startswith(_GZIP_MAGIC):
        return GZIP
    return PARQUET if start.startswith(PARQUET_MAGIC) and end.endswith(PARQUET_MAGIC) else CSV


def format_of_file(path: Path) -> str:
    """The format of a file. Raises DomainError if it is one that is not read, or the file is empty."""
    with path.open("rb") as file:
        start = file.read(8)
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
        end = file.read(8)
    if not start:
        raise DomainError("the file is empty")
    return format_of(start, end)


def encoding_named(name: str) -> str:
    """Python's name of an encoding that is read. Raises DomainError for any other name."""
    with suppress(LookupError, ValueError):
        found = codecs.lookup(name).name
        found = {"utf-8-sig": "utf-8", "ascii": "utf-8"}.get(found, found)
        if found in ENCODINGS:
            return found
    raise DomainError(f"the encoding must be one of {', '.join(ENCODINGS.values())}")


def unpacked(
    source: Path | bytes,
    data: Data,
    *,
    encoding: str | None,
    spellings: Mapping[str, Callable[[bool | date], str]],
    limits: Limits,
    held: ExitStack,
) -> tuple[Source, Data]:
    """The same table as CSV in UTF-8, or as it is if it is that or Parquet. Raises DomainError.

    spellings: how columns, by name, write what a workbook stores as truth values and days. held: closes what is opened.
    """
    kind = format_of(data[:8].tobytes(), data[-8:].tobytes())
    if kind == PARQUET:
        return source, data
    if kind == XLSX:
        file = held.enter_context(workbook.scratch(source))
        workbook.write_csv(source, file, spellings, limits)
        return _held(file)
    start = data[:8].tobytes()
    if kind == GZIP:
        parts = _gunzipped(data, limits)
        first = next(parts, b"")
        if format_of(first[:8], first[-8:]) != CSV or first.startswith(PARQUET_MAGIC):
            raise DomainError("the file is compressed with gzip, and not a CSV inside")
        start = first[:8]
        parts = _chained(first, parts)
    else:
        parts = (data[at : at + _CHUNK].tobytes() for at in range(0, len(data), _CHUNK))
    spelled = _encoding(start, encoding)
    if kind == CSV and spelled == "utf-8":
        return source, data
    file = held.enter_context(workbook.scratch(source))
    _recode(parts, spelled, file, limits)
    return _held(file)


def _held(file: BinaryIO) -> tuple[Source, Data]:
    if not file.tell():
        raise DomainError("the file is empty")
    file.flush()
    data = np.memmap(file, np.uint8, "r")  # moves to the end
    file.seek(0)
    return file, data


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _gunzipped(data: Data, limits: Limits) -> Iterator[bytes]:
    """The content of a gzip file, all of its members one after the other, a bounded part at a time."""
    unfolding = Unfolding(len(data), limits)
    inflater = zlib.decompressobj(wbits=31)
    at, waiting = 0, b""
    while True:
        if not waiting:
            waiting = data[at : at + _CHUNK].tobytes()
            at += len(waiting)
        part = None
        with suppress(zlib.error):
            part = inflater.decompress(waiting, _CHUNK)
        if part is None:
            raise DomainError("the file is not valid gzip")
        unfolding.add(len(part))
        if part:
            yield part
        if inflater.eof:
            waiting = (inflater.unused_data + data[at : at + _CHUNK].tobytes()).lstrip(b"\0")  # padding of tapes
            at += _CHUNK
            if not waiting:
                return
            inflater = zlib.decompressobj(wbits=31)
        else:
            waiting = inflater.unconsumed_tail
            if not waiting and at >= len(data) and not part:
                raise DomainError("the file ends before its compressed content does")


def _encoding(start: bytes, said: str | None) -> str:
    """The encoding of a text that begins with these bytes."""
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if said is None:
        return marked or "utf-8"
    found = encoding_named(said)
    if marked is not None and found not in (marked, marked[:6]):
        raise DomainError(f"the file begins with the mark of {marked}, and was said to be in {ENCODINGS[found]}")
    if found == "utf-16" and marked is None:
        raise DomainError("the file has no byte order mark: say utf-16-le or utf-16-be")
    return marked or found


def _recode(parts: Iterator[bytes], encoding: str, file: BinaryIO, limits: Limits) -> None:
    """Write the text in UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)()
    written = 0
    for part in _chained(b"", parts):
        written += file.write(_decoded(decoder, part, final=False))
        if written > limits.bytes:
            raise DomainError(f"the file has more than {limits.bytes} bytes in UTF-8")
    file.write(_decoded(decoder, b"", final=True))


def _decoded(decoder: codecs.IncrementalDecoder, part: bytes, *, final: bool) -> bytes:
    with suppress(UnicodeError):  # the error quotes the data
        return decoder.decode(part, final).encode()
    raise DomainError(NOT_UTF8 if type(decoder).__module__.startswith("encodings.utf_8") else _MISSPELLED)


def header_of(line: bytes, asked: Collection[str] | None) -> tuple[list[str], str]:
    """The names in the first line of a CSV in UTF-8, and its separator. Raises DomainError.

    The separator is the one under which most of the names asked for are there, or, if none are asked for, most names.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    text = _decoded(decoder, line, final=True).decode().removesuffix("\n").removesuffix("\r")
    found: list[tuple[int, list[str], str]] = []
    for separator in SEPARATORS:
        with suppress(csv.Error, StopIteration):
            names = next(csv.reader([text], delimiter=separator, strict=True))
            found.append((len(names) if asked is None else len(set(asked).intersection(names)), names, separator))
    if "\0" in text:
        raise DomainError(NUL)
    if not found:
        raise DomainError("the first line is not a valid CSV header")
    _, names, separator = max(found, key=lambda one: one[0])
    return names, separator


def read_header(path: Path, *, encoding: str | None = None) -> list[str]:
    """The names in the first line of a CSV, and nothing else of it: no buffer reads ahead. Raises DomainError."""
    line, width = bytearray(), 1
    with path.open("rb", buffering=0) as file:
        while letter := file.read(width):
            line += letter
            if len(line) == 2:
                width = 2 if _encoding(bytes(line), encoding).startswith("utf-16") else 1
            if len(line) > MAX_HEADER:
                raise DomainError("the first line is too long for a header")
            if letter in (b"\n", b"\n\0", b"\0\n"):
                break
    if not line:
        raise DomainError("the file is empty")
    if format_of(bytes(line), b"") != CSV or line.startswith(PARQUET_MAGIC):
        raise DomainError("only of a CSV can the header be read alone: save the first row of the table as CSV")
    decoder = codecs.getincrementaldecoder(_encoding(bytes(line), encoding))()
    return header_of(_decoded(decoder, bytes(line), final=True), None)[0]
