"""Whether a service's disk has room: an error that says it has none, and the reason why the service is not ready."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.exc import DBAPIError

LEAST_ROOM = 16 << 20
"""Bytes below which a disk counts as full: the database needs some to go on, even to forget something."""
_TRIED = 1 << 20
_TRY_EVERY = 5.0
"""Seconds between two attempts to write, whoever asks how often."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DISK_FULL = "53100"
"""What PostgreSQL calls it."""


def is_full(error: BaseException) -> bool:
    """Whether a disk, or a quota on it, had no room left."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    if not isinstance(error, DBAPIError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", None)
    return getattr(error.orig, "sqlstate", None) == _DISK_FULL or (
        code is not None and code & 0xFF == sqlite3.SQLITE_FULL
    )


class DiskRoom:
    """The room below CAPS_STATE. After a write that failed it counts as full until a write succeeds again.

    Free space alone does not tell: a quota may be used up, or the database may be on another machine.
    """

    def __init__(self, state: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._state = state
        self._monotonic = monotonic
        self._failed = False
        self._tried = 0.0

    def failed(self) -> None:
        """Note that a write failed for want of room."""
        self._failed = True
        self._tried = self._monotonic()

    def reasons(self) -> list[str]:
        """Why the service is not ready; empty if there is room."""
        found = os.statvfs(self._state)
        free = found.f_bavail * found.f_frsize
        if free < LEAST_ROOM:
            return [f"the disk of CAPS_STATE is full: {free >> 20} MiB are free, and {LEAST_ROOM >> 20} are needed"]
        if self._failed and self._monotonic() - self._tried >= _TRY_EVERY:
            self._tried = self._monotonic()
            self._failed = not self._writes()
        return ["a write failed because a disk or a quota is full: see the log, and free some space"] * self._failed

    def _writes(self) -> bool:
        path = self._state / f".room-{secrets.token_hex(4)}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _TRIED)
            finally:
                os.close(descriptor)
                path.unlink()
        except OSError:
            return False
        return True
