"""AIM (McKenna, Mullins, Sheldon and Miklau 2022, Algorithm 4): an adaptive, iterative mechanism for a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from caps.data.domain import Clique
from caps.dp.privacy.schedule import AimSchedule
from caps.dp.programs.base import Program, Task, pooled_draws, reduced, register


@register
@dataclass(frozen=True)
class AimProgram(Program):
    """Measure every column; then, round by round, select a part of a query in the workload and measure it.

    rounds: the planned number, which annealing and settling reduce; by default 16 per column.
    max_model_bytes: the limit for the final model; before, it grows with the budget spent. pooled: draw noise for the
    largest candidate, so that servers can do it in advance.
    """

    name: ClassVar[str] = "aim"
    rounds: int | None = None
    max_model_bytes: int = 80 << 20
    pooled: bool = True

    def schedule(self, task: Task) -> AimSchedule:
        """See Program."""
        return AimSchedule.start(
            task.zcdp, task.neighbouring, initial=len(task.one_ways), rounds=self._planned_rounds(task)
        )

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """All columns, and every part of a query in the workload."""
        return (*task.one_ways, *(part for part in task.workload.parts if len(part) > 1))

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """All columns."""
        return task.one_ways

    def candidates(self, task: Task) -> dict[Clique, int]:
        """Every part of a query, with w_c = sum over queries a of wt_a |c & a|, in lowest terms.

        Equivalently, the sum over the attributes of c of the weights of all queries that contain them.
        """
        asked = dict.fromkeys(task.domain.names, 0)
        for query, weight in zip(task.workload.cliques, task.workload.weights, strict=True):
            for name in query:
                asked[name] += weight
        weights = [sum([asked[name] for name in candidate]) for candidate in task.workload.parts]
        return dict(zip(task.workload.parts, reduced(weights), strict=True))

    def draws(self, task: Task) -> int | None:
        """See Program."""
        largest = task.workload.largest  # of the queries: no part of one is larger
        return pooled_draws(largest, self._planned_rounds(task)) if self.pooled else None

    def _planned_rounds(self, task: Task) -> int:
        return 16 * len(task.one_ways) if self.rounds is None else self.rounds
