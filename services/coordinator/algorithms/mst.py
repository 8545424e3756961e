"""MST (McKenna, Miklau and Sheldon 2021): a tree of the strongest pairs, chosen and measured privately."""

from __future__ import annotations

from caps.dp.programs.mst import MstProgram
from services.coordinator.algorithms.base import Algorithm, Walk, register
from services.coordinator.estimation import Model


@register
class Mst(MstProgram, Algorithm):
    """The tree consists of the pairs that independence explains worst, beyond what noise in the columns explains.

    Deviation from private-pgm's mst.py: that merges the values of a column whose noisy counts are small, and draws them
    again at the end as if they were equally frequent. Where noise is large nearly all are, and what columns do tell is
    lost. Here noise in the columns, which is largest where there are most values, is subtracted from the scores, and a
    prior (`Estimator.smoothed`) weighs it as what it is.
    """

    def loop(self, walk: Walk) -> Model:
        """See `Algorithm.loop`."""
        walk.measure_all(self.initial(walk.task))
        model = walk.fit()
        walk.fitted()
        pairs, draws = list(self.candidates(walk.task)), self.draws(walk.task)
        independent = dict(zip(pairs, model.marginals(pairs), strict=True))
        blurs = dict(zip(pairs, walk.blurs(pairs), strict=True))
        while walk.going:  # Kruskal's algorithm with noisy comparisons: no edge closes a cycle
            walk.next_round()
            joining = walk.apart(pairs)
            estimates, bias = [independent[pair] for pair in joining], [blurs[pair] for pair in joining]
            edge = walk.select(joining, estimates, bias=bias, weights=[1] * len(joining))
            walk.measure(edge, independent[edge], draws=draws)
            model = walk.fit(model)
            walk.fitted(edge)
        return model
