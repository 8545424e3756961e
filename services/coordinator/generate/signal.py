"""How much of what was measured is signal: what a prior should be like, and weigh, where most of it is noise.

The noise's variance is known, so what measurements deviate from a guess beyond it is what the guess gets wrong. This is
empirical Bayes, after James and Stein (1961): nothing here is a constant chosen on some table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from caps.data.domain import Clique, Domain
from services.coordinator.estimation import Floats
from services.coordinator.generate.columns import Column
from services.coordinator.generate.fitting import MergedMeasurements
from services.coordinator.generate.model import TreeModel

_LEAST_TRUST = 1e-3


def measured_columns(domain: Domain, merged: MergedMeasurements, persons: Mapping[str, float]) -> dict[str, Column]:
    """Every measured attribute: what all marginals that contain it say, each weighted by its precision.

    persons: how many have a value of each attribute.
    """
    sums: dict[str, Floats] = {}
    precisions: dict[str, float] = {}
    for clique, values, weight in zip(merged.cliques, merged.values, merged.weights, strict=True):
        table = values.reshape(domain.shape(clique))
        for axis, name in enumerate(clique):
            column = table.sum(axis=tuple(other for other in range(table.ndim) if other != axis))
            precision = weight * column.size / table.size  # a cell of the column is the sum of so many
            sums[name] = sums.get(name, 0.0) + precision * column
            precisions[name] = precisions.get(name, 0.0) + precision
    return {
        name: Column(total / precisions[name], precisions[name] ** -0.5, persons[name]) for name, total in sums.items()
    }


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
    """What the prior of independent columns should weigh: `most` where larger marginals are half noise, or more.

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
