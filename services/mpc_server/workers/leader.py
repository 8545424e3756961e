"""The leader's part: cuts a job into ranges of rows, gives them to workers, and believes none of them.

Each range's sums are compared with what a secret combination of them must be (`engine.jobs`), which is drawn when the
sums have come. The leader computes it from the rows itself, which takes a third of the time of the sums or more, for
rows have to be made for it. Where workers are so many that it cannot keep up, others than the one that summed a range
check it, by a secret of its own; if sum and check differ, the leader finds out who is wrong. So a wrong sum is only
taken if two workers are wrong in the same way. A worker that dies, that takes too long or is wrong is dismissed, and
its range goes to another. If no worker is left, the leader does the rest by itself.
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import numpy as np

from caps.errors import ShareError
from caps.service import logs
from caps.shares.ring import Z64, Words
from services.mpc_server.engine.jobs import Job
from services.mpc_server.engine.kernels import BLOCK_ROWS
from services.mpc_server.engine.workers import Threads, Workers
from services.mpc_server.workers.tasks import Octets, Task, can_be_told, checking, job_of, told, unpacked

PAYS = 1 << 33
"""Multiplications from which on a job is given to workers: a second of one core. Starting a process takes a third."""
RANGE_WORDS = 1 << 22
"""Words of a component in one range, unless rows are very long: up to 16 MiB that are sent, a fraction of a second."""
_LOOK = 1.0
"""Seconds between two looks at workers that say nothing."""

_WRONG = "it returned a wrong result"

log = logging.getLogger("caps.workers")

T = TypeVar("T")


class WorkerLost(Exception):
    """A worker cannot be used any more. The text says why, in words for the operator."""


class Staff(ABC):
    """Workers that the leader can give tasks, one at a time each, by their names."""

    @abstractmethod
    def present(self) -> Sequence[str]:
        """The workers that can be given something; those that are missing are started, where that is possible."""

    @abstractmethod
    def give(self, worker: str, task: Task, result_bytes: int) -> None:
        """Have a worker perform a task. Raises WorkerLost."""

    @abstractmethod
    def returned(self, seconds: float) -> tuple[str, Octets | WorkerLost] | None:
        """What a worker returned, or why it never will; None if there is no news for so long."""

    @abstractmethod
    def dismiss(self, worker: str, reason: str) -> None:
        """Give a worker nothing any more; end it, if it was started here."""

    @abstractmethod
    def close(self) -> None:
        """End all that was started here."""


@dataclass(slots=True, eq=False)
class _Range:
    """Some rows of a job, the sums that a worker found of them, and the secret by which they are checked."""

    job: Job
    task: Task
    sums: list[Words] = field(default_factory=list)
    by: str = ""
    secret: Words = field(default_factory=lambda: np.empty(0, Z64.dtype))

    def draw(self) -> None:
        """A new secret, once the sums are known."""
        self.secret = np.frombuffer(secrets.token_bytes(Z64.itemsize * self.job.secret_words), Z64.dtype)


class Crew(Workers):
    """A staff and its leader, which calls from one thread, and has some for what cannot be given away."""

    def __init__(self, staff: Staff, *, threads: int = 1, stall: float = 60.0, pays: int = PAYS) -> None:
        """`stall`: seconds after which a worker that has not returned a range is given up."""
        self._staff = staff
        self._threads = Threads(threads)
        self._stall = stall
        self._pays = pays

    def totals(self, job: Job) -> list[Words]:
        if job.rows * job.products < self._pays or not can_be_told(job) or not self._staff.present():
            return job.totals()
        return _Shift(self._staff, job, self._stall).totals()

    def each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return self._threads.each(calls)

    def close(self) -> None:
        self._threads.close()
        self._staff.close()


class _Shift:
    """One job."""

    def __init__(self, staff: Staff, job: Job, stall: float) -> None:
        self._staff = staff
        self._stall = stall
        self._job = job
        step = max(1, RANGE_WORDS // job.columns // BLOCK_ROWS) * BLOCK_ROWS
        self._slices = deque(slice(start, min(start + step, job.rows)) for start in range(0, job.rows, step))
        self._again: deque[_Range] = deque()
        self._unchecked: deque[_Range] = deque()
        self._given: dict[str, tuple[_Range, bool, float]] = {}
        """For each worker that is busy: its range, whether it checks it, and until when."""
        self._idle = list(staff.present())
        self._totals = [np.zeros(shape, Z64.dtype) for shape in job.shapes()]

    def totals(self) -> list[Words]:
        try:
            while self._slices or self._again or self._unchecked or self._given:
                self._give()
                if self._unchecked:
                    self._check()
                    self._take(0)
                elif self._given:
                    self._take(_LOOK)
                elif not self._idle:
                    self._alone()
                self._lose_the_slow()
        except BaseException:
            for worker in list(self._given):
                self._staff.dismiss(worker, "its job was given up")
            raise
        return self._totals

    def _give(self) -> None:
        """Something for everybody who has nothing to do."""
        for worker in list(self._idle):
            found = self._for(worker)
            if found is None:
                continue
            one, checks = found
            self._idle.remove(worker)
            self._given[worker] = one, checks, monotonic() + self._stall
            task = checking(one.task, one.secret) if checks else one.task
            try:
                self._staff.give(worker, task, _checked_bytes(one.job) if checks else one.job.result_bytes)
            except WorkerLost as error:
                self._lose(worker, str(error))

    def _for(self, worker: str) -> tuple[_Range, bool] | None:
        """A range to sum; or to check, if another worker summed it and the leader cannot keep up with checking."""
        left = bool(self._again or self._slices)
        if not left or len(self._unchecked) > len(self._idle) + len(self._given):
            for one in self._unchecked:
                if one.by != worker:
                    self._unchecked.remove(one)
                    one.draw()
                    return one, True
        if self._again:
            return self._again.popleft(), False
        if self._slices:
            task = told(self._job.part(self._slices.popleft()))
            return _Range(job_of(task), task), False
        return None

    def _take(self, seconds: float) -> None:
        """All that is returned by now, or the next that is."""
        while (news := self._staff.returned(seconds)) is not None:
            seconds = 0
            worker, result = news
            if worker not in self._given:  # given up before it returned
                continue
            if isinstance(result, WorkerLost):
                self._lose(worker, str(result))
                continue
            one, checks, _ = self._given[worker]
            try:
                words = unpacked([(rows, 1) for rows, _ in one.job.shapes()] if checks else one.job.shapes(), result)
            except ShareError:
                self._lose(worker, _WRONG)
                continue
            del self._given[worker]
            self._idle.append(worker)
            if checks:
                self._judge(one, [told[:, 0] for told in words], worker)
            else:
                one.sums, one.by = words, worker
                self._unchecked.append(one)
            self._give()

    def _check(self) -> None:
        """The leader's own check of a range."""
        one = self._unchecked.popleft()
        one.draw()
        self._judge(one, one.job.foretold(one.secret), None)

    def _judge(self, one: _Range, foretold: list[Words], teller: str | None) -> None:
        """Add the sums of a range if they are as foretold; else find out who is wrong."""
        if not one.job.right(one.sums, one.secret, foretold):
            if teller is not None:
                own = one.job.foretold(one.secret)
                if not all(map(np.array_equal, own, foretold)):
                    self._lose(teller, _WRONG)
                foretold = own
            if not one.job.right(one.sums, one.secret, foretold):
                self._lose(one.by, _WRONG)
                self._again.append(one)
                return
        for place, part in enumerate(one.sums):
            self._totals[place] += part

    def _lose_the_slow(self) -> None:
        now = monotonic()
        for worker, (_, _, until) in list(self._given.items()):
            if now > until:
                self._lose(worker, f"it has returned nothing for {self._stall:g} s")

    def _lose(self, worker: str, reason: str) -> None:
        """Dismiss a worker. What it was doing is for another."""
        if worker in self._given:
            one, checks, _ = self._given.pop(worker)
            (self._unchecked if checks else self._again).append(one)
        elif worker in self._idle:
            self._idle.remove(worker)
        else:  # dismissed before
            return
        self._staff.dismiss(worker, reason)
        logs.say(log, "worker dismissed", level=logging.ERROR, worker=worker, reason=reason)

    def _alone(self) -> None:
        logs.say(log, "no workers are left", level=logging.ERROR, reason="this server does their work itself")
        jobs = [one.job for one in self._again] + [self._job.part(rows) for rows in self._slices]
        self._again.clear()
        self._slices.clear()
        for job in jobs:
            for place, part in enumerate(job.totals()):
                self._totals[place] += part


def _checked_bytes(job: Job) -> int:
    return Z64.itemsize * sum(rows for rows, _ in job.shapes())
