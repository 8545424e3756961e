"""The table in an Excel workbook (.xlsx), as CSV. A maintained library, openpyxl, reads it, after it was made harmless.

The adversary wrote the file. It is an archive of XML, small, and says or hides that it is large: members that unfold to
gigabytes, entities within entities, a row of a million cells, a cell in the millionth row. So the archive's directory
is looked at before it is read, what members say they unfold to is added up (the archive's reader stops there), and each
XML member passes through a parser that keeps nothing: it refuses document types, and bounds what a tree of one row, of
one shared text, and of everything else has to hold. Only members that passed are copied to the archive that the library
sees. The library's messages may quote cells, so none is passed on.
"""

from __future__ import annotations

import csv
import io
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import IO, Any, BinaryIO
from xml.parsers import expat
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from caps.data.schema.limits import Limits, Unfolding
from caps.errors import DomainError

ZIP_MAGIC = b"PK\x03\x04"
MOST_ROWS = 1 << 20
"""Of a sheet, as Excel has them."""
NOT_WORKBOOK = "the file is a ZIP archive that is not a valid Excel workbook"
_UNCOMPUTED = "the workbook has a formula without a result; open it in Excel and save it again"
_MOST_MEMBERS = 4096
_DIRECTORY = 1 << 20
"""The most bytes of an archive's directory."""
_TREE = 1 << 17
"""The most elements of one row or one shared text."""
_REST = 1 << 20
"""The most elements of a member that are in no row and no shared text."""
_MOST_DEPTH = 64
_CHUNK = 1 << 18
_EXACT = 1 << 53

warnings.filterwarnings("ignore", module="openpyxl")  # its warnings may quote cells


def write_csv(
    source: Path | bytes, target: IO[bytes], spellings: Mapping[str, Callable[[bool | date], str]], limits: Limits
) -> None:
    """Write the only sheet that has cells as CSV in UTF-8. Raises DomainError.

    spellings: how a column, by its name, writes true and false, and days. Numbers are written as Excel stores them,
    days of other columns as 2025-12-31, an empty cell as an empty field.
    """
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file, scratch(source) as harmless:
        _check_directory(file)
        unfolding = Unfolding(size, limits)
        with _discreet():
            with ZipFile(file) as archive, ZipFile(harmless, "w", ZIP_DEFLATED, compresslevel=1) as copy:
                _copy(archive, copy, unfolding)
            _write_rows(harmless, target, spellings, limits)
            return
    raise DomainError(NOT_WORKBOOK)


class _discreet:  # noqa: N801  reads as a word where it is used
    """Drops whatever the library raises, which may quote the table; what this package raises passes."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, Exception) and not isinstance(error, DomainError | OSError | MemoryError)


def scratch(source: Path | bytes) -> BinaryIO:
    """A file without a name, beside the source if that is possible: it is gone when it is closed, or the process is."""
    folder = source.parent if isinstance(source, Path) else None
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def _check_directory(file: BinaryIO) -> None:
    """Refuse an archive whose directory is long, before it is read."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < 22 or tail[max(0, at - 20) : at].startswith(b"PK\x06\x07"):  # ZIP64: beyond 4 GiB
        raise DomainError(NOT_WORKBOOK)
    members, length = (
        int.from_bytes(tail[at + 10 : at + 12], "little"),
        int.from_bytes(tail[at + 12 : at + 16], "little"),
    )
    if members > _MOST_MEMBERS or length > _DIRECTORY:
        raise DomainError("the workbook has too many parts")
    file.seek(0)


def _copy(archive: ZipFile, copy: ZipFile, unfolding: Unfolding) -> None:
    """Copy the members that the library reads, each checked."""
    seen = set()
    for member in archive.infolist():
        if not member.filename.endswith((".xml", ".rels")):
            continue  # pictures, macros, settings of printers
        if member.filename in seen or member.flag_bits & 1 or member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise DomainError(NOT_WORKBOOK)
        seen.add(member.filename)
        unfolding.add(member.file_size)
        with archive.open(member) as whole, copy.open(ZipInfo(member.filename), "w", force_zip64=False) as kept:
            check = _Check()
            while part := whole.read(_CHUNK):
                check.feed(part)
                kept.write(part)
            check.feed(b"", final=True)


class _Check:
    """Bounds one XML member as it passes by."""

    def __init__(self) -> None:
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._depth = self._rest = self._tree = 0
        self._inside = 0  # the depth of the row or shared text that is open
        self._formula = self._value = False

    def feed(self, part: bytes, *, final: bool = False) -> None:
        """Look at the next part."""
        self._parser.Parse(part, final)

    def _doctype(self, *_: object) -> None:
        raise DomainError(NOT_WORKBOOK)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._tree += 1 + len(attributes)
        word = name.rpartition(" ")[2]
        if not self._inside:
            self._rest += 1 + len(attributes)
            if word in ("row", "si"):
                self._inside, self._tree = self._depth, 0
        elif word == "c":
            self._formula = self._value = False
        elif word == "f":
            self._formula = True
        elif word == "v":
            self._value = True
        if self._depth > _MOST_DEPTH or (self._tree > _TREE if self._inside else self._rest > _REST):
            raise DomainError("the workbook has a row, or another part, that is too long")

    def _end(self, name: str) -> None:
        if self._depth == self._inside:
            self._inside = 0
        elif self._formula and not self._value and name.endswith(" c"):
            raise DomainError(_UNCOMPUTED)
        self._depth -= 1


def _write_rows(
    harmless: BinaryIO, target: IO[bytes], spellings: Mapping[str, Callable[[bool | date], str]], limits: Limits
) -> None:
    from openpyxl import load_workbook

    book = load_workbook(harmless, read_only=True, data_only=True, keep_links=False)
    try:
        sheets = [sheet for sheet in book.worksheets if _has_cells(sheet)]
        if len(sheets) != 1:
            what = f"has {len(sheets)} sheets with cells" if sheets else "has no cells"
            raise DomainError(f"the workbook {what}; save one with the table on its only sheet")
        writer = csv.writer(_Bounded(target, limits.bytes), lineterminator="\n")
        spelled: list[Callable[[bool | date], str] | None] = []
        blank = 0
        for number, cells in enumerate(_rows(sheets[0])):
            row = cells if number else _trimmed(cells)
            if number > min(limits.rows, MOST_ROWS):
                raise DomainError(f"the table has more than {min(limits.rows, MOST_ROWS)} rows")
            if number == 0:
                if len(row) > limits.columns:
                    raise DomainError(f"the table has more than {limits.columns} columns")
                spelled = [spellings.get(value) if isinstance(value, str) else None for value in row]
            elif not any(value is not None for value in row):
                blank += 1  # written only if another row follows: sheets often end with empty ones
                continue
            for _ in range(blank):
                writer.writerow([""] * len(spelled))
            blank = 0
            if any(value is not None for value in row[len(spelled) :]):
                raise DomainError(f"a row has cells beyond the header's {len(spelled)} columns")
            padded = [*row[: len(spelled)], *[None] * (len(spelled) - len(row))]
            writer.writerow([_written(value, spell) for value, spell in zip(padded, spelled, strict=True)])
    finally:
        book.close()


def _has_cells(sheet: Any) -> bool:
    return any(value is not None for row in _rows(sheet, most=MOST_ROWS) for value in row)


def _rows(sheet: Any, most: int | None = None) -> Iterator[tuple[Any, ...]]:
    sheet.reset_dimensions()  # the file's own word on its size
    rows: Iterable[tuple[Any, ...]] = sheet.iter_rows(values_only=True)
    for number, row in enumerate(rows):
        if most is not None and number > most:
            return
        yield row


def _trimmed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the empty cells at its end."""
    width = len(row)
    while width and row[width - 1] is None:
        width -= 1
    return row[:width]


def _written(value: object, spell: Callable[[bool | date], str] | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return spell(value) if spell is not None else "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < _EXACT else repr(value)
    if isinstance(value, datetime):
        value = value.date() if value.time() == time() else value
    if isinstance(value, date):
        return spell(value) if spell is not None else value.isoformat()
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return repr(value.total_seconds())
    return str(value)


class _Bounded:
    """Writes text in UTF-8, up to a number of bytes: every cell may be one long shared text."""

    def __init__(self, target: IO[bytes], most: int) -> None:
        self._target, self._left, self._most = target, most, most

    def write(self, text: str) -> int:
        """Write on. Raises DomainError if it is too much."""
        part = text.encode()
        self._left -= len(part)
        if self._left < 0:
            raise DomainError(f"the workbook unfolds to more than the {self._most} bytes that are allowed")
        return self._target.write(part)
