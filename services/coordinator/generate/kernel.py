"""The compiled estimator: private-pgm's mirror descent over a junction tree, for measured marginals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from caps.data import junction
from caps.data.domain import Clique, Domain
from caps.dp.effort import PRIOR_FITS, fit_seconds
from caps.errors import LocalError
from services.coordinator.estimation import Floats, Measured, Model
from services.coordinator.generate import kernels
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.columns import Column, expected_shares
from services.coordinator.generate.fitting import MergedMeasurements, merge_measurements
from services.coordinator.generate.indexing import index_tree, link, smallest
from services.coordinator.generate.model import TreeModel, by_size, reorder
from services.coordinator.generate.pace import Pace
from services.coordinator.generate.pairs import expected_counts
from services.coordinator.generate.signal import measured_columns, measured_pairs, prior_weight, trust_in_columns

PRIOR_WEIGHT = 30.0
"""The most that the prior weighs: a model that diverges from it by 1 nat is worth so much in log-likelihood. A pair of
m cells that has a mean squared contingency of phi^2 beyond what the prior says asks for about m / phi^2."""
DOUBT = 0.3
"""What independence weighs in the prior itself, in the same unit: next to nothing, but no row is impossible in it."""
ROUGH = 1e-2
"""The loss of the true model is about n / 2 for n measured cells, give or take sqrt(n / 2), the sqrt(2 / n)th part of
it: a rough fit ends once iterations gain less than so much of that."""
_SMALLEST = 1e-12
_EXACT = 2.0**53
"""Floats below count without rounding."""


@dataclass(frozen=True)
class KernelEstimator:
    """See create_estimator."""

    absence: Absence
    limit: int
    tolerance: float
    iterations: int
    pace: Pace = field(default_factory=Pace, compare=False, repr=False)

    def model_bytes(self, cliques: Iterable[Clique]) -> int:
        """As Estimator.model_bytes."""
        wide, related = self.absence.wide, [*cliques, *self.absence.structure]
        if len(wide.names) <= kernels.MASK_BITS:
            masks = np.array(junction.neighbours_of(wide, related), np.uint64)
            cells = kernels.tree_cells(np.array(wide.sizes, np.int64), masks)
            if cells < _EXACT:
                return junction.FLOAT_BYTES * int(cells)
        return junction.model_bytes(wide, related)

    def fit_seconds(self, cliques: Iterable[Clique], *, prior: bool = False) -> float:
        """As Estimator.fit_seconds."""
        distinct = tuple(dict.fromkeys(cliques))
        cells = self.model_bytes(distinct) // junction.FLOAT_BYTES
        expected = fit_seconds(cells, sum(self.absence.domain.cells_of(distinct)))
        return self.pace.seconds(PRIOR_FITS * expected if prior else expected)

    def fit(
        self,
        measurements: Sequence[Measured],
        *,
        total: float | None = None,
        warm_start: Model | None = None,
        rough: bool = False,
    ) -> TreeModel:
        """As Estimator.fit. Potentials of the warm start that lie within no measured clique are dropped: with them,
        the result would not have the greatest entropy."""
        began = perf_counter()
        merged = merge_measurements(self.absence, measurements, total, self.limit)
        tolerance = max(self.tolerance, merged.spread * ROUGH * 2 / merged.cells) if rough and merged.cells else None
        model = self._descend(merged, {}, warm_start=warm_start, tolerance=tolerance)
        self.pace.took(perf_counter() - began, fit_seconds(model.cells, merged.cells))
        return model

    def smoothed(self, model: Model, measurements: Sequence[Measured]) -> TreeModel:
        """As Estimator.smoothed."""
        if not isinstance(model, TreeModel):
            raise LocalError("only a model of this estimator can be smoothed")
        merged = merge_measurements(self.absence, measurements, model.total, self.limit)
        names = sorted({name for clique in merged.cliques for name in clique})
        having = model.marginals([(name,) for name in names])
        persons = {name: float(counts.sum()) for name, counts in zip(names, having, strict=True)}
        columns = measured_columns(self.absence.domain, merged, persons)
        pull = prior_weight(model, merged, trust_in_columns(columns), PRIOR_WEIGHT)
        return self._descend(merged, self.prior(model, merged, columns), pull)

    def prior(
        self, model: TreeModel, merged: MergedMeasurements, columns: Mapping[str, Column]
    ) -> dict[Clique, Floats]:
        """Potentials of a distribution whose columns and measured pairs are as expected; else, columns are independent.

        What is expected of pairs need not go together, so this is a fit too. It may be rough: it says no more than what
        rows are probably like.
        """
        shares = expected_shares(columns)
        independent, pairs = _independent_columns(model, shares), measured_pairs(model, merged, shares)
        if not pairs:
            return independent
        tables = {(name,): column.persons * shares[name] for name, column in columns.items()} | expected_counts(pairs)
        values = tuple(table.ravel() for table in tables.values())
        sigmas = [column.sigma for column in columns.values()] + [pair.sigma for pair in pairs.values()]
        weights = tuple(sigma**-2 for sigma in sigmas)
        expected = MergedMeasurements(tuple(tables), values, weights, merged.total, merged.fixed)
        return self._descend(expected, independent, DOUBT, tolerance=ROUGH).distribution()

    def _descend(
        self,
        merged: MergedMeasurements,
        prior: Mapping[Clique, Floats],
        pull: float = 0.0,
        *,
        warm_start: Model | None = None,
        tolerance: float | None = None,
    ) -> TreeModel:
        """The fit; drawn to the distribution with the potentials of the prior, if there is one, and begun there.

        What a plain fit holds to be zero, and a prior does not, would take too long to come back from it.
        """
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
            free = {factor: potentials for factor, potentials in warm_start.factors() if factor not in tied}
            for factor, potentials in _centred(inner, free).items():
                home = smallest(inner, factor, index.factors)
                if home >= 0:
                    row, maps = link(inner, index.factors[home], factor)
                    theta[index.part(home)] += kernels.expand(potentials, row, maps)
        cells = np.empty(int(index.cell_offsets[-1]))
        # By Pinsker's inequality the loss is smooth relative to the entropy with this constant: the first step is safe.
        step = 1 / (merged.total * max(sum(merged.weights), 1e-300))
        _, iterations = kernels.descend(
            theta,
            merged.total,
            target,
            weight,
            origin,
            pull / merged.total,
            step,
            self.tolerance if tolerance is None else tolerance,
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
        return TreeModel(self.absence, merged.total, index, theta, cells, iterations)


def _centred(domain: Domain, potentials: Mapping[Clique, Floats]) -> dict[Clique, Floats]:
    """Potentials of the same distribution, in which each table says only what tables within it do not.

    Where measurements disagree, descent moves potentials of a column to and fro between the tables that contain it,
    further in every fit. The smaller the range of a table, the fewer logarithms a pass takes.
    """
    tables = {clique: table.reshape(domain.shape(clique)).copy() for clique, table in potentials.items()}
    for large in sorted(tables, key=len, reverse=True):
        for small in sorted(tables, key=len, reverse=True):
            if set(small) < set(large):
                means = tables[large].mean(axis=tuple(i for i, name in enumerate(large) if name not in small))
                tables[small] += means
                tables[large] -= np.expand_dims(means, [i for i, name in enumerate(large) if name not in small])
    return {clique: table.ravel() for clique, table in tables.items()}


def _independent_columns(model: TreeModel, shares: Mapping[str, Floats]) -> dict[Clique, Floats]:
    """Independent columns with these shares, the model's own where none are given; their exponentials sum to 1."""
    columns, tables = model.absence.columns, {}
    for column, counts in zip(columns, model.wide_marginals(columns), strict=True):
        table = counts / model.total
        if column[0] in shares:
            present = table[: model.domain.sizes[model.domain.position(column[0])]]
            present[:] = np.multiply.outer(shares[column[0]], present.sum(axis=0))
        tables[column] = np.maximum(table, _SMALLEST)
    return model.absence.independent(tables)
