"""Wakes whoever waits for something to be written, in any thread and event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock


class Notifier:
    """Notified by threads, heard by coroutines."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Set the events of all listeners."""
        with self._lock:
            listeners = list(self._listeners)
        for loop, heard in listeners:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(heard.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set at every notification. Clear it before looking, so that nothing is missed."""
        listener = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._listeners.discard(listener)
