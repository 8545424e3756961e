"""Looking into a database waits for nobody and changes nothing; a database that would lose commits is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, func, select, text
from sqlalchemy.exc import OperationalError

from caps.errors import DomainError
from caps.service.database import _prepare_postgresql, connect, open_database, reading, sqlite_url
from caps.service.migrations import DatabaseRefused

metadata = MetaData()
things = Table("things", metadata, Column("number", Integer, primary_key=True))
DURABLE = {"fsync": "on", "full_page_writes": "on", "server_encoding": "UTF8", "synchronous_commit": "on"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(sqlite_url(tmp_path / "state.db"), metadata)
    yield engine
    engine.dispose()


def count(database: Engine) -> int:
    with reading(database) as connection:
        return connection.execute(select(func.count()).select_from(things)).scalar_one()


def test_who_reads_waits_for_nobody_and_sees_what_is_committed(database: Engine) -> None:
    with database.begin() as writing:
        writing.execute(things.insert().values(number=1))
        assert count(database) == 0
    assert count(database) == 1


def test_who_reads_sees_one_state(database: Engine) -> None:
    with reading(database) as connection:
        assert connection.execute(select(things)).all() == []
        with database.begin() as writing:
            writing.execute(things.insert().values(number=1))
        assert connection.execute(select(things)).all() == []


def test_who_reads_cannot_write_and_who_comes_next_can(database: Engine) -> None:
    for number in range(3):
        with reading(database) as connection, pytest.raises(OperationalError, match="readonly"):
            connection.execute(things.insert().values(number=number))
        with database.begin() as writing:
            writing.execute(things.insert().values(number=number))
    assert count(database) == 3


def test_every_connection_overwrites_what_it_deletes(database: Engine) -> None:
    with reading(database) as first, reading(database) as second:
        assert [one.scalar(text("PRAGMA secure_delete")) for one in (first, second)] == [1, 1]


@pytest.mark.parametrize("url", ["nonsense", "mysql://localhost/caps", ""])
def test_other_databases_are_not_taken(url: str) -> None:
    with pytest.raises(DomainError, match="database"):
        connect(url)


def test_postgresql_is_reached_by_its_own_driver_whatever_the_url_names() -> None:
    for scheme in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
        assert connect(f"{scheme}://localhost/caps").driver == "psycopg"


class Connection:
    """Of a PostgreSQL with these settings."""

    def __init__(self, **settings: str) -> None:
        self.settings, self.said = DURABLE | settings, []
        self.autocommit = False

    def execute(self, statement: str) -> Any:
        self.said.append(statement)
        value = self.settings.get(statement.removeprefix("SHOW "))

        class Cursor:
            def fetchone(self) -> tuple[str | None]:
                return (value,)

        return Cursor()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("fsync", "off"), ("full_page_writes", "off"), ("server_encoding", "SQL_ASCII"), ("synchronous_commit", "off")],
)
def test_a_postgresql_that_loses_commits_is_refused(setting: str, value: str) -> None:
    with pytest.raises(DatabaseRefused, match=setting):
        _prepare_postgresql(Connection(**{setting: value}), None)


@pytest.mark.parametrize("value", ["on", "local", "remote_apply"])
def test_a_durable_one_is_kept_as_it_is(value: str) -> None:
    connection = Connection(synchronous_commit=value)
    _prepare_postgresql(connection, None)
    assert f"SET synchronous_commit = '{value}'" in connection.said
    assert connection.autocommit is False
