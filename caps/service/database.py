"""Durable state by SQLAlchemy: SQLite with a write-ahead log unless a URL says otherwise.

A transaction that has been committed survives the loss of power: SQLite syncs on every commit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, create_engine, event


def open_database(url: str, metadata: MetaData) -> Engine:
    """An engine whose tables exist. A transaction of SQLite takes the write lock at its beginning: none fails later."""
    engine = create_engine(url, hide_parameters=True)  # its errors may be logged, and parameters may be data
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    metadata.create_all(engine)
    return engine


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path}"


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
