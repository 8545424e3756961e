"""AIM (McKenna, Mullins, Sheldon and Miklau 2022, Algorithm 4): an adaptive, iterative mechanism for a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from caps.domain import Clique
from caps.privacy.schedule import AimSchedule
from services.coordinator.algorithms.base import (
    Algorithm,
    M,
    Sizes,
    Task,
    Walk,
    pooled_draws,
    reduced,
    register,
)


@register
@dataclass(frozen=True)
class Aim(Algorithm):
    """Measure every column; then, round by round, the candidate whose error in the model most exceeds the noise.

    rounds: planned; annealing makes them fewer; 16 for each column unless given. max_model_bytes: of the model at the
    end; on the way it grows with the budget spent. pooled: draw noise for the largest candidate, so that servers can
    do it beforehand.

    Deviation from private-pgm's aim.py: all columns are measured at the start, also those outside the workload; scores
    are integers in units of 2^-8; the last round is found, and the start charged, as `AimSchedule` says.
    """

    name: ClassVar[str] = "aim"
    rounds: int | None = None
    max_model_bytes: int = 80 << 20
    pooled: bool = True

    def schedule(self, task: Task) -> AimSchedule:
        """As the base says."""
        return AimSchedule.start(
            task.zcdp, task.neighbouring, initial=len(task.one_ways), rounds=self._planned_rounds(task)
        )

    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """All columns, and every part of a query of the workload."""
        return task.domain.downward_closure([*task.one_ways, *task.workload.cliques])

    def weights(self, task: Task) -> dict[Clique, int]:
        """Of the candidates: w_c = sum over queries a of wt_a |c & a|, in lowest terms."""
        candidates = task.domain.downward_closure(task.workload.cliques)
        queries = list(zip(map(set, task.workload.cliques), task.workload.weights, strict=True))
        weights = [sum(weight * len(query & set(c)) for query, weight in queries) for c in candidates]
        return dict(zip(candidates, reduced(weights), strict=True))

    def loop(self, walk: Walk[M]) -> M:
        """As the base says."""
        domain, weights = walk.task.domain, self.weights(walk.task)
        draws = pooled_draws(domain, list(weights), self._planned_rounds(walk.task)) if self.pooled else None
        sizes = Sizes(walk.estimator)
        walk.measure_all(walk.task.one_ways)
        model = walk.fit()
        walk.fitted()
        while walk.going:
            walk.next_round()
            spent = walk.schedule.after().after().spent
            limit = int(self.max_model_bytes * spent / walk.schedule.rho)
            kept = sizes.within(limit, weights, [measured.clique for measured in walk.measured])
            estimates, noise = dict(zip(kept, model.marginals(kept), strict=True)), walk.noise
            clique = walk.select(
                kept,
                list(estimates.values()),
                bias=[noise * domain.cells(candidate) for candidate in kept],
                weights=[weights[candidate] for candidate in kept],
            )
            walk.measure(clique, estimates[clique], draws=draws)
            model = walk.fit(model)
            change = np.abs(model.marginal(clique) - estimates[clique]).sum()
            annealed = walk.going and bool(change <= noise * domain.cells(clique))
            if annealed:
                walk.anneal()
            walk.fitted(clique, annealed=annealed)
        return model

    def _planned_rounds(self, task: Task) -> int:
        return 16 * len(task.one_ways) if self.rounds is None else self.rounds
