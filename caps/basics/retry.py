"""How long to wait before the next attempt: one policy for every loop, exponential, jittered and capped.

Only the arithmetic is shared, without a library: these loops wait on events, in threads and coroutines, and start over
after progress, whereas tenacity and stamina take over the call and draw their jitter from `random`.

    retries = Backoff(first=0.5, longest=30.0).begin()
    while not done():
        sleep(retries.pause())
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import SystemRandom

LONGEST_ASKED = 60.0
"""The most seconds that another party can make us wait. If it states more, we ask again after these."""
_JITTER = 0.5
"""The random share of a pause, so that parties that failed together do not come back together."""
_random: Callable[[], float] = SystemRandom().random


@dataclass(frozen=True)
class Backoff:
    """Pauses in seconds: the first, doubled after each failure in a row, up to the longest.

    attempts: the number of failures in a row after which to give up; None for never.
    """

    first: float
    longest: float
    attempts: int | None = None

    def begin(self, *, random: Callable[[], float] = _random) -> Retries:
        """A new count of failures, beginning at none."""
        return Retries(self, random)

    def after(self, failures: int, *, asked: float | None = None, random: Callable[[], float] = _random) -> float:
        """Seconds to wait after this many failures in a row.

        asked: what the other party stated (Retry-After). It overrides the policy, within the first pause and
        LONGEST_ASKED.
        """
        if asked is not None:
            return max(self.first, min(asked, LONGEST_ASKED))
        pause = min(self.first * 2.0 ** min(failures - 1, 64), self.longest)
        return pause * (1.0 - _JITTER * random())


class Retries:
    """Counts failures in a row. Call `reset` after progress."""

    def __init__(self, policy: Backoff, random: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random
        self.failures = 0

    @property
    def exhausted(self) -> bool:
        """Whether one more failure is the last."""
        return self._policy.attempts is not None and self.failures + 1 >= self._policy.attempts

    def pause(self, *, asked: float | None = None) -> float:
        """Count one more failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        return self._policy.after(self.failures, asked=asked, random=self._random)

    def reset(self) -> None:
        """Start again with the first pause."""
        self.failures = 0
