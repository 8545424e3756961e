"""The revisions of a service's tables: files in the service's package `migrations`, applied in order by Alembic.

A service starts on an empty database, whose tables it creates, or on one at the revision it needs. It refuses any
other: an older one until the operator has run `python -m services.SERVICE.migrations`, a newer one always. A migration
is one transaction. A SQLite file is first copied to `FILE.before-REVISION`, and this copy is the only way back. Code
that forgets keys must also remove such copies: `discard_backups`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

from alembic.autogenerate import produce_migrations, render_python_code
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect

from caps.errors import LocalError

_DRAFT = '''\
"""{title}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = {previous}


def upgrade() -> None:
    """From the revision before."""
    {body}
'''

logging.getLogger("alembic").setLevel(logging.WARNING)


class DatabaseRefused(LocalError):
    """The database is out of reach, not durable, or has the tables of another version: the service must not run."""


def prepare(engine: Engine, package: str) -> None:
    """Create the tables of an empty database. Raises DatabaseRefused if it has tables of another revision."""
    scripts = _scripts(package)
    with engine.begin() as connection:
        found, head = _found(connection, scripts), _head(scripts)
        if found is None:
            _apply(connection, scripts)
        elif found != head:
            raise DatabaseRefused(
                f"the database is at revision {found} and this software at {head}: "
                f"stop the service and migrate it with `python -m {package}`"
            )


def revisions(connection: Connection, package: str) -> tuple[str | None, str]:
    """The database's revision, None if it is empty, and the one that this software needs. Raises DatabaseRefused."""
    scripts = _scripts(package)
    return _found(connection, scripts), _head(scripts)


def upgrade(engine: Engine, package: str) -> tuple[str | None, str, Path | None]:
    """Migrate a database in one transaction. Returns its previous revision, its new one, and the path of the copy."""
    scripts = _scripts(package)
    with engine.begin() as connection:
        found, head = _found(connection, scripts), _head(scripts)
        copy = None
        if found not in (None, head):
            copy = _back_up(engine, head)
        if found != head:
            _apply(connection, scripts)
    return found, head, copy


def discard_backups(engine: Engine) -> None:
    """Unlink the copies that migrations left, because they contain keys that have since been forgotten."""
    path = _file(engine)
    if path is not None:
        for copy in path.parent.glob(f"{path.name}.before-*"):
            copy.unlink(missing_ok=True)


def draft(package: str, metadata: MetaData, title: str) -> str:
    """The text of a revision that changes the latest one to `metadata`, for a developer to review."""
    scripts = _scripts(package)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        head = scripts.get_current_head()
        if head is not None:
            _apply(connection, scripts)
        context = MigrationContext.configure(connection, opts={"compare_type": True, "target_metadata": metadata})
        changes = produce_migrations(context, metadata).upgrade_ops
        assert changes is not None
        lines = render_python_code(changes, migration_context=context).splitlines()
    engine.dispose()
    stem = package.split(".")[-2] if head is None else head.rpartition("_")[0]
    number = len(list(scripts.walk_revisions())) + 1
    body = "\n".join(line for line in lines if "# ###" not in line)
    previous = "None" if head is None else f'"{head}"'
    return _DRAFT.format(title=title, revision=f"{stem}_{number:04}", previous=previous, body=body.strip())


def _scripts(package: str) -> ScriptDirectory:
    where = import_module(package).__file__
    assert where is not None
    return ScriptDirectory(str(Path(where).parent))


def _head(scripts: ScriptDirectory) -> str:
    head = scripts.get_current_head()
    assert head is not None
    return head


def _found(connection: Connection, scripts: ScriptDirectory) -> str | None:
    """The database's revision, which this software knows; None if it is empty."""
    found = MigrationContext.configure(connection).get_current_revision()
    if found is None:
        if inspect(connection).get_table_names():
            raise DatabaseRefused(
                "the database has tables but no revision: another program made them, or a version before revisions"
            )
        return None
    if found not in {script.revision for script in scripts.walk_revisions()}:
        raise DatabaseRefused(
            f"the database is at revision {found}, which this software does not know; it is at {_head(scripts)}: "
            "a newer version or another service has written the database"
        )
    return found


def _apply(connection: Connection, scripts: ScriptDirectory) -> None:
    """Apply all missing revisions in the connection's transaction."""
    with EnvironmentContext(Config(), scripts, fn=lambda found, _: scripts._upgrade_revs("head", found)) as environment:
        environment.configure(connection=connection, transactional_ddl=True)
        environment.run_migrations()


def _file(engine: Engine) -> Path | None:
    name = engine.url.database
    return Path(name) if engine.dialect.name == "sqlite" and name and name != ":memory:" else None


def _back_up(engine: Engine, head: str) -> Path | None:
    """Copy a SQLite file. The caller's transaction has the write lock and has written nothing: the copy is complete."""
    path = _file(engine)
    if path is None:
        return None
    copy, temporary = path.with_name(f"{path.name}.before-{head}"), path.with_name(f"{path.name}.before-{head}.part")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(temporary)) as target:
            source.backup(target)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(copy)
    return copy
