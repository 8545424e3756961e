"""What a peer sees of a table: noisy counts and noisy choices, drawn from a seed. For benchmarks only.

Gaussian noise is continuous and the exponential mechanism exact, as in private-pgm, but for the floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from caps.basics.uniform import Uniform
from caps.data.domain import Clique, Codes, Domain
from services.coordinator.estimation import Floats, Measured


class Draws:
    """A table behind its noise. One seed, one course of noise."""

    def __init__(self, domain: Domain, codes: Codes, uniform: Uniform) -> None:
        if any(attribute.nullable for attribute in domain.attributes):
            raise ValueError("the peers know no missing values: a column may not be nullable")
        self.domain, self.codes, self.uniform = domain, codes, uniform

    def counts(self, clique: Clique) -> Floats:
        """The exact marginal, flat."""
        shape = self.domain.shape(clique)
        columns = tuple(self.codes[:, self.domain.position(name)] for name in clique)
        return np.bincount(np.ravel_multi_index(columns, shape), minlength=int(np.prod(shape))).astype(np.float64)

    def measure(self, clique: Clique, sigma: float) -> Measured:
        """The marginal with Gaussian noise."""
        counts = self.counts(clique)
        return Measured(clique, counts + sigma * self.normal(counts.size), sigma)

    def choose(self, scores: Sequence[float], epsilon: float, sensitivity: float = 1.0) -> int:
        """The exponential mechanism, which costs epsilon^2 / 8."""
        exponents = 0.5 * epsilon / sensitivity * np.array(scores, np.float64)
        return int(np.argmax(exponents + self.gumbel(len(exponents))))

    def normal(self, count: int) -> Floats:
        """Standard normal values."""
        from scipy.special import ndtri  # type: ignore[import-untyped]

        return np.asarray(ndtri(self._inside(count)), np.float64)

    def gumbel(self, count: int) -> Floats:
        """Standard Gumbel values."""
        return gumbel(self.uniform, count)

    def _inside(self, count: int) -> Floats:
        return inside(self.uniform, count)


def inside(uniform: Uniform, count: int) -> Floats:
    """Uniform values of (0, 1), neither end included."""
    return uniform.floats(count) + 2.0**-54


def gumbel(uniform: Uniform, count: int) -> Floats:
    """Standard Gumbel values."""
    return np.asarray(-np.log(-np.log(inside(uniform, count))), np.float64)


def number_of_rows(measured: Sequence[Measured]) -> float:
    """The mean of all sums, weighted by the inverse of their variance, as private-pgm estimates it; at least 1."""
    weights = np.array([1 / (one.sigma**2 * one.values.size) for one in measured])
    return max(1.0, float(weights @ [one.values.sum() for one in measured] / weights.sum()))


def spread(shares: Floats, rows: npt.NDArray[np.intp], uniform: Uniform) -> npt.NDArray[np.intp]:
    """How many rows of each group get each value, by private-pgm's rounding: a row of `shares` for each group.

    Expected numbers are rounded down, and the rows left over go to different values, chosen one after the other with
    probabilities in proportion to what was cut off.
    """
    sums = shares.sum(axis=1, keepdims=True)
    even = np.full_like(shares, 1 / shares.shape[1])
    expected = np.divide(shares, sums, out=even, where=sums > 0) * rows[:, None]
    whole = np.floor(expected + 1e-9)
    left = rows - whole.sum(axis=1).astype(np.intp)
    with np.errstate(divide="ignore"):
        keys = np.log(np.maximum(expected - whole, 0)) + gumbel(uniform, expected.size).reshape(expected.shape)
    rank = np.argsort(np.argsort(-keys, axis=1), axis=1)
    return np.asarray(whole + (rank < left[:, None]), np.intp)


def deviation(rho: float) -> float:
    """The standard deviation of the noise in one marginal that costs rho."""
    return sqrt(0.5 / rho)
