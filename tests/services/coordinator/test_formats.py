"""Negotiation, ranges and labels: the parts of a release's HTTP that need no server."""

from __future__ import annotations

import pytest

from caps.audit.measurements import labels
from caps.data.schema import Schema
from caps.service.problems import Problem
from caps.wire.problems import Kind
from services.coordinator import formats
from services.coordinator.content import wanted_part
from services.coordinator.events import encoded
from services.coordinator.store import Event
from tests.kit.study import SCHEMA

FILES = frozenset(form.file for form in formats.FORMATS)


@pytest.mark.parametrize(
    ("accept", "name"),
    [
        (None, "csv"),
        ("", "csv"),
        ("*/*", "csv"),
        ("text/csv", "csv"),
        ("text/csv; charset=utf-8", "csv"),
        ("TEXT/CSV", "csv"),
        ("text/*", "csv"),
        ("application/*", "parquet"),
        ("application/vnd.apache.parquet", "parquet"),
        ("application/vnd.apache.arrow.stream", "arrow"),
        ("application/x-ndjson, text/csv;q=0.5", "ndjson"),
        ("text/csv;q=0.2, application/x-ndjson;q=0.3", "ndjson"),
        ("text/csv;q=0, */*", "parquet"),
        ("image/png, */*;q=0.1", "csv"),
        ("*/*;q=0.5, application/*;q=0.9, application/vnd.apache.parquet;q=0.1", "arrow"),
    ],
)
def test_negotiation(accept, name):
    assert formats.chosen(None, accept, FILES).name == name


@pytest.mark.parametrize("accept", ["image/png", "text/csv;q=0", "*/*;q=0", "text/csv;q=nonsense", "text"])
def test_nothing_acceptable(accept):
    with pytest.raises(Problem) as refused:
        formats.chosen(None, accept, FILES)
    assert refused.value.kind is Kind.NOT_ACCEPTABLE
    assert "text/csv" in refused.value.members["available"]


def test_formats_by_name():
    for form in formats.FORMATS:
        assert formats.chosen(form.name, "image/png", FILES) == form
    assert formats.chosen("raw.csv", None, FILES - {"data.raw.csv"}).name == "csv"
    with pytest.raises(Problem):
        formats.chosen("xls", None, FILES)


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-99", (8, 10)),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0-1,4-5", None),
        ("rows=0-1", None),
        ("bytes=a-b", None),
        ("bytes=" + "9" * 5000 + "-", None),
    ],
)
def test_ranges(header, part):
    assert wanted_part(header, 10) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_ranges_beyond_the_end(header):
    with pytest.raises(Problem) as refused:
        wanted_part(header, 10)
    assert refused.value.kind is Kind.RANGE_NOT_SATISFIABLE
    assert refused.value.headers == {"Content-Range": "bytes */10"}


def test_labels_name_every_cell():
    schema = Schema.from_json(SCHEMA)
    for column in schema.columns:
        assert len(labels(schema, column.name)) == column.size
    assert labels(schema, "smoker") == ["no", "yes"]
    with_missing = {"name": "x", "kind": "numeric", "bin_edges": [0, 1, 2], "side": "left", "missing": "category"}
    assert labels(Schema.from_json({"columns": [with_missing]}), "x") == ["(0, 1]", "(1, 2]", "missing"]


def test_folders_appear_whole_or_not(tmp_path):
    target = tmp_path / "release"
    with pytest.raises(FileNotFoundError), formats.appearing(target) as draft:
        (draft / "one").rename(draft / "two")
    assert not target.exists()
    for text in ("1", "2"):
        with formats.appearing(target) as draft:
            (draft / "two").write_text(text)
    assert [path.name for path in target.iterdir()] == ["two"]
    assert formats.entries(target)["two"].size == 1


def test_an_event_on_the_wire():
    event = Event(7, "state", {"state": "waiting", "reason": "a\nb"}, "2030-05-17T12:00:00Z")
    lines = encoded(event).decode().split("\n")
    assert lines[:2] == ["id: 7", "event: state"]
    assert lines[2].startswith('data: {"at": ')
    assert lines[3:] == ["", ""]
