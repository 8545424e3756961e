"""A fixed workload, measured once with Gaussian noise: the smallest algorithm, and the example in the docs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from caps.domain import Clique
from caps.errors import DomainError
from caps.privacy.mechanisms import Gaussian
from caps.privacy.neighbouring import Neighbouring
from caps.privacy.rational import grid_down
from caps.privacy.schedule import Role, Step
from services.coordinator.algorithms.base import Algorithm, M, Task, Walk, register


@dataclass(frozen=True, slots=True)
class OneStep:
    """Equal parts of rho for so many measurements, all at once."""

    rho: Fraction
    neighbouring: Neighbouring
    step: Step | None
    spent: Fraction = Fraction(0)
    pure_epsilon: None = None

    @classmethod
    def start(cls, rho: Fraction, neighbouring: Neighbouring, *, measurements: int) -> OneStep:
        """The whole budget is ahead."""
        each = Gaussian.costing(grid_down(rho / measurements), neighbouring)
        return cls(rho, neighbouring, Step(Role.INITIAL, each, measurements))

    def after(self, *, anneal: bool = False) -> OneStep:
        """The end."""
        if self.step is None or anneal:
            raise DomainError("the schedule has one step")
        return replace(self, step=None, spent=self.step.rho(self.neighbouring))


@register
@dataclass(frozen=True)
class FixedGaussian(Algorithm):
    """Measure every query of the workload, and fit a model. Without parameters; the weights play no part."""

    name: ClassVar[str] = "gaussian"

    def schedule(self, task: Task) -> OneStep:
        """As the base says."""
        return OneStep.start(task.zcdp, task.neighbouring, measurements=len(task.workload.cliques))

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """The workload."""
        return task.workload.cliques

    def loop(self, walk: Walk[M]) -> M:
        """As the base says."""
        walk.measure_all(walk.task.workload.cliques)
        model = walk.fit()
        walk.fitted()
        return model
