"""Stylesheet and scripts: small, read once, each under a name that changes with its content.

So browsers may keep them for ever, and a page of another version never gets them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

PATH = "/ui/static/{name}"
FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class File:
    """A file as it is sent."""

    content: bytes
    media_type: str


class Static:
    """The files of some folders, by the names they are asked for."""

    def __init__(self, folders: Iterable[Path] = (FOLDER,)) -> None:
        self._files: dict[str, File] = {}
        self._names: dict[str, str] = {}
        for path in (path for folder in folders for path in sorted(folder.rglob("*"))):
            kind = _TYPES.get(path.suffix)
            if kind is None:
                continue
            if path.name in self._names:
                raise TypeError(f"two static files are called {path.name}")
            content = path.read_bytes()
            hashed = f"{path.stem}.{sha256(content).hexdigest()[:16]}{path.suffix}"
            self._names[path.name] = hashed
            self._files[hashed] = File(content, kind)

    def url(self, name: str) -> str:
        """Where a file is. Raises KeyError for one that does not exist: a mistake in a template."""
        return PATH.format(name=self._names[name])

    def text(self, name: str) -> str:
        """A file by its own name, to be put into another."""
        return self._files[self._names[name]].content.decode()

    def find(self, hashed: str) -> File | None:
        """A file by the name in its URL."""
        return self._files.get(hashed)
