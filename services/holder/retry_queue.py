"""Background work that is retried until it is done, with one thread for each task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from time import monotonic

from caps.basics.retry import Backoff
from caps.service import logs
from caps.service.supervision import Supervisor

BACKOFF = Backoff(first=0.5, longest=60.0)
"""Pauses between attempts at a task, which go on without end."""


class TryLater(Exception):
    """The task cannot be done at the moment; `asked` is the seconds that the other party asked us to wait, if any."""

    def __init__(self, asked: float | None = None) -> None:
        super().__init__()
        self.asked = asked


class Stopped(Exception):
    """The service is stopping; the task resumes at the next start."""


class RetryQueue:
    """Tasks by key. Their subject is stored durably elsewhere; the queue knows only which tasks are under way."""

    def __init__(
        self,
        backoff: Backoff = BACKOFF,
        *,
        put_off: Callable[[Hashable], None] = lambda _: None,
        supervisor: Supervisor | None = None,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`put_off` is told of each failed attempt; `wait` sleeps until a nudge comes or the time is up."""
        self._backoff = backoff
        self._put_off = put_off
        self._supervisor = supervisor or Supervisor()
        self._wait = wait
        self._lock = threading.Lock()
        self._nudges: dict[Hashable, threading.Event] = {}
        self._threads: dict[Hashable, threading.Thread] = {}
        self._stop = threading.Event()

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do this in a thread. A task already under way cuts its pause short, and runs once more before it ends."""
        with self._lock:
            if self._stop.is_set():
                return
            if key in self._nudges:
                self._nudges[key].set()
                return
            self._nudges[key] = threading.Event()
            with logs.bound(request_id=logs.request_id() or logs.new_id()):  # the request id of whoever asked for it
                self._threads[key] = self._supervisor.thread(
                    "retry queue", partial(self._run, key, work), name=f"task-{key}", stopping=self._stop
                )

    def check(self) -> None:
        """Raise Stopped if the service is stopping; to be called between the parts of long work."""
        if self._stop.is_set():
            raise Stopped

    def wait(self, keys: Iterable[Hashable], seconds: float) -> None:
        """Wait until these tasks are done, for at most so many seconds."""
        until = monotonic() + seconds
        for key in keys:
            thread = self._threads.get(key)
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))

    def stop(self) -> None:
        """Stop all tasks where they are."""
        with self._lock:
            self._stop.set()
            for nudge in self._nudges.values():
                nudge.set()
        for thread in list(self._threads.values()):
            thread.join(10)

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        nudge, retries = self._nudges[key], self._backoff.begin()
        while not self._stop.is_set():
            nudge.clear()
            try:
                work()
            except Stopped:
                break
            except TryLater as later:
                self._put_off(key)
                self._wait(nudge, retries.pause(asked=later.asked))
                continue
            except Exception as error:  # noqa: BLE001  says where, never what: the text may quote data
                self._supervisor.notice("retry queue", error)
                self._wait(nudge, self._backoff.longest)
                continue
            with self._lock:  # so that no nudge is lost between the last run and the end
                if not nudge.is_set():
                    del self._nudges[key], self._threads[key]
                    return
