"""MST (McKenna, Miklau and Sheldon 2021): a tree of the strongest pairs, chosen and measured privately."""

from __future__ import annotations

from caps.dp.programs.mst import MstProgram
from services.coordinator.algorithms.base import Algorithm, Walk, register
from services.coordinator.estimation import Model


@register
class Mst(MstProgram, Algorithm):
    """The tree consists of the pairs that independence explains worst. Once edges show only noise, the columns are
    measured again.

    Deviation from private-pgm's mst.py: that merges the values of a column whose noisy counts are small, and draws them
    again at the end as if they were equally frequent. Where noise is large nearly all are, and what columns do tell is
    lost; a prior (`Estimator.smoothed`) keeps it, and weighs noise as what it is.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        walk.measure_all(self.initial(walk.task))
        model = walk.fit()
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
            model = walk.fit(model)
            settled = walk.settles(len(component) - 1)
            walk.fitted(edge)
            if settled:
                walk.measure_all(self.initial(walk.task))
                model = walk.fit(model)
                walk.fitted()
        return model
