"""Tables as people have them: encodings, separators, gzip, workbooks; and files that are made to do harm."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from caps.data.schema import Limits, Schema, limits, workbook
from caps.data.schema.files import ENCODINGS, GZIP, PARQUET, XLSX, encoding_named, format_of_file, read_header
from caps.data.schema.limits import ALWAYS
from caps.data.schema.tables import HeaderRefused, LineRefused, header_of
from caps.errors import DomainError
from caps.wire import media

SCHEMA = Schema.from_json(
    {
        "columns": [
            {"name": "Größe", "kind": "numeric", "integer": True, "bin_edges": [0, 100, 200, 300]},
            {"name": "ward", "kind": "categorical", "categories": ["süd", "nord"], "missing_values": ["?"]},
            {"name": "smoker", "kind": "boolean", "false": "nein", "true": "ja", "missing": "null"},
        ]
    }
)
TEXT = "ward,smoker,Größe\nsüd,ja,180\nnord,,90\n?,nein,250\n"
CODES = [[1, 0, 1], [0, 1, -1], [2, 2, 0]]
CANARY = "Zaunkoenig7391"


def book(*rows: Any, sheets: int = 1) -> bytes:
    made = openpyxl.Workbook()
    for number in range(sheets):
        sheet: Any = made.active if number == 0 else made.create_sheet()
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    made.save(out)
    return out.getvalue()


ROWS = (["ward", "smoker", "Größe"], ["süd", True, 180], ["nord", None, 90.0], ["?", False, 250])


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("spelled", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_that_say_it_themselves(separator: str, spelled: str) -> None:
    text = TEXT.replace(",", separator).replace("\n", "\r\n")
    assert SCHEMA.encode(text.encode(spelled))[0].tolist() == CODES
    assert SCHEMA.encode(gzip.compress(text.encode(spelled)))[0].tolist() == CODES


@pytest.mark.parametrize("spelled", ["cp1252", "windows-1252", "latin-1", "ISO-8859-1", "utf-16-le", "utf-16-be"])
def test_encodings_that_the_owner_says(tmp_path: Path, spelled: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TEXT.encode(spelled))
    assert SCHEMA.encode(path, encoding=spelled)[0].tolist() == CODES
    with pytest.raises(DomainError, match=r"not in UTF-8|NUL"):
        SCHEMA.encode(path)
    assert os.listdir(tmp_path) == ["table.csv"]


def test_nothing_is_guessed() -> None:
    with pytest.raises(DomainError, match=r"say in which"):
        SCHEMA.encode(TEXT.encode("cp1252"))
    with pytest.raises(DomainError, match="begins with the mark of utf-16-le"):
        SCHEMA.encode(TEXT.encode("utf-16"), encoding="cp1252")
    with pytest.raises(DomainError, match="no byte order mark"):
        SCHEMA.encode(TEXT.encode("utf-16-le"), encoding="utf-16")
    with pytest.raises(DomainError, match="not in the encoding that it is said"):
        SCHEMA.encode(TEXT.encode("utf-16")[:-1])
    for name in ("koi8-r", "utf-7", "idna", "nonsense", "cp\0", "zip"):
        with pytest.raises(DomainError, match="must be one of"):
            encoding_named(name)
    assert {encoding_named(name) for name in ENCODINGS.values()} == set(ENCODINGS)


def test_the_separator_is_the_one_that_finds_the_columns() -> None:
    odd = Schema.from_json({"columns": [{"name": "a,b", "kind": "boolean"}, {"name": "c", "kind": "boolean"}]})
    assert odd.encode(b"a,b;c\ntrue;false\n")[0].tolist() == [[1, 0]]
    assert odd.encode(b'"a,b",c\ntrue,false\n')[0].tolist() == [[1, 0]]


def test_a_workbook_is_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.xlsx"
    path.write_bytes(book(*ROWS, [None, None, None]))
    codes, report = SCHEMA.encode(path)
    assert codes.tolist() == CODES
    assert report.rows == 3
    assert os.listdir(tmp_path) == ["table.xlsx"]
    day = Schema.from_json({"columns": [{"name": "day", "kind": "categorical", "categories": ["2025-12-31"]}]})
    assert day.encode(book(["day"], [date(2025, 12, 31)]))[0].tolist() == [[0]]
    assert format_of_file(path) == XLSX
    assert media.table_type(path) == media.XLSX


def test_other_formats_are_told_by_their_bytes(tmp_path: Path) -> None:
    pl.DataFrame({"PAR1": [1]}).write_parquet(tmp_path / "p")
    (tmp_path / "g").write_bytes(gzip.compress(b"x\n1\n"))
    (tmp_path / "c").write_bytes(b"PAR1,x\n1,2\n")
    assert [format_of_file(tmp_path / name) for name in "pgc"] == [PARQUET, GZIP, "CSV"]
    assert [media.table_type(tmp_path / name) for name in "pgc"] == [media.PARQUET, media.GZIP, media.CSV]


def repacked(content: bytes, **changes: bytes | None) -> bytes:
    """A workbook with members replaced, by the last part of their names; None leaves one out."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            name = member.filename.rpartition("/")[2].partition(".")[0]
            data = changes.get(name, old.read(member))
            if data is not None:
                new.writestr(member.filename, data)
    return out.getvalue()


def _crowded() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as new:
        for number in range(5000):
            new.writestr(f"{number}.xml", b"")
    return out.getvalue()


NAMESPACE = b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SHEET = b'<worksheet xmlns="' + NAMESPACE + b'"><sheetData>%b</sheetData></worksheet>'
ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>' + SHEET % b"<row><c><v>&a;</v></c></row>"
FAR = b'<row r="1"><c r="A1" t="str"><v>ward</v></c></row><row r="999999999999"><c r="A999999999999"><v>1</v></c></row>'
UNCOMPUTED = SHEET % b'<row r="1"><c r="A1"><f>1+1</f></c></row>'
WIDE = SHEET % (b"<row>" + b"<c/>" * 2000 + b"</row>")
BOOKS: dict[str, tuple[str, Any]] = {
    "two sheets": ("2 sheets with cells", lambda: book(*ROWS, sheets=2)),
    "no cells": ("no cells", book),
    "beyond the header": ("beyond the header", lambda: book(*ROWS, ["süd", True, 1, CANARY])),
    "not a workbook": ("not a valid Excel workbook", lambda: repacked(book(*ROWS), workbook=None)),
    "cut off": ("not a valid Excel workbook", lambda: book(*ROWS)[:-30]),
    "nonsense within": ("not a valid Excel workbook", lambda: repacked(book(*ROWS), sheet1=CANARY.encode())),
    "entities": ("not a valid Excel workbook", lambda: repacked(book(*ROWS), sheet1=ENTITIES)),
    "many parts": ("too many parts", _crowded),
    "a member that unfolds": ("unfolds to more", lambda: repacked(book(*ROWS), theme1=b" " * (2 << 20))),
    "a row without end": (
        "too long",
        lambda: repacked(book(*ROWS), sheet1=WIDE),
    ),
    "elements without end": ("too long", lambda: repacked(book(*ROWS), styles=b"<a>" + b"<b/>" * 21_000 + b"</a>")),
    "a deep member": ("too long", lambda: repacked(book(*ROWS), styles=b"<a>" * 100 + b"</a>" * 100)),
    "a cell far away": ("more than 1000 rows", lambda: repacked(book(*ROWS), sheet1=SHEET % FAR)),
    "a formula without a result": (
        "formula without a result",
        lambda: repacked(book(*ROWS), sheet1=UNCOMPUTED),
    ),
}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("name", BOOKS)
def test_workbooks_that_are_refused(name: str, tmp_path: Path) -> None:
    message, make = BOOKS[name]
    path = tmp_path / "t.xlsx"
    path.write_bytes(make())
    with pytest.raises(DomainError, match=message) as caught:
        SCHEMA.encode(path, limits=Limits(expansion=10))
    assert CANARY not in repr(vars(caught.value)) + str(caught.value)
    assert caught.value.__context__ is None
    assert os.listdir(tmp_path) == ["t.xlsx"]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that are soon reached."""
    monkeypatch.setattr(limits, "ALWAYS", 1 << 20)
    monkeypatch.setattr(workbook, "_REST", 20_000)
    monkeypatch.setattr(workbook, "_TREE", 1000)
    monkeypatch.setattr(workbook, "MOST_ROWS", 1000)


@pytest.mark.usefixtures("_small")
def test_cells_that_repeat_one_long_text_do_not_unfold() -> None:
    rows = b'<row><c t="inlineStr"><is><t>ward</t></is></c></row>' + b'<row><c t="s"><v>0</v></c></row>' * 300
    plain, out = repacked(book(["x"]), sheet1=SHEET % rows), io.BytesIO()
    shared = b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    shared += b'spreadsheetml.sharedStrings+xml"/></Types>'
    with zipfile.ZipFile(io.BytesIO(plain)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"</Types>", shared))
        text = b'<sst xmlns="%b"><si><t>%b</t></si></sst>' % (NAMESPACE, b"x" * 30_000)
        new.writestr("xl/sharedStrings.xml", text)
    long = out.getvalue()
    assert len(long) < 100_000
    with pytest.raises(DomainError, match="workbook unfolds to more than the 1000000 bytes"):
        SCHEMA.encode(long, limits=Limits(bytes=1_000_000))


@pytest.mark.usefixtures("_small")
def test_bombs_of_gzip() -> None:
    with pytest.raises(DomainError, match="unfolds to more"):
        SCHEMA.encode(gzip.compress(TEXT.encode() + b" " * (2 << 20), 9), limits=Limits(expansion=10))
    twice = gzip.compress(gzip.compress(TEXT.encode()))
    for inner in (twice, gzip.compress(book(*ROWS)), gzip.compress(b"PAR1" + TEXT.encode() + b"PAR1")):
        with pytest.raises(DomainError, match="not a CSV inside"):
            SCHEMA.encode(inner)
    for broken in (gzip.compress(TEXT.encode())[:-9], gzip.compress(TEXT.encode()) + b"rest", b"\x1f\x8b" + bytes(30)):
        with pytest.raises(DomainError, match=r"gzip|ends before"):
            SCHEMA.encode(broken)
    members = gzip.compress(TEXT.encode()) + gzip.compress(b"nord,ja,1\n") + bytes(1000)
    assert SCHEMA.encode(members)[0].tolist() == [*CODES, [0, 1, 1]]


_PEAK = """
import resource, sys
from caps.data.schema import Limits, Schema
from caps.errors import DomainError
schema = Schema.from_json({"columns": [{"name": "x", "kind": "boolean"}]})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    schema.encode(sys.argv[1], limits=Limits(expansion=1))
except DomainError as error:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_bomb_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"x\n" + b"true\n" * (ALWAYS // 4), 1))
    done = subprocess.run([sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64


def test_everything_that_is_wrong_with_a_header_is_said_at_once() -> None:
    with pytest.raises(HeaderRefused) as caught:
        SCHEMA.encode(f"ward,ward,{CANARY}\n1,2,3\n".encode())
    assert caught.value.missing == ("Größe", "smoker")
    assert "missing: Größe, smoker; it has more than one column ward; it has 1 column that" in str(caught.value)
    assert CANARY not in str(caught.value) + repr(vars(caught.value))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TEXT + "nord,ja\n", 5),
        (TEXT + "nord,ja,1,2\n" + TEXT, 5),
        (TEXT + "nord,ja,1\nnord,ja", 6),
        (TEXT + 'nord,j"a,1\n', 5),
        (TEXT + "nord,ja,1\rnord\n", 5),
        (TEXT + "nord,ja,1\0\n", 5),
        ('ward,smoker,Größe\n"nord\n\n",ja,1\nnord\n', 5),
    ],
)
def test_a_line_that_cannot_be_read_is_known_by_its_number(text: str, line: int) -> None:
    with pytest.raises(LineRefused) as caught:
        SCHEMA.encode(text.encode())
    assert caught.value.line == line
    assert str(line) not in str(caught.value)  # the number is for whoever holds the file


def test_rows_that_are_refused_are_known_by_their_numbers() -> None:
    report = SCHEMA.examine((TEXT + f"{CANARY},ja,1\nnord,ja,\nost,{CANARY},1.5\n").encode())
    assert report.refused_rows == {"ward": (5, 7), "Größe": (6, 7), "smoker": (7,)}
    assert set(report.to_json()) == {"rows", "columns"}
    assert "refused_rows" not in repr(report)


def test_a_header_of_a_million_columns_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_bytes(b",".join(b"c%d" % number for number in range(10**6)) + b"\n")
    for read in (lambda: SCHEMA.encode(path), lambda: read_header(path)):
        with pytest.raises(DomainError, match="too long for a header"):
            read()


# The header alone.


@pytest.mark.parametrize("spelled", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_only_the_header_is_read(spelled: str) -> None:
    """Of a pipe, the first line is taken; whatever comes after it is still there."""
    rest = b"\xff\xfe\x00 poison, \x1f\x8b"
    source, target = os.pipe()
    os.write(target, "Größe;ward;smoker\r\n".encode(spelled) + rest)
    found = read_header(Path(f"/dev/fd/{source}"), encoding="cp1252" if spelled == "cp1252" else None)
    assert found == ["Größe", "ward", "smoker"]
    assert os.read(source, 1000) == rest
    os.close(source)
    os.close(target)


def test_headers_of_other_formats_are_not_read_alone(tmp_path: Path) -> None:
    for name, content in {"x": book(*ROWS), "g": gzip.compress(TEXT.encode()), "p": b"PAR1\0\n"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DomainError, match=r"only of a CSV"):
            read_header(tmp_path / name)
    (tmp_path / "e").write_bytes(b"")
    with pytest.raises(DomainError, match="empty"):
        read_header(tmp_path / "e")


def test_the_header_of_every_format_is_there_for_whoever_holds_the_file(tmp_path: Path) -> None:
    pl.DataFrame({"Größe": [1], "x": ["a"]}).write_parquet(tmp_path / "p")
    (tmp_path / "x").write_bytes(book(["Größe", "x"], [1, "a"]))
    (tmp_path / "g").write_bytes(gzip.compress("Größe;x\n1;a\n".encode("cp1252")))
    for name in "pxg":
        spelled = "cp1252" if name == "g" else None
        assert header_of(tmp_path / name, SCHEMA.columns, encoding=spelled, limits=Limits()) == ["Größe", "x"]
