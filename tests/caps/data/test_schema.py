"""Schemas: what they refuse and where, tables they refuse and how quietly, and the shared datasets."""

from __future__ import annotations

import io
import json
import logging
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from caps.data.domain import Attribute
from caps.data.schema import Boolean, Categorical, Column, Limits, Numeric, Schema, TableRefused, tables
from caps.errors import DomainError
from tests.kit.datasets import DATA

CANARY = "c4n4ry-7391"

SCHEMA = Schema(
    (
        Numeric(name="age", bin_edges=[0, 18, 65, 120], integer=True, missing="null", missing_values=["NA"]),
        Categorical(name="sex", categories=["f", "m"]),
        Boolean(name="smoker", false="no", true="yes", missing_values=["?"]),
        Numeric(name="bmi", bin_edges=[10, 25, 60], decimals=1, outside="refuse"),
    )
)
CODES = [[0, 0, 0, 0], [1, 1, 1, 1], [-1, 0, 2, 1]]
CSV = b"age,sex,smoker,bmi\n9,f,no,17.5\n41,m,yes,42.5\nNA,f,?,42.5\n"


def test_a_table_there_and_back() -> None:
    codes, report = SCHEMA.encode(CSV)
    assert codes.tolist() == CODES
    assert codes.dtype == np.int64
    assert [column.missing for column in report.columns] == [1, 0, 1, 0]
    assert report.refused == 0
    out = io.BytesIO()
    SCHEMA.write_csv(codes, out)
    assert out.getvalue() == b"age,sex,smoker,bmi\n9,f,no,17.5\n41,m,yes,42.5\nNA,f,?,42.5\n"
    table = SCHEMA.decode(codes)
    assert {name: column.tolist() for name, column in table.items()} == {
        "age": [9, 41, "NA"],
        "sex": ["f", "m", "f"],
        "smoker": [False, True, "?"],
        "bmi": [17.5, 42.5, 42.5],
    }
    assert SCHEMA.frame(codes).schema == pl.Schema(
        {"age": pl.Int64, "sex": pl.String, "smoker": pl.Boolean, "bmi": pl.Float64}
    )
    assert SCHEMA.domain().attributes == (
        Attribute("age", 3, nullable=True),
        Attribute("sex", 2),
        Attribute("smoker", 3),
        Attribute("bmi", 2),
    )


@pytest.mark.parametrize("table", [pl.read_csv(CSV), pd.read_csv(io.BytesIO(CSV), keep_default_na=False)])
def test_frames_of_others(table: Any) -> None:
    given = table if isinstance(table, pl.DataFrame) else dict(table.items())
    assert SCHEMA.encode(given)[0].tolist() == CODES


def test_pandas_nulls_are_missing() -> None:
    frame = pd.DataFrame({"age": pd.array([9, 41, None], "Int64"), "sex": pd.Categorical(["f", "m", "f"])})
    frame["smoker"] = pd.array([False, True, None], "boolean")
    frame["bmi"] = [17.5, 42.5, 42.5]
    assert SCHEMA.encode({name: frame[name] for name in frame})[0].tolist() == CODES


def test_parquet_keeps_types(tmp_path: Path) -> None:
    SCHEMA.frame(CODES).write_parquet(tmp_path / "t.parquet")
    assert SCHEMA.encode(pl.read_parquet(tmp_path / "t.parquet"))[0].tolist() == CODES


def test_a_file_a_stream_and_its_variants(tmp_path: Path) -> None:
    path = tmp_path / "t*.csv"
    for data in (CSV, CSV.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + CSV, CSV[:-1], CSV + b"\r\n\n\n"):
        path.write_bytes(data)
        with path.open("rb") as stream:
            for table in (path, str(path), stream, data):
                assert SCHEMA.encode(table)[0].tolist() == CODES
    assert SCHEMA.encode(CSV.replace(b",", b";"))[0].tolist() == CODES
    assert SCHEMA.encode(b"age,sex,smoker,bmi")[0].shape == (0, 4)
    turned = b"x,bmi,smoker,sex,age\n1,17.5,no,f,9\n"
    assert SCHEMA.encode(turned, extra="ignore")[0].tolist() == CODES[:1]


def test_a_stream_that_trickles_is_read_to_its_end() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(7)

    assert SCHEMA.encode(Trickle(CSV))[0].tolist() == CODES
    with pytest.raises(DomainError, match="more than 30 bytes"):
        SCHEMA.encode(Trickle(CSV), limits=Limits(bytes=30))


def test_polars_types() -> None:
    schema = Schema((Categorical(name="*", categories=("1", "2"), missing="null"),))
    for dtype in (pl.String, pl.Categorical, pl.Enum(["1", "2"]), pl.Int8, pl.UInt64):
        values = pl.Series([1, 2, None]).cast(pl.String).cast(dtype)
        assert schema.encode(pl.DataFrame({"*": values}))[0].tolist() == [[0], [1], [-1]]
    decimal = Schema((Numeric(name="^x$", bin_edges=(0, 0.3, 1)),))
    values = pl.Series(["0.3", "0.29"]).cast(pl.Decimal(10, 2))
    assert decimal.encode(pl.DataFrame({"^x$": values}))[0].tolist() == [[1], [0]]
    with pytest.raises(DomainError, match="numbers"):
        decimal.encode(pl.DataFrame({"^x$": pl.Series([0]).cast(pl.Date)}))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema(tuple(Categorical(name=name, categories=["é", 'a",b', ""]) for name in "xy"))
    out = io.BytesIO()
    codes = np.arange(60).reshape(30, 2) % 7 % 3
    schema.write_csv(codes, out)
    for size in range(1, 12):
        monkeypatch.setattr(tables, "_CHUNK", size)
        assert np.array_equal(schema.encode(out.getvalue())[0], codes)


def test_counts_of_everything_unusual() -> None:
    column = Numeric(name="x", bin_edges=[0, 1, 2], missing="null", missing_values=[-9, "none"])
    values = ["-1", "-1e9", "0", "2", "inf", "x", " 1", "", "-9.0", "none", "nan"]
    report = Schema((column,)).examine({"x": values}).columns[0]
    assert (report.low, report.high, report.unparsable, report.missing, report.refused) == (2, 1, 4, 3, 4)
    codes, _ = Schema((column,)).encode({"x": np.array([-1, 0.5, 9, np.nan, -9])})
    assert codes[:, 0].tolist() == [0, 0, 1, -1, -1]
    integer = Numeric(name="x", bin_edges=[0, 5], integer=True, missing_values=[-9.0])
    assert Schema((integer,)).decode([[1]])["x"].tolist() == [-9]
    report = Schema((integer,)).examine({"x": ["3.0", "3.5", "true", "1e0"]}).columns[0]
    assert (report.unparsable, report.refused) == (2, 2)
    other = Categorical(name="x", categories=["a", "rest"], other="rest")
    codes, full = Schema((other,)).encode({"x": np.array(["a", "b", "rest"])})
    assert codes[:, 0].tolist() == [0, 1, 1]
    assert full.columns[0].unknown == 1
    outside = Numeric(name="x", bin_edges=[0, 5], side="left", outside="refuse")
    assert Schema((outside,)).examine({"x": [0.0, 5.0, 6.0]}).refused == 2


def test_numbers_are_drawn_in_the_order_of_columns() -> None:
    drawn: list[int] = []

    def uniform(count: int) -> Any:
        drawn.append(count)
        return np.linspace(0, 1, count, endpoint=False)

    schema = Schema((Numeric(name="n", bin_edges=[-2.5, 2.5], integer=True), Numeric(name="r", bin_edges=[-1, 1])))
    table = schema.decode(np.zeros((5, 2), int), uniform=uniform)
    assert drawn == [5, 5]
    assert table["n"].tolist() == [-2, -1, 0, 1, 2]
    assert table["r"] == pytest.approx([-1, -0.6, -0.2, 0.2, 0.6])
    for wrong in (np.ones, lambda n: np.zeros(n + 1), lambda n: np.full(n, np.nan)):
        with pytest.raises(DomainError, match="uniform"):
            schema.decode([[0, 0]], uniform=wrong)


def test_codes_outside_are_refused() -> None:
    for codes in ([[0, -1, 0, 0]], [[0, 2, 0, 0]], [[0, 0, 0]], [[0.0] * 4]):
        with pytest.raises(DomainError):
            SCHEMA.decode(codes)


BROKEN = {
    "3 of the 4 required columns; missing: bmi": CSV.replace(b"bmi", CANARY.encode()),
    "more than one column sex": CSV.replace(b"bmi", b"bmi,sex"),
    "1 column that the schema does not have": CSV.replace(b"\n", b",%b\n" % CANARY.encode()),
    "not in UTF-8": CSV + b"9,f,no,%b\xff\n" % CANARY.encode(),
    "not have the header's 4 fields": CSV + b"9,f,%b\n" % CANARY.encode(),
    "does not have the header's 4 fields": CSV + b"9,f,no,1,%b\n" % CANARY.encode(),
    "a row does not have": CSV + b"\n9,f,no,17.5\n",
    "the file is empty": b"",
    "the table has 0 of the 4 required columns": b"\n\n",
    "the first line is not a valid CSV header": b'"age,%b\n' % CANARY.encode(),
    "more than 2000 bytes": CSV + b"9,f,no,%b\n" % (CANARY.encode() * 170),
    "ends inside a quoted": CSV + b'9,f,no,"%b\n' % CANARY.encode(),
    "a quote inside": CSV + b'9,f,no,%b"\n' % CANARY.encode(),
    "a carriage return": CSV + b"9,f,no\r,%b\n" % CANARY.encode(),
    "more than 7 rows": CSV * 3,
    "the file has more than 4000 bytes": CSV * 100,
    "1 in column age": CSV + b"%b,f,no,17.5\n" % CANARY.encode(),
    "1 in column sex": CSV + b"9,%b,no,17.5\n" % CANARY.encode(),
    "1 in column smoker": CSV + b"9,f,%b,17.5\n" % CANARY.encode(),
    "1 in column bmi": CSV + b"9,f,no,7391.7391\n",
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_files_are_refused_without_a_value(
    message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(BROKEN[message])
    limits = Limits(rows=7, bytes=4000, field=1800)
    with caplog.at_level(logging.DEBUG), pytest.raises(DomainError) as caught:
        SCHEMA.encode(path, limits=limits if "2000" not in message else Limits(field=1800))
    expected = message.replace("2000", "1800")
    assert expected in str(caught.value)
    _shows_nothing(caught.value, *capfd.readouterr(), caplog.text)


def _shows_nothing(error: BaseException, *outputs: str) -> None:
    said = [*outputs, *traceback.format_exception_only(error), repr(vars(error)), repr(error.args)]
    assert error.__context__ is None
    assert not any(CANARY in text or "7391" in text for text in said)


@pytest.mark.parametrize(
    "values",
    [
        [CANARY],
        np.array([CANARY]),
        [CANARY + "\ud800"],
        [[CANARY]],
        [CANARY.encode()],
        [{CANARY: 1}],
        pl.Series([[CANARY]]),
    ],
)
@pytest.mark.parametrize("column", range(4))
def test_arrays_are_refused_without_a_value(values: Any, column: int) -> None:
    name = SCHEMA.columns[column].name
    with pytest.raises(DomainError, match=name) as caught:
        SCHEMA.select([name]).encode({name: values})
    _shows_nothing(caught.value)


def test_a_report_has_counts_only() -> None:
    with pytest.raises(TableRefused) as caught:
        SCHEMA.encode(CSV + b"%b,%b,%b,7391\n" % ((CANARY.encode(),) * 3))
    report = caught.value.report
    assert report == SCHEMA.examine(CSV + b"%b,%b,%b,7391\n" % ((CANARY.encode(),) * 3))
    said = json.dumps(report.to_json())
    assert CANARY not in said
    assert "7391" not in said
    assert [column.refused for column in report.columns] == [1, 1, 1, 1]


def test_arrays_of_unequal_length() -> None:
    with pytest.raises(DomainError, match="differ in length"):
        SCHEMA.encode({"age": [1], "sex": [], "smoker": [], "bmi": []})
    with pytest.raises(DomainError, match="binary"):
        SCHEMA.encode(io.StringIO(CSV.decode()))  # type: ignore[arg-type]


def document(**changes: Any) -> dict[str, Any]:
    columns: list[dict[str, Any]] = [
        {"name": "a", "kind": "categorical", "categories": ["x", "y"]},
        {"name": "b", "kind": "numeric", "bin_edges": [0, 1, 2]},
        {"name": "c", "kind": "boolean"},
    ]
    for place, change in changes.items():
        if place[-1].isdigit():
            columns[int(place[-1])] |= change
    return {"columns": columns} | {name: value for name, value in changes.items() if not name[-1].isdigit()}


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("version", {"version": 2}),
        ("version", {"version": True}),
        ("colour", {"colour": "red"}),
        ("label", {"label": "z"}),
        ("positive", {"label": "a", "positive": "z"}),
        ("positive", {"label": "c", "positive": "z"}),
        ("positive", {"positive": "x"}),
        ("rows", {"rows": -1}),
        ("note", {"note": 1}),
        ("domain_sizes", {"domain_sizes": {"a": 2, "b": 2, "c": 3}}),
        ("columns", {"columns": {}}),
        ("columns", {"columns": []}),
        ("columns[0]", {"columns": [1]}),
        ("columns[0].kind", {"columns": [{}]}),
        ("columns[0].name", {"columns": [{"kind": "boolean"}]}),
        ("columns[1].name", {"column1": {"name": "a"}}),
        ("columns[1].name", {"column1": {"name": "\n"}}),
        ("columns[1].kind", {"column1": {"kind": ["numeric"]}}),
        ("columns[1].colour", {"column1": {"colour": "red"}}),
        ("columns[0].categories", {"column0": {"categories": "xy"}}),
        ("columns[0].categories", {"column0": {"categories": []}}),
        ("columns[0].categories[1]", {"column0": {"categories": ["x", 1]}}),
        ("columns[0].categories[2]", {"column0": {"categories": ["x", "y", "x"]}}),
        ("columns[0].categories[0]", {"column0": {"categories": ["\ud800"]}}),
        ("columns[0].categories[0]", {"column0": {"categories": ["\ufeffx"]}}),
        ("columns[0].categories[0]", {"column0": {"categories": ["x" * 2000]}}),
        ("columns[0].categories", {"column0": {"categories": [str(i) for i in range(65536)]}}),
        ("columns[0].ordered", {"column0": {"ordered": 1}}),
        ("columns[0].other", {"column0": {"other": "z"}}),
        ("columns[0].missing", {"column0": {"missing": "maybe"}}),
        ("columns[0].missing", {"column0": {"missing": None}}),
        ("columns[0].missing_value", {"column0": {"missing_value": "?", "missing_values": ["?"]}}),
        ("columns[0].missing_values", {"column0": {"missing_values": "?"}}),
        ("columns[0].missing_values[0]", {"column0": {"missing_values": ["x"]}}),
        ("columns[0].missing_values[0]", {"column0": {"missing_value": 0}}),
        ("columns[0].missing_values[1]", {"column0": {"missing_values": ["?", "?"]}}),
        ("columns[0].missing_values", {"column0": {"categories": ["x", ""], "missing": "null"}}),
        ("columns[1].bin_edges", {"column1": {"bin_edges": [0]}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0, float("inf")]}}),
        ("columns[1].bin_edges[0]", {"column1": {"bin_edges": [float("nan"), 1]}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0, True]}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0, "1"]}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0, 2**53]}}),
        ("columns[1].bin_edges[2]", {"column1": {"bin_edges": [0, 1, 1]}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0.0, -0.0]}}),
        ("columns[1].bin_edges[2]", {"column1": {"bin_edges": [0, 1.2, 1.8], "integer": True}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0.2, 1], "integer": True}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0, 0.9], "integer": True, "side": "left"}}),
        ("columns[1].bin_edges[1]", {"column1": {"bin_edges": [0.11, 0.19], "decimals": 1}}),
        ("columns[1].side", {"column1": {"side": "both"}}),
        ("columns[1].outside", {"column1": {"outside": "drop"}}),
        ("columns[1].integer", {"column1": {"integer": "yes"}}),
        ("columns[1].decimals", {"column1": {"decimals": 16}}),
        ("columns[1].decimals", {"column1": {"decimals": 1, "integer": True}}),
        ("columns[1].decimals", {"column1": {"decimals": 15, "bin_edges": [0, 100]}}),
        ("columns[1].missing_values[0]", {"column1": {"missing_value": 1}}),
        ("columns[1].missing_values[0]", {"column1": {"missing_value": "1.0"}}),
        ("columns[1].missing_values[0]", {"column1": {"missing_value": -0.5, "integer": True}}),
        ("columns[1].missing_values[0]", {"column1": {"missing_value": None}}),
        ("columns[2].true", {"column2": {"true": "false"}}),
        ("columns[2].missing_values[0]", {"column2": {"missing_value": "true"}}),
    ],
)
def test_errors_of_a_schema_have_their_place(place: str, changes: dict[str, Any]) -> None:
    with pytest.raises(DomainError) as caught:
        Schema.from_json(document(**changes))
    assert str(caught.value).startswith(f"{place}: ")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"columns": [], "columns": []}', '{"columns": NaN}', b"\xff", "[" * 10**5]
)
def test_text_that_is_no_schema(text: str | bytes) -> None:
    with pytest.raises(DomainError):
        Schema.from_json(text)


def test_json_is_versioned_and_short() -> None:
    written = SCHEMA.to_json()
    assert written["version"] == 1
    assert written["columns"][0] == {  # type: ignore[index]
        "name": "age",
        "kind": "numeric",
        "missing": "null",
        "missing_values": ["NA"],
        "bin_edges": [0, 18, 65, 120],
        "integer": True,
    }
    assert Schema.from_json(json.dumps(written)) == SCHEMA


@pytest.mark.parametrize("column", [*SCHEMA.columns], ids=lambda column: column.kind)
def test_columns_are_values(column: Column) -> None:
    assert Column.from_json(column.to_json()) == column
    assert hash(column) == hash(Column.from_json(column.to_json()))


def test_the_example_of_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "schema.md").read_text()
    schema = Schema.from_json(text.split("```json\n")[1].split("```")[0])
    rows = [line.split("|")[1:3] for line in text.splitlines() if re.match(r"\| `\d", line)]
    table = "\n".join(["age,bmi,ward,smoker", *[row.strip(" `") for row, _ in rows]])
    assert schema.encode(table.encode())[0].tolist() == [[int(code) for code in codes.split(",")] for _, codes in rows]
    assert len(rows) == 3


ROWS = {"adult": 48_842, "breast-cancer": 286, "compas": 7_214, "compas-caps": 6_150, "diabetes": 768}
LABELS = {"breast-cancer": [201, 85], "diabetes": [500, 268], "adult": [37_155, 11_687]}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no datasets in {DATA}: set CAPS_DATA to their folder")
@pytest.mark.parametrize(
    "name", ["adult", "breast-cancer", "breast-cancer.caps", "compas", "compas-caps", "diabetes", "diabetes.caps"]
)
def test_shared_datasets(name: str) -> None:
    schema = Schema.from_json((DATA / f"{name}.schema.json").read_bytes())
    table = name.removesuffix(".caps")
    codes, report = schema.encode(DATA / f"{table}.csv")
    assert report.rows == len(codes) == schema.rows == ROWS[table]
    assert report.refused == 0
    assert schema.label is not None
    counts = np.bincount(codes[:, schema.domain().position(schema.label)]).tolist()
    assert counts == LABELS.get(table, counts)
    out = io.BytesIO()
    schema.write_csv(codes, out)
    assert np.array_equal(schema.encode(out.getvalue())[0], codes)
    assert Schema.from_json(schema.to_json()) == schema


def parquet(frame: pl.DataFrame, **choices: Any) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out, **choices)
    return out.getvalue()


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "gzip", "lz4", "zstd"])
def test_parquet_files(tmp_path: Path, compression: str) -> None:
    frame = SCHEMA.frame(CODES * 50)
    data = parquet(frame, compression=compression, row_group_size=40, data_page_size=64)
    path = tmp_path / "t*.parquet"
    path.write_bytes(data)
    for table in (data, path, str(path), io.BytesIO(data)):
        assert SCHEMA.encode(table)[0].tolist() == CODES * 50
    turned = frame.select(x=pl.lit(1), **{name: pl.col(name) for name in reversed(frame.columns)})
    assert SCHEMA.encode(parquet(turned), extra="ignore")[0].tolist() == CODES * 50
    with pytest.raises(DomainError, match="1 column that the schema does not have"):
        SCHEMA.encode(parquet(turned))
    with pytest.raises(DomainError, match="missing: bmi"):
        SCHEMA.encode(parquet(frame.drop("bmi")))
    assert SCHEMA.encode(parquet(frame.clear()))[0].shape == (0, 4)


def test_parquet_types() -> None:
    schema = Schema((Categorical(name="*", categories=("1", "2"), missing="null"),))
    for dtype in (pl.String, pl.Categorical, pl.Enum(["1", "2"]), pl.Int8, pl.UInt64):
        values = pl.Series([1, 2, None]).cast(pl.String).cast(dtype)
        assert schema.encode(parquet(pl.DataFrame({"*": values})))[0].tolist() == [[0], [1], [-1]]
    for values, message in (
        (pl.Series([1]).cast(pl.Date), "numbers"),
        (pl.Series([CANARY.encode()]), "numbers"),
        (pl.Series([[1]]), "flat"),
    ):
        with pytest.raises(DomainError, match=message):
            schema.encode(parquet(pl.DataFrame({"*": values})))


def test_a_parquet_file_that_unfolds_to_too_much_is_not_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema((Categorical(name="x", categories=("a",)),))
    long = parquet(pl.DataFrame({"x": ["b" * 50_000 + str(i) for i in range(40)]}), compression="zstd")
    many = parquet(pl.DataFrame({"x": ["b"]}).select(pl.col("x").repeat_by(300_000).explode()))
    assert max(len(long), len(many)) < 20_000
    monkeypatch.setattr(pl, "scan_parquet", None)
    for bomb in (long, many):
        with pytest.raises(DomainError, match="unfolds to more than the 1000000"):
            schema.encode(bomb, limits=Limits(bytes=1_000_000))
    with pytest.raises(DomainError, match="more than 1000 rows"):
        schema.encode(many, limits=Limits(rows=1000))


def test_a_parquet_file_that_is_damaged_is_refused_quietly(caplog: pytest.LogCaptureFixture) -> None:
    schema = Schema((Categorical(name="x", categories=("a", CANARY), missing="null"),))
    data = parquet(pl.DataFrame({"x": ["a", CANARY, None] * 20}), compression="uncompressed", statistics=False)
    whole = schema.encode(data)[0].tolist()
    refused = 0
    for at in range(4, len(data) - 4):
        for bit in (1, 128):
            altered = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            message = ""
            try:
                assert len(schema.encode(altered)[0]) <= len(whole)
            except DomainError as error:
                message = "".join(traceback.format_exception(error))
                refused += 1
            assert CANARY not in message
    assert refused > 100
    assert CANARY not in caplog.text
    for bad in (b"PAR1PAR1", b"PAR1" + bytes(8) + b"PAR1", b"PAR1" + b"\xff" * 8 + b"PAR1", data[:4] + data[20:]):
        with pytest.raises(DomainError, match="Parquet"):
            schema.encode(bad)
