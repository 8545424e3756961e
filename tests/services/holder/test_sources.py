"""Tables that a holder reads where they are: servers get the same as of a CSV, and nobody can name anything else."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import psycopg
import pytest
from typer.testing import CliRunner

from caps.cli import Exit, app
from caps.errors import DomainError
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.wire.holder import Goal
from caps.wire.media import CSV
from caps.wire.problems import Kind
from services.holder.service import HolderService
from services.holder.sources import Sources
from services.holder.table import Sent
from tests.kit.holder import HolderBench
from tests.kit.postgres import Postgres, postgres
from tests.kit.study import COLUMNS, ROWS
from tests.kit.waiting import until

__all__ = ["postgres"]
pytestmark = pytest.mark.integration

CANARY = "c4n4ry-7391"
CREATE = "CREATE TABLE patients (age INTEGER, smoker BOOLEAN, region VARCHAR, diagnosis VARCHAR, slot INTEGER)"
INSERT = "INSERT INTO patients VALUES (%s, %s, %s, %s, %s)"


def rows(seed: int) -> pl.DataFrame:
    """A table of whole rows, with a number for each."""
    draws, count = np.random.default_rng(seed), 40
    return pl.DataFrame(
        {
            "age": draws.integers(0, 100, count),
            "smoker": pl.Series(draws.integers(0, 2, count)).cast(pl.Boolean),
            "region": pl.Series(np.array(["north", "south"])[draws.integers(0, 2, count)]),
            "diagnosis": pl.Series([["none", "A", "B", "C", None][code] for code in draws.integers(0, 5, count)]),
            "slot": draws.permutation(64)[:count],
        }
    )


def csv_of(table: pl.DataFrame, path: Path) -> str:
    table.with_columns(smoker=pl.col("smoker").replace_strict({True: "yes", False: "no"})).write_csv(path)
    return f'[here]\nfile = "{path}"\n'


def duckdb_of(table: pl.DataFrame, path: Path) -> str:
    with duckdb.connect(str(path)) as connection:
        connection.execute(CREATE)
        connection.executemany(INSERT.replace("%s", "?"), table.rows())
    return f'[here]\nurl = "duckdb://{path}"\ntable = "patients"\n'


def postgres_of(table: pl.DataFrame, cluster: Postgres, path: Path) -> str:
    url = cluster.fresh()
    with psycopg.connect(url) as connection:
        connection.execute(CREATE)
        connection.cursor().executemany(INSERT, table.rows())
    path.write_text(url + "\n")
    return f'[here]\nurl_file = "{path}"\ntable = "patients"\nschema = "public"\n'


def spark_of(table: pl.DataFrame) -> str:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    made = session.createDataFrame(table.rows(), "age int, smoker boolean, region string, diagnosis string, slot int")
    made.createOrReplaceTempView("patients")
    return '[here]\nurl = "pyspark:local[1]"\ntable = "patients"\n'


def begun(holder: HolderService, world: HolderBench) -> None:
    holder.know(world.urls["coordinator"], world.study)
    holder.approve(world.study)


def shared(folder: Path, sources: str, **choices: Any) -> tuple[Any, Any, Any]:
    """What the servers hold together after a source was contributed; the report and the preview before that."""
    world = HolderBench(folder, choices["holders"][0][0], **choices)
    (folder / "holder" / "sources.toml").write_text(sources)
    with world.others(), world.running() as holder:
        begun(holder, world)
        report = holder.load_source(world.study, "here")
        preview = holder.preview(world.study)
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).goal is Goal.COMPLETE)
        until(lambda: world.files() == ["table"])
    return world.reconstructed(), report, preview


def sent(folder: Path, table: pl.DataFrame, **choices: Any) -> Any:
    """What the servers hold together after a CSV was sent and contributed."""
    world = HolderBench(folder, choices["holders"][0][0], **choices)
    csv_of(table, folder / "t.csv")
    with world.others(), world.running() as holder:
        begun(holder, world)
        path = holder.upload_path(world.study)
        path.write_bytes((folder / "t.csv").read_bytes())
        sent_as = Sent.of(CSV, ignore_extra=True)
        holder.load(world.study, path, sent_as, sha256(path.read_bytes()).hexdigest())
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).goal is Goal.COMPLETE)
    return world.reconstructed()


def check_sums(tmp_path: Path, sources: dict[str, str], tables: dict[str, pl.DataFrame], **choices: Any) -> None:
    """The sources' shares add up to what the same tables as CSVs do."""
    found = {name: shared(tmp_path / name, one, **choices) for name, one in sources.items()}
    plain = [sent(tmp_path / f"{name}-sent", tables[name], **choices) for name in sources]
    assert np.array_equal(sum(words for words, _, _ in found.values()), sum(plain))
    assert sum(plain).any()
    for name, (_, report, preview) in found.items():
        assert report.rows == 40
        assert preview.source == "here"
        assert bool(preview.queries) == (name != "csv")
        if preview.form == "marginals":
            assert all("GROUP BY" in query for query in preview.queries[1:])


@pytest.mark.postgres
def test_a_csv_a_postgresql_table_and_a_duckdb_file_are_shared_as_csvs_are(tmp_path: Path, postgres: Postgres) -> None:
    tables = {name: rows(seed) for seed, name in enumerate(("csv", "postgres", "duckdb"))}
    sources = {
        "csv": csv_of(tables["csv"], tmp_path / "c"),
        "postgres": postgres_of(tables["postgres"], postgres, tmp_path / "p"),
        "duckdb": duckdb_of(tables["duckdb"], tmp_path / "d"),
    }
    check_sums(tmp_path, sources, tables, holders=ROWS)


@pytest.mark.postgres
def test_columns_are_streamed_from_engines_into_their_slots(tmp_path: Path, postgres: Postgres) -> None:
    tables = {"postgres": rows(1), "duckdb": rows(2)}
    sources = {
        "postgres": postgres_of(tables["postgres"], postgres, tmp_path / "p"),
        "duckdb": duckdb_of(tables["duckdb"], tmp_path / "d"),
    }
    check_sums(tmp_path, sources, tables, holders=COLUMNS, alignment={"slots": 64, "column": "slot"})


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore")  # pyspark and Ibis use names of their libraries that will change
def test_four_holders_with_a_csv_postgresql_duckdb_and_spark_give_the_sums_of_four_csvs(
    tmp_path: Path, postgres: Postgres
) -> None:
    pytest.importorskip("pyspark", reason="make test-spark installs it")
    tables = {name: rows(seed) for seed, name in enumerate(("csv", "postgres", "duckdb", "spark"))}
    sources = {
        "csv": csv_of(tables["csv"], tmp_path / "c"),
        "postgres": postgres_of(tables["postgres"], postgres, tmp_path / "p"),
        "duckdb": duckdb_of(tables["duckdb"], tmp_path / "d"),
        "spark": spark_of(tables["spark"]),
    }
    check_sums(tmp_path / "rows", sources, tables, holders=ROWS)
    spark = {"spark": sources["spark"]}
    check_sums(tmp_path / "columns", spark, tables, holders=COLUMNS, alignment={"slots": 64, "column": "slot"})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HolderBench]:
    world = HolderBench(tmp_path, "clinic-a", holders=ROWS)
    with world.others():
        yield world


def declare(world: HolderBench, text: str) -> None:
    (world.folder / "holder" / "sources.toml").write_text(text)


def test_only_declared_sources_can_be_named(world: HolderBench, tmp_path: Path) -> None:
    declare(world, csv_of(rows(1), tmp_path / "t.csv"))
    with world.client() as client, world.person(Scope.OPERATOR) as operator:
        invitation = {"coordinator": world.urls["coordinator"], "study": world.study}
        assert client.post("/v1/studies", json=invitation).status_code == 201
        assert client.post(f"/v1/studies/{world.study}/approval").status_code == 200
        path = f"/v1/studies/{world.study}/table/source"
        assert client.get("/v1/sources").json() == [{"source": "here", "file": True}]
        assert client.put(path, json={"source": "there"}).status_code == 404
        evil = ["postgresql://10.0.0.1/x", "/etc/passwd", "../here", "", "here; DROP"]
        for body in (*({"source": name} for name in evil), {"source": "here", "url": "duckdb:///x"}, {}):
            assert client.put(path, json=body).status_code in (400, 422)
        assert operator.put(path, json={"source": "here"}).status_code == 403
        assert client.put(path, json={"source": "here"}).json()["rows"] == 40


def test_an_owner_contributes_a_source_with_one_command(
    world: HolderBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(world, duckdb_of(rows(1), tmp_path / "d"))
    (tmp_path / "token").write_text(world.tokens[Scope.OWNER])
    authority = world.folder / "holder" / "authority.pem"
    site = f'url = "{world.urls["holder"]}"\ntoken_file = "token"\nauthority = "{authority}"\n'
    (tmp_path / "config.toml").write_text(f"[sites.holder]\n{site}")
    monkeypatch.setenv("CAPS_CONFIG", str(tmp_path / "config.toml"))
    asked = ["contribute", world.study, "--approve", "--yes", "--coordinator", world.urls["coordinator"]]
    with world.client():
        assert "here" in CliRunner().invoke(app, ["table", "sources"]).output
        both = CliRunner().invoke(app, [*asked, str(authority), "--source", "here"])
        assert (both.exit_code, "not both" in both.output) == (Exit.USAGE, True)
        unknown = CliRunner().invoke(app, [*asked, "--source", "there", "--no-wait"])
        assert unknown.exit_code != Exit.OK
        assert "no such source" in unknown.output
        done = CliRunner().invoke(app, [*asked, "--source", "here"])
        assert done.exit_code == Exit.OK, done.output
    assert world.reconstructed().any()


def test_a_source_that_became_another_is_not_contributed(world: HolderBench, tmp_path: Path) -> None:
    declare(world, csv_of(rows(1), tmp_path / "t.csv"))
    with world.running() as holder:
        begun(holder, world)
        first = holder.load_source(world.study, "here")
        csv_of(rows(2), tmp_path / "t.csv")
        with pytest.raises(Problem, match="source here is not what was checked") as refused:
            holder.contribute(world.study)
        assert refused.value.kind is Kind.CONFLICT
        assert holder.load_source(world.study, "here").fingerprint != first.fingerprint
        declare(world, "")
        with pytest.raises(Problem, match="no such source"):
            holder.contribute(world.study)
        assert world.files() == ["table"]


def test_rows_that_do_not_fit_are_counted_in_the_engine(world: HolderBench, tmp_path: Path) -> None:
    table = rows(1).with_columns(region=pl.when(pl.col("slot") < 32).then(pl.lit(CANARY)).otherwise(pl.col("region")))
    declare(world, duckdb_of(table, tmp_path / "d"))
    with world.running() as holder:
        begun(holder, world)
        with pytest.raises(Problem, match="in column region") as refused:
            holder.load_source(world.study, "here")
        report: Any = refused.value.members["report"]
        unknown = table.filter(pl.col("slot") < 32).height
        assert [one["unknown"] for one in report["columns"] if one["name"] == "region"] == [unknown]
        assert CANARY not in json.dumps(refused.value.document(""))
        assert world.files() == []


def test_credentials_are_in_no_error(world: HolderBench, tmp_path: Path) -> None:
    secret = "postgresql://me:s3cret@127.0.0.1:1/clinic"
    (tmp_path / "url").write_text(secret)
    declare(world, f'[here]\nurl_file = "{tmp_path}/url"\ntable = "t"\n')
    with world.running() as holder:
        begun(holder, world)
        with pytest.raises(Problem, match="source here: could not connect") as refused:
            holder.load_source(world.study, "here")
        assert "s3cret" not in "".join(traceback.format_exception(refused.value))
        holder.sources.environment  # noqa: B018  in no repr
        assert "s3cret" not in repr(holder.sources)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[here]\nurl = "postgresql://me:s3cret@db/x"\ntable = "t"', "here: .*password"),
        ('[here]\nurl = "postgresql://db/x"', "must have a table"),
        ('[here]\nfile = "/x"\ntable = "t"', "must have a table, and a file must not"),
        ('[here]\nfile = "x.csv"', "root"),
        ('[here]\nfile = "/x"\nurl = "duckdb:///s3cret"', "one of"),
        ('[here]\nurl = "duckdb:///x"\ntable = "t"\nquery = "SELECT s3cret"', "query"),
        ('["a b"]\nfile = "/x"', "pattern"),
        ("s3cret", "not TOML"),
    ],
)
def test_declarations_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sources.toml").write_text(text)
    with pytest.raises(DomainError, match=message) as refused:
        Sources(tmp_path / "sources.toml").declared()
    assert "s3cret" not in str(refused.value)
    assert Sources(tmp_path / "none.toml").declared() == {}


def test_an_address_may_be_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "sources.toml").write_text('[here]\nurl_env = "CLINIC"\ntable = "t"')
    given = Sources(tmp_path / "sources.toml", {"CLINIC": "duckdb:///x"}).find("here")
    assert given.declared.address(given.environment) == "duckdb:///x"
    missing = Sources(tmp_path / "sources.toml", {}).find("here")
    with pytest.raises(DomainError, match="source here: the variable CLINIC is not set"):
        missing.identity()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"holders": COLUMNS}, "needs a column with numbers of slots"),
    ],
)
def test_nothing_depends_on_the_order_of_an_engine(tmp_path: Path, choices: Any, message: str) -> None:
    world = HolderBench(tmp_path, choices["holders"][0][0], **choices)
    declare(world, duckdb_of(rows(1), tmp_path / "d"))
    with world.others(), world.running() as holder:
        begun(holder, world)
        with pytest.raises(Problem, match=message):
            holder.load_source(world.study, "here")
