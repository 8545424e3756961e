"""What may be in use at the same time: so many in total, and so many for one caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from threading import Lock

from caps.service.problems import Problem
from caps.wire.problems import Kind


def too_many(detail: str, *, seconds: int, **members: object) -> Problem:
    """The problem of a caller that has used up what it may have for now, and when it may ask again."""
    return Problem(Kind.TOO_MANY, detail, headers={"Retry-After": str(seconds)}, **members)


class Slots:
    """Places that are taken and given back, by callers with a key. Safe to use from any thread."""

    def __init__(self, what: str, *, total: int, each: int, seconds: int) -> None:
        """`what` there may be only so many of, in the plural; `seconds` after which a refused caller may ask again."""
        self._what = what
        self._total = total
        self._each = each
        self._seconds = seconds
        self._taken: Counter[Hashable] = Counter()
        self._lock = Lock()

    @contextmanager
    def taken(self, key: Hashable) -> Iterator[None]:
        """Take a place. Raises a problem (429) at once if there is none for this key or none at all."""
        with self._lock:
            if self._taken[key] >= self._each:
                raise self._refusal(f"you have {self._each} {self._what} open, as many as one caller may have")
            if self._taken.total() >= self._total:
                raise self._refusal(f"there are {self._total} {self._what}, as many as this service keeps open")
            self._taken[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]

    def _refusal(self, detail: str) -> Problem:
        return too_many(detail, seconds=self._seconds)
