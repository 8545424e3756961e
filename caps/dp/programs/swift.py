"""SWIFT: every candidate compared at once, then one batch of marginals whose budget follows from the comparison.

After the "Scalable Workload-Informed Factor Tree" of google/dpsynth (2026). It has three openings, however many columns
there are; AIM has two for each of its rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from caps.data.domain import Clique
from caps.dp.effort import Fits
from caps.dp.privacy.mechanisms import GaussianBatch, GaussianErrors
from caps.dp.privacy.rational import grid_down
from caps.dp.privacy.schedule import SMALLEST_PART, Cycle, FixedSchedule, Role, Step
from caps.dp.programs.base import Program, Task, register
from caps.errors import DomainError


@register
@dataclass(frozen=True)
class SwiftProgram(Program):
    """Measure every column; compare all parts of queries with what independent columns say; measure once.

    max_model_bytes: the limit for the model, which is fitted once: a million cells take seconds.
    """

    SHARE: ClassVar[Fraction] = Fraction(1, 10)
    """What the columns cost of rho, and what the comparison costs."""

    name: ClassVar[str] = "swift"
    max_model_bytes: int = 8 << 20

    def schedule(self, task: Task) -> FixedSchedule:
        """A tenth for the columns, a tenth for the comparison, the rest for what is measured then."""
        rho, candidates = grid_down(task.zcdp), len(self.candidates(task))
        if rho < max(candidates, 1) * SMALLEST_PART:
            raise DomainError(f"rho is too small to compare {candidates} candidates")
        if not candidates:
            return _schedule(rho, task, Step(Role.INITIAL, GaussianBatch(rho)))
        initial = Step(Role.INITIAL, GaussianBatch(grid_down(self.SHARE * rho)))
        errors = GaussianErrors.costing(grid_down(self.SHARE * rho / candidates), task.neighbouring)
        compare = Step(Role.COMPARE, errors, candidates)
        spent = initial.rho(task.neighbouring) + compare.rho(task.neighbouring)
        return _schedule(rho, task, initial, compare, Step(Role.MEASURE, GaussianBatch(rho - spent)))

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """All columns, and every part of a query in the workload."""
        return (*task.one_ways, *self.candidates(task))

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """All columns."""
        return task.one_ways

    def candidates(self, task: Task) -> dict[Clique, int]:
        """Every part of a query with more than one column, with equal weights: all errors have the same noise."""
        return {part: 1 for part in task.workload.parts if len(part) > 1}

    def fits(self, task: Task) -> Fits:
        """One model of the columns and one of what is measured then."""
        measured = sum(task.domain.cells_of(self.cliques(task)))
        return Fits.growing(task.domain, 2, 1, self.max_model_bytes, measured)


def _schedule(rho: Fraction, task: Task, *steps: Step) -> FixedSchedule:
    return FixedSchedule(rho, task.neighbouring, tuple(Cycle((step,)) for step in steps))
