"""PostgreSQL for tests: that of CAPS_TEST_POSTGRES, or one that is thrown away; tests are skipped if there is none."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, make_url

from caps.service import database
from services.coordinator import tables as coordinator_tables
from services.holder.tables import metadata as HOLDER_TABLES
from services.mpc_server.storage import tables as server_tables

SCRIPT = Path(__file__).parents[2] / "deploy" / "scripts" / "postgres"
SERVICES = {
    "mpc_server": ("services.mpc_server.migrations", server_tables.metadata),
    "coordinator": ("services.coordinator.migrations", coordinator_tables.metadata),
    "holder": ("services.holder.migrations", HOLDER_TABLES),
}
"""Every service's revisions and tables."""


class Postgres:
    """A cluster. Its databases are emptied and used again, never dropped: it is thrown away with them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._spare: list[str] = []

    def execute(self, statement: str, url: str | None = None) -> list[tuple[object, ...]]:
        """As its superuser, outside of any transaction."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def fresh(self) -> str:
        """The URL of an empty database."""
        if self._spare:
            return self._spare.pop()
        name = f"caps_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def give_back(self, url: str) -> None:
        """Nobody is connected with this database any more."""
        self.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public", url)
        self._spare.append(url)


class Moved:
    """Stands for `open_database`: what tests ask of a SQLite file is given to them of PostgreSQL, one for each file."""

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        self.urls: dict[str, str] = {}
        self.engines: list[Engine] = []

    def url(self, sqlite: str) -> str:
        """Where the tables of a SQLite file are now."""
        assert sqlite.startswith("sqlite:")
        if sqlite not in self.urls:
            self.urls[sqlite] = self.postgres.fresh()
        return self.urls[sqlite]

    def open(self, url: str, metadata: MetaData, *, migrations: str | None = None) -> Engine:
        """As `open_database`, always by the service's migrations."""
        package = next(package for package, tables in SERVICES.values() if tables is metadata)
        self.engines.append(database.open_database(self.url(url), metadata, migrations=migrations or package))
        return self.engines[-1]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A cluster for this process."""
    if "CAPS_TEST_POSTGRES" in os.environ:
        yield Postgres(os.environ["CAPS_TEST_POSTGRES"])
        return
    parent = Path(mkdtemp(prefix="caps-postgres-"))
    parent.chmod(0o711)  # the server may run as another user than we do
    directory = parent / "cluster"
    started = subprocess.run([SCRIPT, "start", directory], capture_output=True, text=True, timeout=600, check=False)
    if started.returncode:
        parent.rmdir()
        pytest.skip(f"PostgreSQL cannot be had here: {started.stderr.strip()[-300:]}")
    try:
        yield Postgres(started.stdout.strip())
    finally:
        subprocess.run([SCRIPT, "stop", directory], timeout=120, check=False)
        parent.rmdir()


@pytest.fixture
def moved(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moved]:
    """The kits of the servers' tests and the coordinator use PostgreSQL."""
    found = Moved(postgres)
    for module in ("tests.kit.mpc_server", "tests.kit.federation", "services.coordinator.service"):
        monkeypatch.setattr(f"{module}.open_database", found.open)
    yield found
    for engine in found.engines:
        engine.dispose()
    for url in found.urls.values():
        postgres.give_back(url)
