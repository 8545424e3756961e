"""Background work that nobody waits for never ends unnoticed: every thread and task of a service is started here.

An unexpected error is logged by its kind and place, without its text, which may quote data; it is counted; and the work
is taken up again after a pause. Errors that the work itself expects, it handles itself. A task that somebody waits for
is not repeated: whoever waits gets the error.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from caps.basics.retry import Backoff, Retries
from caps.errors import CapsError
from caps.service import logs

if TYPE_CHECKING:
    from caps.service.metrics import Metrics

AGAIN = Backoff(first=1.0, longest=60.0)
"""Pauses before work is taken up again that an unexpected error interrupted."""

log = logging.getLogger("caps.supervisor")
T = TypeVar("T")


class Supervisor:
    """Starts the background work of one service. `work` is a short fixed name: it labels a metric."""

    def __init__(self, metrics: Metrics | None = None, *, backoff: Backoff = AGAIN) -> None:
        self._metrics = metrics
        self._backoff = backoff

    def notice(self, work: str, error: BaseException) -> None:
        """Log and count an unexpected error."""
        kind = type(error).__name__
        logs.say(log, "unexpected error", level=logging.ERROR, work=work, error=kind, where=logs.frames(error))
        if self._metrics is not None:
            self._metrics.count("caps_unexpected_errors", work=work, error=kind)

    def thread(
        self,
        work: str,
        target: Callable[[], None],
        *,
        name: str | None = None,
        stopping: threading.Event | None = None,
    ) -> threading.Thread:
        """Do this in a thread, in the present context, and again after an unexpected error until `stopping` is set."""
        stop = stopping or threading.Event()

        def repeat() -> None:
            retries = self._backoff.begin()
            while True:
                begun = monotonic()
                try:
                    return target()
                except Exception as error:  # noqa: BLE001  says where, never what
                    self.notice(work, error)
                if stop.wait(self._pause(retries, begun)):
                    return None

        thread = threading.Thread(target=copy_context().run, args=(repeat,), name=name or work, daemon=True)
        thread.start()
        return thread

    async def keep(self, work: str, target: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do this, and again after an unexpected error, until it returns or is cancelled."""
        retries = self._backoff.begin()
        while True:
            begun = monotonic()
            try:
                return await target()
            except Exception as error:  # noqa: BLE001  says where, never what
                self.notice(work, error)
            await asyncio.sleep(self._pause(retries, begun))

    def _pause(self, retries: Retries, begun: float) -> float:
        """Seconds until the next attempt; work that went well for long enough has them counted anew."""
        if monotonic() - begun > self._backoff.longest:
            retries.reset()
        return retries.pause()

    def task(self, work: str, target: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this once, in a task. An unexpected error is noticed even if nobody waits for the task any more."""
        task = asyncio.get_running_loop().create_task(target, name=work)
        task.add_done_callback(partial(self._on_done, work))
        return task

    def submit(self, work: str, target: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
        """The same in another thread's event loop. The future may be waited for from any thread."""
        future = asyncio.run_coroutine_threadsafe(target, loop)
        future.add_done_callback(partial(self._on_done, work))
        return future

    def _on_done(self, work: str, done: asyncio.Task[T] | Future[T]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None and not isinstance(error, CapsError):
            self.notice(work, error)

    def take_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Notice what an event loop finds that nobody else handles, such as an error in a protocol's callback."""

        def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, Exception) and not isinstance(error, OSError):  # a connection may be lost at any time
                self.notice("event loop", error)

        loop.set_exception_handler(handle)
