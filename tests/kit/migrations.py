"""A service's migrations as they grow, a database one revision behind, and how tables differ from the code's."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, text

from caps.service.database import open_database

REVISION = '''
"""A revision."""
import sqlalchemy as sa
from alembic import op
revision, down_revision = {revision!r}, {previous!r}
def upgrade():
{body}
'''
FIRST = 'op.create_table("things", sa.Column("name", sa.String(8), primary_key=True))'
SECOND = 'op.add_column("things", sa.Column("size", sa.Integer()))'
FAILS = f"{SECOND}\nraise ZeroDivisionError"
metadata = MetaData()
things = Table("things", metadata, Column("name", String(8), primary_key=True), Column("size", Integer))


class Package:
    """A service's migrations, growing."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.versions = name, folder / name / "versions"
        self.versions.mkdir(parents=True)
        (folder / name / "__init__.py").touch()
        self.count = 0

    def add(self, body: str) -> str:
        previous, self.count = self.revision, self.count + 1
        code = REVISION.format(revision=self.revision, previous=previous, body=textwrap.indent(body, "    "))
        (self.versions / f"r{self.count}.py").write_text(code)
        assert self.revision is not None
        return self.revision

    def drop(self) -> None:
        (self.versions / f"r{self.count}.py").unlink()
        self.count -= 1

    @property
    def revision(self) -> str | None:
        return f"test_{self.count:04}" if self.count else None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Package:
    monkeypatch.syspath_prepend(tmp_path)
    found = Package(tmp_path, f"migrations_{abs(hash(request.node.nodeid))}")
    found.add(FIRST)
    return found


@pytest.fixture
def old(package: Package, url: str) -> Package:
    """A database with a row, at the revision before the latest."""
    engine = open_database(url, metadata, migrations=package.name)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO things VALUES ('one')"))
    engine.dispose()
    package.add(SECOND)
    return package


def differences(engine: Engine, tables: MetaData) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, tables))
