"""The same guarantees with PostgreSQL as with SQLite: the servers' and the coordinator's own tests, and whole runs."""

# ruff: noqa: F401, F403, F405
# Tests and fixtures of other modules are collected here once more: `moved` gives them PostgreSQL.

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, inspect, select, text
from sqlalchemy.exc import DBAPIError, InternalError

from caps.service.database import connect, open_database, reading, sqlite_url
from caps.service.migrations import DatabaseRefused, upgrade
from caps.service.problems import Problem
from caps.study import Manifest
from caps.wire.problems import Kind
from deploy.federation import Federation
from services.coordinator.states import State
from services.coordinator.store import News
from services.mpc_server.storage import shares, tables
from services.mpc_server.storage.shares import forgotten
from tests.kit.coordinator_servers import Bench, performed
from tests.kit.federation import POPULATIONS, opened
from tests.kit.migrations import FAILS, differences, metadata, old, package
from tests.kit.mpc_server import Sealable, dealt, wrapped_keys
from tests.kit.postgres import SERVICES, Moved, Postgres, moved, postgres
from tests.kit.processes import horizontal, ledgers, persons
from tests.services.mpc_server.intake.test_contributions import (
    desk,
    federation,
    lab,
    test_a_chunk_cannot_slip_in_while_its_contribution_is_withdrawn,
    test_a_chunk_damaged_on_disk_is_named_and_can_be_sent_again,
    test_a_holder_has_one_contribution_until_it_is_withdrawn,
    test_a_withdrawn_contribution_is_gone_with_its_key,
    test_an_upload_says_what_it_needs_and_may_be_repeated,
    test_nothing_is_taken_once_sealed_or_erased_and_what_is_sealed_stays,
    test_the_servers_hold_what_was_shared,
    test_what_a_crash_kept_from_being_unlinked_is_swept,
)
from tests.services.mpc_server.intake.test_studies import (
    test_a_run_begins_only_on_the_inputs_that_are_sealed,
    test_all_servers_seal_the_same_inputs,
    test_another_set_replaces_the_seal_until_a_run_exists_and_does_not_prolong_retention,
    test_retention_erases_when_the_time_of_the_manifest_is_over,
    test_sealing_again_changes_nothing,
    test_shares_are_not_erased_under_a_run,
)
from tests.services.mpc_server.storage.test_ledger import *
from tests.services.mpc_server.storage.test_ledger_columns import (
    several,
    test_a_migration_fills_the_columns_from_the_text,
    test_an_altered_column_is_found,
)

pytestmark = [pytest.mark.integration, pytest.mark.postgres, pytest.mark.usefixtures("moved")]


@pytest.fixture
def database(moved: Moved, tmp_path: Path) -> Iterator[Engine]:
    """For the tests of the ledger."""
    with opened(tmp_path / "state.db") as found:
        assert found.dialect.name == "postgresql"
        yield found


@pytest.fixture
def url(moved: Moved) -> str:
    """For the tests of migrations."""
    return moved.postgres.fresh()


@pytest.mark.parametrize("service", SERVICES)
def test_revisions_make_the_tables_of_the_code(service: str, url: str) -> None:
    revisions, made = SERVICES[service]
    engine = open_database(url, made, migrations=revisions)
    assert differences(engine, made) == []
    engine.dispose()


def test_an_older_database_is_refused_until_it_is_migrated(old, url: str) -> None:
    with pytest.raises(DatabaseRefused, match="test_0001 and this software at test_0002"):
        open_database(url, metadata, migrations=old.name)
    engine = connect(url)
    assert upgrade(engine, old.name) == ("test_0001", "test_0002", None)
    assert differences(engine, metadata) == []
    engine.dispose()


def test_a_migration_that_fails_leaves_everything_as_it_was(old, url: str) -> None:
    old.add(FAILS.replace("size", "colour"))
    engine = connect(url)
    with pytest.raises(ZeroDivisionError):
        upgrade(engine, old.name)
    with reading(engine) as connection:
        assert [column["name"] for column in inspect(connection).get_columns("things")] == ["name"]
    engine.dispose()


def test_two_that_start_at_once_make_the_tables_once(url: str) -> None:
    revisions, made = SERVICES["mpc_server"]
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: open_database(url, made, migrations=revisions), range(4)))
    assert differences(engines[0], made) == []
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize(
    ("setting", "value"), [("synchronous_commit", "off"), ("default_transaction_isolation", "serializable")]
)
def test_what_is_not_durable_is_refused_and_other_defaults_do_not_matter(
    postgres: Postgres, url: str, setting: str, value: str
) -> None:
    name = url.rpartition("/")[2]
    postgres.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
    if setting == "synchronous_commit":
        with pytest.raises(DatabaseRefused, match="synchronous_commit"):
            open_database(url, MetaData())
        return
    engine = open_database(url, MetaData())
    with engine.begin() as connection:
        assert connection.scalar(text("SHOW transaction_isolation")) == "read committed"
    engine.dispose()


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(DatabaseRefused, match="cannot be used") as caught:
        open_database("postgresql://caps:canary@127.0.0.1:1/caps", MetaData())
    assert "canary" not in str(caught.value)


def test_who_reads_waits_for_nobody_and_cannot_write(database: Engine, manifest: Manifest) -> None:
    reserve(database, manifest, RUNS[0], LIMIT / 4)
    with database.begin() as writing:
        writing.execute(tables.ledger.delete())
        with reading(database) as connection:
            assert len(connection.execute(select(tables.ledger)).all()) == 1
        with reading(database) as connection, pytest.raises(InternalError, match="read-only"):
            connection.execute(tables.ledger.delete())
        writing.rollback()


def test_who_reads_sees_one_state(database: Engine, manifest: Manifest) -> None:
    with reading(database) as connection:
        assert connection.execute(select(tables.ledger)).all() == []
        reserve(database, manifest, RUNS[0], LIMIT / 4)
        assert connection.execute(select(tables.ledger)).all() == []


def test_the_second_waits_for_the_first(database: Engine, manifest: Manifest) -> None:
    """Even one that has not read yet: otherwise both would append after the same record."""
    entered = threading.Event()

    def second() -> None:
        entered.set()
        reserve(database, manifest, RUNS[1], LIMIT / 4)

    with database.begin() as first:
        thread = threading.Thread(target=second)
        thread.start()
        entered.wait()
        thread.join(0.5)
        assert thread.is_alive()
        Ledger(database).reserve(first, RUNS[0], manifest, taking(LIMIT / 4), limit=BUDGET, at="2030-01-01T00:00:00Z")
    thread.join()
    assert [record["run"] for record in Ledger(database).records()] == RUNS[:2]


def test_a_connection_that_was_lost_is_replaced(database: Engine, postgres: Postgres, manifest: Manifest) -> None:
    reserve(database, manifest, RUNS[0], LIMIT / 4)
    name = database.url.database
    postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    reserve(database, manifest, RUNS[1], LIMIT / 4)
    assert Ledger(database).verify() == 2


def test_a_transaction_cut_off_leaves_nothing_and_gives_its_turn_back(
    database: Engine, postgres: Postgres, manifest: Manifest
) -> None:
    with pytest.raises(DBAPIError), database.begin() as transaction:  # noqa: PT012
        Ledger(database).reserve(transaction, RUNS[0], manifest, taking(LIMIT), limit=BUDGET, at="2030-01-01T00:00:00Z")
        name = database.url.database
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        transaction.execute(select(1))
    reserve(database, manifest, RUNS[1], LIMIT)
    assert Ledger(database).verify() == 1


def test_offers_at_once_leave_one_contribution_of_a_holder(federation, desk) -> None:
    offers = [dealt(federation, "lab") for _ in range(6)]

    def offer(one) -> bool:
        try:
            desk.contributions.offer(federation.study, one.id, one.offer("S2"), federation.caller("lab"))
        except Problem as problem:
            return problem.kind is not Kind.CONFLICT
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(offer, offers)) == 1


def test_an_erased_key_is_in_no_file_of_its_table(tmp_path: Path, moved: Moved, postgres: Postgres) -> None:
    here = Sealable(tmp_path)
    here.seal()
    desk = here.desks["S2"]
    url = moved.url(sqlite_url(desk.home / "state" / "state.db"))
    keys = wrapped_keys(desk)
    assert len(keys) == 3

    def remaining() -> int:
        pages = postgres.execute(
            "SELECT get_raw_page(name, page::integer) FROM (VALUES ('studies'), ('contributions')) AS tables(name), "
            "generate_series(0, pg_relation_size(name) / 8192 - 1) AS page",
            url,
        )
        return sum(key in bytes(content) for key in keys for (content,) in pages)

    postgres.execute("CREATE EXTENSION pageinspect", url)
    assert remaining() == 3
    with psycopg.connect(url) as older:
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT 1")  # from here on, this snapshot sees the keys
        ends = threading.Timer(0.5, older.rollback)
        ends.start()
        desk.studies.erase(here.federation.study)
        ends.join()
    assert remaining() == 0


def test_a_snapshot_that_still_sees_erased_keys_is_told_of(
    tmp_path: Path, moved: Moved, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "_WAITS_FOR_SNAPSHOTS", (0.01,))
    here = Sealable(tmp_path)
    here.seal()
    desk = here.desks["S2"]
    with psycopg.connect(moved.url(sqlite_url(desk.home / "state" / "state.db"))) as older:
        older.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        older.execute("SELECT 1")
        desk.studies.erase(here.federation.study)
        assert "still sees those of studies, contributions" in caplog.text
    caplog.clear()
    desk.studies.sweep(datetime.now(UTC))
    assert "old rows" not in caplog.text


def test_an_erasure_stands_even_if_the_table_cannot_be_written_anew(
    tmp_path: Path, database: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with database.begin() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        connection.execute(text("LOCK TABLE studies"))
        impatient = connect(
            database.url.render_as_string(hide_password=False) + "?options=-c%20statement_timeout%3D500"
        )
        forgotten(impatient)
        impatient.dispose()
    assert "old rows" in caplog.text


def test_a_coordinator_run_becomes_a_release(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    coordinator, run = performed(bench)
    assert coordinator.store._engine.dialect.name == "postgresql"
    assert (run.state, run.reason) == (State.RELEASED, None)
    again = bench.coordinator()
    release = again.store.release(run.run)
    assert release is not None
    assert release.certificate.manifest == bench.manifest
    assert [one.number for one in again.store.events(run.run)] == list(range(1, len(again.store.events(run.run)) + 1))


def test_events_told_at_once_are_numbered_one_after_another(tmp_path: Path) -> None:
    coordinator, run = Bench(tmp_path).started()
    before = len(coordinator.store.events(run))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: coordinator.store.add_news(run, News(progress=[{"number": number}])), range(30)))
    assert [one.number for one in coordinator.store.events(run)] == list(range(1, before + 31))


def test_a_federation_makes_the_central_release(tmp_path: Path, moved: Moved) -> None:
    """Servers and coordinator on PostgreSQL, each on a database of its own; killed on the way, they go on."""
    with Federation(
        tmp_path / "federation", ("north", "south"), populations=POPULATIONS, environment={"CAPS_STALL": "20"}
    ) as federation:

        def start(*names: str) -> None:
            for name in names or federation.places:
                place = federation.places[name]
                path = sqlite_url(place.home / "state" / "state.db")
                chosen = {} if place.role == "holder" else {"CAPS_DATABASE": moved.url(path)}
                federation.start(name, environment=chosen)
            federation.wait_ready(timeout=120)

        start()
        study = horizontal(federation, tmp_path, persons(300, 1), algorithm="aim", parameters={"rounds": 4})
        study.agree()
        study.contribute()
        federation.kill("S2", "coordinator")
        start("S2", "coordinator")
        study.start()
        study.released(240)
        study.check(tmp_path)
        assert [len(found) for found in ledgers(federation)] == [len(ledgers(federation)[0])] * 3
        for name in ("S1", "S2", "S3", "coordinator"):
            assert not (federation.places[name].home / "state" / "state.db").exists()
