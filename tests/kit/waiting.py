"""Waiting for what happens in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(attempt: Callable[[], T], seconds: float = 20.0) -> T:
    """What the attempt gives as soon as it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := attempt()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found
