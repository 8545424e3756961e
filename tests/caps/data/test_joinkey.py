"""Join keys: what they equate, what they refuse and how quietly, and what their ids are."""

from __future__ import annotations

import datetime
import hashlib
import logging
import traceback
import unicodedata
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from caps.data.joinkey import ID_BYTES, JoinKey, KeyRefused, hashed_ids, random_ids
from caps.errors import DomainError

CANARY = "c4n4ry-7391"
STUDY = "ab" * 32


def text(**rules: Any) -> dict[str, Any]:
    return {"name": "id", "kind": "text", **rules}


def key(*columns: dict[str, Any], **rules: Any) -> JoinKey:
    return JoinKey.from_json({"columns": columns or [text()], **rules})


def spelt(column: dict[str, Any], value: object) -> str | None:
    """The normalised form of a value, or None for one that the rules do not read."""
    keys, _ = key(column | {"name": "id"}, missing="alone", unparsable="alone").normalise({"id": [value]})
    (encoded,) = keys.encoded
    if encoded is None:
        return None
    length, _, rest = encoded.removeprefix(b"caps/v1/key:").partition(b":")
    assert len(rest) == int(length) + 1
    assert rest.endswith(b",")
    return bytes(rest[:-1]).decode()


@pytest.mark.parametrize(
    ("rules", "given", "form"),
    [
        ({}, "  Ada \t Lovelace\n", "ada lovelace"),
        ({"whitespace": "trim"}, " a  b ", "a  b"),
        ({"whitespace": "remove"}, " a \u2003b\u3000", "ab"),
        ({"whitespace": "keep"}, " a", " a"),
        ({"case": "keep"}, "McX", "McX"),
        ({}, "Straße", "strasse"),
        ({}, "ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ({}, "e\u0301", "é"),
        ({"case": "keep"}, "e\u0301", "é"),
        ({}, "ＡＢ１２", "ab12"),
        ({}, "ﬁ", "fi"),
        ({}, "a\u00adb\u200bc\ufeff", "abc"),
        ({"remove": "-./"}, "12-34.5/X", "12345x"),
        ({"remove": "-"}, "a-\u0301", "á"),
        ({"remove": "- "}, "a\t- b", "ab"),
        ({"remove": "-"}, "a -", "a"),
        ({"remove": "."}, "a…b．", "ab"),
        ({}, "007", "007"),
        ({}, 7, "7"),
        ({}, 7.0, "7"),
        ({}, "\u0378x", None),
        ({}, "", None),
        ({}, " ", None),
        ({"remove": "-"}, "--", None),
        ({}, None, None),
        ({}, float("nan"), None),
        ({"missing_values": ["NA"]}, "NA", None),
        ({"missing_values": ["NA"]}, "na", "na"),
    ],
)
def test_texts(rules: dict[str, Any], given: object, form: str | None) -> None:
    assert spelt({"kind": "text", **rules}, given) == form


@pytest.mark.parametrize(
    ("rules", "given", "form"),
    [
        ({}, "007", "7"),
        ({}, "+7", "7"),
        ({}, "-07", "-7"),
        ({}, "-0", "0"),
        ({}, "000", "0"),
        ({}, "12.0", "12"),
        ({}, "12.", "12"),
        ({}, "12.5", None),
        ({}, " １２ ", "12"),
        ({}, "1,000", None),
        ({"thousands": ","}, "1,000", "1000"),
        ({"thousands": ","}, "1000", "1000"),
        ({"thousands": ","}, "1,00", None),
        ({"thousands": ","}, "1,0000", None),
        ({"thousands": " "}, "1\u202f000\u00a0000", "1000000"),
        ({"thousands": ".", "decimal": ","}, "1.234,00", "1234"),
        ({"thousands": "'"}, "1'234", "1234"),
        ({}, "9" * 40, "9" * 40),
        ({}, 12.0, "12"),
        ({}, -3, "-3"),
        ({}, "1e3", None),
        ({}, "--1", None),
        ({}, "٣", None),
        ({}, "12\n", "12"),
        ({}, "1\n2", None),
        ({"kind": "number"}, "012.50", "12.5"),
        ({"kind": "number"}, "-0.00", "0"),
        ({"kind": "number", "decimal": ","}, "0,10", "0.1"),
        ({"kind": "number", "decimal": ","}, "0.10", None),
        ({"kind": "number"}, ".5", None),
    ],
)
def test_numbers(rules: dict[str, Any], given: object, form: str | None) -> None:
    assert spelt({"kind": "integer", **rules}, given) == form


@pytest.mark.parametrize(
    ("formats", "given", "form"),
    [
        (["%Y-%m-%d"], "1990-01-02", "1990-01-02"),
        (["%Y-%m-%d"], " 1990-1-2 ", "1990-01-02"),
        (["%Y-%m-%d", "%d.%m.%Y"], "2.1.1990", "1990-01-02"),
        (["%d.%m.%Y"], "31.02.1990", None),
        (["%d.%m.%Y"], "29.02.2000", "2000-02-29"),
        (["%d.%m.%Y"], "29.02.1900", None),
        (["%d.%m.%Y"], "1.1.90", None),
        (["%d.%m.%Y"], "01.01.0000", None),
        (["%Y%m%d"], "19900102", "1990-01-02"),
        (["%Y%m%d"], "1990012", None),
        (["%Y%m%d", "%d%m%Y"], "10112012", "2012-11-10"),
        (["%Y%m%d", "%d%m%Y"], "20121112", None),
        (["%Y%m%d", "%d%m%Y"], "19991112", "1999-11-12"),
        (["%Y%m%d", "%d%m%Y"], "12121212", "1212-12-12"),
        (["%Y%m%d", "%d%m%Y"], "10121011", None),
        (["%m/%d/%Y"], "12/31/1999", "1999-12-31"),
        (["%d. %m. %Y"], "3. 4. 1999", "1999-04-03"),
        (["%Y-%m-%d"], "1990-01-02 00:00", None),
    ],
)
def test_dates(formats: list[str], given: object, form: str | None) -> None:
    assert spelt({"kind": "date", "formats": formats}, given) == form


def test_typed_columns() -> None:
    days = pl.Series([datetime.date(1990, 1, 2), None])
    date = key({"name": "id", "kind": "date", "formats": ["%d.%m.%Y"]}, missing="drop", unparsable="drop")
    assert date.normalise({"id": days})[0].encoded.to_list() == [b"caps/v1/key:10:1990-01-02,"]
    times = pl.Series([datetime.datetime(1990, 1, 2), datetime.datetime(1990, 1, 2, 1), None])
    assert date.normalise({"id": times})[0].rows.tolist() == [0]
    number = key({"name": "id", "kind": "number", "decimal": ",", "thousands": "."}, missing="drop")
    assert number.normalise({"id": np.array([0.5, np.nan])})[0].encoded.to_list() == [b"caps/v1/key:3:0.5,"]
    floats = pl.Series([7.0, None, 2.5, 1e300, float("inf")])
    assert key(missing="drop", unparsable="drop").normalise({"id": floats})[0].rows.tolist() == [0]
    categories = pl.Series(["A", "b"], dtype=pl.Categorical)
    assert key().normalise({"id": categories})[0].encoded.to_list() == [b"caps/v1/key:1:a,", b"caps/v1/key:1:b,"]
    frame = pd.DataFrame({"id": pd.array([9, 41], "Int64")})
    assert len(key().normalise({"id": frame["id"].to_numpy(object)})[0]) == 2
    for wrong in (pl.Series([True]), pl.Series([[1]]), days):
        with pytest.raises(DomainError, match="type"):
            key().normalise({"id": wrong})


def test_every_character_is_normal_after_one_turn() -> None:
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    rules = key(text(remove="-"), missing="alone", duplicates="last")
    series = pl.Series([f"a{letter}\u0301-{letter}{place}" for place, letter in enumerate(assigned)])
    once = rules.normalise({"id": series})[0].encoded.cast(pl.String).str.extract("^caps/v1/key:[0-9]+:((?s:.*)),$")
    twice = rules.normalise({"id": once})[0].encoded.cast(pl.String).str.extract("^caps/v1/key:[0-9]+:((?s:.*)),$")
    assert once.equals(twice)
    assert once.null_count() == 0
    upper = pl.Series([value.upper() for value in series])
    assert rules.examine({"id": upper}).unparsable == 0


def test_columns_do_not_run_together() -> None:
    two = key(text(), {"name": "b", "kind": "text"})
    table = {"id": ["ab", "a", "a,1:b", "a", "1:a,"], "b": ["c", "bc", "c", "b,1:c", "x"]}
    keys, report = two.normalise(table)
    assert keys.encoded.n_unique() == 5
    assert keys.encoded[0] == b"caps/v1/key:2:ab,1:c,"
    assert report.kept == 5


DUPLICATES = {"id": ["a", "B", "A ", None, "b", "c", None]}


def test_duplicates_are_refused_with_counts() -> None:
    with pytest.raises(KeyRefused, match=r"of 7 rows, 0 .* 2 have no full key, 2 repeat") as refused:
        key(missing="drop").normalise(DUPLICATES)
    report = refused.value.report
    assert (report.rows, report.duplicates, report.missing, report.refused, report.kept) == (7, 2, 2, 2, 3)
    assert key(missing="drop").examine(DUPLICATES) == report
    assert list(asdict(report)["columns"]) == [{"name": "id", "missing": 2, "unparsable": 0}]


@pytest.mark.parametrize(
    ("rules", "rows"),
    [
        ({"duplicates": "first", "missing": "drop"}, [0, 1, 5]),
        ({"duplicates": "last", "missing": "drop"}, [2, 4, 5]),
        ({"duplicates": "first", "missing": "alone"}, [0, 1, 3, 5, 6]),
    ],
)
def test_rules_for_duplicates_and_missing(rules: dict[str, str], rows: list[int]) -> None:
    keys, report = key(**rules).normalise(DUPLICATES)
    assert keys.rows.tolist() == rows
    assert (report.kept, report.refused) == (len(rows), 0)
    assert report.alone == (2 if rules["missing"] == "alone" else 0)
    ids = keys.ids(STUDY, key().digest)
    assert len(np.unique(ids, axis=0)) == len(rows)


def test_alone_rows_get_other_ids_each_time() -> None:
    keys, _ = key(missing="alone").normalise({"id": ["a", None]})
    one, other = keys.ids(STUDY, bytes(32)), keys.ids(STUDY, bytes(32))
    assert (one[0] == other[0]).all()
    assert (one[1] != other[1]).any()


def test_an_id_is_a_hash_of_study_key_and_value() -> None:
    digest = key().digest
    (got,) = hashed_ids("study", digest, [b"x"])
    told = b"caps/v1/join/id/" + b"\0\0\0\x05" + b"study" + digest + b"x"
    assert got.tobytes() == hashlib.sha256(told).digest()[:16]
    others = [hashed_ids("studY", digest, [b"x"]), hashed_ids("study", bytes(32), [b"x"])]
    assert all((got != other[0]).any() for other in others)
    assert hashed_ids("study", digest, []).shape == (0, ID_BYTES)
    with pytest.raises(DomainError, match="32 bytes"):
        hashed_ids("study", b"", [b"x"])


def test_random_ids_are_fresh() -> None:
    one, other = ({row.tobytes() for row in random_ids(3000)} for _ in range(2))
    assert len(one) == len(other) == 3000
    assert not one & other
    assert random_ids(0).shape == (0, ID_BYTES)


def test_json_both_ways() -> None:
    given = key(
        text(case="keep", remove="-./ ", missing_values=["?"]),
        {"name": "born", "kind": "date", "formats": ["%Y-%m-%d", "%d.%m.%Y"]},
        {"name": "no", "kind": "integer", "thousands": ","},
        duplicates="last",
        missing="alone",
        unparsable="drop",
    )
    assert JoinKey.from_json(given.to_json()) == given
    assert JoinKey.from_json(given.model_dump_json()) == given
    assert given.digest == JoinKey.from_json(given.to_json()).digest
    assert given.digest != key().digest


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"columns": []}, "columns"),
        ({"columns": [text(), text()]}, "occurs twice"),
        ({"columns": [text(kind="blob")]}, r"columns\[0\]"),
        ({"columns": [text(formats=["%Y-%m-%d"])]}, r"columns\[0\].*formats"),
        ({"columns": [text(case="lower")]}, r"columns\[0\].*case"),
        ({"columns": [text(remove="a")]}, "remove"),
        ({"columns": [text(remove="..")]}, "twice"),
        ({"columns": [text(remove="．")]}, "remove"),
        ({"columns": [text(missing_values=["\ud800"])]}, "missing_values"),
        ({"columns": [text(name="")]}, "name"),
        ({"columns": [{"name": "id", "kind": "integer", "thousands": "."}]}, "must differ"),
        ({"columns": [{"name": "id", "kind": "date"}]}, "formats"),
        ({"columns": [{"name": "id", "kind": "date", "formats": []}]}, "formats"),
        ({"columns": [{"name": "id", "kind": "date", "formats": ["%Y-%m"]}]}, "once"),
        ({"columns": [{"name": "id", "kind": "date", "formats": ["%y-%m-%d"]}]}, "once"),
        ({"columns": [{"name": "id", "kind": "date", "formats": ["%Y-%m-%d%"]}]}, "once"),
        ({"columns": [{"name": "id", "kind": "date", "formats": ["%YT%m-%d"]}]}, "letters"),
        ({"columns": [{"name": "id", "kind": "date", "formats": ["%d.%m.%Y", "%m.%d.%Y"]}]}, "same texts"),
        ({"columns": [text()], "duplicates": "any"}, "duplicates"),
        ({"columns": [text()], "version": 2}, "version"),
        ({"columns": [text()], "more": 1}, "more"),
        ([], "valid"),
        ("{", "JSON"),
    ],
)
def test_what_is_no_key(value: object, place: str) -> None:
    with pytest.raises(DomainError, match=place):
        JoinKey.from_json(value)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (text(), [CANARY, CANARY]),
        (text(), [CANARY + "\u0378"]),
        (text(), [CANARY, "\ud800"]),
        (text(), [CANARY, None]),
        (text(), [CANARY, object()]),
        ({"name": "id", "kind": "integer"}, [CANARY]),
        ({"name": "id", "kind": "date", "formats": ["%Y-%m-%d"]}, [CANARY]),
        (text(), np.array([[CANARY]])),
        (text(), np.array([CANARY.encode()])),
    ],
)
def test_refusals_are_quiet(column: dict[str, Any], values: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DomainError) as refused:
        key(column).normalise({"id": values})
    told = "".join(traceback.format_exception(refused.value)) + caplog.text
    if isinstance(refused.value, KeyRefused):
        told += str(refused.value.report) + str(asdict(refused.value.report))
    assert CANARY not in told
    assert refused.value.__cause__ is None


def test_tables_that_do_not_fit() -> None:
    with pytest.raises(DomainError, match="no column id"):
        key().normalise({"ID": ["a"]})
    with pytest.raises(DomainError, match="differ in length"):
        key(text(), text(name="b")).normalise({"id": ["a"], "b": ["a", "b"]})
    keys, report = key().normalise({"id": pl.Series([], dtype=pl.String)})
    assert len(keys) == report.kept == 0
    assert keys.ids(STUDY, bytes(32)).shape == (0, ID_BYTES)
    assert "encoded" not in repr(keys)
