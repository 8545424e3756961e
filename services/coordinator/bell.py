"""Wakes those who wait for something to be written, in whichever thread and loop they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock


class Bell:
    """Rung by threads, heard by coroutines."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ears: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def ring(self) -> None:
        """Set the events of all who listen."""
        with self._lock:
            ears = list(self._ears)
        for loop, heard in ears:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(heard.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever the bell rings. Clear it before looking, and nothing is missed."""
        ear = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._ears.add(ear)
        try:
            yield ear[1]
        finally:
            with self._lock:
                self._ears.discard(ear)
