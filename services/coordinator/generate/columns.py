"""What columns are probably like, given noisy counts of them.

A column's shares are a draw from a symmetric Dirichlet distribution. The smaller its concentration, the more of a table
a few categories make up; if it is infinite, all shares are equal. Each column has a concentration of its own, one of a
grid; which of them is probable follows from all columns together (`pooling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, pi
from typing import NamedTuple

import numpy as np

from services.coordinator.estimation import Floats
from services.coordinator.generate.pooling import pooled

CONCENTRATIONS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
"""Besides an infinite one. 1: all shares are equally probable. 16: of ten shares, each is 0.1 give or take 0.02."""
STRAYS = (1 / 2, 1 / 8, 1 / 32)
"""Columns of a table differ much, or hardly (`pooling`)."""
_LEAST = 1e-9
_STEPS = 60


class Column(NamedTuple):
    """Noisy counts, each with a standard deviation of `sigma`, of so many persons."""

    counts: Floats
    sigma: float
    persons: float


class Guess(NamedTuple):
    """What a concentration makes of a column: the expected shares, and the logarithm of how probable the counts are."""

    shares: Floats
    evidence: float


def expected_shares(columns: Mapping[str, Column]) -> dict[str, Floats]:
    """The expectation of each column's shares. They are positive and sum to 1."""
    if not columns:
        return {}
    found = {name: guesses(column) for name, column in columns.items()}
    odds = pooled(np.array([[guess.evidence for guess in some] for some in found.values()]), STRAYS)
    return {
        name: np.asarray(sum(weight * guess.shares for weight, guess in zip(weights, some, strict=True)))
        for (name, some), weights in zip(found.items(), odds, strict=True)
    }


def guesses(column: Column) -> list[Guess]:
    """Of each of the concentrations, and of an infinite one, the last."""
    counts, persons = column.counts, max(column.persons, 1.0)
    noisy, sigma = counts / persons, column.sigma / persons
    nodes, widths = _nodes(noisy, sigma)
    likelihood = -np.square((nodes - noisy[:, None]) / sigma) / 2
    found = []
    for concentration in CONCENTRATIONS:
        prior = np.log(widths) + (concentration - 1) * np.log(nodes)
        prior[:, 0] = concentration * log(_LEAST) - log(concentration)  # the integral up to the first node
        shares, given = _constrained(prior + likelihood, nodes, concentration)
        _, anyhow = _constrained(prior, nodes, concentration)
        found.append(Guess(shares, given - anyhow))
    even = np.full(counts.size, 1 / counts.size)
    return [*found, Guess(even, -float(np.square((noisy - even) / sigma).sum()) / 2)]


def _nodes(noisy: Floats, sigma: float) -> tuple[Floats, Floats]:
    """Where the density of each share is looked at, 0 to 1, and the width of each node: wherever it can be large."""
    everywhere = np.broadcast_to(np.geomspace(_LEAST, 1, 120), (noisy.size, 120))
    there = np.clip(noisy[:, None] + sigma * np.linspace(-6, 6, 49), _LEAST, 1)
    nodes = np.sort(np.concatenate([everywhere, there], axis=1), axis=1)
    widths = np.full_like(nodes, 1e-300)
    gaps = np.diff(nodes, axis=1) / 2
    widths[:, :-1] += gaps
    widths[:, 1:] += gaps
    return nodes, widths


def _constrained(density: Floats, nodes: Floats, concentration: float) -> tuple[Floats, float]:
    """Means of independent shares with these log densities, given that they sum to 1, and log of how likely that is.

    The saddlepoint approximation (Daniels 1954): shares are tilted by exp(-tilt x) so that their means sum to 1; their
    sum is then nearly normal. Newton's method for the tilt, kept between bounds that close in.
    """
    count = len(nodes)
    tilt, low, high = count * concentration, -np.inf, np.inf
    for _ in range(_STEPS):
        tilted = density - tilt * nodes
        top = tilted.max(axis=1)
        weights = np.exp(tilted - top[:, None])
        sums = weights.sum(axis=1)
        means = (weights * nodes).sum(axis=1) / sums
        variance = max(float(((weights * nodes**2).sum(axis=1) / sums - means**2).sum()), 1e-18)
        excess = float(means.sum()) - 1
        low, high = (tilt, high) if excess > 0 else (low, tilt)
        if abs(excess) < 1e-9:
            break
        newton = tilt + excess / variance
        tilt = newton if low < newton < high else (low + high) / 2
    likely = float(np.sum(top + np.log(sums))) + tilt - log(2 * pi * variance) / 2
    return means / means.sum(), likely
