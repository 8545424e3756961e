"""Columns that a person of a joint table may lack, although no holder's table may."""

from __future__ import annotations

import io

import numpy as np
import polars as pl
import pytest

from caps.data.domain import MISSING
from caps.data.schema import Schema, TableRefused
from caps.errors import DomainError

SCHEMA = Schema.from_json(
    """{"columns": [
        {"name": "sex", "kind": "categorical", "categories": ["f", "m"]},
        {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes"},
        {"name": "age", "kind": "numeric", "bin_edges": [0, 50, 100]},
        {"name": "ward", "kind": "categorical", "categories": ["a"], "missing_values": ["?"]},
        {"name": "score", "kind": "numeric", "bin_edges": [0, 10], "missing_values": [999]}
    ]}"""
)
ROWS = np.array([[0, 1, 1, 0, 0], [MISSING] * 5, [1, 0, 0, 1, 1]])


def test_it_is_refused_unless_it_may_be() -> None:
    with pytest.raises(DomainError, match="column sex must have no missing codes"):
        SCHEMA.frame(ROWS)
    with pytest.raises(DomainError, match="column smoker must have no missing codes"):
        SCHEMA.write_csv(ROWS, io.BytesIO(), lacking=["sex"])


def test_missing_values_are_null_or_as_declared() -> None:
    frame = SCHEMA.frame(ROWS, lacking=SCHEMA.domain().names)
    assert frame["sex"].to_list() == ["f", None, "m"]
    assert frame["smoker"].to_list() == [True, None, False]
    assert frame["age"].to_list() == [75, None, 25]
    assert frame["ward"].to_list() == ["a", None, None]
    assert frame["score"].to_list() == [5, 999, 999]
    assert frame.schema["smoker"] == pl.Boolean


def test_a_csv_has_an_empty_field_or_what_was_declared() -> None:
    written = io.BytesIO()
    SCHEMA.write_csv(ROWS, written, lacking=SCHEMA.domain().names)
    _, _, lacking, _ = written.getvalue().decode().splitlines()
    *texts, number = lacking.split(",")
    assert texts == ["", "", "", "?"]
    assert float(number) == 999


def test_rows_that_lack_nothing_are_written_as_ever() -> None:
    whole, lacking = io.BytesIO(), io.BytesIO()
    SCHEMA.write_csv(ROWS[[0, 2]], whole)
    SCHEMA.write_csv(ROWS[[0, 2]], lacking, lacking=SCHEMA.domain().names)
    assert whole.getvalue() == lacking.getvalue()


def test_what_is_published_can_be_read() -> None:
    written = io.BytesIO()
    names = SCHEMA.domain().names
    SCHEMA.write_csv(ROWS, written, lacking=names)
    with pytest.raises(TableRefused):
        SCHEMA.encode(written.getvalue())
    codes, report = SCHEMA.encode(written.getvalue(), lacking=names)
    assert np.array_equal(codes, [[0, 1, 1, 0, 0], [MISSING, MISSING, MISSING, 1, 1], [1, 0, 0, 1, 1]])
    assert report.refused == 0


def test_a_table_of_one_column_has_a_line_for_every_row() -> None:
    schema = Schema.from_json('{"columns": [{"name": "sex", "kind": "categorical", "categories": ["f"]}]}')
    written = io.BytesIO()
    schema.write_csv(np.array([[0], [MISSING]]), written, lacking=["sex"])
    assert len(schema.encode(written.getvalue(), lacking=["sex"])[0]) == 2
