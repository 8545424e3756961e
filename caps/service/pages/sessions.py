"""Who is signed in to a service's pages: sessions, each of which stands for one of the service's tokens.

The cookie's secret has 256 random bits and is stored only as a digest, in a file of its own: losing it signs everybody
out and loses nothing else. A session ends when it was idle for too long, when it is too old, when its token expires or
is revoked, and when somebody ends it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, MetaData, String, Table

from caps.service.database import open_database, reading, sqlite_url
from caps.service.tokens import Person, Tokens

IDLE = timedelta(minutes=30)
"""A session that nobody used for so long has ended."""
LONGEST = timedelta(hours=10)
"""A session ends after so long, however it is used: a working day."""
MOST = 20
"""Sessions of one token; the next one ends the oldest."""
_TOUCH = timedelta(minutes=1)
"""How exactly it is known when a session was last used: not every look at a page is a write."""

_metadata = MetaData()
_table = Table(
    "sessions",
    _metadata,
    Column("session", String(64), primary_key=True),  # SHA-256 of the secret
    Column("token", String(12), nullable=False),
    Column("opened", String(32), nullable=False),
    Column("seen", String(32), nullable=False),
)


@dataclass(frozen=True)
class Session:
    """Somebody who is signed in. identity: a digest, by which a session can be named. csrf: what forms must repeat."""

    identity: str
    person: Person
    opened: datetime
    seen: datetime
    csrf: str = ""


class Sessions:
    """The sessions of one service. Methods block; each writes in one transaction."""

    def __init__(self, path: Path, tokens: Tokens, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._tokens = tokens
        self._clock = clock

    @cached_property
    def _engine(self) -> Engine:
        return open_database(sqlite_url(self._path), _metadata)

    def open(self, token: str) -> str | None:
        """Sign in with a token: the new session's secret; None if the token is not valid."""
        now = self._clock()
        person = self._tokens.find(token, now)
        if person is None:
            return None
        secret = secrets.token_urlsafe(32)
        row = {"session": _digest(secret), "token": person.token, "opened": _text(now), "seen": _text(now)}
        with self._engine.begin() as db:
            self._sweep(db, now)
            mine = _table.select().where(_table.c.token == person.token).order_by(_table.c.opened)
            for old in db.execute(mine).mappings().all()[: -(MOST - 1)]:
                _forget(db, old["session"])
            db.execute(_table.insert().values(row))
        return secret

    def expired(self, token: str) -> datetime | None:
        """When the token of somebody who cannot sign in expired; None if it is another token."""
        return self._tokens.expired(token, self._clock())

    def find(self, secret: str) -> Session | None:
        """The session of a cookie; None if there is none, or it has ended."""
        now, digest = self._clock(), _digest(secret)
        with reading(self._engine) as db:
            row = db.execute(_table.select().where(_table.c.session == digest)).mappings().one_or_none()
        if row is None:
            return None
        found = self._session(row["session"], row["token"], _time(row["opened"]), _time(row["seen"]), now)
        if found is None:
            self.close(digest)
            return None
        if now - found.seen >= _TOUCH:
            with self._engine.begin() as db:
                db.execute(_table.update().where(_table.c.session == digest).values(seen=_text(now)))
        return Session(digest, found.person, found.opened, now, csrf_of(secret))

    def of(self, person: Person) -> list[Session]:
        """All sessions of a person's token, the latest first."""
        now = self._clock()
        with reading(self._engine) as db:
            rows = db.execute(_table.select().where(_table.c.token == person.token)).mappings().all()
        found = (self._session(r["session"], r["token"], _time(r["opened"]), _time(r["seen"]), now) for r in rows)
        return sorted((one for one in found if one is not None), key=lambda one: one.opened, reverse=True)

    def close(self, identity: str, *, token: str | None = None) -> None:
        """End a session; only one of this token, if it is given."""
        with self._engine.begin() as db:
            named = _table.c.session == identity
            db.execute(_table.delete().where(named if token is None else named & (_table.c.token == token)))

    def dispose(self) -> None:
        """Close the file."""
        if "_engine" in self.__dict__:
            self._engine.dispose()

    def _session(self, digest: str, token: str, opened: datetime, seen: datetime, now: datetime) -> Session | None:
        if now - seen >= IDLE or now - opened >= LONGEST:
            return None
        person = self._tokens.person(token, now)
        return None if person is None else Session(digest, person, opened, seen)

    def _sweep(self, db: Connection, now: datetime) -> None:
        for row in db.execute(_table.select()).mappings().all():
            if self._session(row["session"], row["token"], _time(row["opened"]), _time(row["seen"]), now) is None:
                _forget(db, row["session"])


def csrf_of(secret: str) -> str:
    """What the forms of a session repeat: it follows from the cookie, which no other site can read."""
    return hmac.digest(secret.encode(), b"caps form", "sha256").hex()


def _forget(db: Connection, digest: str) -> None:
    db.execute(_table.delete().where(_table.c.session == digest))


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
