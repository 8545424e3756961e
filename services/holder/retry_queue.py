"""Work in the background that is tried again until it is done, one thread for each task."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable, Iterable
from contextvars import copy_context
from time import monotonic

from caps.basics.retry import Backoff
from caps.service import logs

log = logging.getLogger("caps.holder")

BACKOFF = Backoff(first=0.5, longest=60.0)
"""Between attempts at a task, without end."""


class TryLater(Exception):
    """The task cannot be done at the moment; `asked` is the seconds that the other party wants us to wait, if any."""

    def __init__(self, asked: float | None = None) -> None:
        super().__init__()
        self.asked = asked


class Stopped(Exception):
    """The service ends; the task is taken up again at the next start."""


class RetryQueue:
    """Tasks by key. What they are about is durable elsewhere: this knows only which ones are under way."""

    def __init__(
        self,
        backoff: Backoff = BACKOFF,
        *,
        put_off: Callable[[Hashable], None] = lambda _: None,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`put_off` is told of each attempt that failed; `wait` sleeps until a nudge comes or the seconds are over."""
        self._backoff = backoff
        self._put_off = put_off
        self._wait = wait
        self._lock = threading.Lock()
        self._nudges: dict[Hashable, threading.Event] = {}
        self._threads: dict[Hashable, threading.Thread] = {}
        self._stopping = False

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do this in a thread. A task that is under way ends its pause, and looks once more before it ends."""
        with self._lock:
            if self._stopping:
                return
            if key in self._nudges:
                self._nudges[key].set()
                return
            self._nudges[key] = threading.Event()
            with logs.bound(request_id=logs.request_id() or logs.new_id()):  # of whoever asked for it
                target = copy_context().run
            thread = threading.Thread(target=target, args=(self._run, key, work), name=f"task-{key}", daemon=True)
            self._threads[key] = thread
            thread.start()

    def check(self) -> None:
        """Raises Stopped when the service ends; to be called between the parts of long work."""
        if self._stopping:
            raise Stopped

    def wait(self, keys: Iterable[Hashable], seconds: float) -> None:
        """Until these tasks are done, but not longer."""
        until = monotonic() + seconds
        for key in keys:
            thread = self._threads.get(key)
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))

    def stop(self) -> None:
        """End all tasks where they are."""
        with self._lock:
            self._stopping = True
            for nudge in self._nudges.values():
                nudge.set()
        for thread in list(self._threads.values()):
            thread.join(10)

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        nudge, retries = self._nudges[key], self._backoff.begin()
        while not self._stopping:
            nudge.clear()
            try:
                work()
            except Stopped:
                break
            except TryLater as later:
                self._put_off(key)
                self._wait(nudge, retries.pause(asked=later.asked))
                continue
            except Exception as error:  # noqa: BLE001  says where, never what: its text may quote anything
                log.error(json.dumps({"task": str(key), "error": type(error).__name__}))
                self._wait(nudge, self._backoff.longest)
                continue
            with self._lock:  # so that no nudge falls between the last look and the end
                if not nudge.is_set():
                    del self._nudges[key], self._threads[key]
                    return
