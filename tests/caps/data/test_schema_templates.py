"""Schemas without data: templates, suggestions by name, code books."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caps.data.schema import Schema
from caps.data.schema.codebooks import from_codebook
from caps.data.schema.templates import TEMPLATES, Draft, apply, integer_range, round_bins, suggestion
from caps.errors import DomainError

ARGUMENTS = {
    "region": "DE",
    "month": "2020..2021",
    "number": "0..200",
    "integer": "0..20",
    "list": "A,B",
    "ordinal": "low,medium,high",
    "list-other": "A,B",
}
LEFT_OUT = {"id", "key", "date", "skip"}


def described(asked: str) -> dict[str, Any]:
    draft = Draft()
    apply(draft, "x", asked)
    return draft.columns[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_makes_a_column_or_says_why_not(name: str) -> None:
    draft = Draft()
    apply(draft, "x", f"{name}:{ARGUMENTS.get(name, '')}")
    if name in LEFT_OUT:
        assert len(draft.left_out["x"]) > 10
        with pytest.raises(DomainError, match="no column is left"):
            draft.to_json()
    else:
        assert Schema.from_json(draft.to_json("n")).columns[0].size >= 2


def test_what_templates_say() -> None:
    assert described("age")["bin_edges"] == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 120]
    assert described("yes-no:ja,nein") == {"name": "x", "kind": "boolean", "true": "ja", "false": "nein"}
    assert described("ordinal:low,high")["ordered"] is True
    assert described("list-other:A,B") == {
        "name": "x",
        "kind": "categorical",
        "categories": ["A", "B", "other"],
        "other": "other",
    }
    assert described("list:other,B")["categories"] == ["other", "B"]
    assert described("number:0..200/25")["bin_edges"] == [0, 25, 50, 75, 100, 125, 150, 175, 200]
    assert described("integer:1..5")["bin_edges"] == [1, 2, 3, 4, 5, 6]
    assert described("month:2020..2021")["categories"][-1] == "2021-12"
    whole = {"name": "x", "kind": "date", "first": "2020-01-01", "last": "2021-12-31"}
    assert described("date:2020..2021/month") == {**whole, "by": "month"}
    assert described("date:2020..2021") == {**whole, "by": "quarter"}
    assert described("date:2020-01-01..2021-12-31/week") == {**whole, "by": "week"}
    assert described("date:1900..2025")["by"] == "year"
    for wrong in ("2020", "2020..2021/decade", "2021..2020", "2020-02-30..2021"):
        with pytest.raises(DomainError):
            Schema.from_json({"columns": [described(f"date:{wrong}")]})
    assert len(described("region:us")["categories"]) == 52
    assert len(described("icd10")["categories"]) == 23


@pytest.mark.parametrize(
    "asked",
    [
        "nonsense",
        "age:0",
        "age:x",
        "yes-no:a",
        "region:XX",
        "region",
        "number:5..1",
        "number:x",
        "number:0..1e9",
        "integer:0..99999999/1",
        "list:",
        "list:a,,b",
        "month:2025",
        "month:2000..2200",
        "income:nan",
    ],
)
def test_templates_that_are_refused(asked: str) -> None:
    with pytest.raises(DomainError, match=r"^x: "):
        described(asked)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 1000), (-3.7, 12.4), (0.001, 0.0042), (10, 1_000_000)])
def test_bins_are_round_few_and_cover_the_range(low: float, high: float) -> None:
    edges = round_bins(low, high)
    assert edges[0] <= low
    assert edges[-1] >= high
    assert 5 <= len(edges) <= 23
    assert sorted(set(edges)) == edges
    whole = integer_range(round(low), round(high) + 1)["bin_edges"]
    assert all(edge == int(edge) for edge in whole)


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("age", "age"),
        ("Age at admission", "age"),
        ("patient_id", "id"),
        ("PatientID", "id"),
        ("birthDate", "date"),
        ("admitted_at", "date"),
        ("year of birth", "year"),
        ("sex", "sex"),
        ("is_smoker", "yes-no"),
        ("bundesland", "region"),
        ("income", "income"),
        ("wage2", None),
        ("colour", None),
        ("page", None),
    ],
)
def test_names_suggest(name: str, template: str | None) -> None:
    assert suggestion(name) == template


# Code books.


def book(tmp_path: Path, content: str | bytes | dict[str, Any], **options: Any) -> Draft:
    path = tmp_path / "book"
    data = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return from_codebook(path, **options)


def test_a_csv_of_codes(tmp_path: Path) -> None:
    draft = book(
        tmp_path,
        "\ufeffVariable;Code;Label;Missing;Ordinal;Min;Max\nward;1;Surgery;;;;\nward;2;Urology;;;;\nward;9;unknown;x;;;\n"
        "pain;low;;;yes;;\npain;high;;;;;\nweight;;;;;0;300\ntemperature;;;;;34.5;42.5\nnotes;;;;;;\n\n",
    )
    schema = Schema.from_json(draft.to_json())
    ward, pain, weight, temperature = schema.columns
    assert (ward.texts, ward.missing_values) == (("1", "2"), ("9",))
    assert pain.to_json()["ordered"] is True
    assert (weight.to_json()["integer"], temperature.to_json().get("integer")) == (True, None)
    assert list(draft.left_out) == ["notes"]


def test_long_lists_have_an_other(tmp_path: Path) -> None:
    """A code book of a million lines is read once, and kept to its bound."""
    lines = "".join(f"city,{number}\n" for number in range(10**6))
    draft = book(tmp_path, "column,code\n" + lines, most=50)
    assert draft.columns == [
        {"name": "city", "kind": "categorical", "categories": [*map(str, range(50)), "other"], "other": "other"}
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "needs a column"),
        ("column,code\n,1\n", "no name"),
        ("column,min,max\nx,a,2\n", "not a number"),
        ("column,code\n" + "".join(f"c{n},1\n" for n in range(5000)), "at most 4096 columns"),
        (b"column,code\n\xff\n", "not in UTF-8"),
        ("column,code\nx," + "y" * 200_000 + "\n", "not valid CSV"),
        ('{"a": 1}', "neither"),
        ('{"fields": [1]}', "must have a name"),
        ('{"properties": {"x": 1}}', "must be an object"),
        ('{"properties": {"x": {"enum": [[]]}}}', "text or a number"),
        ('{"fields": [{"name": "x", "constraints": 1}]}', "constraints"),
        ('{"fields": [], "missingValues": 1}', "lists of texts"),
        ("[" * 100, "needs a column"),
        ("{" + '"a":{' * 100, "nested|JSON"),
    ],
)
def test_code_books_that_are_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DomainError, match=message):
        book(tmp_path, content)


def test_a_table_schema(tmp_path: Path) -> None:
    fields = [
        {"name": "patient", "type": "string"},
        {"name": "serial", "type": "integer", "constraints": {"unique": True}},
        {"name": "sex", "type": "string", "constraints": {"enum": ["F", "M"], "required": True}},
        {"name": "stage", "type": "integer", "categories": [{"value": 1, "label": "I"}, 2], "categoriesOrdered": True},
        {"name": "smoker", "type": "boolean", "trueValues": ["ja"], "falseValues": ["nein"]},
        {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 110}},
        {"name": "bmi", "type": "number", "constraints": {"minimum": "10", "maximum": 60}},
        {"name": "admitted", "type": "date", "constraints": {"minimum": "2020-01-01", "maximum": "2020-12-31"}},
        {
            "name": "seen",
            "type": "date",
            "format": "%d/%m/%Y",
            "constraints": {"minimum": "2020-01-01", "maximum": "2020-01-31"},
        },
        {
            "name": "left",
            "type": "datetime",
            "constraints": {"minimum": "1990-01-01T00:00:00Z", "maximum": "2030-01-01T00:00:00Z"},
        },
        {"name": "open", "type": "date", "constraints": {"minimum": "2020-01-01"}},
        {
            "name": "any",
            "type": "date",
            "format": "any",
            "constraints": {"minimum": "2020-01-01", "maximum": "2020-12-31"},
        },
        {"name": "hour", "type": "time"},
        {"name": "remark", "type": "string"},
        {"name": "height", "type": "number"},
    ]
    schema = {"fields": fields, "primaryKey": "patient", "missingValues": ["", "NA"]}
    for document in (schema, {"resources": [{"schema": schema}]}):
        draft = book(tmp_path, document)
        found = {column.name: column for column in Schema.from_json(draft.to_json()).columns}
        assert list(found) == ["sex", "stage", "smoker", "age", "bmi", "admitted", "seen", "left"]
        assert found["stage"].texts == ("1", "2")
        assert found["stage"].to_json()["ordered"] is True
        assert found["smoker"].texts == ("nein", "ja")
        assert found["sex"].missing_values == ("NA",)
        assert set(draft.left_out) == {"patient", "serial", "open", "any", "hour", "remark", "height"}
        assert [found[name].cells for name in ("admitted", "seen", "left")] == [12, 5, 41]
        assert found["seen"].to_json()["format"] == "%d/%m/%Y"


def test_a_json_schema(tmp_path: Path) -> None:
    properties = {
        "sex": {"enum": ["F", "M", None]},
        "smoker": {"type": ["boolean", "null"]},
        "visits": {"type": "integer", "minimum": 0, "maximum": 9},
        "born": {"type": "string", "format": "date"},
        "seen": {"type": "string", "format": "date", "formatMinimum": "2020-01-01", "formatMaximum": "2024-12-31"},
        "free": {"type": "string"},
    }
    draft = book(tmp_path, {"type": "object", "properties": properties, "required": ["sex", "smoker", "visits"]})
    sex, smoker, visits, seen = Schema.from_json(draft.to_json()).columns
    assert (sex.missing, smoker.missing, visits.missing) == ("refuse", "category", "refuse")
    assert visits.to_json()["bin_edges"] == list(range(11))
    assert seen.texts[-1] == "2024-Q4"
    assert set(draft.left_out) == {"born", "free"}
