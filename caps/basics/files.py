"""Files that only their owner can read, and whose creation and removal survive a crash.

Erasing means unlinking. Overwriting first would be pointless: file systems and disks write elsewhere and keep the old
blocks. To be sure, encrypt the disk and destroy its key.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from hashlib import file_digest
from pathlib import Path


def private_directory(path: Path) -> Path:
    """Creates the directory if needed, and makes it accessible to its owner only."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Writes a new file, which is on disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_private(path: Path, data: bytes) -> None:
    """Replaces a file at once: a reader sees the old content or the new. A file that was there keeps its mode."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    write_private(draft, data)
    if path.exists():
        kept = path.stat()
        if (kept.st_uid, kept.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(draft, kept.st_uid, kept.st_gid)
        draft.chmod(stat.S_IMODE(kept.st_mode))
    draft.replace(path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Makes a file's content durable, or a directory's added and removed names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def held_alone(path: Path) -> int | None:
    """Locks a file until the descriptor is closed, or the process ends; None if another has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def erase(path: Path) -> None:
    """Unlinks a file or a directory durably; does nothing if it does not exist."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    sync_path(path.parent)
