"""Work in the background that is tried again until it is done, one thread for each errand."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import copy_context
from time import monotonic

from caps.service import logs

log = logging.getLogger("caps.holder")

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between attempts; the last one again and again."""


class TryLater(Exception):
    """The errand cannot be done now."""


class Stopped(Exception):
    """The service ends; the errand is taken up again at the next start."""


class Errands:
    """Errands by key. What they are about is durable elsewhere: here is only who is on the way."""

    def __init__(
        self, pauses: Sequence[float] = PAUSES, *, put_off: Callable[[Hashable], None] = lambda _: None
    ) -> None:
        """`put_off` is told of each attempt that failed."""
        self._pauses = pauses
        self._put_off = put_off
        self._lock = threading.Lock()
        self._nudges: dict[Hashable, threading.Event] = {}
        self._threads: dict[Hashable, threading.Thread] = {}
        self._stopping = False

    def start(self, key: Hashable, work: Callable[[], None]) -> None:
        """Do this in a thread. An errand that is on the way does not pause, and looks once more before it ends."""
        with self._lock:
            if self._stopping:
                return
            if key in self._nudges:
                self._nudges[key].set()
                return
            self._nudges[key] = threading.Event()
            with logs.bound(request_id=logs.request_id() or logs.new_id()):  # of whoever gave the errand
                target = copy_context().run
            thread = threading.Thread(target=target, args=(self._run, key, work), name=f"errand-{key}", daemon=True)
            self._threads[key] = thread
            thread.start()

    def check(self) -> None:
        """Raises Stopped when the service ends; to be called between the parts of long work."""
        if self._stopping:
            raise Stopped

    def wait(self, keys: Iterable[Hashable], seconds: float) -> None:
        """Until these errands are done, but not longer."""
        until = monotonic() + seconds
        for key in keys:
            thread = self._threads.get(key)
            if thread is not None:
                thread.join(max(0.0, until - monotonic()))

    def stop(self) -> None:
        """End all errands where they are."""
        with self._lock:
            self._stopping = True
            for nudge in self._nudges.values():
                nudge.set()
        for thread in list(self._threads.values()):
            thread.join(10)

    def _run(self, key: Hashable, work: Callable[[], None]) -> None:
        nudge, failures = self._nudges[key], 0
        while not self._stopping:
            nudge.clear()
            try:
                work()
            except Stopped:
                break
            except TryLater:
                self._put_off(key)
                nudge.wait(self._pauses[min(failures, len(self._pauses) - 1)])
                failures += 1
                continue
            except Exception as error:  # noqa: BLE001  says where, never what: its text may quote anything
                log.error(json.dumps({"errand": str(key), "error": type(error).__name__}))
                nudge.wait(self._pauses[-1])
                continue
            with self._lock:  # so that no nudge falls between the last look and the end
                if not nudge.is_set():
                    del self._nudges[key], self._threads[key]
                    return
