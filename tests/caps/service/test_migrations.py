"""Revisions make exactly the tables the code has; a database of another revision is refused until it is migrated."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest
from sqlalchemy import MetaData, inspect, select, text

from caps.service.database import connect, open_database, reading, sqlite_url
from caps.service.migrations import DatabaseRefused, discard_backups, draft, upgrade
from tests.kit.migrations import FAILS, Package, differences, metadata, old, package, things  # noqa: F401
from tests.kit.postgres import SERVICES

ROOT = Path(__file__).parents[3]
HEADS = {"mpc_server": "mpc_server_0007", "coordinator": "coordinator_0004", "holder": "holder_0003"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "state.db")


@pytest.mark.parametrize("service", SERVICES)
def test_revisions_make_the_tables_of_the_code(service: str, url: str) -> None:
    package, tables = SERVICES[service]
    engine = open_database(url, tables, migrations=package)
    assert differences(engine, tables) == [], f"change the tables by a revision: python -m {package} draft TITLE"
    made = MetaData()
    made.reflect(engine)
    assert set(made.tables) == {*tables.tables, "alembic_version"}
    engine.dispose()


def test_a_difference_is_seen(package: Package, url: str) -> None:
    engine = open_database(url, metadata, migrations=package.name)
    assert differences(engine, metadata) != []
    engine.dispose()


def test_opening_again_changes_nothing(package: Package, url: str, tmp_path: Path) -> None:
    open_database(url, metadata, migrations=package.name).dispose()
    before = (tmp_path / "state.db").read_bytes()
    open_database(url, metadata, migrations=package.name).dispose()
    assert (tmp_path / "state.db").read_bytes() == before


def test_an_older_database_is_refused_until_it_is_migrated(old: Package, url: str, tmp_path: Path) -> None:
    with pytest.raises(DatabaseRefused, match=f"test_0001 and this software at test_0002.*python -m {old.name}"):
        open_database(url, metadata, migrations=old.name)
    engine = connect(url)
    found, head, copy = upgrade(engine, old.name)
    assert (found, head, copy) == ("test_0001", "test_0002", tmp_path / "state.db.before-test_0002")
    with reading(engine) as connection:
        assert connection.execute(select(things)).all() == [("one", None)]
    assert differences(engine, metadata) == []
    assert upgrade(engine, old.name) == ("test_0002", "test_0002", None)
    engine.dispose()
    open_database(url, metadata, migrations=old.name).dispose()


def test_the_copy_is_the_database_as_it_was(old: Package, url: str, tmp_path: Path) -> None:
    engine = connect(url)
    _, _, copy = upgrade(engine, old.name)
    assert copy is not None
    assert copy.stat().st_mode & 0o777 == 0o600
    old.drop()
    before = open_database(sqlite_url(copy), metadata, migrations=old.name)
    with reading(before) as connection:
        assert connection.execute(text("SELECT * FROM things")).all() == [("one",)]
    before.dispose()
    discard_backups(engine)
    assert not copy.exists()
    assert (tmp_path / "state.db").exists()
    engine.dispose()


def test_a_migration_that_fails_leaves_everything_as_it_was(old: Package, url: str) -> None:
    old.add(FAILS.replace("size", "colour"))
    engine = connect(url)
    with pytest.raises(ZeroDivisionError):
        upgrade(engine, old.name)
    with reading(engine) as connection:
        assert [column["name"] for column in inspect(connection).get_columns("things")] == ["name"]
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalars().all() == ["test_0001"]
    engine.dispose()


def test_a_database_of_newer_software_is_refused_with_both_revisions(old: Package, url: str) -> None:
    engine = connect(url)
    upgrade(engine, old.name)
    old.drop()
    with pytest.raises(DatabaseRefused, match=r"revision test_0002, which .* at test_0001"):
        open_database(url, metadata, migrations=old.name)
    with pytest.raises(DatabaseRefused, match="does not know"):
        upgrade(engine, old.name)
    engine.dispose()


def test_a_database_of_another_service_is_refused(url: str) -> None:
    package, tables = SERVICES["coordinator"]
    open_database(url, tables, migrations=package).dispose()
    package, tables = SERVICES["mpc_server"]
    with pytest.raises(DatabaseRefused, match=HEADS["coordinator"]):
        open_database(url, tables, migrations=package)


def test_tables_without_a_revision_are_refused(package: Package, url: str) -> None:
    open_database(url, metadata).dispose()
    with pytest.raises(DatabaseRefused, match="no revision"):
        open_database(url, metadata, migrations=package.name)


def test_a_draft_is_the_next_revision(package: Package, url: str) -> None:
    """What is drafted for changed tables, kept as it is, makes them."""
    (package.versions / "r2.py").write_text(draft(package.name, metadata, "Things have sizes."))
    engine = open_database(url, metadata, migrations=package.name)
    assert differences(engine, metadata) == []
    engine.dispose()


def test_servers_of_the_first_revision_keep_their_runs_and_shares_and_approve_again(url: str, tmp_path: Path) -> None:
    package, tables = SERVICES["mpc_server"]
    folder = tmp_path / "old_migrations" / "versions"
    folder.mkdir(parents=True)
    for part in ("__init__.py", "versions/__init__.py", "versions/r0001_initial.py"):
        shutil.copy(ROOT / package.replace(".", "/") / part, tmp_path / "old_migrations" / part)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        engine = open_database(url, tables, migrations="old_migrations")
    with engine.begin() as connection:
        for study, state in (("a", "sealed"), ("b", "erased")):
            connection.execute(
                text(
                    "INSERT INTO studies (study, manifest, state, objections, approval, wrapped_key, seal, approvals, "
                    "created_at) VALUES (:study, '{}', :state, '[]', '{}', NULL, '{}', '[]', 'now')"
                ),
                {"study": study, "state": state},
            )
        connection.execute(
            text(
                "INSERT INTO contributions (contribution, study, holder, offer, state) VALUES ('c', 'a', 'h', '', 'x')"
            )
        )
        connection.execute(text("INSERT INTO runs (run, study, inputs, state) VALUES ('r', 'a', 'i', 'going')"))
    assert upgrade(engine, package)[:2] == ("mpc_server_0001", HEADS["mpc_server"])
    with reading(engine) as connection:
        found = connection.execute(
            text("SELECT study, state, approval, approvals, wrapped_key FROM studies ORDER BY 1")
        )
        assert found.all() == [("a", "judged", None, None, None), ("b", "erased", None, None, None)]
        assert connection.execute(text("SELECT run, state, build FROM runs")).all() == [("r", "going", "unknown")]
        assert connection.execute(text("SELECT state FROM contributions")).all() == [("x",)]
    assert differences(engine, tables) == []
    engine.dispose()


def test_holders_of_the_first_revision_keep_their_contributions_without_fingerprints(url: str, tmp_path: Path) -> None:
    package, tables = SERVICES["holder"]
    folder = tmp_path / "first_migrations" / "versions"
    folder.mkdir(parents=True)
    for part in ("__init__.py", "versions/__init__.py", "versions/r0001_initial.py"):
        shutil.copy(ROOT / package.replace(".", "/") / part, tmp_path / "first_migrations" / part)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        engine = open_database(url, tables, migrations="first_migrations")
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO holder_studies (study, manifest, state, approval_sent) VALUES ('a', '{}', 'x', true)")
        )
        connection.execute(
            text(
                "INSERT INTO holder_contributions (contribution, study, folder, document, goal) VALUES "
                "('c', 'a', 'f', '{}', 'complete')"
            )
        )
    assert upgrade(engine, package)[:2] == ("holder_0001", HEADS["holder"])
    with reading(engine) as connection:
        found = connection.execute(text("SELECT contribution, goal, fingerprint FROM holder_contributions"))
        assert found.all() == [("c", "complete", None)]
    assert differences(engine, tables) == []
    engine.dispose()


@pytest.mark.parametrize("service", SERVICES)
def test_the_command_migrates(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    package, _ = SERVICES[service]

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", [package, *arguments])
        with pytest.raises(SystemExit) as caught:
            runpy.run_module(package, run_name="__main__")
        return caught.value.code, *capsys.readouterr()

    monkeypatch.delenv("CAPS_HOME", raising=False)
    code, _, said = run()
    assert (code, "CAPS_HOME" in said) == (2, True)
    monkeypatch.setenv("CAPS_HOME", str(tmp_path))
    head = HEADS[service]
    assert run() == (0, f"the database is at revision {head}; it was empty\n", "")
    assert run() == (0, f"the database is at revision {head}\n", "")
    code, _, said = run("nonsense")
    assert (code, "usage" in said) == (2, True)
    (tmp_path / "state" / "state.db").write_bytes(b"no database" * 100)
    assert run() == (2, "", "the database cannot be used: file is not a database\n")
