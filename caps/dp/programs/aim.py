"""AIM (McKenna, Mullins, Sheldon and Miklau 2022, Algorithm 4): an adaptive, iterative mechanism for a workload."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from caps.data.domain import Clique
from caps.data.junction import FLOAT_BYTES
from caps.dp.effort import PRIOR_FITS, Fits, fit_seconds, model_bytes_within
from caps.dp.privacy.schedule import AimSchedule
from caps.dp.programs.base import Program, Task, pooled_draws, reduced, register


@register
@dataclass(frozen=True)
class AimProgram(Program):
    """Measure every column; then, round by round, select a part of a query in the workload and measure it.

    rounds: the planned number, which annealing and settling reduce; by default 16 per column.
    max_model_bytes: the limit for the final model; before, it grows with the budget spent. pooled: draw noise for the
    largest candidate, so that servers can do it in advance. fit_seconds: how long all fits together may take, on a core
    like the one for which `caps.dp.effort` states the law; by default `COLUMN_SECONDS` per column, for `FEW` columns at
    least. Models have to be so small that they keep to it, but always have room for one candidate, whichever it is.
    """

    COLUMN_SECONDS: ClassVar[int] = 1
    FEW: ClassVar[int] = 20

    name: ClassVar[str] = "aim"
    rounds: int | None = None
    max_model_bytes: int = 80 << 20
    pooled: bool = True
    fit_seconds: int | None = None

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

    def fits(self, task: Task) -> Fits:
        """One model for each round, and one before and after. Their limit grows with the budget spent, and must leave
        time for those that follow.
        """
        rounds, columns = self._planned_rounds(task), self.schedule(task).MEASURE_SHARE * len(task.one_ways)
        first = float(columns / (rounds + columns))
        whole = rounds * first + (1 - first) * (rounds + 1) / 2
        measured = sum(task.domain.cells_of(self.cliques(task)))
        largest = min(self.max_model_bytes, self.room(task, Fraction(1), 0.0, 0))
        by_size = Fits.growing(task.domain, rounds + 2, whole, largest, measured)
        least = self._least_cells(task)
        by_time = max(self.time(task), (rounds + PRIOR_FITS) * fit_seconds(least, least))
        return Fits(by_size.models, by_size.model_bytes, min(by_size.seconds, by_time))

    def time(self, task: Task) -> int:
        """Seconds for all fits."""
        default = self.COLUMN_SECONDS * max(len(task.one_ways), self.FEW)
        return default if self.fit_seconds is None else self.fit_seconds

    def room(self, task: Task, rounds: Fraction, worked: float, measured: int) -> int:
        """Bytes of a model so that fits of this size, in so many rounds that are left and at the end, take the time
        that is left; but one candidate has room. worked: seconds of the fits before. measured: cells, so far.
        """
        each = (self.time(task) - worked) / (float(rounds) + PRIOR_FITS)
        return max(model_bytes_within(each, measured), FLOAT_BYTES * self._least_cells(task))

    def _least_cells(self, task: Task) -> int:
        """Of a model with the largest candidate."""
        return task.domain.width + task.workload.largest

    def _planned_rounds(self, task: Task) -> int:
        return 16 * len(task.one_ways) if self.rounds is None else self.rounds
