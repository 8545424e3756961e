"""A fixed workload, measured once with Gaussian noise: the smallest algorithm."""

from __future__ import annotations

from caps.dp.programs.gaussian import FixedGaussianProgram
from services.coordinator.algorithms.base import Algorithm, Walk, register
from services.coordinator.estimation import Model


@register
class FixedGaussian(FixedGaussianProgram, Algorithm):
    """Measures the workload and fits a model."""

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        walk.measure_all(self.initial(walk.task))
        model = walk.fit()
        walk.fitted()
        return model
