"""Waiting for what happens in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 200.0
"""Seconds to wait for what is sure to come. A machine with much else to do takes long; only a failure takes all."""
T = TypeVar("T")


def until(attempt: Callable[[], T], seconds: float = PATIENCE) -> T:
    """What the attempt gives as soon as it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := attempt()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found
