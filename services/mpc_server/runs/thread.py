"""The engine's thread: an event loop of its own, so that a long computation never holds up the REST interface."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

from caps.service.supervision import Supervisor

T = TypeVar("T")


class EngineThread:
    """Runs coroutines for other threads."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._loop = uvloop.new_event_loop()
        self._supervisor = supervisor
        self._thread: threading.Thread | None = None
        self._tasks: set[Future[Any]] = set()

    def start(self) -> None:
        """Begin."""
        self._supervisor.take_over(self._loop)
        self._thread = self._supervisor.thread("engine", self._run)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the engine's thread. The future may be waited for from any thread."""
        future = self._supervisor.submit("engine", work, self._loop)
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)
        return future

    def stop(self) -> None:
        """Cancel what is running, and stop the thread."""
        for task in list(self._tasks):
            task.cancel()
        with suppress(RuntimeError):  # already stopped
            self._supervisor.submit("engine", self._drain(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join(10)

    async def _drain(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()
