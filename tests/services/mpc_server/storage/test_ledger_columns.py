"""Records of the ledger are found by columns, which must say what the hashed text says, in migrated databases too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, select, text, update

from caps.service.database import open_database, reading, sqlite_url
from caps.service.migrations import upgrade
from caps.study import Manifest
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.storage.tables import ledger as table
from tests.kit.ledger import LIMIT, RUNS, charge, database, filled, manifest, release, reserve  # noqa: F401
from tests.kit.postgres import SERVICES

PACKAGE, TABLES = SERVICES["mpc_server"]
FOLDER = Path(__file__).parents[4] / PACKAGE.replace(".", "/")
COLUMNS = select(table.c.number, table.c.kind, table.c.run, table.c.population).order_by(table.c.number)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "migrated.db")


@pytest.fixture
def several(filled: Engine, manifest: Manifest) -> Engine:
    """Records of every kind, of three runs."""
    reserve(filled, manifest, RUNS[1], LIMIT / 4)
    release(filled, manifest, RUNS[1])
    reserve(filled, manifest, RUNS[2], LIMIT / 8)
    charge(filled, manifest, RUNS[2], 1)
    return filled


def test_columns_repeat_the_text(several: Engine, manifest: Manifest) -> None:
    records = list(Ledger(several).records())
    with reading(several) as connection:
        found = [tuple(row) for row in connection.execute(COLUMNS)]
    assert found == [tuple(map(record.get, ("number", "kind", "run", "population"))) for record in records]
    assert {row[3] for row in found} == {manifest.privacy.population, None}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize(("column", "value"), [("kind", "release"), ("run", RUNS[7]), ("population", "nobody")])
def test_an_altered_column_is_found(filled: Engine, number: int, column: str, value: str) -> None:
    with filled.begin() as transaction:
        transaction.execute(update(table).where(table.c.number == number).values({column: value}))
    with pytest.raises(LedgerBroken, match=f"record {number} .* different {column} "):
        Ledger(filled).verify()


def test_a_column_that_was_emptied_is_found(filled: Engine) -> None:
    """Or a reservation could be hidden from those who add up what a population has left."""
    with filled.begin() as transaction:
        transaction.execute(update(table).where(table.c.number == 0).values(population=None))
    with pytest.raises(LedgerBroken, match=r"record 0 .* different population "):
        Ledger(filled).verify()


def test_a_migration_fills_the_columns_from_the_text(several: Engine, url: str, tmp_path: Path) -> None:
    old = tmp_path / "migrations_until_0003"
    (old / "versions").mkdir(parents=True)
    for part in ("__init__.py", *(f"versions/{path.name}" for path in (FOLDER / "versions").glob("r000[123]_*.py"))):
        shutil.copy(FOLDER / part, old / part)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        migrated = open_database(url, TABLES, migrations=old.name)
    with reading(several) as connection:
        rows = connection.execute(select(table.c.number, table.c.record, table.c.hash)).mappings().all()
        expected = connection.execute(COLUMNS).all()
    with migrated.begin() as connection:
        assert "kind" not in {column["name"] for column in inspect(connection).get_columns("ledger")}
        for row in rows:
            connection.execute(text("INSERT INTO ledger (number, record, hash) VALUES (:number, :record, :hash)"), row)
        connection.execute(
            text(
                "INSERT INTO studies (study, manifest, state, objections, created_at) "
                "VALUES ('s', '{}', 'judged', '[]', 'now')"
            )
        )
        connection.execute(
            text("INSERT INTO runs (run, study, inputs, build, state) VALUES ('r', 's', 'i', 'b', 'going')")
        )
    assert upgrade(migrated, PACKAGE)[0] == "mpc_server_0003"
    with reading(migrated) as connection:
        assert connection.execute(COLUMNS).all() == expected
        assert connection.execute(text("SELECT study, state FROM studies")).all() == [("s", "judged")]
        assert "objections" not in {column["name"] for column in inspect(connection).get_columns("studies")}
    before, after = Ledger(several), Ledger(migrated)
    assert after.verify() == before.verify() == len(rows)
    assert after.taken() == before.taken()
    assert [after.range_of(run) for run in RUNS[:3]] == [before.range_of(run) for run in RUNS[:3]]
    migrated.dispose()
