"""Tables in engines: what DuckDB counts is what numpy counts of the same rows, faults and all."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from typing import Any

import ibis
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data import engine
from caps.data.domain import Attribute, Domain, Layout
from caps.data.engine import Counter, EngineTable, connected, groupings, location
from caps.data.schema import Boolean, Categorical, Column, Numeric, Schema
from caps.errors import DomainError

CANARY = "c4n4ry-7391"
COLUMNS: tuple[Column, ...] = (
    Numeric(name="age", bin_edges=(0, 20, 40, 80), integer=True, missing_values=(-1, "n/a")),
    Numeric(name="bmi", bin_edges=(0.1, 18.5, 25, 2.0**50), side="left", outside="refuse", missing="null"),
    Categorical(name="ward", categories=('no"rth', "so'uth", "", "1"), other="", missing="null", missing_values=("?",)),
    Categorical(name="code", categories=("1", "2"), missing="category"),
    Boolean(name="smoker", missing="null"),
    Boolean(name="text; DROP", false="no", true="yes"),
)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "age": (pl.Int64, [None, -1, -5, 0, 19, 20, 79, 80, 1 << 60]),
    "bmi": (pl.Float64, [None, math.nan, math.inf, 0.1, 0.10000000000000002, 18.5, 18.500000000000004, 25.0, -3.0]),
    "ward": (pl.String, [None, "", "?", 'no"rth', "so'uth", "1", CANARY]),
    "code": (pl.Int32, [None, 1, 2, 3]),
    "smoker": (pl.Boolean, [None, True, False]),
    "text; DROP": (pl.String, [None, "", "no", "yes", "maybe"]),
}
SCHEMA = Schema(COLUMNS)
CLEAN = {"bmi": [None, 0.11, 18.5, 25.0], "text; DROP": ["no", "yes"], "age": [-1, 0, 19, 100]}


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Any]:
    backend = ibis.duckdb.connect()
    yield backend
    backend.disconnect()


def filled(duckdb: Any, name: str, rows: pl.DataFrame) -> Any:
    """A table of DuckDB."""
    duckdb.con.register("rows", rows.to_arrow())
    execute(duckdb, f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM rows")
    return duckdb.table(name)


def execute(duckdb: Any, statement: str) -> None:
    duckdb.con.execute(statement).fetchall()


def counter(table: Any, schema: Schema = SCHEMA, cliques: Any = None) -> Counter:
    domain = schema.domain()
    found = EngineTable("registry", table).counter(schema, Layout(domain, cliques or (*domain.pairs, domain.names[:3])))
    assert found is not None
    return found


def frame(values: dict[str, list[Any]]) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(values[name], dtype=kind) for name, (kind, _) in VALUES.items()})


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_an_engine_finds_and_counts_what_is_found_in_a_file(duckdb: Any, data: st.DataObject) -> None:
    rows, clean = data.draw(st.integers(1, 12)), data.draw(st.booleans())
    choices = {name: CLEAN.get(name, values) if clean else values for name, (_, values) in VALUES.items()}
    drawn = {
        name: data.draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))
        for name, values in choices.items()
    }
    table = frame(drawn)
    found = counter(filled(duckdb, "drawn", table))
    report = SCHEMA.examine(table)
    assert found.check() == report
    if not report.refused:
        layout = Layout(SCHEMA.domain(), (*SCHEMA.domain().pairs, SCHEMA.domain().names[:3]))
        assert np.array_equal(found.marginals(rows), layout.marginals(SCHEMA.encode(table)[0]))


def test_rows_are_streamed_as_those_of_a_file_are(duckdb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = frame({name: [values[0], *values[1:3]] for name, (_, values) in VALUES.items()})
    kept = filled(duckdb, "streamed", table.with_columns(more=pl.lit(CANARY)))
    monkeypatch.setattr(engine, "BLOCK", 2)
    assert SCHEMA.examine(EngineTable("registry", kept)) == SCHEMA.examine(table)
    clean = table.select("age").with_columns(age=pl.Series([5, 25, -1]))
    again = filled(duckdb, "clean", clean)
    own = SCHEMA.select(["age"])
    assert own.encode(EngineTable("registry", again))[0].tolist() == own.encode(clean)[0].tolist()
    assert "age" in EngineTable("registry", kept).query(own.columns)
    with pytest.raises(DomainError, match="missing: age"):
        own.examine(EngineTable("registry", kept.drop("age")))


@pytest.mark.parametrize("kind", [pl.Float64, pl.Date, pl.Datetime])
def test_what_engines_would_spell_differently_is_not_encoded_there(duckdb: Any, kind: Any) -> None:
    table = filled(duckdb, "odd", pl.DataFrame({"code": pl.Series([1], dtype=kind)}))
    own = SCHEMA.select(["code"])
    assert EngineTable("registry", table).counter(own, Layout(own.domain(), (("code",),))) is None


def test_a_table_that_changes_is_noticed(duckdb: Any) -> None:
    own = SCHEMA.select(["age", "code", "smoker"])
    first = {"age": [1, 2, 30], "code": [1, 1, 2], "smoker": [True, True, False]}
    table = filled(duckdb, "moving", pl.DataFrame(first))
    found = counter(table, own, own.domain().pairs)
    assert found.check().rows == 3
    assert found.marginals(3).sum() == 9
    execute(duckdb, "INSERT INTO moving VALUES (1, 1, true)")
    with pytest.raises(DomainError, match="source registry: the table changed"):
        found.marginals(3)
    execute(duckdb, "UPDATE moving SET code = 7")
    found = counter(table, Schema((Categorical(name="code", categories=("1", "2")),)), (("code",),))
    with pytest.raises(DomainError, match="the table changed"):
        found.marginals(4)


def test_queries_that_saw_different_rows_are_noticed(duckdb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows, but one of them was altered between two queries."""
    own = SCHEMA.select(["age", "code", "smoker"])
    rows = {"age": [1, 2, 30], "code": [1, 1, 2], "smoker": [True, True, False]}
    monkeypatch.setattr(engine, "MOST_CELLS", 1)
    found = counter(filled(duckdb, "altered", pl.DataFrame(rows)), own, own.domain().pairs)
    inner = found._cells

    def altering(grouping: Any) -> Any:
        cells = inner(grouping)
        execute(duckdb, "UPDATE altered SET age = 70")
        return cells

    monkeypatch.setattr(found, "_cells", altering)
    with pytest.raises(DomainError, match="the table changed"):
        found.marginals(3)


def test_errors_of_an_engine_quote_nothing(duckdb: Any) -> None:
    filled(duckdb, "texts", pl.DataFrame({"age": [CANARY]}))
    execute(duckdb, "CREATE OR REPLACE VIEW broken AS SELECT CAST(age AS INTEGER) AS age FROM texts")
    own = SCHEMA.select(["age"])
    view = duckdb.table("broken")
    for ask in (lambda: counter(view, own, (("age",),)).check(), lambda: own.examine(EngineTable("registry", view))):
        with pytest.raises(DomainError, match=r"source registry: could not .*ConversionException") as refused:
            ask()
        assert CANARY not in "".join(traceback.format_exception(refused.value))


def test_addresses_are_named_without_credentials() -> None:
    assert (
        location("postgresql://me:s3cret@db.example:5433/clinic?sslkey=s3cret") == "postgresql:db.example:5433/clinic"
    )
    for address in ("s3cret", "postgresql://db:s3cret/x"):
        with pytest.raises(DomainError) as refused:
            location(address)
        assert "s3cret" not in str(refused.value)
    unreachable = connected("registry", "postgresql://me:s3cret@127.0.0.1:1/x", "t")
    with pytest.raises(DomainError, match="source registry: could not connect") as refused, unreachable:
        pass
    assert "s3cret" not in str(refused.value)


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=9), st.integers(1, 3))
def test_few_queries_give_every_marginal_once(sizes: list[int], degree: int) -> None:
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=i % 2 == 0) for i, size in enumerate(sizes)))
    layout = Layout(
        domain, domain.downward_closure([domain.names[start : start + degree] for start in range(len(sizes))])
    )
    found = groupings(layout)
    assert sorted(clique for one in found for clique in one.cliques) == sorted(layout.cliques)
    for one in found:
        assert all(set(clique) <= set(one.attributes) for clique in one.cliques)
        cells = math.prod(domain.sizes[domain.position(name)] + 1 for name in one.attributes)
        assert cells <= 2 ** len(sizes) * engine.MOST_CELLS or one.attributes in layout.cliques


def test_all_pairs_of_thirty_columns_take_few_queries() -> None:
    domain = Domain(tuple(Attribute(f"a{i}", 5) for i in range(30)))
    assert len(groupings(Layout(domain, domain.pairs))) < len(domain.pairs) / 8
