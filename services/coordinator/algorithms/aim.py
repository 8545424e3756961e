"""AIM (McKenna, Mullins, Sheldon and Miklau 2022, Algorithm 4): an adaptive, iterative mechanism for a workload."""

from __future__ import annotations

import numpy as np

from caps.dp.privacy.schedule import Choice
from caps.dp.programs.aim import AimProgram
from services.coordinator.algorithms.base import Algorithm, Sizes, Walk, register
from services.coordinator.estimation import Model


@register
class Aim(AimProgram, Algorithm):
    """In each round, measures the candidate whose error in the model most exceeds the noise.

    Deviation from private-pgm's aim.py: all columns are measured at the start, even those outside the workload; scores
    are integers in units of 2^-8; the budget is divided, and rounds become dearer or are given up, as `AimSchedule`
    says.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        domain, weights, draws = walk.task.domain, self.candidates(walk.task), self.draws(walk.task)
        sizes = Sizes(walk.estimator)
        walk.measure_all(self.initial(walk.task))
        model = walk.fit()
        walk.fitted()
        while walk.going:
            walk.next_round()
            spent = walk.schedule.after().after().spent
            limit = int(self.max_model_bytes * spent / walk.schedule.rho)
            limit = min(limit, self.room(walk.task, walk.rounds_left, walk.worked, walk.cells))
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
            idle = bool(change <= noise * domain.cells(clique))
            choice = walk.choose(Choice.SETTLE, Choice.ANNEAL) if walk.going and idle else Choice.GO_ON
            walk.fitted(clique, annealed=choice is Choice.ANNEAL)
            if choice is Choice.SETTLE:
                walk.measure_all(self.initial(walk.task))
                model = walk.fit(model)
                walk.fitted()
        return model
