"""Columns of days: periods of the calendar, how days are written, what is outside, missing or no day at all."""

from __future__ import annotations

import io
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import Workbook

from caps.basics.uniform import Uniform
from caps.data.schema import Column, Date, Schema, TableRefused, Tally
from caps.errors import DomainError

YEARS = {"kind": "date", "name": "d", "first": "2019-01-01", "last": "2022-12-31", "by": "year"}


def column(**given: Any) -> Date:
    made = Column.from_json({"kind": "date", "name": "d", **given})
    assert isinstance(made, Date)
    assert Column.from_json(made.to_json()) == made
    return made


def codes(made: Column, values: list[Any]) -> list[int]:
    return [code for block in Schema((made,)).blocks({"d": values}, Tally()) for code in block.codes[:, 0].tolist()]


PERIOD_OF = {
    "year": lambda day: (day.year,),
    "quarter": lambda day: (day.year, (day.month - 1) // 3),
    "month": lambda day: (day.year, day.month),
    "week": lambda day: day.isocalendar()[:2],
    "day": lambda day: day,
}


@settings(max_examples=60, deadline=None)
@given(st.dates(), st.integers(0, 900), st.sampled_from(sorted(PERIOD_OF)))
def test_two_days_share_a_bin_iff_the_calendar_says_so(first: date, length: int, by: str) -> None:
    last = date.fromordinal(min(first.toordinal() + length, date.max.toordinal()))
    made = column(first=first.isoformat(), last=last.isoformat(), by=by)
    days = [date.fromordinal(number) for number in range(first.toordinal(), last.toordinal() + 1)]
    found = codes(made, [day.isoformat() for day in days])
    periods = list(dict.fromkeys(PERIOD_OF[by](day) for day in days))
    assert found == [periods.index(PERIOD_OF[by](day)) for day in days]
    assert made.cells == len(periods) == len(set(made.texts))
    assert [made.bin_of(day) for day in days] == found


def test_names_of_bins() -> None:
    span = {"first": "2024-12-30", "last": "2025-04-01"}
    assert column(**span, by="year").texts == ["2024", "2025"]
    assert column(**span, by="quarter").texts == ["2024-Q4", "2025-Q1", "2025-Q2"]
    assert column(**span, by="month").texts[:2] == ["2024-12", "2025-01"]
    assert column(**span, by="week").texts[0] == "2025-W01"  # ISO 8601: the week with the year's first Thursday
    edges = ["2020-01-01", "2020-03-01", "2020-03-02"]
    assert column(bin_edges=edges).texts == ["2020-01-01/2020-02-29", "2020-03-01/2020-03-01"]


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("2020-02-29", None),
        ("2020-02-29T23:59:59.999Z", None),
        ("2020-02-29 07:15", None),
        ("29.02.2020", "%d.%m.%Y"),
        ("29.2.2020", "%-d.%-m.%Y"),
        ("29.02.2020", "%-d.%-m.%Y"),
        ("02/29/2020", "%m/%d/%Y"),
        ("20200229", "%Y%m%d"),
    ],
)
def test_days_are_read_as_they_are_written(written: str, form: str | None) -> None:
    made = column(
        bin_edges=["2020-02-28", "2020-02-29", "2020-03-01", "2020-03-02"], **({"format": form} if form else {})
    )
    assert codes(made, [written]) == [1]


@pytest.mark.parametrize(
    ("written", "form"),
    [
        ("2020-2-9", None),
        ("2020-02-30", None),
        ("2020-02-29x", None),
        ("2020-02-29T7", None),
        ("20-02-29", None),
        ("29.2.2020", "%d.%m.%Y"),
        ("2020-02-29", "%d.%m.%Y"),
        ("29.02.20", "%d.%m.%Y"),
        ("2020022", "%Y%m%d"),
        ("٢٠٢٠-٠٢-٢٩", None),
        ("2020-02-29\n", None),
        (" 2020-02-29", None),
        ("43890", None),
    ],
)
def test_what_is_no_day_is_refused_and_never_shown(written: str, form: str | None) -> None:
    schema = Schema((column(first="1900-01-01", last="2030-12-31", by="year", **({"format": form} if form else {})),))
    with pytest.raises(TableRefused) as caught:
        schema.encode({"d": [written, written]})
    assert caught.value.report.columns[0].unparsable == 2
    assert written.strip() not in str(caught.value)


def test_outside_and_missing_are_as_for_numbers() -> None:
    values = ["2018-12-31", "2023-01-01", "", None, "NA", "9999-12-31", "2020-06-01"]
    tolerant = column(**{**YEARS, "missing": "null", "missing_values": ["NA", "9999-12-31"]})
    assert codes(tolerant, values) == [0, 3, -1, -1, -1, -1, 1]
    assert codes(column(**{**YEARS, "missing": "category"}), ["", "2022-12-31"]) == [4, 3]
    strict = Schema((column(**{**YEARS, "outside": "refuse"}),))
    with pytest.raises(TableRefused) as caught:
        strict.encode({"d": values})
    report = caught.value.report.columns[0]
    assert (report.low, report.high, report.missing, report.unparsable, report.refused) == (1, 2, 2, 1, 6)
    parquet = io.BytesIO()
    pl.DataFrame({"d": [date(9999, 12, 31), None, date(2020, 6, 1)]}).write_parquet(parquet)
    assert Schema((tolerant,)).encode(parquet.getvalue())[0][:, 0].tolist() == [-1, -1, 1]


@pytest.mark.parametrize("publish", ["day", "bin"])
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%-m/%-d/%Y"])
def test_every_format_has_the_same_days(publish: str, form: str, tmp_path: Path) -> None:
    schema = Schema(
        (column(first="2020-03-15", last="2021-02-10", by="month", publish=publish, format=form, missing="null"),)
    )
    given = np.array([-1, *range(12), 3, 3], np.int64).reshape(-1, 1)

    def draws(n: int) -> Any:
        return Uniform("days").floats(n)

    frame = schema.frame(given, uniform=draws)
    assert frame.schema["d"] == (pl.Date if publish == "day" else pl.String)
    assert frame["d"].null_count() == 1
    if publish == "day":
        assert frame["d"].min() >= date(2020, 3, 15)  # type: ignore[operator]
        assert frame["d"].max() <= date(2021, 2, 10)  # type: ignore[operator]
    schema.write_csv(given, tmp_path / "d.csv", uniform=draws)
    frame.write_parquet(tmp_path / "d.parquet")
    for table in (tmp_path / "d.csv", tmp_path / "d.parquet", frame, schema.decode(given, uniform=draws)):
        assert (schema.encode(table)[0] == given).all()


def test_every_day_of_a_bin_can_be_drawn_and_no_other() -> None:
    made = column(bin_edges=["2020-02-27", "2020-03-02"])
    drawn = Schema((made,)).frame(np.zeros((400, 1), np.int64), uniform=Uniform("days").floats)["d"]
    assert set(drawn) == {date(2020, 2, 27) + timedelta(days) for days in range(4)}


def test_a_workbook_has_days_however_the_study_writes_them(tmp_path: Path) -> None:
    book = Workbook()
    assert book.active is not None
    for row in (["d"], [datetime(2020, 2, 29)], [datetime(2021, 5, 1, 12, 30)], ["01.02.2022"]):
        book.active.append(row)
    book.save(tmp_path / "days.xlsx")
    made = column(**{**YEARS, "format": "%d.%m.%Y"})
    assert Schema((made,)).encode(tmp_path / "days.xlsx")[0][:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({}, "bin_edges: must be given, or all of first, last and by"),
        ({"first": "2020-01-01", "by": "year"}, "bin_edges: must be given"),
        ({"first": "2020-01-01", "last": "2019-01-01", "by": "year"}, "last: must not be before first"),
        ({"first": "2020-02-30", "last": "2021-01-01", "by": "year"}, "first: must be a day of the calendar"),
        ({"first": "20200201", "last": "2021-01-01", "by": "year"}, "first: must be a day of the calendar"),
        ({"first": 2020, "last": "2021-01-01", "by": "year"}, "first: must be a day of the calendar"),
        ({"first": "2020-01-01", "last": "2021-01-01", "by": "decade"}, "by: must be one of year, quarter"),
        ({"first": "0001-01-01", "last": "9999-12-31", "by": "day"}, "by: must give 1 to 65535 categories"),
        ({"bin_edges": ["2020-01-01"]}, "bin_edges: must have at least two"),
        ({"bin_edges": ["2020-01-01", "2020-01-01"]}, r"bin_edges\[1\]: must be later"),
        ({"bin_edges": ["2020-01-01", "2021-01-01"], "by": "year"}, "by: must not be given together"),
        ({**YEARS, "format": "%d.%m.%y"}, "format: must have %Y"),
        ({**YEARS, "format": "%Y-%m-%dT"}, "format: must have %Y"),
        ({**YEARS, "format": "=%Y-%m-%d"}, "format: must have %Y"),
        ({**YEARS, "format": "%Y=%m-%d"}, "format: may have only"),
        ({**YEARS, "format": "%Y-%m"}, "format: must have %Y"),
        ({**YEARS, "format": "%Y%-m%d"}, "format: must separate"),
        ({**YEARS, "format": 3}, "format: must be text"),
        ({**YEARS, "publish": "both"}, "publish: must be"),
        ({**YEARS, "outside": "drop"}, "outside: must be"),
        ({**YEARS, "missing_values": ["2020-01-01"]}, r"missing_values\[0\]: lies in a bin"),
        ({**YEARS, "missing_values": ["2020"]}, r"missing_values\[0\]: is also a value"),
    ],
)
def test_wrong_declarations_say_where(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(DomainError, match=f"^{what}"):
        column(**fields)
