"""A fixed workload, measured once with Gaussian noise: the smallest program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from caps.data.domain import Clique
from caps.dp.privacy.mechanisms import Gaussian
from caps.dp.privacy.rational import grid_down
from caps.dp.privacy.schedule import Cycle, FixedSchedule, Role, Step
from caps.dp.programs.base import Program, Task, register


@register
@dataclass(frozen=True)
class FixedGaussianProgram(Program):
    """Measure every query in the workload. It has no parameters and ignores weights."""

    name: ClassVar[str] = "gaussian"

    def schedule(self, task: Task) -> FixedSchedule:
        """Equal parts of rho for all queries, in one step."""
        queries = len(task.workload.cliques)
        each = Gaussian.costing(grid_down(task.zcdp / queries), task.neighbouring)
        return FixedSchedule(task.zcdp, task.neighbouring, (Cycle((Step(Role.INITIAL, each, queries),)),))

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """The workload."""
        return task.workload.cliques

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """The workload."""
        return task.workload.cliques
