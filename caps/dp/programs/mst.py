"""MST (McKenna, Miklau and Sheldon 2021): a tree of the strongest pairs, chosen and measured privately."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from caps.data.domain import Clique
from caps.data.junction import FLOAT_BYTES
from caps.dp.effort import Fits
from caps.dp.privacy.schedule import MstSchedule
from caps.dp.programs.base import Program, Task, pooled_draws, register


@register
@dataclass(frozen=True)
class MstProgram(Program):
    """Measure every column; select the edges of a spanning tree among all pairs, and measure them, one by one.

    It ignores the workload. pooled: as in AIM.
    """

    name: ClassVar[str] = "mst"
    pooled: bool = True

    def schedule(self, task: Task) -> MstSchedule:
        """See Program."""
        return MstSchedule.start(task.zcdp, task.neighbouring, columns=len(task.one_ways))

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """All columns and all pairs."""
        return (*task.one_ways, *task.domain.pairs)

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """All columns."""
        return task.one_ways

    def candidates(self, task: Task) -> dict[Clique, int]:
        """All pairs, with equal weights."""
        return dict.fromkeys(task.domain.pairs, 1)

    def draws(self, task: Task) -> int | None:
        """See Program."""
        edges = len(task.one_ways) - 1
        largest = prod(sorted(task.domain.sizes)[-2:])
        return pooled_draws(largest, edges) if self.pooled else None

    def fits(self, task: Task) -> Fits:
        """One model of the columns, and one for each edge.

        A tree has most cells if every column is in a pair with the largest one.
        """
        columns, largest = len(task.one_ways), max(task.domain.sizes)
        cells = largest * max(1, task.domain.width - largest)
        return Fits.growing(task.domain, columns, columns / 2, FLOAT_BYTES * cells, cells + task.domain.width)
