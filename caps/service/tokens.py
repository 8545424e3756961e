"""Bearer tokens for people: scoped, expiring, stored only as digests.

A token is `caps_<id>_<secret>`; the secret has 256 random bits, so its plain SHA-256 is safe to store. The file is read
again whenever it changes, so a token can be revoked while a service runs.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from pathlib import Path

from caps.basics.files import sync_path, write_private
from caps.errors import DomainError

_TOKEN = re.compile(r"caps_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)


class Scope(StrEnum):
    """What a person may do: an owner with its tables, an analyst with releases, an operator, an auditor."""

    OWNER = "owner"
    ANALYST = "analyst"
    OPERATOR = "operator"
    AUDITOR = "auditor"


@dataclass(frozen=True)
class Person:
    """The person that a token belongs to. token: its id, which is not secret."""

    name: str
    scopes: frozenset[Scope]
    token: str = ""


class Tokens:
    """The tokens of one service, in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._records: dict[str, dict[str, object]] = {}

    def create(self, name: str, scopes: Collection[Scope], *, expires: datetime) -> str:
        """Creates a token and returns it; it cannot be shown again."""
        if not scopes or not name or expires.tzinfo is None:
            raise DomainError("a token must have a name, scopes and an expiry time with a timezone")
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        record: dict[str, object] = {
            "name": name,
            "scopes": sorted(set(scopes)),
            "expires": expires.isoformat(),
            "sha256": sha256(secret.encode()).hexdigest(),
        }
        with self._alone():
            self._write(self._records | {identity: record})
        return f"caps_{identity}_{secret}"

    def revoke(self, identity: str) -> None:
        """Removes a token. Raises DomainError if there is no token with this id."""
        with self._alone():
            if identity not in self._records:
                raise DomainError(f"there is no token {identity}")
            self._write({key: record for key, record in self._records.items() if key != identity})

    def listed(self) -> dict[str, dict[str, object]]:
        """Name, scopes and expiry of each token, by id."""
        self._load()
        return {
            identity: {key: value for key, value in record.items() if key != "sha256"}
            for identity, record in self._records.items()
        }

    def find(self, token: str, now: datetime) -> Person | None:
        """The person that a token belongs to; None if it is unknown, altered or expired."""
        found = self._genuine(token)
        return None if found is None else _person(*found, now)

    def expired(self, token: str, now: datetime) -> datetime | None:
        """When a token expired: for whoever has it, and nobody else. None if it is unknown, altered or valid."""
        found = self._genuine(token)
        end = None if found is None else _end(found[1])
        return end if end is not None and end <= now else None

    def _genuine(self, token: str) -> tuple[str, dict[str, object]] | None:
        """The id and the record of a token that was made here, whether or not it is still valid."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        self._load()
        record = self._records.get(match[1])
        digest = sha256(match[2].encode()).hexdigest()
        if record is None or not hmac.compare_digest(digest, str(record["sha256"])):
            return None
        return match[1], record

    def person(self, identity: str, now: datetime) -> Person | None:
        """The person of a token that was shown before, by its id; None if it was revoked since, or has expired."""
        self._load()
        record = self._records.get(identity)
        return None if record is None else _person(identity, record, now)

    def _load(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._records = None, {}
            return
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp != self._stamp:
            try:
                self._records = json.loads(self._path.read_bytes())
            except ValueError:
                raise DomainError(f"{self._path}: not valid JSON") from None
            self._stamp = stamp

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Locks the file, which the command and a service may change at the same time."""
        descriptor = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._load()
            yield
        finally:
            os.close(descriptor)

    def _write(self, records: dict[str, dict[str, object]]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        write_private(temporary, json.dumps(records, indent=1).encode())
        temporary.replace(self._path)
        sync_path(self._path.parent)
        self._load()


def _end(record: dict[str, object]) -> datetime:
    return datetime.fromisoformat(str(record["expires"]))


def _person(identity: str, record: dict[str, object], now: datetime) -> Person | None:
    if _end(record) <= now:
        return None
    scopes = record["scopes"]
    assert isinstance(scopes, list)
    return Person(str(record["name"]), frozenset(map(Scope, scopes)), identity)
