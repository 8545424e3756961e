"""What is expected of pairs, against dense linear algebra and laws of chance."""

from __future__ import annotations

import numpy as np
import pytest

from services.coordinator.estimation import Floats
from services.coordinator.generate import pairs
from services.coordinator.generate.pairs import Kind, Pair, expected_counts

PERSONS = 1000.0


def shares_of(size: int, generator: np.random.Generator) -> Floats:
    return np.asarray(generator.dirichlet(np.full(size, 4.0)))


def correlated(rows: Floats, columns: Floats, slope: float) -> Floats:
    """Counts that go up together, whose margins are the given ones."""
    steps = np.linspace(-1, 1, rows.size)[:, None] * np.linspace(-1, 1, columns.size)
    table = np.exp(slope * steps)
    for _ in range(200):
        table *= (rows / table.sum(axis=1))[:, None]
        table *= columns / table.sum(axis=0)
    return np.asarray(PERSONS * table)


def noisy(counts: Floats, sigma: float, generator: np.random.Generator) -> Pair:
    """Counts with noise, and the shares of their columns."""
    rows, columns = counts.sum(axis=1) / PERSONS, counts.sum(axis=0) / PERSONS
    return Pair(counts + generator.normal(0, sigma, counts.shape), sigma, PERSONS, rows, columns)


def smooth(shares: Floats, ratio: float) -> Floats:
    """The covariance of what a column adds to a pair: polynomials by Gram and Schmidt, weaker with degrees."""
    codes, found = np.arange(shares.size, dtype=float), [np.ones(shares.size)]
    for degree in range(1, shares.size):
        power = codes**degree
        for one in found + found:  # twice, for rounding
            power = power - one * (shares * one * power).sum() / (shares * one**2).sum()
        found.append(power / np.sqrt((shares * power**2).sum()))
    variances = float(ratio) ** np.arange(shares.size - 1)
    variances /= variances.sum()
    return np.asarray(
        sum(v * np.multiply.outer(shares * f, shares * f) for v, f in zip(variances, found[1:], strict=True))
    )


def scaled(covariance: Floats, shares: Floats) -> Floats:
    """So that variances, in units of shares, sum to 1."""
    return np.asarray(covariance / (np.diag(covariance) / shares).sum())


def covariance(shares: Floats, kind: Kind) -> Floats:
    """Of what a column adds to a pair, word by word; two categories can only go together in one way."""
    size = shares.size
    if size == 2:
        return smooth(shares, 1.0)
    without_mean = np.eye(size) - np.multiply.outer(shares, np.ones(size))
    if kind.apart is None:
        own = scaled(without_mean @ np.diag(shares**2) @ without_mean.T, shares)
        return np.asarray((1 - kind.own) * smooth(shares, kind.ratio) + kind.own * own)
    end = np.zeros(size)
    end[kind.apart] = 1
    against = without_mean @ (end * shares)
    others = np.flatnonzero(end == 0)
    rest = np.zeros((size, size))
    rest[np.ix_(others, others)] = smooth(shares[others], kind.ratio)
    return np.asarray((scaled(np.multiply.outer(against, against), shares) + rest) / 2)


KINDS = [Kind(1 / 4), Kind(1 / 4, own=1 / 4), Kind(0, own=1.0), Kind(1 / 4, apart=0), Kind(1 / 16, apart=-1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "sigma"), [((4, 3), 20.0), ((2, 5), 50.0), ((6, 6), 5.0), ((2, 2), 100.0)])
def test_what_is_expected_is_the_mean_of_a_normal_posterior_and_the_evidence_its_density(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, sizes: tuple[int, int], sigma: float
) -> None:
    """One kind and one strength, beside none; the odds of both by Bayes' rule."""
    strength = 0.5
    monkeypatch.setattr(pairs, "KINDS", (kind,))
    monkeypatch.setattr(pairs, "STRENGTHS", (strength,))
    generator = np.random.default_rng(sizes)
    rows, columns = (shares_of(size, generator) for size in sizes)
    pair = noisy(correlated(rows, columns, 1.0), sigma, generator)
    prior = strength * PERSONS**2 * np.kron(covariance(rows, kind), covariance(columns, kind))
    whole = prior + sigma**2 * np.eye(prior.shape[0])
    beyond = (pair.counts - pair.independent).ravel()
    mean = prior @ np.linalg.solve(whole, beyond)
    log = (-beyond @ np.linalg.solve(whole, beyond) - np.linalg.slogdet(whole / sigma**2)[1]) / 2
    odds = 1 / (1 + np.exp(-(beyond @ beyond) / sigma**2 / 2 - log))
    found = expected_counts({("a", "b"): pair})["a", "b"]
    assert found.ravel() == pytest.approx(pair.independent.ravel() + odds * mean, abs=1e-6 * PERSONS)


@pytest.mark.parametrize(
    ("slope", "sigma", "limit"), [(0.0, 30.0, None), (1.0, 30.0, 0.75), (3.0, 30.0, 0.75), (1, 100, 0.95), (3, 5, 0.75)]
)
def test_pairs_are_expected_to_be_closer_than_what_was_counted_and_than_independence_says(
    slope: float, sigma: float, limit: float | None
) -> None:
    """Eight pairs of 6 by 8 ordered categories that are alike, in 20 tables: means of L1."""
    errors = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        truths = [correlated(shares_of(6, generator), shares_of(8, generator), slope) for _ in range(8)]
        measured = {(f"a{i}", f"b{i}"): noisy(truth, sigma, generator) for i, truth in enumerate(truths)}
        expected = expected_counts(measured)
        for truth, (name, pair) in zip(truths, measured.items(), strict=True):
            guesses = (pair.counts, pair.independent, expected[name])
            errors.append([np.abs(guess - truth).sum() for guess in guesses])
    counted, independent, found = np.mean(errors, axis=0)
    assert found < 0.55 * counted
    assert found < (0.025 * PERSONS if limit is None else limit * independent)


def errors_of(truths: list[Floats], sigma: float, generator: np.random.Generator) -> list[list[float]]:
    """L1 of what independence says of each pair, and of what is expected of it, if all are of one table."""
    measured = {(f"a{i}", f"b{i}"): noisy(truth, sigma, generator) for i, truth in enumerate(truths)}
    expected = expected_counts(measured)
    return [
        [float(np.abs(guess - truth).sum()) for guess in (pair.independent, expected[name])]
        for truth, (name, pair) in zip(truths, measured.items(), strict=True)
    ]


def test_of_categories_without_an_order_more_is_learnt_than_if_all_were_smooth() -> None:
    """Pairs of 6 by 8 whose categories are shuffled."""
    gains = []
    for kinds in (pairs.KINDS, (Kind(1 / 16), Kind(1 / 4), Kind(1 / 2))):
        errors = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pairs, "KINDS", kinds)
            for seed in range(20):
                generator = np.random.default_rng(seed)
                truths = [
                    correlated(shares_of(6, generator), shares_of(8, generator), 3.0)[generator.permutation(6)][
                        :, generator.permutation(8)
                    ]
                    for _ in range(8)
                ]
                errors += errors_of(truths, 20.0, generator)
        independent, found = np.mean(errors, axis=0)
        gains.append(1 - found / independent)
    assert gains[0] > 0.2
    assert gains[0] > 1.5 * gains[1]


@pytest.mark.parametrize("end", [0, -1])
def test_who_was_not_asked_stands_apart_from_a_scale(end: int) -> None:
    """A fifth of persons have no value of either column; the others' columns are independent."""
    errors: dict[bool, list[list[float]]] = {True: [], False: []}
    for apart in errors:
        with pytest.MonkeyPatch.context() as patched:
            if not apart:
                patched.setattr(pairs, "KINDS", (Kind(1 / 16), Kind(1 / 4), Kind(1 / 2)))
            for seed in range(20):
                generator = np.random.default_rng(seed)
                truths = []
                for _ in range(4):
                    truth = 0.8 * PERSONS * np.multiply.outer(shares_of(6, generator), shares_of(9, generator))
                    table = np.pad(truth, ((1, 0), (1, 0)) if end == 0 else ((0, 1), (0, 1)))
                    table[end, end] = 0.2 * PERSONS
                    truths.append(table)
                errors[apart] += errors_of(truths, 30.0, generator)
    (independent, found), (_, without) = (np.mean(errors[apart], axis=0) for apart in (True, False))
    assert found < 0.6 * independent
    assert found < 0.8 * without


def test_columns_that_are_wide_cost_no_decomposition_of_all_their_categories() -> None:
    assert all(not pairs.KINDS[kind].own for kind in pairs._possible(pairs.WIDEST + 1))
    generator = np.random.default_rng(0)
    truth = correlated(shares_of(pairs.WIDEST + 1, generator), shares_of(3, generator), 2.0)
    ((independent, found),) = errors_of([truth], 1.0, generator)
    assert found < 0.6 * independent


@pytest.mark.parametrize("sizes", [(2, 2), (5, 13), (2, 40), (300, 2)])
def test_columns_keep_their_shares_and_without_noise_pairs_keep_their_counts(sizes: tuple[int, int]) -> None:
    """Up to 13 categories have polynomials of every degree; of more, what is smooth is kept."""
    generator = np.random.default_rng(sizes)
    truth = correlated(*(shares_of(size, generator) for size in sizes), 2.0)
    for sigma in (1e-6, 10.0, 1e4):
        pair = noisy(truth, sigma, generator)
        found = expected_counts({("a", "b"): pair})["a", "b"]
        assert found.sum(axis=1) == pytest.approx(PERSONS * pair.rows, abs=1e-6)
        assert found.sum(axis=0) == pytest.approx(PERSONS * pair.columns, abs=1e-6)
        if sigma < 1:
            assert found == pytest.approx(truth, abs=1e-2)
        if sigma > 1000:
            assert np.abs(found - pair.independent).sum() < 0.3 * PERSONS


def test_a_category_that_nobody_has_and_a_table_without_pairs() -> None:
    rows = np.array([0.5, 0.5, 0.0])
    pair = Pair(np.full((3, 2), 1000.0), 10.0, PERSONS, rows, np.array([0.5, 0.5]))
    found = expected_counts({("a", "b"): pair})["a", "b"]
    assert np.isfinite(found).all()
    assert np.abs(found[2]).max() < 1
    assert expected_counts({}) == {}
