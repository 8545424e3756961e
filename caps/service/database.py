"""Durable state with SQLAlchemy, in a SQLite file by default or in PostgreSQL.

A committed transaction survives a power failure: SQLite syncs on every commit, and a PostgreSQL that does not is
refused. On both, `engine.begin()` first waits for its turn and is then the only writer: what it reads stays true until
it ends, and it never fails because of another transaction. `reading(engine)` is read-only: it does not wait and sees
one consistent snapshot.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from caps.errors import DomainError
from caps.service.migrations import DatabaseRefused, prepare
from caps.service.room import is_full

PATIENCE = 10
"""Seconds that a transaction waits for its turn."""
_READING = "caps_reading"
_LOCK_NOT_AVAILABLE = "55P03"
"""What PostgreSQL calls a turn that did not come."""
_TURN = 0x43615053
"""PostgreSQL's advisory lock for writing transactions; it belongs to the database, not to the whole cluster."""
_NEEDED = {"fsync": "on", "full_page_writes": "on", "server_encoding": "UTF8"}


def open_database(url: str, metadata: MetaData, *, migrations: str | None = None) -> Engine:
    """An engine whose tables exist, at the revision that this software needs.

    migrations: the package with the service's revisions; without it, missing tables are created, unversioned. Raises
    DatabaseRefused if the schema has another revision, or the database is out of reach or not durable; OSError if there
    is no room for it.
    """
    engine = connect(url)
    try:
        if migrations is None:
            metadata.create_all(engine)
        else:
            prepare(engine, migrations)
    except DBAPIError as error:
        engine.dispose()
        if is_full(error):
            raise OSError(errno.ENOSPC, "there is no room for the database", engine.url.database) from None
        raise DatabaseRefused(f"the database cannot be used: {error.orig}") from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def connect(url: str) -> Engine:
    """An engine with the settings that this module relies on; it is not connected yet."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DomainError("CAPS_DATABASE is not a valid database URL") from None
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise DomainError(f"the database must be SQLite or PostgreSQL, not {backend}")
    if backend == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    # Errors may be logged, and parameters may be data.
    engine = create_engine(parsed, hide_parameters=True, pool_pre_ping=backend == "postgresql")
    if backend == "postgresql":
        event.listen(engine, "connect", _prepare_postgresql)
        event.listen(engine, "begin", _begin_postgresql)
    else:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        event.listen(engine, "checkin", _give_back_sqlite)
    return engine


def is_busy(error: Exception) -> bool:
    """Whether a transaction could not begin because it did not get its turn, or a connection: later it may."""
    if isinstance(error, NoConnection):
        return True
    if not isinstance(error, OperationalError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", None)
    return getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE or (
        code is not None and code & 0xFF == sqlite3.SQLITE_BUSY
    )


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read-only transaction. It does not wait for a writer and does not see its uncommitted changes."""
    with engine.connect() as connection:
        yield connection.execution_options(**{_READING: True})


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


def _reads(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get(_READING))


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={PATIENCE * 1000}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=ON",  # a forgotten key must not stay in a free page of the file
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    if _reads(connection):
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("PRAGMA query_only=ON")
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _give_back_sqlite(connection: Any, _: object) -> None:
    if connection is not None:
        connection.execute("PRAGMA query_only=OFF")


def _prepare_postgresql(connection: Any, _: object) -> None:
    connection.autocommit = True
    found = {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in (*_NEEDED, "synchronous_commit")}
    for name, value in _NEEDED.items():
        if found[name] != value:
            raise DatabaseRefused(f"PostgreSQL must run with {name} = {value}, not {found[name]}")
    durable = found["synchronous_commit"]
    if durable == "off":
        raise DatabaseRefused("PostgreSQL must not run with synchronous_commit = off: a crash would lose charges")
    settings = {
        "synchronous_commit": durable,  # as it is now, whatever a reload of the configuration says later
        # There is one writer at a time: each statement must see all that earlier writers have committed.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "lock_timeout": f"{PATIENCE}s",
        "idle_in_transaction_session_timeout": "60s",  # a host that has disappeared must not keep its turn
    }
    for name, value in settings.items():
        connection.execute(f"SET {name} = '{value}'")
    connection.autocommit = False


def _begin_postgresql(connection: Connection) -> None:
    if _reads(connection):
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    elif connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_TURN})")
