"""Drafts of studies, kept for the person who writes them, in a file of its own: losing it loses nothing proposed.

A draft has only what its author typed for everybody to read. There are few of them, they are small, and one that nobody
has touched for long is forgotten. They belong to a person's name, so they outlive a session and its token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

from sqlalchemy import Column, ColumnElement, Engine, MetaData, String, Table, Text

from caps.errors import DomainError
from caps.service.database import open_database, reading, sqlite_url
from services.coordinator.authoring.draft import Draft

MOST = 20
"""Drafts of one person."""
MOST_CHARACTERS = 2 << 20
"""Of one draft."""
KEPT = timedelta(days=90)
"""A draft that nobody changed for so long is forgotten."""

_metadata = MetaData()
_table = Table(
    "drafts",
    _metadata,
    Column("draft", String(32), primary_key=True),
    Column("person", String(256), nullable=False, index=True),
    Column("changed", String(32), nullable=False),
    Column("content", Text, nullable=False),
)


@dataclass(frozen=True)
class Kept:
    """A draft as it is listed."""

    draft: str
    title: str
    changed: str
    proposed: str


class Drafts:
    """The drafts of one coordinator. Methods block; each writes in one transaction."""

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._clock = clock

    @cached_property
    def _engine(self) -> Engine:
        return open_database(sqlite_url(self._path), _metadata)

    def new(self, person: str) -> str:
        """Begin a draft: its id. Raises DomainError if the person has too many."""
        identity, now = secrets.token_hex(16), self._clock()
        with self._engine.begin() as db:
            db.execute(_table.delete().where(_table.c.changed < _text(now - KEPT)))
            mine = db.execute(_table.select().where(_table.c.person == person)).all()
            if len(mine) >= MOST:
                raise DomainError(f"you have {MOST} drafts; remove one first")
            row = {"draft": identity, "person": person, "changed": _text(now), "content": Draft().model_dump_json()}
            db.execute(_table.insert().values(row))
        return identity

    def of(self, person: str) -> list[Kept]:
        """A person's drafts, the latest first."""
        fresh = _table.c.changed >= _text(self._clock() - KEPT)
        with reading(self._engine) as db:
            rows = db.execute(_table.select().where((_table.c.person == person) & fresh)).mappings().all()
        found = []
        for row in sorted(rows, key=lambda row: str(row["changed"]), reverse=True):
            content = Draft.model_validate_json(row["content"])
            found.append(Kept(row["draft"], content.title, row["changed"], content.proposed))
        return found

    def find(self, person: str, draft: str) -> Draft | None:
        """A person's draft; None if there is none of this id, or it is another's."""
        with reading(self._engine) as db:
            row = db.execute(_table.select().where(self._is(person, draft))).mappings().one_or_none()
        return None if row is None else Draft.model_validate_json(row["content"])

    def change(self, person: str, draft: str, change: Callable[[Draft], None]) -> Draft | None:
        """Change a draft, or nothing of it if that fails. Raises DomainError if it becomes too long."""
        with self._engine.begin() as db:
            row = db.execute(_table.select().where(self._is(person, draft))).mappings().one_or_none()
            if row is None:
                return None
            found = Draft.model_validate_json(row["content"])
            change(found)
            content = found.model_dump_json()
            if len(content) > MOST_CHARACTERS:
                raise DomainError(
                    f"a draft has at most {MOST_CHARACTERS >> 20} million characters; list fewer categories, or write "
                    "the file by hand: docs/study.md"
                )
            written = {"content": content, "changed": _text(self._clock())}
            db.execute(_table.update().where(self._is(person, draft)).values(written))
        return found

    def remove(self, person: str, draft: str) -> None:
        """Forget a draft."""
        with self._engine.begin() as db:
            db.execute(_table.delete().where(self._is(person, draft)))

    def dispose(self) -> None:
        """Close the file."""
        if "_engine" in self.__dict__:
            self._engine.dispose()

    def _is(self, person: str, draft: str) -> ColumnElement[bool]:
        fresh = _table.c.changed >= _text(self._clock() - KEPT)
        return (_table.c.draft == draft) & (_table.c.person == person) & fresh


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
