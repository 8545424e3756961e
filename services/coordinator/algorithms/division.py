"""How a batch's budget is divided among marginals, so that the workload's expected error is least.

A marginal that is not measured is guessed from others, with an error (L1) of D. One that is measured, with noise that
adds up to N over its cells, is known with an error of D N / sqrt(D^2 + N^2) if guess and measurement are weighed as
their variances ask for; the prior of the last fit does so. N = a / sqrt(rho) with rho spent on it, so the error is
D / sqrt(1 + (D / a)^2 rho): convex in rho, with a finite slope at 0. So the sum of errors under a given total is least
if there is one price for all: who would not lower the error by as much, even with the first bit of rho, gets nothing.
No marginal has to be chosen beforehand, and no threshold has to be set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import combinations
from math import pi, sqrt

import numpy as np
import numpy.typing as npt

from caps.data.domain import Clique, Domain, Workload
from caps.dp.privacy.neighbouring import Neighbouring
from services.coordinator.estimation import Floats

_HALVINGS = 100
_ADJUSTMENTS = 6
"""Columns weigh as much as is guessed from them, and are known also from what else is measured: after so many turns
neither changes."""


def shrunk(errors: Floats, deviation: float) -> Floats:
    """Noisy errors, drawn to their mean by the share of their variance that the noise explains (James and Stein 1961).

    The mean of many errors is known well where none of them is.
    """
    if errors.size < 2:
        return errors
    mean, variance = errors.mean(), errors.var(ddof=1)
    share = max(0.0, 1 - deviation**2 / variance) if variance > 0 else 0.0
    return np.asarray(mean + share * (errors - mean))


def interactions(candidates: Sequence[Clique], errors: Floats, columns: Mapping[str, float]) -> Floats:
    """What each candidate adds to its columns and to its smaller parts, given its error against independent columns.

    columns: the errors of the columns themselves. Deviations of different orders are uncorrelated, so their squares add
    up: the square of a candidate's own is what the others leave of the square of its error.
    """
    squares: dict[Clique, float] = {}
    for clique, error in sorted(zip(candidates, errors.tolist(), strict=True), key=lambda one: len(one[0])):
        explained = sum(columns[name] ** 2 for name in clique)
        explained += sum(squares[part] for part in _parts(clique) if part != clique)
        squares[clique] = max(0.0, max(error, 0.0) ** 2 - explained)
    return np.sqrt([squares[clique] for clique in candidates])


def _parts(query: Clique) -> Iterator[Clique]:
    """The parts of a query that are candidates: those of two columns or more."""
    return (part for size in range(2, len(query) + 1) for part in combinations(query, size))


@dataclass(frozen=True)
class Division:
    """A budget to divide: what is known of the candidates and columns, and what each is worth.

    guessed: the error of each candidate if it is not measured. spent: rho that each column has cost already.
    """

    domain: Domain
    workload: Workload
    neighbouring: Neighbouring
    candidates: Sequence[Clique]
    guessed: Floats
    spent: float

    def divide(self, rho: float, fits: Callable[[Sequence[Clique]], Sequence[Clique]]) -> dict[Clique, float]:
        """What each marginal gets; those that get nothing are left out.

        fits: of candidates, the most valuable first, those that a model has room for.
        """
        left_out: set[Clique] = set()
        while True:
            allowed = np.array([clique not in left_out for clique in self.candidates])
            pairs, columns = self._divided(rho, allowed)
            gains = self.guessed * (1 - self._remaining(pairs))
            paid = [self.candidates[k] for k in np.argsort(-gains, kind="stable") if pairs[k] > 0]
            kept = set(fits(paid))
            if len(kept) == len(paid):
                break
            left_out |= set(paid) - kept
        names = [(name,) for name in self.domain.names]
        every = [*zip(names, columns.tolist(), strict=True), *zip(self.candidates, pairs.tolist(), strict=True)]
        return {clique: share for clique, share in every if share > 0}

    @property
    def _unit(self) -> float:
        """The expected size of a cell's noise is this / sqrt(rho)."""
        return sqrt(self.neighbouring.l2_squared / pi)

    @property
    def _noise(self) -> Floats:
        return self._unit * np.array(self.domain.cells_of(self.candidates), np.float64)

    def _remaining(self, rho: Floats) -> Floats:
        """The part of each guessed error that remains once so much is spent on it."""
        return np.asarray(1 / np.sqrt(1 + np.square(self.guessed / self._noise) * rho))

    def _divided(self, rho: float, allowed: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """rho of each candidate and of each column, for the price at which all of it is spent."""
        worth, shares, direct = self._worth()
        cells = np.array(self.domain.sizes, np.float64)
        told = self._told()
        ratio = np.square(self.guessed / self._noise)
        open_ = allowed & (ratio > 0)
        slope = np.where(open_, worth * self.guessed * ratio / 2, 0.0)
        ratio = np.where(open_, ratio, 1.0)
        pairs, columns = np.zeros(len(self.candidates)), np.zeros(len(cells))
        for _ in range(_ADJUSTMENTS):
            weight = (shares.times(self._remaining(pairs)) + direct) * cells * self._unit / 2
            known = self.spent + told.times(pairs)
            low, high = 1e-300, max(float(slope.max(initial=0)), float((weight * self.spent**-1.5).max()), 1e-299)
            for _ in range(_HALVINGS):
                price = sqrt(low) * sqrt(high)
                pairs = np.maximum(np.power(slope / price, 2 / 3) - 1, 0) / ratio
                columns = np.maximum(np.power(weight / price, 2 / 3) - known, 0)
                low, high = (price, high) if pairs.sum() + columns.sum() > rho else (low, price)
        return pairs, columns

    def _told(self) -> _Sparse:
        """What a bit of rho on a candidate tells of each of its columns, whose cells are sums of the candidate's."""
        sizes = dict(zip(self.domain.names, self.domain.sizes, strict=True))
        told = _Sparse(len(sizes))
        for k, (clique, cells) in enumerate(zip(self.candidates, self.domain.cells_of(self.candidates), strict=True)):
            for name in clique:
                told.add(self.domain.position(name), k, sizes[name] / cells)
        return told

    def _worth(self) -> tuple[Floats, _Sparse, Floats]:
        """What a candidate's own error weighs in the workload; what each column's does, where a candidate is guessed
        from columns; and what it does in queries of this column alone.

        A query's error is the sum of those of its parts. Of each of its columns it is guessed from, in equal shares,
        whatever parts contain the column.
        """
        where = {clique: k for k, clique in enumerate(self.candidates)}
        worth, direct = np.zeros(len(self.candidates)), np.zeros(len(self.domain.names))
        shares = _Sparse(len(self.domain.names))
        for query, weight in zip(self.workload.cliques, self.workload.weights, strict=True):
            if len(query) == 1:
                direct[self.domain.position(query[0])] += weight
                continue
            parts = [where[part] for part in _parts(query)]
            worth[parts] += weight
            for name in query:
                containing = [k for k in parts if name in self.candidates[k]]
                for k in containing:
                    shares.add(self.domain.position(name), k, weight / len(containing))
        return worth, shares, direct


class _Sparse:
    """A matrix of columns of the table by candidates, of which most entries are 0."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._entries: list[tuple[int, int, float]] = []

    def add(self, row: int, column: int, value: float) -> None:
        """Add to an entry."""
        self._entries.append((row, column, value))

    def times(self, vector: Floats) -> Floats:
        """The product."""
        if not self._entries:
            return np.zeros(self._rows)
        rows, columns, values = (np.array(part) for part in zip(*self._entries, strict=True))
        return np.asarray(np.bincount(rows, values * vector[columns], minlength=self._rows), np.float64)


def in_parts(shares: Mapping[Clique, float], parts: int) -> dict[Clique, int]:
    """Shares of a budget in whole parts, all of which are given away; who gets none is left out.

    Numbers of parts are 1, 2, 3, 4, 6, 8, 12, ..., and one that takes what is left: servers build a table for each
    number. Who is furthest below its share is raised next, to a third above it at most.
    """
    whole = sum(shares.values())
    given = dict.fromkeys(shares, 0)
    waiting = [(-share, order, clique, 1) for order, (clique, share) in enumerate(shares.items()) if share > 0]
    heapify(waiting)
    left = parts
    while waiting:
        _, order, clique, following = waiting[0]
        above = following > 1 and following * whole > shares[clique] * parts * 4 / 3
        if above or following - given[clique] > left:
            heappop(waiting)
            continue
        left -= following - given[clique]
        given[clique] = following
        raised = (
            following * 3 // 2 if following > 1 and following.bit_count() == 1 else following + max(1, following // 3)
        )
        heapreplace(waiting, (-shares[clique] / raised, order, clique, raised))
    most = max(shares, key=lambda clique: shares[clique])
    given[most] += left
    return {clique: number for clique, number in given.items() if number}
