"""`caps table check`: at the owner's desk, what the holder would say, and where to look."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from typer.testing import CliRunner

from caps.cli import Exit, app
from tests.kit.study import COLUMNS, example_manifest, joined_manifest

HEADER = "age,smoker,region,diagnosis\n"
CANARY = "Zaunkoenig7391"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.json"
    path.write_bytes(example_manifest()[0].canonical_bytes())
    return path


def check(table: Path, content: str | bytes, study: Path, *options: object, fits: bool) -> Any:
    table.write_bytes(content.encode() if isinstance(content, str) else content)
    found = CliRunner().invoke(app, ["table", "check", str(table), "--study", str(study), *map(str, options)])
    assert found.exit_code == (Exit.OK if fits else Exit.REFUSED), found.output
    return found


def test_a_table_that_fits_in_every_format(tmp_path: Path, study: Path) -> None:
    text = HEADER + "30,yes,north,A\n50,no,south,B\n"
    book = openpyxl.Workbook()
    for line in text.splitlines():
        book.active.append([int(cell) if cell.isdigit() else cell for cell in line.split(",")])
    book.save(tmp_path / "book")
    for content in (
        text.encode(),
        text.encode("utf-16"),
        gzip.compress(text.encode()),
        (tmp_path / "book").read_bytes(),
    ):
        assert "fits the study: 2 rows" in check(tmp_path / "t", content, study, fits=True).stdout
    shown = json.loads(check(tmp_path / "t", text, study, "--json", fits=True).stdout)
    assert (shown["fits"], shown["report"]["rows"]) == (True, 2)


def test_all_missing_columns_with_the_names_that_may_be_meant(tmp_path: Path, study: Path) -> None:
    words = check(tmp_path / "t", "AGE,Smokers,reg.,x\n1,2,3,4\n", study, fits=False).stdout
    assert words.startswith("The table does not fit the study\n")
    assert "missing: age, smoker, region, diagnosis" in " ".join(words.split())
    assert "age: is it AGE?" in words
    assert "smoker: is it Smokers?" in words
    shown = json.loads(check(tmp_path / "t", "Diagnosis\n1\n", study, "--json", fits=False).stdout)
    assert {one["column"]: one["close"] for one in shown["missing"]}["diagnosis"] == ["Diagnosis"]


def test_names_of_a_file_do_nothing_to_the_terminal(tmp_path: Path, study: Path) -> None:
    words = check(tmp_path / "t", "\x1b[31mage,x\n1,2\n", study, fits=False).output
    assert "\x1b" not in words


def test_extra_columns(tmp_path: Path, study: Path) -> None:
    text = f"{HEADER.strip()},{CANARY}\n30,yes,north,A,1\n"
    words = check(tmp_path / "t", text, study, fits=False).output
    assert "1 column that the schema does not have" in words
    assert "--ignore-extra" in words
    assert CANARY not in words  # in a file without a header it would be data
    assert f"not in the study: {CANARY}" in check(tmp_path / "t", text, study, "--show-lines", 5, fits=False).output
    check(tmp_path / "t", text, study, "--ignore-extra", fits=True)


def test_rows_are_listed_only_if_somebody_asks(tmp_path: Path, study: Path) -> None:
    text = HEADER + "30,yes,north,A\n" + f"30,{CANARY},north,A\n" * 3 + "x,yes,north,A\n"
    words = check(tmp_path / "t", text, study, fits=False).output
    assert "--show-lines" in words
    assert "rows 3" not in words
    words = check(tmp_path / "t", text, study, "--show-lines", 2, fits=False).output
    assert "smoker: rows 3, 4, ..." in words
    assert "age: rows 6" in words
    assert CANARY not in words
    shown = json.loads(check(tmp_path / "t", text, study, "--show-lines", 9, "--json", fits=False).stdout)
    assert shown["rows"] == {"age": [6], "smoker": [3, 4, 5]}
    words = check(tmp_path / "t", HEADER + "30,yes,north,A\n1,2\n", study, "--show-lines", 1, fits=False).output
    assert "line 3 of the file" in words


def test_encodings_have_to_be_said(tmp_path: Path, study: Path) -> None:
    content = (HEADER + "30,yes,nörth,A\n").encode("cp1252")
    assert "say in which" in check(tmp_path / "t", content, study, fits=False).output
    words = check(tmp_path / "t", content, study, "--encoding", "windows-1252", fits=False).output
    assert "1 in column region" in words
    assert "must be one of" in check(tmp_path / "t", content, study, "--encoding", "koi8-r", fits=False).output


def test_whose_table_it_is(tmp_path: Path, study: Path) -> None:
    study.write_bytes(example_manifest(holders=COLUMNS)[0].canonical_bytes())
    text = "age,smoker\n30,yes\n"
    assert "say whose table it is" in check(tmp_path / "t", text, study, fits=False).output
    check(tmp_path / "t", text, study, "--holder", COLUMNS[0][0], fits=True)
    assert "no holder" in check(tmp_path / "t", text, study, "--holder", "nobody", fits=False).output


def test_the_columns_of_a_key_belong_to_the_table(tmp_path: Path, study: Path) -> None:
    manifest = joined_manifest()
    study.write_bytes(manifest.canonical_bytes())
    words = check(tmp_path / "t", "age,smoker\n30,yes\n", study, "--holder", "north", fits=False).output
    assert manifest.join is not None
    assert all(column.name in words for column in manifest.join.key.columns)
