"""A cache of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most so many things by key; the one that was not used for longest gives way. For any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()
        self._making = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: K) -> V | None:
        """What is kept under the key."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: K, value: V) -> V:
        """Keep a value, in place of any other under the key; returns it."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value

    def obtain(self, key: K, make: Callable[[], V]) -> V:
        """What is kept under the key, or is made and kept now. What many threads ask for at once is made once."""
        if (found := self.find(key)) is not None:
            return found
        with self._making:
            found = self.find(key)
            return self.keep(key, make()) if found is None else found
