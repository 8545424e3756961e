"""Bounds on what anybody may cause, such as connections: so many in all, and so many for each origin.

When there are too many, one gives way: the oldest of the origin that has more than its share or, if none has, of the
origin that has most. So whoever comes gets in, and one origin cannot shut out the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)


class Crowd(Generic[M]):
    """Members by origin, in the order in which they came. `busy` members do not give way."""

    def __init__(self, most: int, each: int, *, busy: Callable[[M], bool] = lambda _: False) -> None:
        self._most = most
        self._each = each
        self._busy = busy
        self._origins: dict[Hashable, dict[M, None]] = {}
        self._origin_of: dict[M, Hashable] = {}

    def __len__(self) -> int:
        return len(self._origin_of)

    @property
    def full(self) -> bool:
        """Whether somebody has to go for the next one, wherever it comes from."""
        return len(self) >= self._most

    def largest(self) -> int:
        """The most members that any origin has."""
        return max(map(len, self._origins.values()), default=0)

    def enter(self, member: M, origin: Hashable) -> M | None:
        """Take in one more. Returns who has to go for it, if anybody: the newcomer itself, if all others are busy."""
        here = self._origins.setdefault(origin, {})
        here[member] = None
        self._origin_of[member] = origin
        if len(here) <= self._each:
            if len(self) <= self._most:
                return None
            here = max(self._origins.values(), key=len)
        gone = next((one for one in here if not self._busy(one)), member)
        self.leave(gone)
        return gone

    def leave(self, member: M) -> None:
        """Forget a member, if it is one."""
        origin = self._origin_of.pop(member, None)
        if origin is None:
            return
        here = self._origins[origin]
        del here[member]
        if not here:
            del self._origins[origin]
