"""MWEM+PGM (McKenna, Sheldon and Miklau 2019, section 5): worst-approximated queries, measured in equal rounds."""

from __future__ import annotations

import numpy as np

from caps.dp.programs.mwem import MwemProgram
from caps.errors import DomainError
from services.coordinator.algorithms.base import Algorithm, Sizes, Walk, register
from services.coordinator.estimation import Model

NOISE = 1 / 10
"""How much of its noise a score subtracts, of which `aim.NOISE` says more. Here rounds do not become dearer where they
show little, so that most marginals are off by a fraction of the noise: about D = 0.15 N, the tangent of the gain meets
zero at N / 10."""


@register
class Mwem(MwemProgram, Algorithm):
    """In each round, measures the query that the model approximates worst; once rounds show only noise, the columns.

    Deviation from private-pgm's mwem+pgm.py: such rounds are given up, and what is left is spent on columns; selections
    compare with the model that would be released now, in which noise is smoothed, because otherwise it looks like an
    error and is measured again; scores subtract a part of the noise, not 1 for each cell; the neighbouring relation
    scales the noise of selections too; the estimator is told the noise's deviation; the workload's weights count. Where
    the number of rows is not public, the first selection compares with an empty table.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        task, rounds = walk.task, self._planned_rounds(walk.task)
        weights, draws = self.candidates(task), self.draws(task)
        sizes = Sizes(walk.estimator)
        model: Model | None = None
        while walk.going or model is None:
            limit = self.max_model_bytes * walk.next_round() // rounds
            kept = sizes.within(limit, weights, [measured.clique for measured in walk.measured])
            if not kept:  # only in the first round: what was chosen once stays within limits that grow
                raise DomainError(
                    f"no query of the workload keeps the model to at most {limit} bytes, the first round's limit"
                )
            cells = [task.domain.cells(candidate) for candidate in kept]
            if model is None:
                marginals = [np.full(count, (task.total or 0) / count) for count in cells]
            else:
                released = walk.smoothed(model) if walk.noisy else model
                marginals = list(released.marginals(kept))
            bias = [NOISE * walk.noise * count for count in cells]
            clique = walk.select(kept, marginals, bias=bias, weights=[weights[candidate] for candidate in kept])
            walk.measure(clique, marginals[kept.index(clique)], draws=draws)
            model = walk.fit(model)
            settled = walk.settles(rounds)
            walk.fitted(clique, smoothing=walk.noisy and not settled)
            if settled:
                walk.measure_all(self.initial(task))
                model = walk.fit(model)
                walk.fitted()
        return model
