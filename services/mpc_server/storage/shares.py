"""Shares at rest: encrypted, checksummed, written so that a crash leaves all or nothing, and erased by forgetting keys.

    CAPS_HOME/storage-key              32 bytes that wrap every other key; a copy of the data without it is worthless
    DIRECTORY/contributions/ID/N       chunk N of a contribution's vector
    DIRECTORY/blobs/NAME               small things of runs
    DIRECTORY/temporary/               what a crash may leave half written; emptied at start

Every object is AES-256-GCM under a key of its own or of its study, with its name as associated data, so that files
cannot be exchanged for one another. Wrapped keys stand in the database: once one is gone from there, what it protects
is gone too, and unlinking the files only frees the space. One process owns the directory.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from caps.basics.files import sync_path, write_private
from caps.errors import DomainError, LocalError
from caps.service.migrations import discard_backups
from services.mpc_server.storage import tables

if TYPE_CHECKING:  # a server whose database is SQLite does without
    import psycopg
    from psycopg.errors import Diagnostic

KEY_BYTES = 32
_NONCE_BYTES = 12
_WITH_KEYS = (tables.studies, tables.contributions, tables.pairs)
_WAITS_FOR_SNAPSHOTS = (0.1, 0.2, 0.4, 0.8, 1.6)
_VERSION = b"\x01"
_LABEL = b"caps/v1/at-rest\0"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){0,7}", re.ASCII)

log = logging.getLogger("caps.store")

Hook = Callable[[str], None]
"""Called with the name of each durable operation just before it; tests stop the process there."""


def encrypt(key: bytes, name: str, data: bytes | bytearray | memoryview) -> bytes:
    """An object as it rests: version, random nonce, AES-256-GCM with the object's name as associated data."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _VERSION + nonce + AESGCM(key).encrypt(nonce, data, _LABEL + name.encode())


def decrypt(key: bytes, name: str, data: bytes) -> bytes:
    """The inverse. Raises LocalError if a bit was changed, or if this is another object or key."""
    nonce, content = memoryview(data)[1 : 1 + _NONCE_BYTES], memoryview(data)[1 + _NONCE_BYTES :]
    try:
        if data[:1] != _VERSION or len(nonce) != _NONCE_BYTES:
            raise InvalidTag
        return AESGCM(key).decrypt(bytes(nonce), content, _LABEL + name.encode())
    except InvalidTag:
        raise LocalError(f"{name}: altered on disk, or encrypted with another key") from None


class Vault:
    """Wraps the keys of objects with the site's storage key, which is made on first use."""

    def __init__(self, home: Path) -> None:
        path = home / "storage-key"
        if not path.exists():
            _create_key(path)
        for other in home.glob(f".{path.name}.*"):  # a second name of the key, if a crash left one
            other.unlink(missing_ok=True)
        self._key = path.read_bytes()
        if len(self._key) != KEY_BYTES:
            raise LocalError(f"{path}: a storage key must have {KEY_BYTES} bytes; restore the key from its backup")

    def wrap(self, name: str, key: bytes) -> bytes:
        """A key as the database may hold it; `name` says what it is for."""
        return encrypt(self._key, f"key/{name}", key)

    def unwrap(self, name: str, wrapped: bytes) -> bytes:
        """The key. Raises LocalError if it was altered or wrapped for something else."""
        return decrypt(self._key, f"key/{name}", wrapped)


def new_key() -> bytes:
    """A fresh key for an object."""
    return secrets.token_bytes(KEY_BYTES)


def _create_key(path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_private(temporary, new_key())
    try:
        os.link(temporary, path)  # unlike a rename, this never replaces the key of a process that was first
    except (FileExistsError, FileNotFoundError):  # the other process may also have tidied up
        pass
    finally:
        temporary.unlink(missing_ok=True)
    sync_path(path.parent)


class ShareStore:
    """The files of one server. Every method is safe to call from any thread."""

    def __init__(self, directory: Path, vault: Vault, *, before: Hook = lambda _: None) -> None:
        self.vault = vault
        self._before = before
        self._chunks, self._blobs = directory / "contributions", directory / "blobs"
        self._temporary = directory / "temporary"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.rmtree(self._temporary, ignore_errors=True)
        for folder in (self._chunks, self._blobs, self._temporary):
            folder.mkdir(exist_ok=True, mode=0o700)
        sync_path(directory)
        self._locks: dict[str, tuple[threading.RLock, list[None]]] = {}
        self._registry = threading.Lock()

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """One thread at a time for one object. Held only around transactions, never asked for within one."""
        with self._registry:
            lock, waiting = self._locks.setdefault(name, (threading.RLock(), []))
            waiting.append(None)
        try:
            with lock:
                yield
        finally:
            with self._registry:
                waiting.pop()
                if not waiting:
                    del self._locks[name]

    def put_chunk(self, contribution: str, number: int, key: bytes, data: bytes | bytearray) -> str:
        """Write a chunk of a contribution, replacing an earlier one. Returns the checksum to keep."""
        name = _chunk_name(contribution, number)
        content = encrypt(key, name, data)
        self._write(self._chunk_path(contribution, number), content)
        return sha256(content).hexdigest()

    def get_chunk(self, contribution: str, number: int, key: bytes, checksum: str) -> bytes:
        """A chunk, verified. Raises LocalError, with contribution and chunk, if it is not as it was written."""
        where = f"contribution {contribution}, chunk {number}"
        try:
            content = self._chunk_path(contribution, number).read_bytes()
        except FileNotFoundError:
            raise LocalError(f"{where}: missing on disk") from None
        if not hmac.compare_digest(sha256(content).hexdigest(), checksum):
            raise LocalError(f"{where}: altered on disk")
        try:
            return decrypt(key, _chunk_name(contribution, number), content)
        except LocalError:
            raise LocalError(f"{where}: encrypted with another key") from None

    def erase_chunks(self, contribution: str) -> None:
        """Unlink all chunks of a contribution, if there are any."""
        self._remove(self._chunks / _checked(contribution))

    def contributions(self) -> list[str]:
        """Every contribution with files here."""
        return sorted(path.name for path in self._chunks.iterdir())

    def put(self, name: str, key: bytes, data: bytes) -> None:
        """Write a blob, replacing an earlier one. A name has parts, as in `STUDY/RUN/counts`."""
        self._write(self._blobs / _checked(name), encrypt(key, f"blob/{name}", data))

    def get(self, name: str, key: bytes) -> bytes:
        """A blob, verified. Raises LocalError with its name if it is not there or was altered."""
        try:
            content = (self._blobs / _checked(name)).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LocalError(f"blob/{name}: missing on disk") from None
        return decrypt(key, f"blob/{name}", content)

    def erase(self, name: str) -> None:
        """Unlink a blob, or all blobs whose names begin with these parts, if there are any."""
        self._remove(self._blobs / _checked(name))

    def _chunk_path(self, contribution: str, number: int) -> Path:
        return self._chunks / _checked(contribution) / str(number)

    def _write(self, path: Path, content: bytes) -> None:
        self._make(path.parent)
        temporary = self._temporary / secrets.token_hex(16)
        self._before(f"write {path.name}")
        try:
            write_private(temporary, content)
            self._before(f"rename {path.name}")
            temporary.replace(path)
        except OSError:  # a full disk must not fill up even more
            temporary.unlink(missing_ok=True)
            raise
        self._before(f"sync {path.parent.name}")
        sync_path(path.parent)

    def _make(self, folder: Path) -> None:
        if folder.exists():
            return
        self._make(folder.parent)
        self._before(f"mkdir {folder.name}")
        folder.mkdir(exist_ok=True, mode=0o700)
        sync_path(folder.parent)

    def _remove(self, path: Path) -> None:
        if path.exists():
            self._unlink(path)
            sync_path(path.parent)

    def _unlink(self, path: Path) -> None:
        if path.is_dir():
            for inner in sorted(path.iterdir()):
                self._unlink(inner)
            self._before(f"rmdir {path.name}")
            path.rmdir()
        else:
            self._before(f"unlink {path.name}")
            path.unlink()


class StoredVector:
    """A vector in chunks of a store, read where it is needed."""

    def __init__(
        self, store: ShareStore, contribution: str, key: bytes, checksums: Mapping[int, str], chunk_bytes: int
    ) -> None:
        self.contribution = contribution
        self._store = store
        self._key = key
        self._checksums = checksums
        self._chunk_bytes = chunk_bytes
        self._last: tuple[int, bytes] | None = None

    def chunks(self) -> Iterator[bytes]:
        """All of it, chunk by chunk. Raises LocalError if one is not as it was written."""
        return map(self._chunk, self._checksums)

    def octets(self, start: int, stop: int) -> bytes:
        """Some of its bytes. Raises LocalError if they are not as they were written."""
        pieces = []
        for number in range(start // self._chunk_bytes, -(-stop // self._chunk_bytes)):
            if self._last is None or self._last[0] != number:
                self._last = number, self._chunk(number)
            first = number * self._chunk_bytes
            pieces.append(self._last[1][max(start - first, 0) : stop - first])
        found = b"".join(pieces)
        if len(found) != stop - start:
            raise LocalError(f"contribution {self.contribution}: shorter on disk than it should be")
        return found

    def _chunk(self, number: int) -> bytes:
        if number not in self._checksums:
            raise LocalError(f"contribution {self.contribution}, chunk {number}: missing")
        return self._store.get_chunk(self.contribution, number, self._key, self._checksums[number])


def forgotten(database: Engine) -> None:
    """After a transaction that dropped keys: remove what is left of them where the database is kept.

    SQLite overwrites what it deletes; its write-ahead log is emptied here, and copies from before a migration go too.
    PostgreSQL keeps old versions of rows: the tables are written anew without them, again if somebody could still see
    them. Its own write-ahead log, replicas and back-ups still hold wrapped keys until they are recycled, and are
    worthless without the storage key.
    """
    if database.dialect.name == "sqlite":
        discard_backups(database)
        connection = database.raw_connection()
        try:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
        return
    try:
        with database.connect().execution_options(isolation_level="AUTOCOMMIT") as autocommit:
            left = [table.name for table in _WITH_KEYS if not _written_anew(autocommit, table.name)]
    except DBAPIError as error:
        _warn_of_old_rows(type(error.orig).__name__)
    else:
        if left:
            _warn_of_old_rows(f"a transaction that began before still sees those of {', '.join(left)}")


def _written_anew(autocommit: Connection, table: str) -> bool:
    """PostgreSQL copies dead rows too while any snapshot is older than their death, and says how many it copied.

    Such snapshots are mostly those of autovacuum's statistics, over in a moment.
    """
    for wait in (*_WAITS_FOR_SNAPSHOTS, None):
        copied = 0

        def count(notice: Diagnostic) -> None:
            nonlocal copied
            # "3 dead row versions cannot be removed yet.", in whatever language the database speaks
            found = re.search(r"\d+", notice.message_detail or "")
            copied += int(found.group()) if found else 0

        driver: psycopg.Connection[tuple[object, ...]] = autocommit.connection.driver_connection  # type: ignore[assignment]
        driver.add_notice_handler(count)
        try:
            autocommit.exec_driver_sql(f"VACUUM (FULL, VERBOSE) {table}")
        finally:
            driver.remove_notice_handler(count)
        if not copied:
            return True
        if wait is not None:
            time.sleep(wait)
    return False


def _warn_of_old_rows(reason: str) -> None:
    """The keys are forgotten; the tables are written anew with the next sweep."""
    log.warning(json.dumps({"event": "old rows are still on PostgreSQL's disk", "reason": reason}))


def _chunk_name(contribution: str, number: int) -> str:
    return f"contribution/{contribution}/chunk/{number}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise DomainError("the name of a stored object may have only letters, digits and slashes")
    return name
