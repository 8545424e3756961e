"""Who does the large local work of a party: by default, the process that speaks with the peers, by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

from caps.shares.ring import Words
from services.mpc_server.engine.jobs import Job

T = TypeVar("T")


class Workers(ABC):
    """What a party has to compute with. Sums and results are the same whoever computes them."""

    @abstractmethod
    def totals(self, job: Job) -> list[Words]:
        """The job's sums."""

    @abstractmethod
    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """What some functions return, in their order; side by side, if the party has threads.

        For compiled code, which lets other threads run. A function sends nothing, files nothing, draws nothing that
        another one could draw, writes only what is its own, and does not come back here.
        """

    @abstractmethod
    def close(self) -> None:
        """End all that were started."""


class InProcess(Workers):
    """No others."""

    def totals(self, job: Job) -> list[Words]:
        return job.totals()

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]

    def close(self) -> None:
        """There are none."""


IN_PROCESS = InProcess()


class Threads:
    """Threads of this process, started when there is something to do."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="caps-local-work")

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """As that of `Workers`. If one raises, the first of them in order counts, and the others have ended by then."""
        # numpy's settings for errors belong to the context of the caller, and are needed in each thread.
        running = [self._pool.submit(copy_context().run, call) for call in calls]
        wait(running)
        return [one.result() for one in running]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
