"""SWIFT: every candidate compared at once, then one batch of marginals whose budget follows from the comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt

import numpy as np

from caps.data.domain import Clique, Domain
from caps.dp.oracle import MOST_BATCHED
from caps.dp.privacy.mechanisms import GaussianBatch
from caps.dp.privacy.schedule import Role
from caps.dp.programs.swift import SwiftProgram
from services.coordinator.algorithms.base import Algorithm, Walk, register
from services.coordinator.algorithms.division import Division, in_parts, interactions, shrunk
from services.coordinator.estimation import Estimator, Floats, Model


@register
class Swift(SwiftProgram, Algorithm):
    """Measures what lowers the workload's expected error most, as far as noisy errors tell.

    Deviation from dpsynth's swift.py: there a clique tree is grown from the pairs with the largest errors, for several
    penalties on their sizes, and a subset of what it supports is chosen. Here the budget is divided among all
    candidates at once (`division`), errors are first cleared of what their own noise and that of the columns explains,
    columns may be measured again, and the tree is what the marginals that get a share need, within `max_model_bytes`.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        task, columns, candidates = walk.task, self.initial(walk.task), list(self.candidates(walk.task))
        parts = GaussianBatch.PARTS // len(columns)
        walk.measure_batch(dict.fromkeys(columns, parts), role=Role.INITIAL)
        model = walk.fit()
        walk.fitted()
        if not candidates:
            return model
        walk.next_round()
        errors, deviation = walk.compare(candidates, model.marginals(candidates))
        noise, rho = walk.measured[0].sigma, walk.measured[0].sigma ** -2 * task.neighbouring.l2_squared / 2
        guessed = _guessed(task.domain, candidates, np.clip(errors, 0, 2 * model.total), deviation, noise)
        division = Division(task.domain, task.workload, task.neighbouring, candidates, guessed, rho)
        shares = division.divide(walk.batch_budget, self._room(task.domain, walk.estimator))
        walk.measure_batch(in_parts(shares, GaussianBatch.PARTS), role=Role.MEASURE)
        model = walk.fit(model)
        walk.fitted()
        return model

    def _room(self, domain: Domain, estimator: Estimator) -> Callable[[Sequence[Clique]], list[Clique]]:
        """Which of these cliques a model within its limits has room for. What was taken once keeps its place."""
        taken: list[Clique] = []

        def room(cliques: Sequence[Clique]) -> list[Clique]:
            wanted = set(cliques)
            taken[:] = [clique for clique in taken if clique in wanted]
            cells = domain.width + sum(domain.cells_of(taken))
            for clique in [clique for clique in cliques if clique not in set(taken)]:
                within = any(set(clique) <= set(other) for other in taken)
                more = domain.cells(clique)
                if cells + more <= MOST_BATCHED and (
                    within or estimator.model_bytes([*taken, clique]) <= self.max_model_bytes
                ):
                    taken.append(clique)
                    cells += more
            return list(taken)

        return room


def _guessed(domain: Domain, candidates: Sequence[Clique], errors: Floats, deviation: float, noise: float) -> Floats:
    """The error of each candidate against independent columns, if these had no noise and smaller parts were known."""
    cleared = np.empty(len(candidates))
    orders = np.array([len(clique) for clique in candidates])
    for order in np.unique(orders):
        cleared[orders == order] = shrunk(errors[orders == order], deviation)
    each = noise * sqrt(2 / pi)
    columns = {name: each * size for name, size in zip(domain.names, domain.sizes, strict=True)}
    return interactions(candidates, cleared, columns)
