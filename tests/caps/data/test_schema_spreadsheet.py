"""What a spreadsheet would compute is escaped, nothing else is, and nothing becomes the same."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caps.data.schema import Categorical, Numeric, Schema
from caps.data.schema.spreadsheet import escaped, is_formula

FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    '"=1"',
    "'=1",
    "\u00a0=1",
    "＝1",
    "-1e",
    "--1",
    "=",
    "+1 ",
]
HARMLESS = ["", "a", "a=1", "1-2", "-1", "+1", "-0.5", "-1e-3", "-1.", "-", "+", "'", '"', "'a", "3+4i"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_get_an_apostrophe(text: str) -> None:
    assert escaped(text) == f"'{text}"


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert escaped(text) == text


@pytest.mark.property
@given(st.text(alphabet="=+-@'\" \t1a", max_size=6), st.text(alphabet="=+-@'\" \t1a", max_size=6))
def test_different_texts_stay_different(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) == (one == other)
    assert is_formula(escaped(one)) == is_formula(one)


def test_numbers_are_never_escaped_and_a_missing_value_is() -> None:
    numeric = Numeric(name="n", bin_edges=(-9, 0), integer=True, missing_values=("=NA()", "-"))
    schema = Schema((numeric, Categorical(name="=c", categories=("=a", "-1", "b"))))
    out = io.BytesIO()
    schema.write_csv([[0, 0], [1, 1], [0, 2]], out, spreadsheet=True)
    assert out.getvalue() == b"n,'=c\n-5,'=a\n'=NA(),-1\n-5,b\n"
    assert schema.has_formulas
    assert not Schema((Categorical(name="c", categories=("-1", "a")),)).has_formulas
