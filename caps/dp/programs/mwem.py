"""MWEM+PGM (McKenna, Sheldon and Miklau 2019, section 5): worst-approximated queries, measured in equal rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from caps.data.domain import Clique
from caps.dp.effort import PRIOR_FITS, Fits
from caps.dp.privacy.schedule import MwemSchedule
from caps.dp.programs.base import Program, Task, pooled_draws, reduced, register


@register
@dataclass(frozen=True)
class MwemProgram(Program):
    """Round by round, select a query in the workload and measure it; rounds that show only noise give way to columns.

    A budget in rho is spent on the exponential mechanism and Gaussian noise, a pure one on permute-and-flip and Laplace
    noise, and then never on columns. rounds: by default two per column. max_model_bytes: the limit for the final model;
    round i of T may use i/T of it. pooled: as in AIM.
    """

    name: ClassVar[str] = "mwem"
    rounds: int | None = None
    max_model_bytes: int = 25 << 20
    pooled: bool = True

    def schedule(self, task: Task) -> MwemSchedule:
        """See Program."""
        rounds = self._planned_rounds(task)
        if task.pure_epsilon is not None:
            return MwemSchedule.laplace(task.pure_epsilon, task.neighbouring, rounds=rounds)
        columns = len(self.initial(task))
        return MwemSchedule.gaussian(task.zcdp, task.neighbouring, rounds=rounds, columns=columns)

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """The workload, and the columns that take the place of rounds."""
        return tuple(dict.fromkeys((*self.initial(task), *task.workload.cliques)))

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """The columns, which are measured only if the run settles; none if the budget is pure."""
        return task.one_ways if task.pure_epsilon is None else ()

    def candidates(self, task: Task) -> dict[Clique, int]:
        """The workload, with its weights in lowest terms."""
        return dict(zip(task.workload.cliques, reduced(task.workload.weights), strict=True))

    def draws(self, task: Task) -> int | None:
        """See Program."""
        return pooled_draws(task.workload.largest, self._planned_rounds(task)) if self.pooled else None

    def fits(self, task: Task) -> Fits:
        """One model for each round, smoothed too, whose limit grows with rounds; and one if the run settles."""
        rounds, measured = self._planned_rounds(task), sum(task.domain.cells_of(self.cliques(task)))
        whole = (1 + PRIOR_FITS) * (rounds + 1) / 2
        return Fits.growing(task.domain, rounds + 1, whole, self.max_model_bytes, measured)

    def _planned_rounds(self, task: Task) -> int:
        return 2 * len(task.one_ways) if self.rounds is None else self.rounds
