"""What pairs of columns are probably like, given noisy counts of them.

A pair's counts deviate from those of independent columns. In units of what independent columns make probable, the
deviations are normal, and how two cells' hang together is the product of how their rows' and their columns' do. Which
columns are of which kind follows from all pairs together:

- along an age, an income or a scale, what persons are like hardly ever goes up and down much; noise does. Deviations
  are sums of orthogonal polynomials in the categories, as they are ordered in the schema, whose variance falls with
  degrees by a ratio: correlation lies in those of first degree;
- categories without an order, such as regions or occupations, deviate each for itself;
- at an end of a scale is often what stands apart from it: nobody asked, none, zero, missing. The others are smooth.

The strength of a pair is its expected mean squared contingency. Strengths, too, follow from all pairs (`pooling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from caps.data.domain import Clique
from services.coordinator.estimation import Floats
from services.coordinator.generate.pooling import priors


class Kind(NamedTuple):
    """How the deviations of a column's categories hang together."""

    ratio: float
    """Of the variance of a degree to that of the one below it, in the part that is smooth."""
    own: float = 0.0
    """The part of the variance that is each category's own."""
    apart: int | None = None
    """The category that stands apart, first or last, and has half of the variance."""


KINDS = (Kind(1 / 16), Kind(1 / 4, own=1 / 4), Kind(0, own=1.0), Kind(1 / 4, apart=0), Kind(1 / 4, apart=-1))
"""One of them smooth, one rougher, one without an order, two with an end apart."""
WIDEST = 256
"""Columns of more categories have no deviations of each category's own: these take a decomposition of all of them."""
DEGREES = 12
"""The highest: with the largest ratio, those beyond are next to nothing."""
STRENGTHS = (2.0, 1 / 2, 1 / 8, 1 / 32, 1 / 128, 1 / 512, 1 / 2048)
"""Besides 0. The correlation of a pair of strength 1/8 is about a third."""
STRAYS = (1.0, 1 / 16)
"""Pairs of a table differ as they like, or hardly (`pooling`): most tables have a few strong ones among weak ones."""
_SWEEPS = 4
_SMALLEST = 1e-12
_LEAST = 1e-300
_NEGLIGIBLE = 1e-4


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


class _Axis(NamedTuple):
    """Orthonormal directions of a column in which deviations are independent of each other, and their variances."""

    directions: Floats
    variances: Floats


def expected_counts(pairs: Mapping[Clique, Pair]) -> dict[Clique, Floats]:
    """The expectation of each pair's counts, in which columns have the given shares. A few may be negative."""
    shares: dict[str, Floats] = {}
    for (row, column), pair in pairs.items():
        shares |= {row: pair.rows, column: pair.columns}
    kinds = {name: _possible(one.size) for name, one in shares.items()}
    axes = {name: [_axis(one, KINDS[kind]) for kind in kinds[name]] for name, one in shares.items()}
    evidence: dict[Clique, Floats] = {
        (row, column): np.array([[_evidence(pair, one, other) for other in axes[column]] for one in axes[row]])
        for (row, column), pair in pairs.items()
    }
    odds = _odds(kinds, evidence)
    return {
        (row, column): pair.independent + _expected(pair, axes[row], axes[column], odds[row, column])
        for (row, column), pair in pairs.items()
    }


def _possible(categories: int) -> list[int]:
    """The kinds that a column may be of: two categories can only go together in one way."""
    if categories <= 2:
        return [0]
    return [number for number, kind in enumerate(KINDS) if categories <= WIDEST or not kind.own]


def _odds(kinds: Mapping[str, Sequence[int]], evidence: Mapping[Clique, Floats]) -> dict[Clique, Floats]:
    """The probability of the kinds of both columns and of the strength, of each pair; they sum to 1.

    In sweeps: strengths, given what is probable of kinds; then the kind of each column, given those of the columns it
    was measured with (the mean field approximation), and given how common a kind is in the table.
    """
    likely = {pair: np.exp(one - one.max()) for pair, one in evidence.items()}
    found = {name: np.full(len(some), 1 / len(some)) for name, some in kinds.items()}
    common = np.full(len(KINDS), 1 / len(KINDS))
    strengths = np.empty((0, len(STRENGTHS) + 1))
    for _ in range(_SWEEPS if likely else 0):
        marginal = [np.einsum("ijs,i,j->s", one, found[row], found[column]) for (row, column), one in likely.items()]
        strengths = priors(np.log(np.maximum(marginal, _LEAST)), STRAYS)
        each = {
            pair: np.log(np.maximum(one @ prior, _LEAST))
            for (pair, one), prior in zip(likely.items(), strengths, strict=True)
        }
        for name in found:
            odds = np.log(common[kinds[name]])
            for (row, column), one in each.items():
                if name == row:
                    odds = odds + one @ found[column]
                elif name == column:
                    odds = odds + found[row] @ one
            found[name] = _normalised(np.exp(odds - odds.max()))
        common = np.full(len(KINDS), 1 / len(KINDS))
        for name, some in kinds.items():
            common[some] += found[name] if len(some) > 1 else 0.0
        common = _normalised(common)
    return {
        (row, column): np.multiply.outer(found[row], found[column])[..., None] * _normalised(one * prior)
        for ((row, column), one), prior in zip(likely.items(), strengths, strict=True)
    }


def _normalised(weights: Floats) -> Floats:
    """Along the last axis they sum to 1."""
    return np.asarray(weights / np.maximum(weights.sum(axis=-1, keepdims=True), _LEAST))


def _evidence(pair: Pair, row: _Axis, column: _Axis) -> Floats:
    """Of each strength, and of none, the last: log of how likely the counts are, beside none."""
    squares, signals = np.square(_measured(pair, row, column) / pair.sigma), _signals(pair, row, column)
    found = (squares * signals / (1 + signals) - np.log1p(signals)).sum(axis=(1, 2)) / 2
    return np.append(found, 0.0)


def _expected(pair: Pair, rows: Sequence[_Axis], columns: Sequence[_Axis], odds: Floats) -> Floats:
    """The deviation from independent counts that these odds make of what was measured."""
    found = np.zeros_like(pair.independent)
    for row, some in zip(rows, odds, strict=True):
        for column, strengths in zip(columns, some, strict=True):
            if strengths.sum() > _NEGLIGIBLE:
                signals = _signals(pair, row, column)
                kept = np.tensordot(strengths[:-1], signals / (1 + signals), 1)
                found += row.directions @ (kept * _measured(pair, row, column)) @ column.directions.T
    return found


def _measured(pair: Pair, row: _Axis, column: _Axis) -> Floats:
    """The deviation in each product of directions. Sums of a direction are 0, so noise in columns hardly matters."""
    return np.asarray(row.directions.T @ (pair.counts - pair.independent) @ column.directions)


def _signals(pair: Pair, row: _Axis, column: _Axis) -> Floats:
    """The variance of each product of directions, in units of the noise's, for each strength."""
    variances = (pair.persons / pair.sigma) ** 2 * np.multiply.outer(row.variances, column.variances)
    return np.asarray(np.multiply.outer(STRENGTHS, variances))


def _axis(shares: Floats, kind: Kind) -> _Axis:
    """Of deviations of shares, which sum to 0; their variances, each in units of the share, sum to 1."""
    shares = np.maximum(shares, _SMALLEST)
    if kind.apart is None or shares.size <= 2:
        parts = [sqrt_of * factor for sqrt_of, factor in _smooth_and_own(shares, kind)]
    else:
        parts = [factor / np.sqrt(2) for factor in _end_and_rest(shares, kind.apart, kind.ratio)]
    directions, sizes, _ = np.linalg.svd(np.concatenate(parts, axis=1), full_matrices=False)
    return _Axis(directions, sizes**2)


def _smooth_and_own(shares: Floats, kind: Kind) -> list[tuple[float, Floats]]:
    """Both parts of a kind that it has, each with the root of its part of the variance."""
    found = []
    if kind.own < 1:
        found.append(((1 - kind.own) ** 0.5, _smooth(shares, kind.ratio)))
    if kind.own > 0:
        found.append((kind.own**0.5, _own(shares)))
    return found


def _smooth(shares: Floats, ratio: float) -> Floats:
    """A root of the covariance of deviations that are polynomials, orthonormal beside shares."""
    roots = np.sqrt(shares)
    degrees = min(DEGREES, shares.size - 1)
    powers = np.polynomial.legendre.legvander(np.linspace(-1, 1, shares.size), degrees)
    polynomials = np.linalg.qr(roots[:, None] * powers)[0][:, 1:]  # without the constant; times the roots of shares
    return np.asarray(roots[:, None] * polynomials * np.sqrt(_normalised(ratio ** np.arange(float(degrees)))))


def _own(shares: Floats) -> Floats:
    """A root of the covariance of deviations that are, in units of shares, as large for every category."""
    deviations = np.diag(shares) - np.multiply.outer(shares, shares)
    return np.asarray(deviations / np.sqrt((np.square(deviations) / shares[:, None]).sum()))


def _end_and_rest(shares: Floats, end: int, ratio: float) -> list[Floats]:
    """Roots of two covariances: of one category against all others, and of the others, which are smooth."""
    others = np.arange(shares.size) != end % shares.size
    against = -shares * shares[end]
    against[end] = shares[end] * shares[others].sum()
    rest = _smooth(shares[others], ratio)
    smooth = np.zeros((shares.size, rest.shape[1]))
    smooth[others] = rest
    return [(against / np.sqrt(shares[end] * shares[others].sum()))[:, None], smooth]
