"""Files that only their owner may read, and that are surely there, or gone, after a crash.

Erasing means unlinking. Overwriting first would be a gesture: file systems and disks write elsewhere and keep the old
blocks. Whoever must be sure encrypts the disk and destroys its key.
"""

from __future__ import annotations

import os
import shutil
from hashlib import file_digest
from pathlib import Path


def private_directory(path: Path) -> Path:
    """The directory, made if need be, that nobody else may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """A new file, on the disk when this returns."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Make a file's content durable, or the names that were added to a directory or removed from it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def erase(path: Path) -> None:
    """Unlink a file or a directory, durably. What is not there is erased already."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    sync_path(path.parent)
