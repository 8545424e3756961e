"""MST (McKenna, Miklau and Sheldon 2021): a tree of the strongest pairs, chosen and measured privately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from caps.dp.programs.mst import MstProgram
from services.coordinator.algorithms.base import Algorithm, Walk, register
from services.coordinator.estimation import Measured, Model

RARE = 3
"""Values whose noisy count is below this many standard deviations are merged."""

Groups = Mapping[str, npt.NDArray[np.intp]]
"""For each attribute, the group of each of its values."""


@register
class Mst(MstProgram, Algorithm):
    """The tree consists of the pairs that independence explains worst.

    Rare values of a column become one group, within which the model is uniform. Marginals are measured over the full
    domain, and the noisy cells of a group of k replaced by their mean (`averaged`). To fit those with weight
    1 / sigma^2 in each cell is to fit the group's sum with weight 1 / (k sigma^2), the inverse of its variance, and to
    keep the group uniform: sum (mu_c - mean y)^2 = (sum mu_c - sum y_c)^2 / k + sum (mu_c - mean mu)^2. So the model
    needs no second domain, and nothing has to be expanded afterwards.

    Once edges show only noise, the columns are measured again; then nothing is merged.

    Deviation from private-pgm's mst.py: that measures pairs after merging, so its rare cells have noise of variance
    sigma^2, not k sigma^2, and its scores ignore differences within a group. The servers count the full domain, fixed
    before the run.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        walk.measure_all(self.initial(walk.task))
        groups = {measured.clique[0]: rare_together(measured) for measured in walk.measured}
        model = walk.fit(measurements=[averaged(measured, groups) for measured in walk.measured])
        walk.fitted()
        pairs, draws = list(self.candidates(walk.task)), self.draws(walk.task)
        independent = dict(zip(pairs, model.marginals(pairs), strict=True))
        component = {name: {name} for name in walk.task.domain.names}
        while walk.going:  # Kruskal's algorithm with noisy comparisons: no edge closes a cycle
            walk.next_round()
            joining = [pair for pair in pairs if component[pair[0]] is not component[pair[1]]]
            estimates = [independent[pair] for pair in joining]
            edge = walk.select(joining, estimates, bias=[0] * len(joining), weights=[1] * len(joining))
            walk.measure(edge, independent[edge], draws=draws)
            component |= dict.fromkeys(merged := component[edge[0]] | component[edge[1]], merged)
            model = walk.fit(model, measurements=[averaged(measured, groups) for measured in walk.measured])
            settled = walk.settles(len(component) - 1)
            walk.fitted(edge)
            if settled:
                walk.measure_all(self.initial(walk.task))
                model = walk.fit(model)
                walk.fitted()
        return model


def rare_together(measured: Measured) -> npt.NDArray[np.intp]:
    """The group of each value of a column: its own if it is frequent, one for all that are rare."""
    rare = measured.values < RARE * measured.sigma
    values = np.arange(rare.size)
    return np.where(rare, values[rare].min(initial=rare.size), values)


def averaged(measured: Measured, groups: Groups) -> Measured:
    """The measurement with every cell replaced by the mean of the cells in the same group of each attribute."""
    parts: Sequence[npt.NDArray[np.intp]] = [groups[name] for name in measured.clique]
    shape = tuple(part.size for part in parts)
    cell = np.ravel_multi_index(np.meshgrid(*parts, indexing="ij"), shape).ravel()
    sums = np.bincount(cell, measured.values, minlength=prod(shape))
    counts = np.bincount(cell, minlength=prod(shape))
    return replace(measured, values=sums[cell] / counts[cell])
