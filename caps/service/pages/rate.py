"""A limit on failed attempts to sign in.

A token has 256 random bits, so nobody can guess one: the limit keeps logs and processors free of those who try. A right
token is always let in, so that nobody can lock others out by failing from the same address, such as a proxy's.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Lock
from time import monotonic

from caps.service.quotas import too_many

MOST_FAILURES = 10
WITHIN = 60.0
MOST_ADDRESSES = 1000
"""Addresses that are remembered; the one that failed longest ago is forgotten first."""


class FailureRate:
    """Failures by address, in the last minute."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = Lock()

    def failed(self, address: str) -> None:
        """Count a failure. Raises a problem (429) if there are too many."""
        now = self._clock()
        with self._lock:
            found = self._failures.setdefault(address, deque(maxlen=MOST_FAILURES))
            self._failures.move_to_end(address)
            if len(self._failures) > MOST_ADDRESSES:
                self._failures.popitem(last=False)
            if len(found) == MOST_FAILURES and now - found[0] < WITHIN:
                seconds = int(WITHIN - (now - found[0])) + 1
                raise too_many("too many attempts to sign in failed; wait before the next one", seconds=seconds)
            found.append(now)
