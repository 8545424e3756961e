"""The compiled estimator: private-pgm's mirror descent over a junction tree, for measured marginals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from caps.domain import Clique, Domain
from services.coordinator.generate import junction, kernels
from services.coordinator.generate.estimator import Model, check_problem
from services.coordinator.generate.model import TreeModel, by_size, reorder
from services.coordinator.generate.plan import link, make_plan, smallest
from services.coordinator.measured import Measured


@dataclass(frozen=True)
class KernelEstimator:
    """See create_estimator."""

    domain: Domain
    limit: int
    tolerance: float
    iterations: int

    def model_bytes(self, cliques: Iterable[Clique]) -> int:
        """As Estimator.model_bytes."""
        return junction.model_bytes(self.domain, cliques)

    def fit(
        self, measurements: Sequence[Measured], *, total: float | None = None, warm_start: Model | None = None
    ) -> TreeModel:
        """As Estimator.fit. Potentials of the warm start that lie within no measured clique are dropped: with them,
        the result would not have the greatest entropy."""
        problem = check_problem(self.domain, measurements, total, self.limit)
        inner = by_size(self.domain)
        plan = make_plan(
            junction.junction_tree(inner, problem.cliques), [inner.clique(clique) for clique in problem.cliques]
        )
        theta, target, weight = (np.zeros(int(plan.offsets[-1])) for _ in range(3))
        for k, clique in enumerate(problem.cliques):
            target[plan.part(k)] = reorder(problem.values[k], self.domain, clique, inner)
            weight[plan.part(k)] = problem.weights[k]
        if isinstance(warm_start, TreeModel) and warm_start.domain == self.domain:
            for factor, potentials in warm_start.factors():
                home = smallest(inner, factor, plan.factors)
                if home >= 0:
                    row, maps = link(inner, plan.factors[home], factor)
                    theta[plan.part(home)] += kernels.expand(potentials, row, maps)
        cells = np.empty(int(plan.cell_offsets[-1]))
        # By Pinsker's inequality the loss is smooth relative to the entropy with this constant: the first step is safe.
        step = 1 / (problem.total * max(sum(problem.weights), 1e-300))
        kernels.descend(
            theta,
            problem.total,
            target,
            weight,
            step,
            self.tolerance,
            self.iterations,
            cells,
            np.empty(plan.sep_cells),
            plan.parents,
            plan.starts,
            plan.links,
            plan.maps,
            plan.offsets,
            len(plan.factors),
        )
        return TreeModel(self.domain, problem.total, plan, theta, cells)
