"""How large a table may be that somebody sends: what a file may contain, and what it may unfold to."""

from __future__ import annotations

from dataclasses import dataclass

from caps.errors import DomainError

ALWAYS = 128 << 20
"""Any file may unfold to this many bytes: short files of equal rows do, without any ill will."""


@dataclass(frozen=True)
class Limits:
    """The largest table that is read. `bytes` bounds the file and, for packed formats, what it unfolds to."""

    rows: int = 100_000_000
    bytes: int = 16 << 30
    field: int = 1 << 16
    """The most bytes in one field."""
    columns: int = 4096
    """The most columns, also of those that are ignored."""
    expansion: int = 1000
    """A packed file may unfold to this many times its size, and to `ALWAYS`."""


class Unfolding:
    """A running bound on what a packed file unfolds to: each part is counted before it is unfolded."""

    def __init__(self, size: int, limits: Limits) -> None:
        self._most = min(limits.bytes, max(ALWAYS, limits.expansion * size))
        self._size = size
        self._total = 0

    def add(self, size: int) -> None:
        """Count a part. Raises DomainError if the file would unfold to too much."""
        self._total += size
        if size < 0 or self._total > self._most:
            raise DomainError(f"the file of {self._size} bytes unfolds to more than the {self._most} that are allowed")
