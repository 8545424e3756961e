"""How much of noisy marginals is signal, against numpy and laws of chance; and that a run on a small table is not worse
than one that measures nothing but columns, or nothing at all."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from caps.data.domain import MISSING, Attribute, Clique, Domain, Layout
from caps.data.quality import marginals_error
from caps.dp.privacy import UNBOUNDED, calibrate
from services.coordinator.algorithms.aim import Aim
from services.coordinator.estimation import Floats, Measured
from services.coordinator.generate import create_estimator
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.columns import CONCENTRATIONS, Column, expected_shares, guesses
from services.coordinator.generate.fitting import MergedMeasurements, merge_measurements
from services.coordinator.generate.kernel import PRIOR_WEIGHT
from services.coordinator.generate.model import TreeModel
from services.coordinator.generate.signal import measured_columns, measured_pairs, prior_weight, trust_in_columns
from tests.kit.algorithms import clear_oracle, domain_of, model_error, rows_of, task_of

pytestmark = pytest.mark.statistical

PERSONS = 1000.0


def noisy(clique: Clique, counts: Floats, sigma: float, generator: np.random.Generator) -> Measured:
    return Measured(clique, counts.ravel() + generator.normal(0, sigma, counts.size), sigma)


def merged_of(absence: Absence, measured: list[Measured], total: float | None = PERSONS) -> MergedMeasurements:
    return merge_measurements(absence, measured, total, 1 << 30)


def columns_of(absence: Absence, measured: list[Measured], persons: float = PERSONS) -> dict[str, Column]:
    return measured_columns(absence.domain, merged_of(absence, measured), dict.fromkeys(absence.domain.names, persons))


def trust_in(column: Column) -> float:
    return trust_in_columns({"": column})


def weight_of(measured: list[Measured], absence: Absence, total: float | None = PERSONS) -> float:
    """As the estimator has it, in units of what it is at most beside trusted columns."""
    model = create_estimator("kernel", absence.domain, groups=absence.groups).fit(measured, total=total)
    assert isinstance(model, TreeModel)
    trust = trust_in_columns(columns_of(absence, measured))
    return prior_weight(model, merged_of(absence, measured, total), trust, PRIOR_WEIGHT) / PRIOR_WEIGHT


def skewed(size: int) -> Floats:
    shares = 0.6 ** np.arange(size)
    return PERSONS * shares / shares.sum()


# Columns


def test_a_column_is_the_mean_of_all_that_contains_it_by_precision() -> None:
    generator, domain = np.random.default_rng(1), domain_of(5, 3, 2)
    measured = [
        noisy(clique, np.full(domain.cells(clique), PERSONS / domain.cells(clique)), sigma, generator)
        for clique, sigma in ((("a0",), 40.0), (("a0", "a1"), 20.0), (("a0", "a1", "a2"), 30.0), (("a0",), 50.0))
    ]
    estimates, variances = [], []
    for one in measured:
        shape = domain.shape(one.clique)
        estimates.append(one.values.reshape(5, -1).sum(axis=1))
        variances.append(one.sigma**2 * np.prod(shape[1:]))
    precise = 1 / np.array(variances)
    column = np.average(estimates, axis=0, weights=precise)
    found = columns_of(Absence(domain), measured)
    assert set(found) == {"a0", "a1", "a2"}
    assert found["a0"].counts == pytest.approx(column)
    assert found["a0"].sigma == pytest.approx(precise.sum() ** -0.5)
    expected = max(0.0, 1 - 4 / precise.sum() / (5 * column.var()))
    assert trust_in(found["a0"]) == pytest.approx(expected)


def test_columns_of_noise_are_hardly_trusted_and_strong_ones_are() -> None:
    domain = domain_of(40, 40, 40, 2, 1)
    trusts = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        measured = [
            noisy(("a0",), np.full(40, PERSONS / 40), 50.0, generator),
            noisy(("a1",), skewed(40), 1.0, generator),
            noisy(("a2",), skewed(40), sqrt(skewed(40).var()), generator),  # as much noise as signal
            noisy(("a3",), np.array([500.0, 500.0]), 50.0, generator),
            noisy(("a4",), np.array([PERSONS]), 50.0, generator),
        ]
        columns = columns_of(Absence(domain), measured)
        trusts.append([trust_in(columns[name]) for name in ("a0", "a1", "a2", "a3")])
        # There is nothing to trust in a column of one category.
        assert trust_in_columns(columns) == pytest.approx(np.mean(trusts[-1]))
    means = np.mean(trusts, axis=0)
    assert means[0] < 0.12
    assert means[1] > 0.99
    assert 0.42 < means[2] < 0.55
    assert means[3] < 0.3
    assert np.median(trusts, axis=0)[3] == 0
    assert np.min(trusts) >= 0
    assert np.max(trusts) <= 1


@pytest.mark.parametrize(("sigma", "size"), [(30.0, 12), (100.0, 5), (200.0, 5), (400.0, 12)])
def test_what_a_column_is_expected_to_be_is_what_dirichlet_draws_say(sigma: float, size: int) -> None:
    """Draws from the prior, weighted by how well they explain the noisy counts. With a few large shares, the sum of all
    is less nearly normal, and the approximation coarser."""
    generator = np.random.default_rng(size)
    one = noisy(("a0",), skewed(size), sigma, generator)
    found = guesses(Column(one.values, sigma, PERSONS))
    for concentration, guess in zip((*CONCENTRATIONS, None), found, strict=True):
        if concentration is None:
            draws = np.full((1, size), 1 / size)
        else:
            draws = generator.dirichlet(np.full(size, concentration), 200_000)
        logs = -np.square((PERSONS * draws - one.values) / sigma).sum(axis=1) / 2
        weights = np.exp(logs - logs.max())
        if len(draws) > 1 and weights.sum() ** 2 / np.square(weights).sum() < 2000:
            continue  # too few draws explain the counts at all to say anything
        coarse = concentration == CONCENTRATIONS[0]
        assert guess.shares == pytest.approx(np.average(draws, axis=0, weights=weights), abs=0.03 if coarse else 0.02)
        assert guess.evidence == pytest.approx(np.log(weights.mean()) + logs.max(), abs=0.5 if coarse else 0.3)


@pytest.mark.parametrize("sigma", [1.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("truth", [skewed(12), np.full(12, PERSONS / 12)])
def test_columns_are_expected_to_be_no_further_off_than_the_better_of_what_was_counted_and_uniform(
    sigma: float, truth: Floats
) -> None:
    """Total variation, of ten columns that are alike, in 20 tables."""
    errors = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        noised = [noisy(("a0",), truth, sigma, generator).values for _ in range(10)]
        expected = expected_shares({str(i): Column(one, sigma, PERSONS) for i, one in enumerate(noised)})
        for i, one in enumerate(noised):
            kept = np.maximum(one, 0) / max(np.maximum(one, 0).sum(), 1)
            shares = expected[str(i)]
            assert shares.sum() == pytest.approx(1)
            assert shares.min() > 0
            errors.append([np.abs(guess - truth / PERSONS).sum() / 2 for guess in (kept, np.full(12, 1 / 12), shares)])
    kept_off, uniform_off, off = np.mean(errors, axis=0)
    assert off <= min(kept_off, uniform_off) + 0.06
    assert off < 0.9 * max(kept_off, uniform_off)


def test_a_column_is_flatter_beside_flat_ones() -> None:
    doubtful = Column(np.array([400.0, 250, 150, 100, 100]), 120.0, PERSONS)
    flat = {str(i): Column(np.full(5, 200.0), 20.0, PERSONS) for i in range(9)}
    steep = {str(i): Column(np.array([990.0, 10, 0, 0, 0]), 20.0, PERSONS) for i in range(9)}
    alone, beside_flat, beside_steep = (
        expected_shares({"doubtful": doubtful, **others})["doubtful"].max() for others in ({}, flat, steep)
    )
    assert 0.2 < beside_flat < alone - 0.01 < beside_steep


def test_if_the_number_of_persons_is_lost_in_noise_columns_are_uniform() -> None:
    found = expected_shares({"a": Column(np.array([300.0, -150, 20]), 200.0, 1.0), "b": Column(np.ones(1), 1.0, 0.0)})
    assert found["a"] == pytest.approx(np.full(3, 1 / 3), abs=0.01)
    assert found["b"] == pytest.approx(np.ones(1))


# Absence


def test_shrinking_a_column_leaves_those_who_lack_it() -> None:
    """600 persons of 1000 have the nullable column: how they divide among its values is noise, their number is not."""
    domain = Domain((Attribute("a", 6, nullable=True), Attribute("b", 2)))
    estimator, trusts, flatter = create_estimator("kernel", domain), [], []
    for seed in range(10):
        generator = np.random.default_rng(seed)
        measured = [
            noisy(("a",), np.full(6, 100.0), 60.0, generator),
            noisy(("b",), np.array([700.0, 300.0]), 10.0, generator),
        ]
        fitted = estimator.fit(measured, total=PERSONS)
        columns = columns_of(Absence(domain), measured)
        assert trust_in(columns["b"]) > 0.99
        trusts.append(trust_in(columns["a"]))
        smooth = estimator.smoothed(fitted, measured)
        assert smooth.marginal(("a",)).sum() == pytest.approx(fitted.marginal(("a",)).sum(), rel=0.1)
        flatter.append(smooth.marginal(("a",)).std() / measured[0].values.std())
        assert smooth.marginal(("b",)) == pytest.approx(np.array([700, 300]), abs=30)
        lacking = 1 - smooth.marginal(("a",)).sum() / PERSONS
        assert (smooth.sample(seed=1)[:, 0] == MISSING).mean() == pytest.approx(lacking, abs=0.01)
    assert np.mean(trusts) < 0.4
    assert np.mean(flatter) < 0.75


@pytest.mark.parametrize("having", [0.3, 0.6, 1.0])
def test_columns_that_persons_lack_together_are_independent_among_those_who_have_them(having: float) -> None:
    """Else every pair of a group would seem to be signal: of independent columns it counts more than their product."""
    domain, groups = domain_of(3, 3, 3, 3), (("a0", "a1"), ("a2", "a3"))
    absence, generator, sigma = Absence(domain, groups), np.random.default_rng(3), 10.0
    shares = skewed(3) / PERSONS
    whole = {(name,): PERSONS * having * shares for name in ("a0", "a1")} | {
        (name,): PERSONS * shares for name in ("a2", "a3")
    }
    pair = np.multiply.outer(shares, shares)
    alike = {("a0", "a1"): PERSONS * having * pair, ("a2", "a3"): PERSONS * pair, ("a0", "a2"): PERSONS * having * pair}
    counts = whole | alike
    assert np.median([
        weight_of([noisy(clique, count, sigma, generator) for clique, count in counts.items()], absence)
        for _ in range(10)
    ]) == pytest.approx(1, abs=0.1)  # fmt: skip
    counts[("a0", "a1")] = PERSONS * having * np.diag(shares)
    assert weight_of([noisy(clique, count, sigma, generator) for clique, count in counts.items()], absence) < 0.3


# Pairs


def test_pairs_are_what_all_marginals_that_contain_them_say_among_those_who_have_both() -> None:
    """A pair alone and within a triple, by numpy; 600 of 1000 persons have the group of a0 and a1."""
    domain, generator = domain_of(3, 4, 2), np.random.default_rng(5)
    absence = Absence(domain, (("a0", "a1"),))
    shares = [skewed(size) / PERSONS for size in domain.sizes]
    triple = 600 * np.multiply.outer(np.multiply.outer(shares[0], shares[1]), shares[2])
    measured = [
        noisy(("a2",), PERSONS * shares[2], 1.0, generator),
        noisy(("a0", "a1"), triple.sum(axis=2), 3.0, generator),
        noisy(("a0", "a1", "a2"), triple, 1.0, generator),
    ]
    model = create_estimator("kernel", domain, groups=absence.groups).fit(measured, total=PERSONS)
    assert isinstance(model, TreeModel)
    found = measured_pairs(model, merged_of(absence, measured), dict(zip(domain.names, shares, strict=True)))
    assert set(found) == {("a0", "a1"), ("a0", "a2"), ("a1", "a2")}
    alone, within = measured[1].values.reshape(3, 4), measured[2].values.reshape(3, 4, 2)
    precisions = np.array([1 / 9, 1 / 2])  # in the triple a cell is a sum of two
    both = found["a0", "a1"]
    assert both.counts == pytest.approx(np.average([alone, within.sum(axis=2)], axis=0, weights=precisions))
    assert both.sigma == pytest.approx(precisions.sum() ** -0.5)
    assert found["a0", "a2"].counts == pytest.approx(within.sum(axis=1))
    assert found["a0", "a2"].sigma == pytest.approx(2.0)
    for pair in found.values():
        assert pair.persons == pytest.approx(600, rel=0.02)
        assert pair.independent == pytest.approx(pair.counts, abs=15)


def test_pairs_that_go_up_together_come_closer_than_the_same_in_another_order() -> None:
    """Five columns of six values each that follow one another; their pairs, with as much noise as there are persons."""
    domain, codes, errors = domain_of(6, 6, 6, 6, 6), np.arange(6), []
    truth = np.exp(-np.square(np.subtract.outer(codes, codes)) / 4)
    for _ in range(100):
        truth /= truth.sum(axis=1, keepdims=True) * 6 / PERSONS
        truth /= truth.sum(axis=0) * 6 / PERSONS
    chain, estimator = [(f"a{i}", f"a{i + 1}") for i in range(4)], create_estimator("kernel", domain)
    for seed in range(8):
        generator = np.random.default_rng(seed)
        for order in (codes, generator.permutation(codes)):
            there = truth[np.ix_(order, order)]
            measured = [noisy((name,), np.full(6, PERSONS / 6), 20.0, generator) for name in domain.names]
            measured += [noisy(pair, there, 30.0, generator) for pair in chain]
            fitted = estimator.fit(measured, total=PERSONS)
            smooth = estimator.smoothed(fitted, measured)
            errors.append([np.mean([abs(m.marginal(p) - there).sum() for p in chain]) for m in (fitted, smooth)])
    (plain, smoothed), (_, unordered) = np.mean(errors[::2], axis=0), np.mean(errors[1::2], axis=0)
    assert smoothed < 0.6 * plain
    assert smoothed < 0.6 * unordered < 0.6 * np.abs(truth - PERSONS / 36).sum()


# What the prior weighs


def paired(dependent: float, sigma: float, seed: int, columns: Floats) -> list[Measured]:
    """Two columns and their pair, of which a part is equal."""
    generator = np.random.default_rng(seed)
    pair = dependent * np.diag(columns) + (1 - dependent) * np.multiply.outer(columns, columns) / PERSONS
    singles = [noisy((name,), columns, sigma, generator) for name in ("a0", "a1")]
    return [*singles, noisy(("a0", "a1"), pair, sigma, generator)]


def test_a_prior_fades_where_pairs_are_signal_and_weighs_more_where_columns_are_noise() -> None:
    domain = domain_of(6, 6)
    absence, uniform = Absence(domain), np.full(6, PERSONS / 6)

    def typical(dependent: float, sigma: float, columns: Floats) -> float:
        return float(np.median([weight_of(paired(dependent, sigma, seed, columns), absence) for seed in range(12)]))

    assert typical(1.0, 0.5, skewed(6)) < 1e-3
    assert typical(0.5, 5.0, skewed(6)) < 0.1
    assert typical(0.0, 5.0, skewed(6)) == pytest.approx(1, abs=0.1)  # nothing but noise beside known columns
    assert typical(0.0, 400.0, skewed(6)) > 3  # nothing at all
    assert typical(0.0, 20.0, uniform) > 3
    assert typical(0.8, 5.0, uniform) < 0.1  # uniform columns, but pairs that say much
    assert weight_of([noisy(("a0",), skewed(6), 1.0, np.random.default_rng(4))], absence) == pytest.approx(1, abs=0.01)


def test_pairs_of_uniform_columns_are_not_smoothed_away() -> None:
    """Columns cut at quantiles are uniform, whatever their pairs say."""
    domain, columns = domain_of(4, 4), np.full(4, PERSONS / 4)
    truth = PERSONS * (0.5 * np.eye(4) / 4 + 0.5 / 16)
    errors = []
    for seed in range(12):
        measured, estimator = paired(0.5, 20.0, seed, columns), create_estimator("kernel", domain)
        fitted = estimator.fit(measured, total=PERSONS)
        smooth = estimator.smoothed(fitted, measured)
        errors.append([np.abs(model.marginal(("a0", "a1")) - truth).sum() for model in (fitted, smooth)])
    plain, smoothed = np.mean(errors, axis=0)
    assert smoothed < 1.1 * plain


# The floor


def test_a_run_that_can_learn_nothing_is_not_worse_than_columns_or_uniform_rows() -> None:
    """AIM at epsilon 0.1 on 300 persons, beside all of the budget spent on columns, which are shrunk by numpy."""
    domain, rho = domain_of(4, 3, 6, 2, 5, 3), calibrate(Fraction(1, 10), Fraction(1, 10**9))
    task, codes = task_of(domain, UNBOUNDED, rho=rho), rows_of(domain, 1, 300)
    layout = task.workload.layout(domain)
    singles = Layout(domain, tuple((name,) for name in domain.names))
    true, sigma = layout.marginals(codes), sqrt(len(domain.names) / (2 * rho))

    def error(shares: list[Floats]) -> float:
        by_name = dict(zip(domain.names, shares, strict=True))
        pairs = [np.multiply.outer(by_name[one], by_name[two]).ravel() for one, two in layout.cliques]
        return marginals_error(layout, true, 1e6 * np.concatenate(pairs))

    ours, columns = [], []
    for seed in range(6):
        done = Aim().run(task, clear_oracle(Aim(), task, codes, seed), create_estimator("kernel", domain))
        ours.append(model_error(task, codes, done.model))
        generator, shares = np.random.default_rng(seed), []
        for name in domain.names:
            counts = singles.marginals(codes)[singles.part((name,))]
            values = counts + generator.normal(0, sigma, counts.size)
            deviation = values - values.mean()
            kept = max(0.0, 1 - (counts.size - 1) * sigma**2 / np.square(deviation).sum())
            shrunk = np.maximum(len(codes) / counts.size + kept * deviation, 0)
            shares.append(shrunk / shrunk.sum())
        columns.append(error(shares))
    uniform = error([np.full(size, 1 / size) for size in domain.sizes])
    assert np.mean(ours) <= 1.05 * min(np.mean(columns), uniform)
