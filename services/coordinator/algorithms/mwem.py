"""MWEM+PGM (McKenna, Sheldon and Miklau 2019, section 5): worst-approximated queries, measured in equal rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from caps.domain import Clique
from caps.errors import DomainError
from caps.privacy.schedule import MwemSchedule
from services.coordinator.algorithms.base import Algorithm, M, Sizes, Task, Walk, pooled_draws, reduced, register


@register
@dataclass(frozen=True)
class Mwem(Algorithm):
    """Round by round, measure the query that the model approximates worst.

    A budget in rho is spent on the exponential mechanism and Gaussian noise, a pure one on permute-and-flip and Laplace
    noise. rounds: one for each column unless given. max_model_bytes: of the model at the end; round i of T may take i/T
    of it. pooled: as in AIM.

    Deviation from private-pgm's mwem+pgm.py: the neighbouring relation scales the noise of selections too; the
    estimator is told the noise's deviation; the workload's weights count. Where the number of rows is not public, the
    first selection compares with an empty table.
    """

    name: ClassVar[str] = "mwem"
    rounds: int | None = None
    max_model_bytes: int = 25 << 20
    pooled: bool = True

    def schedule(self, task: Task) -> MwemSchedule:
        """As the base says."""
        rounds = self._rounds(task)
        if task.pure_epsilon is not None:
            return MwemSchedule.laplace(task.pure_epsilon, task.neighbouring, rounds=rounds)
        return MwemSchedule.gaussian(task.zcdp, task.neighbouring, rounds=rounds)

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """The workload."""
        return task.workload.cliques

    def loop(self, walk: Walk[M]) -> M:
        """As the base says."""
        task, rounds = walk.task, self._rounds(walk.task)
        weights = dict(zip(task.workload.cliques, reduced(task.workload.weights), strict=True))
        draws = pooled_draws(task.domain, list(weights), rounds) if self.pooled else None
        sizes = Sizes(walk.estimator)
        model: M | None = None
        while walk.going or model is None:
            limit = self.max_model_bytes * walk.next_round() // rounds
            kept = sizes.within(limit, weights, [measured.clique for measured in walk.measured])
            if not kept:  # only in the first round: what was chosen once stays within limits that grow
                raise DomainError(f"no query of the workload gives a model of at most {limit} bytes, the first round's")
            cells = [task.domain.cells(candidate) for candidate in kept]
            if model is None:
                marginals = [np.full(count, (task.total or 0) / count) for count in cells]
            else:
                marginals = list(model.marginals(kept))
            clique = walk.select(kept, marginals, bias=cells, weights=[weights[candidate] for candidate in kept])
            walk.measure(clique, marginals[kept.index(clique)], draws=draws)
            model = walk.fit(model)
            walk.fitted(clique)
        return model

    def _rounds(self, task: Task) -> int:
        return len(task.one_ways) if self.rounds is None else self.rounds
