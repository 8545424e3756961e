"""What pairs of columns are probably like, given noisy counts of them.

A pair's counts deviate from those of independent columns. In units of what independent columns make probable, such a
deviation is a sum of products of orthogonal polynomials, one in each column's categories, as they are ordered in the
schema: correlation lies in those of first degree, and what goes up and down more often in those of higher degrees. What
persons are like hardly ever goes up and down much along an age, an income or a scale; noise does. So coefficients have
a normal prior whose variance falls with degrees by a ratio. Where categories have no order, low degrees show little, so
pairs come out weak, and little is gained or lost.

The strength of a pair is its expected mean squared contingency, the sum of squares of all coefficients. Strengths and
the ratio follow from all pairs together (`pooling`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from caps.data.domain import Clique
from services.coordinator.estimation import Floats
from services.coordinator.generate.pooling import pooled

RATIOS = (1 / 16, 1 / 4, 1 / 2)
"""Of the variance of a degree to that of the one below it. 1 would be the same for everything: that is what the prior's
weight is for (`signal.prior_weight`)."""
DEGREES = 12
"""The highest: with the largest ratio, those beyond are worth a 2000th."""
STRENGTHS = (2.0, 1 / 2, 1 / 8, 1 / 32, 1 / 128, 1 / 512, 1 / 2048)
"""Besides 0. The correlation of a pair of strength 1/8 is about a third."""
_SMALLEST = 1e-12


class Pair(NamedTuple):
    """Noisy counts of so many persons, each with a standard deviation of `sigma`, and the shares of both columns."""

    counts: Floats
    sigma: float
    persons: float
    rows: Floats
    columns: Floats

    @property
    def independent(self) -> Floats:
        """Counts of independent columns."""
        return self.persons * np.multiply.outer(self.rows, self.columns)


class _Directions(NamedTuple):
    """Orthonormal directions of rows and of columns, in whose products deviations are independent of each other, before
    and after measuring; what was measured of each product; its variance, for a strength of 1; and that of its noise."""

    rows: Floats
    columns: Floats
    measured: Floats
    variances: Floats
    noise: float


def expected_counts(pairs: Mapping[Clique, Pair]) -> dict[Clique, Floats]:
    """The expectation of each pair's counts, in which columns have the given shares. A few may be negative."""
    if not pairs:
        return {}
    found = {name: [_directions(pair, ratio) for ratio in RATIOS] for name, pair in pairs.items()}
    odds = pooled(np.array([[list(_evidence(one)) for one in some] for some in found.values()]))
    return {
        name: pairs[name].independent + sum(_expected(one, each) for one, each in zip(some, weights, strict=True))
        for (name, some), weights in zip(found.items(), odds, strict=True)
    }


def _evidence(one: _Directions) -> Iterator[float]:
    """Of each strength, and of none, the last: log of how likely the counts are, beside none."""
    squares = one.measured**2 / one.noise
    for strength in STRENGTHS:
        signal = strength * one.variances / one.noise
        yield float((squares * signal / (1 + signal) - np.log1p(signal)).sum()) / 2
    yield 0.0


def _expected(one: _Directions, odds: Floats) -> Floats:
    """The deviation from independent counts that these odds of the strengths make of what was measured."""
    kept = np.zeros_like(one.variances)
    for strength, weight in zip(STRENGTHS, odds[:-1], strict=True):
        kept += weight * strength * one.variances / (strength * one.variances + one.noise)
    return np.asarray(one.rows @ (kept * one.measured) @ one.columns.T)


def _directions(pair: Pair, ratio: float) -> _Directions:
    """Sums over rows and columns of a product of polynomials are 0, so noise in columns hardly matters."""
    (rows, spread), (columns, width) = _axis(pair.rows, ratio), _axis(pair.columns, ratio)
    measured = rows.T @ (pair.counts - pair.independent) @ columns
    variances = pair.persons**2 * np.multiply.outer(spread, width)
    return _Directions(rows, columns, measured, variances, pair.sigma**2)


def _axis(shares: Floats, ratio: float) -> tuple[Floats, Floats]:
    """Orthonormal directions of a column, and the variance in each, together 1 before they are weighted with shares."""
    roots = np.sqrt(np.maximum(shares, _SMALLEST))
    degrees = min(DEGREES, shares.size - 1)
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, shares.size), degrees)
    polynomials = np.linalg.qr(roots[:, None] * powers)[0][:, 1:]  # without the constant; times the roots of shares
    variances = ratio ** np.arange(degrees)
    weighted = roots[:, None] * polynomials * np.sqrt(variances / variances.sum())
    directions, sizes, _ = np.linalg.svd(weighted, full_matrices=False)
    return directions, sizes**2
