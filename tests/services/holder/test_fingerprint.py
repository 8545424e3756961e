"""The fingerprint of a table is that of its rows: their order, the order of columns and the file do not matter."""

from __future__ import annotations

import io

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.holder.fingerprint import _SLICE, fingerprint

COLUMNS = {"age": ["33", "12", "12"], "region": ["north", "east", "east"]}


def of(columns: dict[str, list[object]]) -> str:
    return fingerprint({name: pl.Series(values) for name, values in columns.items()})


@given(st.permutations(range(3)), st.booleans())
def test_the_order_of_rows_and_of_columns_does_not_matter(order: list[int], reverse: bool) -> None:
    moved = {name: [values[i] for i in order] for name, values in COLUMNS.items()}
    assert of(dict(reversed(moved.items())) if reverse else moved) == of(COLUMNS)


def test_what_is_in_a_file_is_the_same_in_csv_and_parquet() -> None:
    typed = pl.DataFrame({"age": [33, 12, None], "height": [1.5, 2.0, 0.25], "smoker": [True, False, None]})
    text = pl.read_csv(io.BytesIO(typed.write_csv().encode()), infer_schema=False)
    assert fingerprint({one.name: one for one in typed}) == fingerprint({one.name: one for one in text})
    spelled = {"age": ["33.0", " 12", ""], "height": ["1.50", "2", ".25"], "smoker": ["true", "false ", ""]}
    assert of(spelled) == fingerprint({one.name: one for one in typed})


@pytest.mark.parametrize(
    "other",
    [
        {"age": ["33", "12", "13"], "region": ["north", "east", "east"]},
        {"age": ["33", "12", "12"], "region": ["north", "east", "north"]},
        {"age": ["12", "33", "12"], "region": ["north", "east", "east"]},
        {"age": ["33", "12"], "region": ["north", "east"]},
        {"age": ["33", "12", "12", "12"], "region": ["north", "east", "east", "east"]},
        {"age": ["33", "12", "12"]},
        {"years": ["33", "12", "12"], "region": ["north", "east", "east"]},
    ],
    ids=["value", "another value", "rows mixed up", "row less", "row repeated", "column less", "column renamed"],
)
def test_other_rows_have_another_fingerprint(other: dict[str, list[object]]) -> None:
    assert of(other) != of(COLUMNS)


def test_a_table_of_several_slices() -> None:
    numbers = pl.Series(range(_SLICE + 5))
    assert fingerprint({"a": numbers}) == fingerprint({"a": numbers.reverse()})
    assert fingerprint({"a": numbers}) != fingerprint({"a": numbers[:-1].append(pl.Series([7]))})
