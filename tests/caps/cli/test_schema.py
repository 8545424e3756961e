"""`caps schema`: a description of a table from its header alone."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from caps.cli import Exit, app

pytestmark = pytest.mark.integration
HEADER = "patient_id;age;Ward, wing;is_smoker;admitted_at\n"
OPTIONS = ("--column", "Ward, wing=list-other:north,south", "--column", "patient_id=key", "--suggested")


def caps(*arguments: object, expect: Exit = Exit.OK) -> Any:
    found = CliRunner().invoke(app, [*map(str, arguments)])
    assert found.exit_code == expect, found.output
    return found


def test_a_schema_comes_from_the_header_and_from_nothing_else(tmp_path: Path) -> None:
    poisons = [b"", b"\xff\xfe\x00\x00\x1f\x8b", b"4711;5;x;y;z\n" * 1000, b'"' * 10_000, b"\0" * 100]
    made = []
    for number, poison in enumerate(poisons):
        (tmp_path / "t.csv").write_bytes(HEADER.encode() + poison)
        caps("schema", "new", tmp_path / "t.csv", "--out", tmp_path / f"{number}.json", *OPTIONS)
        made.append((tmp_path / f"{number}.json").read_text())
    assert len(set(made)) == 1
    names = [column["name"] for column in json.loads(made[0])["columns"]]
    assert names == ["age", "Ward, wing", "is_smoker"]
    shown = json.loads(caps("schema", "check", tmp_path / "0.json", "--json").stdout)
    assert [column["categories"] for column in shown["columns"]] == [10, 3, 2]


def test_what_is_left_out_is_said_with_a_word_why(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER)
    words = caps("schema", "new", tmp_path / "t.csv", "--out", tmp_path / "s.json", *OPTIONS).stdout
    assert "Left out: patient_id: it is a join key" in words
    assert "Left out: admitted_at: days need a range" in words
    found = caps("schema", "new", tmp_path / "t.csv", "--out", tmp_path / "s.json", *OPTIONS, expect=Exit.REFUSED)
    assert "File exists" in " ".join(found.stderr.split())


def test_without_somebody_to_ask_every_open_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER)
    found = caps("schema", "new", tmp_path / "t.csv", "--column", "age=age", expect=Exit.REFUSED)
    assert "patient_id=id, Ward, wing=?, is_smoker=yes-no, admitted_at=date" in " ".join(found.stderr.split())
    for wrong, message in (
        ("nobody=age", "a name of the header"),
        ("age", "must be NAME"),
        ("age=x", "the templates are"),
    ):
        options = ("--column", wrong, *OPTIONS)
        found = caps("schema", "new", tmp_path / "t.csv", "--out", tmp_path / "s", *options, expect=Exit.REFUSED)
        assert message in found.stderr


@pytest.mark.parametrize("header", ["a,a", "a,,b", ",".join(f"c{number}" for number in range(5000))])
def test_headers_that_are_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.csv").write_text(header + "\n")
    found = caps("schema", "new", tmp_path / "t.csv", "--suggested", expect=Exit.REFUSED)
    assert "the header has" in found.stderr


def test_the_dialogue(tmp_path: Path) -> None:
    """On a terminal: a name that would act on it, a suggestion taken, help, a mistake, the end."""
    (tmp_path / "t.csv").write_text("age,\x1b[31mred\n")
    ours, theirs = pty.openpty()
    os.write(ours, b"\n?\nnonsense\nlist:a,b\n")
    command = [sys.executable, "-m", "caps.cli", "schema", "new", "t.csv", "--out", "s.json"]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    os.close(ours)
    os.close(theirs)
    assert "age [age]: " in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "the templates are" in done.stderr
    assert "icd10" in done.stdout
    assert "printable" in done.stderr  # such a name is in no schema
    assert done.returncode == Exit.REFUSED


def test_a_code_book_becomes_a_schema(tmp_path: Path) -> None:
    (tmp_path / "book.csv").write_text("column,code\nsex,F\nsex,M\nid,\n")
    words = caps("schema", "from-codebook", tmp_path / "book.csv", "--out", tmp_path / "s.json").stdout
    assert "Left out: id: the code book has neither codes" in words
    caps("schema", "check", tmp_path / "s.json")


def test_a_schema_that_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"columns": [{"name": "a", "kind": "numeric", "bin_edges": [2, 1]}]}')
    found = caps("schema", "check", tmp_path / "s.json", expect=Exit.REFUSED)
    assert "columns[0].bin_edges[1]: must be greater" in found.stdout
    assert len(json.loads(caps("schema", "templates", "--json").stdout)["templates"]) > 10
