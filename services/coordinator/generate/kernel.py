"""The compiled estimator: private-pgm's mirror descent over a junction tree, for measured marginals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from caps.data.domain import Clique
from caps.errors import LocalError
from services.coordinator.estimation import Floats, Measured, Model
from services.coordinator.generate import junction, kernels
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.columns import expected_shares
from services.coordinator.generate.fitting import MergedMeasurements, merge_measurements
from services.coordinator.generate.indexing import index_tree, link, smallest
from services.coordinator.generate.model import TreeModel, by_size, reorder
from services.coordinator.generate.signal import measured_columns, prior_weight, trust_in_columns

INDEPENDENCE = 30.0
"""The most that the prior weighs: a model that diverges from independent columns by 1 nat is worth so much in
log-likelihood. A pair of m cells with a mean squared contingency of phi^2 asks for about m / phi^2."""
_SMALLEST = 1e-12


@dataclass(frozen=True)
class KernelEstimator:
    """See create_estimator."""

    absence: Absence
    limit: int
    tolerance: float
    iterations: int

    def model_bytes(self, cliques: Iterable[Clique]) -> int:
        """As Estimator.model_bytes."""
        return junction.model_bytes(self.absence.wide, [*cliques, *self.absence.structure])

    def fit(
        self, measurements: Sequence[Measured], *, total: float | None = None, warm_start: Model | None = None
    ) -> TreeModel:
        """As Estimator.fit. Potentials of the warm start that lie within no measured clique are dropped: with them,
        the result would not have the greatest entropy."""
        merged = merge_measurements(self.absence, measurements, total, self.limit)
        return self._descend(merged, {}, warm_start=warm_start)

    def smoothed(self, model: Model, measurements: Sequence[Measured]) -> TreeModel:
        """As Estimator.smoothed."""
        if not isinstance(model, TreeModel):
            raise LocalError("only a model of this estimator can be smoothed")
        merged = merge_measurements(self.absence, measurements, model.total, self.limit)
        names = sorted({name for clique in merged.cliques for name in clique})
        having = model.marginals([(name,) for name in names])
        persons = {name: float(counts.sum()) for name, counts in zip(names, having, strict=True)}
        columns = measured_columns(self.absence.domain, merged, persons)
        pull = prior_weight(model, merged, trust_in_columns(columns), INDEPENDENCE)
        return self._descend(merged, _prior(model, expected_shares(columns)), pull)

    def _descend(
        self,
        merged: MergedMeasurements,
        prior: Mapping[Clique, Floats],
        pull: float = 0.0,
        warm_start: Model | None = None,
    ) -> TreeModel:
        """The fit; drawn to the distribution with the potentials of the prior, if there is one, and begun there."""
        wide = self.absence.wide
        inner = by_size(wide)
        fixed = prior or merged.fixed
        cliques = tuple(dict.fromkeys((*merged.cliques, *fixed)))
        index = index_tree(junction.junction_tree(inner, cliques), [inner.clique(clique) for clique in cliques])
        theta, target, weight, origin = (np.zeros(int(index.offsets[-1])) for _ in range(4))
        for k, clique in enumerate(cliques):
            if k < len(merged.cliques):
                values, weights = merged.values[k], np.full(merged.values[k].size, merged.weights[k])
                target[index.part(k)] = reorder(self.absence.widened(clique, values), wide, clique, inner)
                weight[index.part(k)] = reorder(self.absence.widened(clique, weights), wide, clique, inner)
            if clique in fixed:
                theta[index.part(k)] = origin[index.part(k)] = reorder(fixed[clique], wide, clique, inner)
        if isinstance(warm_start, TreeModel) and warm_start.absence == self.absence:
            tied = {inner.clique(clique) for clique in self.absence.everybody}
            for factor, potentials in warm_start.factors():
                home = smallest(inner, factor, index.factors)
                if home >= 0 and factor not in tied:
                    row, maps = link(inner, index.factors[home], factor)
                    theta[index.part(home)] += kernels.expand(potentials, row, maps)
        cells = np.empty(int(index.cell_offsets[-1]))
        # By Pinsker's inequality the loss is smooth relative to the entropy with this constant: the first step is safe.
        step = 1 / (merged.total * max(sum(merged.weights), 1e-300))
        kernels.descend(
            theta,
            merged.total,
            target,
            weight,
            origin,
            pull / merged.total,
            step,
            self.tolerance,
            self.iterations,
            cells,
            np.empty(index.sep_cells),
            index.parents,
            index.starts,
            index.links,
            index.maps,
            index.offsets,
            len(index.factors),
        )
        return TreeModel(self.absence, merged.total, index, theta, cells)


def _prior(model: TreeModel, shares: Mapping[str, Floats]) -> dict[Clique, Floats]:
    """Independent columns with these shares, the model's own where none are given; their exponentials sum to 1."""
    columns, tables = model.absence.columns, {}
    for column, counts in zip(columns, model.wide_marginals(columns), strict=True):
        table = counts / model.total
        if column[0] in shares:
            present = table[: model.domain.sizes[model.domain.position(column[0])]]
            present[:] = np.multiply.outer(shares[column[0]], present.sum(axis=0))
        tables[column] = np.maximum(table, _SMALLEST)
    return model.absence.independent(tables)
