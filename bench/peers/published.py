"""private-pgm's AIM, MWEM+PGM and MST as published: its loops, its budgets, its total, its rounding.

Sources: mechanisms/aim.py, mwem+pgm.py and mst.py of https://github.com/ryan112358/private-pgm, for all pairs of
attributes. The fits are those of the estimator given, without a prior. A neighbour has one row more or less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import pi, sqrt

import numpy as np
import numpy.typing as npt

from bench.peers.draws import Draws, deviation, number_of_rows, spread
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Clique, Codes, Domain
from services.coordinator.estimation import Estimator, Floats, Measured, Model

Estimators = Callable[[Domain], Estimator]
AIM_ROUNDS = 16
"""Planned per attribute."""
AIM_BYTES = 80 << 20
MWEM_BYTES = 25 << 20
MEASURE_SHARE = 0.9
RARE = 3
"""MST merges values whose noisy count is below so many standard deviations."""


@dataclass(frozen=True)
class Synthetic:
    """Rows, and after how many rounds."""

    codes: Codes
    rounds: int


def aim(draws: Draws, rho: float, estimators: Estimators) -> Synthetic:
    """AIM (McKenna, Mullins, Sheldon and Miklau 2022)."""
    domain, estimator = draws.domain, estimators(draws.domain)
    pairs = list[Clique](combinations(domain.names, 2))
    columns = [(name,) for name in domain.names]
    weights = {c: float(sum(len({*c} & {*pair}) for pair in pairs)) for c in (*columns, *pairs)}
    answers = {candidate: draws.counts(candidate) for candidate in weights}
    rounds = AIM_ROUNDS * len(columns)
    sigma, epsilon = _round(rho / rounds)
    measured = [draws.measure(column, sigma) for column in columns]
    spent, sizes, done, last = len(columns) * 0.5 / sigma**2, Sizes(estimator), 0, False
    model = _fit(estimator, measured)
    while not last:
        done += 1
        if rho - spent < 2 * _cost(sigma, epsilon):
            (sigma, epsilon), last = _round(rho - spent), True
        spent += _cost(sigma, epsilon)
        kept = sizes.within(AIM_BYTES * spent / rho, weights, measured)
        estimates = dict(zip(kept, model.marginals(kept), strict=True))
        noise = sqrt(2 / pi) * sigma
        scores = [
            weights[c] * (np.abs(answers[c] - estimates[c].ravel()).sum() - noise * answers[c].size) for c in kept
        ]
        chosen = kept[draws.choose(scores, epsilon, max(weights[candidate] for candidate in kept))]
        measured.append(draws.measure(chosen, sigma))
        model = _fit(estimator, measured, model)
        if np.abs(model.marginal(chosen) - estimates[chosen]).sum() <= noise * answers[chosen].size:
            sigma, epsilon = sigma / 2, epsilon * 2
    return Synthetic(sample(model, draws.uniform), done)


def mwem(draws: Draws, rho: float, estimators: Estimators) -> Synthetic:
    """MWEM+PGM (McKenna, Sheldon and Miklau 2019)."""
    domain, estimator = draws.domain, estimators(draws.domain)
    pairs, rounds = list[Clique](combinations(domain.names, 2)), len(domain.names)
    answers = {pair: draws.counts(pair) for pair in pairs}
    sigma, epsilon = _round(rho / rounds)
    measured: list[Measured] = []
    sizes, model = Sizes(estimator), None
    for number in range(1, rounds + 1):
        kept = sizes.within(MWEM_BYTES * number / rounds, pairs, measured)
        if model is None:  # one row, uniform
            estimates = [np.full(answers[pair].size, 1 / answers[pair].size) for pair in kept]
        else:
            estimates = [table.ravel() for table in model.marginals(kept)]
        scores = [
            np.abs(answers[pair] - estimate).sum() - estimate.size
            for pair, estimate in zip(kept, estimates, strict=True)
        ]
        measured.append(draws.measure(kept[draws.choose(scores, epsilon)], sigma))
        model = _fit(estimator, measured, model)
    assert model is not None
    return Synthetic(sample(model, draws.uniform), rounds)


def mst(draws: Draws, rho: float, estimators: Estimators) -> Synthetic:
    """MST (McKenna, Miklau and Sheldon 2021): thirds of the budget for columns, choice of edges, edges.

    Deviation: our estimators have one weight for all cells of a marginal. The merged cell of a column, whose noise is
    that of all its values, is therefore not weighted less in the fit; instead the column is first brought to the total
    in proportion to the variances of its cells, which is what the published fit does to a column alone.
    """
    domain, each = draws.domain, len(draws.domain.names)
    sigma = deviation(rho / (3 * each))
    columns = [draws.measure((name,), sigma) for name in domain.names]
    merging = {one.clique[0]: one.values >= RARE * one.sigma for one in columns}
    merged = Draws(_merged_domain(domain, merging), _merged_codes(draws, merging), draws.uniform)
    total = number_of_rows(columns)
    ones = [_merged_column(one, merging[one.clique[0]], total) for one in columns]
    estimator, pairs = estimators(merged.domain), list(combinations(domain.names, 2))
    independent = estimator.fit(ones, total=total).marginals(pairs)
    wrong = {
        pair: float(np.abs(merged.counts(pair) - estimate.ravel()).sum())
        for pair, estimate in zip(pairs, independent, strict=True)
    }
    epsilon = sqrt(8 * rho / 3 / (each - 1))
    tree, part = list[Clique](), {name: {name} for name in domain.names}
    while len(tree) < each - 1:
        open_ = [pair for pair in pairs if part[pair[0]] is not part[pair[1]]]
        edge = open_[draws.choose([wrong[pair] for pair in open_], epsilon)]
        tree.append(edge)
        joined = part[edge[0]] | part[edge[1]]
        part |= dict.fromkeys(joined, joined)
    edges = [merged.measure(edge, deviation(rho / (3 * len(tree)))) for edge in tree]
    model = estimator.fit([*ones, *edges], total=number_of_rows([*columns, *edges]))
    return Synthetic(_unmerged(sample(model, draws.uniform), merging, draws.uniform), len(tree))


def _round(rho: float) -> tuple[float, float]:
    """Sigma and epsilon of a round that costs rho."""
    return deviation(MEASURE_SHARE * rho), sqrt(8 * (1 - MEASURE_SHARE) * rho)


def _cost(sigma: float, epsilon: float) -> float:
    return 0.5 / sigma**2 + epsilon**2 / 8


def _fit(estimator: Estimator, measured: Sequence[Measured], warm_start: Model | None = None) -> Model:
    return estimator.fit(measured, total=number_of_rows(measured), warm_start=warm_start)


@dataclass
class Sizes:
    """Which candidates keep the model small; remembered until the model's maximal cliques change."""

    estimator: Estimator
    _maximal: frozenset[Clique] = frozenset()
    _bytes: dict[Clique, float] = field(default_factory=dict)

    def within(self, limit: float, candidates: Iterable[Clique], measured: Iterable[Measured]) -> list[Clique]:
        """Candidates with which the model takes at most `limit` bytes, and those that are part of it."""
        cliques = {one.clique for one in measured}
        maximal = frozenset(c for c in cliques if not any({*c} < {*other} for other in cliques))
        if maximal != self._maximal:
            self._maximal, self._bytes = maximal, {}
        return [candidate for candidate in candidates if self._size(candidate) <= limit]

    def _size(self, candidate: Clique) -> float:
        if candidate not in self._bytes:
            part = any({*candidate} <= {*clique} for clique in self._maximal)
            self._bytes[candidate] = 0 if part else self.estimator.model_bytes([*sorted(self._maximal), candidate])
        return self._bytes[candidate]


def sample(model: Model, uniform: Uniform) -> Codes:
    """Rows as private-pgm's synthetic_data("round"): attribute by attribute, given those before in its clique."""
    domain, rows = model.domain, int(model.total)
    codes, placed = np.zeros((rows, len(domain.names)), np.int64), list[str]()
    for clique in model.cliques:
        for name in (name for name in clique if name not in placed):
            given = [other for other in placed if other in clique]
            ordered = domain.clique((*given, name))
            table = model.marginal(ordered).transpose([ordered.index(one) for one in (*given, name)])
            _place(codes, domain, given, name, table, uniform)
            placed.append(name)
    return codes


def _place(codes: Codes, domain: Domain, given: list[str], name: str, table: Floats, uniform: Uniform) -> None:
    shape = table.shape[:-1]
    columns = tuple(codes[:, domain.position(one)] for one in given)
    groups = np.ravel_multi_index(columns, shape) if given else np.zeros(len(codes), np.intp)
    order = np.lexsort((uniform.words(len(codes)), groups))  # at random within a group
    present, sizes = np.unique(groups, return_counts=True)
    numbers = spread(table.reshape(-1, table.shape[-1])[present], sizes, uniform)
    values = np.tile(np.arange(table.shape[-1]), len(present))
    codes[order, domain.position(name)] = np.repeat(values, numbers.ravel())


Merging = Mapping[str, npt.NDArray[np.bool_]]
"""For each attribute, which of its values are frequent: all others are merged into one, the last."""


def _merged_domain(domain: Domain, merging: Merging) -> Domain:
    sizes = {name: int(frequent.sum() + (not frequent.all())) for name, frequent in merging.items()}
    return Domain(tuple(Attribute(one.name, sizes[one.name]) for one in domain.attributes))


def _merged_codes(draws: Draws, merging: Merging) -> Codes:
    codes = np.empty_like(draws.codes)
    for i, name in enumerate(draws.domain.names):
        frequent = merging[name]
        codes[:, i] = np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())[draws.codes[:, i]]
    return codes


def _merged_column(one: Measured, frequent: npt.NDArray[np.bool_], total: float) -> Measured:
    if frequent.all():
        return one
    values, variances = np.append(one.values[frequent], one.values[~frequent].sum()), np.ones(frequent.sum() + 1)
    variances[-1] = np.count_nonzero(~frequent)
    return Measured(one.clique, values + (total - values.sum()) * variances / variances.sum(), one.sigma)


def _unmerged(codes: Codes, merging: Merging, uniform: Uniform) -> Codes:
    """Each merged value becomes one of the rare ones, equally probable."""
    found = np.empty_like(codes)
    for i, frequent in enumerate(merging.values()):
        first, rare = np.flatnonzero(frequent), np.flatnonzero(~frequent)
        values = np.append(first, -1)[codes[:, i]]
        lost = np.flatnonzero(values < 0)
        if len(lost):
            values[lost] = rare[uniform.integers(len(lost), len(rare))]
        found[:, i] = values
    return found


MECHANISMS: Mapping[str, Callable[[Draws, float, Estimators], Synthetic]] = {"aim": aim, "mwem": mwem, "mst": mst}
