"""encode undoes decode, for every kind of column, through arrays, frames and CSV."""

from __future__ import annotations

import io
import json
import math
from datetime import date
from fractions import Fraction
from itertools import pairwise
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from caps.basics.naming import fault
from caps.data.schema import Boolean, Categorical, Column, Date, Limits, Numeric, Schema, TableRefused
from caps.errors import DomainError

pytestmark = pytest.mark.property

AWKWARD = ["", " ", "?", "NA", "nan", "None", "1", "1.0", "-0", "01", "true", 'q"q', '"', '""', ",", ";", "#", "é", "日本", "🙂", "'", "\\", "inf"]  # fmt: skip  # noqa: E501
texts = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["C", "M", "Zl", "Zp"]), max_size=6).map(
    lambda text: normalize("NFC", text)
).filter(lambda text: fault(text) is None)
names = texts.filter(lambda text: text.strip() != "")
policies = st.sampled_from(["", "category", "null", "refuse"])
reals = st.one_of(
    st.integers(-50, 50).map(float),
    st.floats(-1e6, 1e6),
    st.floats(-1e-300, 1e-300),
    st.floats(-(2.0**53), 2.0**53),
    st.sampled_from(
        [-0.0, 5e-324, -5e-324, 0.1, 0.3, math.nextafter(1, 2), math.nextafter(1, 0), 2.0**53 - 1, 1 - 2.0**53]
    ),
)


def built(cls: type[Column], **given: Any) -> Column:
    try:
        return cls(**given)
    except DomainError:
        assume(False)
        raise


@st.composite
def categoricals(draw: st.DrawFn, name: str) -> Column:
    categories = draw(st.lists(texts, min_size=1, max_size=6, unique=True))
    return built(
        Categorical,
        name=name,
        categories=categories,
        ordered=draw(st.booleans()),
        other=draw(st.none() | st.sampled_from(categories)),
        missing=draw(policies),
        missing_values=draw(st.lists(texts.filter(lambda text: text not in categories), max_size=2, unique=True)),
    )


@st.composite
def booleans(draw: st.DrawFn, name: str) -> Column:
    false, true = draw(st.just(("false", "true")) | st.tuples(texts, texts))
    tokens = draw(st.lists(texts, max_size=2, unique=True))
    return built(Boolean, name=name, false=false, true=true, missing=draw(policies), missing_values=tokens)


@st.composite
def numerics(draw: st.DrawFn, name: str) -> Column:
    integer = draw(st.booleans())
    decimals = None if integer else draw(st.none() | st.integers(0, 4))
    numbers = st.integers(-(10**6), 10**6) if integer else reals
    edges = draw(st.lists(reals, min_size=2, max_size=6, unique_by=lambda edge: edge + 0.0))
    if integer or decimals is not None:  # most bins of any edges would hold no value
        offset, steps = (
            draw(st.sampled_from([0, 0, 0.25, 0.5, 0.999])),
            st.integers(-40, 40) | st.integers(-(10**9), 10**9),
        )
        edges = [
            (k + offset) / 10 ** (decimals or 0) for k in draw(st.lists(steps, min_size=2, max_size=6, unique=True))
        ]
    return built(
        Numeric,
        name=name,
        bin_edges=sorted(edges),
        integer=integer,
        side=draw(st.sampled_from(["left", "right"])),
        decimals=decimals,
        missing=draw(policies),
        missing_values=draw(st.lists(st.sampled_from(AWKWARD) | numbers, max_size=2, unique_by=str)),
    )


@st.composite
def dates(draw: st.DrawFn, name: str) -> Column:
    low, high = sorted(draw(st.tuples(st.dates(), st.dates() | st.just(date.max))))
    span = {
        "first": low.isoformat(),
        "last": high.isoformat(),
        "by": draw(st.sampled_from(["year", "quarter", "week"])),
    }
    edges = {"bin_edges": [day.isoformat() for day in sorted({low, high, draw(st.dates())})]}
    return built(
        Date,
        name=name,
        **draw(st.sampled_from([span, edges])),
        format=draw(st.sampled_from(["%Y-%m-%d", "%d.%m.%Y", "%-m/%-d/%Y", "%Y%m%d"])),
        publish=draw(st.sampled_from(["day", "bin"])),
        missing=draw(policies),
        missing_values=draw(st.lists(st.sampled_from(AWKWARD), max_size=2, unique=True)),
    )


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    given = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    return Schema(tuple(draw(categoricals(name) | booleans(name) | numerics(name) | dates(name)) for name in given))


@st.composite
def codings(draw: st.DrawFn) -> tuple[Schema, Any]:
    schema = draw(schemas())
    row = st.tuples(*[st.integers(-int(a.nullable), a.size - 1) for a in schema.domain().attributes])
    rows = draw(st.lists(row, max_size=12))
    return schema, np.array(rows, np.int64).reshape(len(rows), len(schema.columns))


uniforms = st.none() | st.sampled_from([0.0, 0.5, math.nextafter(1, 0)]) | st.floats(0, 1, exclude_max=True)


def constant(draw: float | None) -> Any:
    return None if draw is None else lambda n: np.full(n, draw)


@settings(max_examples=150, deadline=None)
@given(codings(), uniforms)
def test_encode_undoes_decode(coding: tuple[Schema, Any], draw: float | None) -> None:
    schema, codes = coding
    table = schema.decode(codes, uniform=constant(draw))
    assert list(table) == [column.name for column in schema.columns]
    back, report = schema.encode(table)
    assert np.array_equal(back, codes)
    assert report.rows == len(codes)
    assert not any(column.low or column.high or column.unknown or column.unparsable for column in report.columns)
    frame = schema.frame(codes, uniform=constant(draw))
    assert np.array_equal(schema.encode(frame)[0], codes)


@settings(max_examples=150, deadline=None)
@given(codings(), uniforms, st.sampled_from(",;|\t"))
def test_encode_undoes_write_csv(coding: tuple[Schema, Any], draw: float | None, separator: str) -> None:
    schema, codes = coding
    target = io.BytesIO()
    if len(schema.columns) == 1:
        separator = ","  # a header with one name does not tell; then it is a comma
    schema.write_csv(codes, target, uniform=constant(draw), separator=separator)
    assert np.array_equal(schema.encode(target.getvalue())[0], codes)


@settings(deadline=None)
@given(schemas())
def test_json_both_ways(schema: Schema) -> None:
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_json(json.dumps(schema.to_json())) == schema


@settings(max_examples=150, deadline=None)
@given(numerics("x"), st.lists(reals | st.floats(), min_size=1))
def test_bins_are_those_of_the_definition(column: Column, values: list[float]) -> None:
    assert isinstance(column, Numeric)
    schema = Schema((column,))
    tokens = {float(token) for token in column.missing_values if _is_number(token)}
    kept = [v for v in values if math.isfinite(v) and v not in tokens and (not column.integer or v.is_integer())]
    edges = [Fraction(edge) for edge in column.bin_edges]

    def code(value: Fraction) -> int:
        for index, (low, high) in enumerate(pairwise(edges)):
            if low <= value < high if column.side == "right" else low < value <= high:
                return index
        return 0 if value <= edges[0] else column.cells - 1

    codes, _ = schema.encode({"x": np.array(kept)})
    assert codes[:, 0].tolist() == [code(Fraction(value)) for value in kept]
    assert np.array_equal(schema.encode({"x": [repr(value) for value in kept]})[0], codes)


def _is_number(token: object) -> bool:
    return isinstance(token, int | float) or token in ("1", "1.0", "-0", "01")


@settings(max_examples=150, deadline=None)
@given(numerics("x"), st.floats(0, 1, exclude_max=True))
def test_draws_stay_inside_their_bin(column: Column, draw: float) -> None:
    assert isinstance(column, Numeric)
    codes = np.arange(column.cells)[:, None]
    values = Schema((column,)).frame(codes, uniform=constant(draw))["x"].to_list()
    for value, low, high in zip(values, column.bin_edges, column.bin_edges[1:], strict=False):
        assert low <= value < high if column.side == "right" else low < value <= high
        assert isinstance(value, int if column.integer else float)
        if column.decimals is not None:
            assert round(value, column.decimals) == value


lines = st.text(st.sampled_from('ab,"\n\r é#'), max_size=25)


@settings(max_examples=200, deadline=None)
@given(lines)
@example("a,b\r\n\r\n")
@example('"",\n')
@example(",\n,")
@example('a,"b\n')
def test_a_csv_is_read_as_written_or_refused(body: str) -> None:
    """Against a reader of one character at a time: what it takes apart we code alike, and what it refuses we do."""
    schema = Schema(tuple(Categorical(name=name, categories=["a", "b"], other="b", missing="null") for name in "xy"))
    expected = _strict_rows(body)
    try:
        codes, _ = schema.encode(f"x,y\n{body}".encode())
    except TableRefused:
        raise
    except DomainError:
        codes = None
    if codes is None or expected is None:
        assert codes is expected
    else:
        assert codes.tolist() == [[{"a": 0, "": -1}.get(field, 1) for field in row] for row in expected]


def _strict_rows(body: str) -> list[list[str]] | None:
    rows: list[list[str]] = []
    row: list[str] = []
    kept = body.rstrip("\r\n")
    if "\r" in body[len(kept) :].replace("\r\n", ""):
        return None
    body = kept + "\n" if kept else ""
    at = 0
    while at < len(body):
        if body[at] == '"':
            end = at + 1
            while (end := body.find('"', end)) >= 0 and body[end + 1 : end + 2] == '"':
                end += 2
            if end < 0:
                return None
            field, at = body[at + 1 : end].replace('""', '"'), end + 1
            if body[at : at + 2] == "\r\n":
                at += 1
        else:
            end = min(i for i in (body.find(",", at), body.find("\n", at)) if i >= 0)
            field, at = body[at:end], end
            if body[at] == "\n":
                field = field.removesuffix("\r")
            if '"' in field or "\r" in field:
                return None
        row.append(field)
        if body[at] not in ",\n":
            return None
        if body[at] == "\n":
            if len(row) != 2:
                return None
            rows.append(row)
            row = []
        at += 1
    return rows


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_coded_or_refused(body: bytes) -> None:
    schema = Schema((Categorical(name="x", categories=["a"], other="a", missing="null"),))
    for data in (body, b"x\n" + body):
        try:
            codes, report = schema.encode(data, extra="ignore", limits=Limits(rows=5, field=20))
        except DomainError:
            continue
        assert len(codes) == report.rows <= 5
