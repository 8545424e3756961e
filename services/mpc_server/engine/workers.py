"""Who does the large local work of a party: by default, the process that speaks with the peers, by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod

from caps.shares.ring import Words
from services.mpc_server.engine.jobs import Job


class Workers(ABC):
    """What a party has to compute with. A job's sums are the same whoever computes them."""

    @abstractmethod
    def totals(self, job: Job) -> list[Words]:
        """The job's sums."""

    @abstractmethod
    def close(self) -> None:
        """End all that were started."""


class InProcess(Workers):
    """No others."""

    def totals(self, job: Job) -> list[Words]:
        return job.totals()

    def close(self) -> None:
        """There are none."""


IN_PROCESS = InProcess()
