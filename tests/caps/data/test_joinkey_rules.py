"""Normalisation equates what the rules equate and nothing else, for drawn keys."""

from __future__ import annotations

import datetime
import unicodedata
from typing import Any

import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.joinkey import JoinKey

pytestmark = pytest.mark.property

letters = st.characters(exclude_categories=["Cs", "Cn"])
texts = st.text(letters, max_size=8) | st.text("aAé\u0301ßẞſΣςİı -._\t\u00a0\u200bＡ１…\x00,:3", max_size=8)
cases = st.sampled_from(["fold", "keep"])
spaces = st.sampled_from(["collapse", "trim", "remove", "keep"])
removals = st.lists(st.sampled_from("-./ _#"), unique=True, max_size=3).map("".join)


def forms(column: dict[str, Any], values: list[Any]) -> list[bytes | None]:
    """The encoded key of each value; None where it has none."""
    key = JoinKey.from_json({"columns": [{"name": "id", **column}], "missing": "alone", "unparsable": "alone"})
    given = pl.Series(values, dtype=pl.String)
    return [key.normalise({"id": given[at : at + 1]})[0].encoded[0] for at in range(len(given))]


def inside(encoded: bytes | None) -> str | None:
    return None if encoded is None else encoded.removeprefix(b"caps/v1/key:").partition(b":")[2][:-1].decode()


@settings(deadline=None)
@given(texts, cases, spaces, removals)
def test_normalising_twice_is_once(value: str, case: str, whitespace: str, remove: str) -> None:
    column = {"kind": "text", "case": case, "whitespace": whitespace, "remove": remove}
    (once,) = forms(column, [value])
    if once is not None:
        assert forms(column, [inside(once)]) == [once]
        assert unicodedata.is_normalized("NFKC", str(inside(once)))


@settings(deadline=None)
@given(st.lists(texts, max_size=8), cases, spaces, removals)
def test_a_row_is_normalised_alike_in_any_company(values: list[str], case: str, whitespace: str, remove: str) -> None:
    column = {"kind": "text", "case": case, "whitespace": whitespace, "remove": remove}
    key = JoinKey.from_json({"columns": [{"name": "id", **column}], "missing": "alone"})
    distinct = [one for one in dict.fromkeys(forms(column, values)) if one is not None]
    together = JoinKey.model_validate(key.to_json() | {"duplicates": "first"}).normalise({"id": values})[0]
    assert together.encoded.drop_nulls().to_list() == distinct


@settings(deadline=None)
@given(texts, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]), cases, removals)
def test_unicode_forms_are_one(value: str, form: Any, case: str, remove: str) -> None:
    column = {"kind": "text", "case": case, "whitespace": "collapse", "remove": remove}
    one, other = forms(column, [value, unicodedata.normalize(form, value)])
    assert one == other


@settings(deadline=None)
@given(st.text("abcxyzäöéσß0123456789", min_size=1, max_size=8), st.data())
def test_spellings_that_the_rules_equate(value: str, data: st.DataObject) -> None:
    parts = []
    for letter in value:
        parts += [data.draw(st.sampled_from(["", "-", ".", " ", "\u00a0", "\u200b"]))]
        parts += [data.draw(st.sampled_from([letter, letter.upper(), unicodedata.normalize("NFD", letter)]))]
    column = {"kind": "text", "whitespace": "remove", "remove": "-."}
    one, other = forms(column, [value, "".join(parts)])
    assert one == other


@settings(deadline=None)
@given(st.text("abcäé09-. ", max_size=6), st.text("abcäé09-. ", max_size=6))
def test_without_rules_different_keys_stay_different(one: str, other: str) -> None:
    column = {"kind": "text", "case": "keep", "whitespace": "keep"}
    first, second = forms(column, [one, other])
    assert (first == second) == (one == other)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=2, max_size=2))
def test_no_ambiguity_between_columns(pairs: list[tuple[str, str]]) -> None:
    plain = {"kind": "text", "case": "keep", "whitespace": "keep"}
    key = JoinKey.from_json({"columns": [{"name": "a", **plain}, {"name": "b", **plain}], "missing": "drop"})
    normal = {tuple(unicodedata.normalize("NFKC", part) for part in pair) for pair in pairs if all(pair)}
    table = {"a": [pair[0] for pair in pairs], "b": [pair[1] for pair in pairs]}
    assert key.examine(table).kept == len(normal)


@settings(deadline=None)
@given(st.integers(-(10**20), 10**20), st.integers(0, 3), st.booleans(), st.booleans())
def test_integers_by_value(number: int, zeros: int, grouped: bool, fraction: bool) -> None:
    digits = f"{abs(number):,}" if grouped else "0" * zeros + str(abs(number))
    spelling = ("-" if number < 0 else "+") + digits + (".00" if fraction else "")
    one, other, next_ = forms({"kind": "integer", "thousands": ","}, [spelling, str(number), str(number + 1)])
    assert inside(one) == str(number)
    assert one == other != next_


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-1000, max_value=1000), st.integers(0, 3))
def test_numbers_by_value(number: Any, zeros: int) -> None:
    one, other = forms({"kind": "number", "decimal": ","}, [f"{number:f}".replace(".", ",") + "0" * zeros] * 2)
    assert one == other
    assert type(number)(str(inside(one))) == number
    assert not str(inside(one)).startswith("-0") or number < 0


@settings(deadline=None)
@given(st.dates(min_value=datetime.date(1, 1, 1)))
def test_dates_by_day(day: datetime.date) -> None:
    spellings = [
        day.isoformat(),
        f"{day.day}.{day.month}.{day.year:04d}",
        f"{day.day:02d}.{day.month:02d}.{day.year:04d}",
        f" {day.month}/{day.day}/{day.year:04d}",
    ]
    found = forms({"kind": "date", "formats": ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y"]}, spellings)
    assert {inside(one) for one in found} == {day.isoformat()}


@settings(deadline=None)
@given(
    st.lists(st.none() | st.sampled_from(["a", "A", "b", "c ", "c"]), max_size=12), st.sampled_from(["first", "last"])
)
def test_duplicates_as_pandas_drops_them(values: list[str | None], keep: Any) -> None:
    key = JoinKey.from_json({"columns": [{"name": "id", "kind": "text"}], "duplicates": keep, "missing": "drop"})
    keys, report = key.normalise({"id": pl.Series(values, dtype=pl.String)})
    frame = pd.DataFrame({"id": [value and value.strip().lower() for value in values]}, dtype=object).dropna()
    expected = frame.drop_duplicates("id", keep=keep)
    assert keys.rows.tolist() == expected.index.tolist()
    assert report.duplicates == len(frame) - len(expected)
    assert report.missing == len(values) - len(frame)
