"""How much of what was measured is signal: what a prior should be like, and weigh, where most of it is noise.

The noise's variance is known, so what measurements deviate from a guess beyond it is what the guess gets wrong. This is
empirical Bayes, after James and Stein (1961): nothing here is a constant chosen on some table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import combinations

import numpy as np

from caps.data.domain import Clique, Domain
from services.coordinator.estimation import Floats
from services.coordinator.generate.columns import Column
from services.coordinator.generate.fitting import MergedMeasurements
from services.coordinator.generate.model import TreeModel
from services.coordinator.generate.pairs import Pair

_LEAST_TRUST = 1e-3


def measured_columns(domain: Domain, merged: MergedMeasurements, persons: Mapping[str, float]) -> dict[str, Column]:
    """Every measured attribute: what all marginals that contain it say. persons: how many have a value of each."""
    return {
        name: Column(counts, sigma, persons[name]) for (name,), (counts, sigma) in _within(domain, merged, 1).items()
    }


def measured_pairs(model: TreeModel, merged: MergedMeasurements, shares: Mapping[str, Floats]) -> dict[Clique, Pair]:
    """Every pair that was measured, alone or within a larger marginal, whose columns have these shares."""
    found = {pair: counts for pair, counts in _within(model.domain, merged, 2).items() if min(counts[0].shape) > 1}
    persons = [float(guess.sum()) for guess in _independent(model, list(found))]
    return {
        pair: Pair(counts, sigma, max(having, 1.0), shares[pair[0]], shares[pair[1]])
        for (pair, (counts, sigma)), having in zip(found.items(), persons, strict=True)
    }


def _within(domain: Domain, merged: MergedMeasurements, attributes: int) -> dict[Clique, tuple[Floats, float]]:
    """Of every so many attributes that were measured together: their counts, the mean of all marginals that contain
    them, each weighted by its precision; and the standard deviation of a count."""
    sums: dict[Clique, Floats] = {}
    precisions: dict[Clique, float] = {}
    for clique, values, weight in zip(merged.cliques, merged.values, merged.weights, strict=True):
        table = values.reshape(domain.shape(clique))
        for axes in combinations(range(table.ndim), attributes):
            part = tuple(clique[axis] for axis in axes)
            counts = table.sum(axis=tuple(other for other in range(table.ndim) if other not in axes))
            precision = weight * counts.size / table.size  # a cell of the part is the sum of so many
            sums[part] = sums.get(part, 0.0) + precision * counts
            precisions[part] = precisions.get(part, 0.0) + precision
    return {part: (total / precisions[part], precisions[part] ** -0.5) for part, total in sums.items()}


def trust_in_columns(columns: Mapping[str, Column]) -> float:
    """How much of what columns deviate from uniform ones is signal, 0 to 1: the mean of all of two categories or more.

    James and Stein's own factor subtracts two degrees of freedom and has nothing to say about a column of two or three
    categories; this one does.
    """
    shares = [
        _share(_energy(column.counts), (column.counts.size - 1) * column.sigma**2)
        for column in columns.values()
        if column.counts.size > 1
    ]
    return sum(shares) / max(len(shares), 1)


def prior_weight(model: TreeModel, merged: MergedMeasurements, trust: float, most: float) -> float:
    """What the prior should weigh: `most` where larger marginals are half noise, or more.

    Where they are mostly signal it fades, by the odds of noise to signal, which by Bayes' rule say what a guess counts
    beside a measurement. Where not even the columns can be told from uniform ones, larger marginals say still less, and
    it weighs more; unless they do say something, as those of columns that are uniform do.
    """
    larger = [k for k, clique in enumerate(merged.cliques) if len(clique) > 1]
    guesses = _independent(model, [merged.cliques[k] for k in larger])
    deviation = noise = 0.0
    for k, guess in zip(larger, guesses, strict=True):
        deviation += merged.weights[k] * float(np.square(merged.values[k] - guess).sum())
        noise += guess.size
    signal = _share(deviation, noise)
    return most * (1.0 if signal <= 0.5 else (1 - signal) / signal) / max(trust, signal, _LEAST_TRUST)


def _independent(model: TreeModel, cliques: list[Clique]) -> list[Floats]:
    """What these marginals, flat, would count if the model's columns were independent: those of a group, among the
    persons who have it."""
    absence, names = model.absence, list(dict.fromkeys(name for clique in cliques for name in clique))
    counts = model.marginals([(name,) for name in names])
    columns = {name: column / model.total for name, column in zip(names, counts, strict=True)}
    persons = model.wide_marginals([(presence,) for presence in absence.presences])
    found = []
    for clique in cliques:
        guess = model.total * reduce(np.multiply.outer, [columns[name] for name in clique]).ravel()
        for group, (_, having) in zip(absence.groups, persons, strict=True):
            if (together := len(set(group).intersection(clique))) > 1:
                guess = guess * (model.total / having) ** (together - 1)
        found.append(guess)
    return found


def _energy(column: Floats) -> float:
    return float(np.square(column - column.mean()).sum())


def _share(deviation: float, noise: float) -> float:
    """The share of a squared deviation that its expectation, if it were all noise, does not explain."""
    return max(0.0, 1.0 - noise / deviation) if deviation > 0 else 0.0
