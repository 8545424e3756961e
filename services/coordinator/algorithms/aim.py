"""AIM (McKenna, Mullins, Sheldon and Miklau 2022, Algorithm 4): an adaptive, iterative mechanism for a workload."""

from __future__ import annotations

import numpy as np

from caps.dp.privacy.schedule import Choice
from caps.dp.programs.aim import AimProgram
from services.coordinator.algorithms.base import Algorithm, Sizes, Walk, register
from services.coordinator.estimation import Model

NOISE = 4 / 5
"""How much of its noise a score subtracts. A marginal that is off by D, measured with noise of N in all, is off by
D N / sqrt(D^2 + N^2) in the end (`division`). What that gains is nearly 9/10 (D - 4/5 N) about D = 2 N."""


@register
class Aim(AimProgram, Algorithm):
    """In each round, measures the candidate whose error in the model most exceeds the noise. Where rounds show only
    noise, a run ends with a tree of pairs, as `Mst` does.

    Deviation from private-pgm's aim.py: all columns are measured at the start, even those outside the workload; scores
    are integers in units of 2^-8, and subtract less noise; the budget is divided, and rounds become dearer or are given
    up, as `AimSchedule` says.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        domain, weights, draws = walk.task.domain, self.candidates(walk.task), self.draws(walk.task)
        sizes = Sizes(walk.estimator)
        walk.measure_all(self.initial(walk.task))
        model, settled = walk.fit(), False
        walk.fitted()
        while walk.going:
            walk.next_round()
            spent = walk.schedule.after().after().spent
            limit = int(self.max_model_bytes * spent / walk.schedule.rho)
            limit = min(limit, self.room(walk.task, walk.rounds_left, walk.worked, walk.cells))
            kept = sizes.within(limit, weights, [measured.clique for measured in walk.measured])
            edges = walk.apart(kept) if settled else []
            offered, noise = edges or kept, walk.noise
            estimates = dict(zip(offered, model.marginals(offered), strict=True))
            clique = walk.select(
                offered,
                list(estimates.values()),
                bias=walk.blurs(edges) if edges else [NOISE * noise * cells for cells in domain.cells_of(kept)],
                weights=[weights[candidate] for candidate in offered],
            )
            walk.measure(clique, estimates[clique], draws=draws)
            model = walk.fit(model)
            change = np.abs(model.marginal(clique) - estimates[clique]).sum()
            idle = bool(change <= noise * domain.cells(clique))
            choice = walk.choose(Choice.SETTLE, Choice.ANNEAL) if walk.going and idle else Choice.GO_ON
            walk.fitted(clique, annealed=choice is Choice.ANNEAL)
            if choice is Choice.SETTLE:
                settled = True
                walk.measure_all(self.initial(walk.task))
                model = walk.fit(model)
                walk.fitted()
        return model
