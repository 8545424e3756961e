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
from services.coordinator.generate.fitting import MergedMeasurements, merge_measurements
from services.coordinator.generate.kernel import INDEPENDENCE
from services.coordinator.generate.model import TreeModel
from services.coordinator.generate.signal import prior_weight, trust_in_columns
from tests.kit.algorithms import clear_oracle, domain_of, model_error, rows_of, task_of

pytestmark = pytest.mark.statistical

PERSONS = 1000.0


def noisy(clique: Clique, counts: Floats, sigma: float, generator: np.random.Generator) -> Measured:
    return Measured(clique, counts.ravel() + generator.normal(0, sigma, counts.size), sigma)


def merged_of(absence: Absence, measured: list[Measured], total: float | None = PERSONS) -> MergedMeasurements:
    return merge_measurements(absence, measured, total, 1 << 30)


def weight_of(measured: list[Measured], absence: Absence, total: float | None = PERSONS) -> float:
    """As the estimator has it, in units of what it is at most beside trusted columns."""
    model = create_estimator("kernel", absence.domain, groups=absence.groups).fit(measured, total=total)
    assert isinstance(model, TreeModel)
    merged = merged_of(absence, measured, total)
    return prior_weight(model, merged, trust_in_columns(absence.domain, merged), INDEPENDENCE) / INDEPENDENCE


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
    expected = max(0.0, 1 - 4 / precise.sum() / (5 * column.var()))
    assert trust_in_columns(domain, merged_of(Absence(domain), measured))["a0"] == pytest.approx(expected)


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
        trust = trust_in_columns(domain, merged_of(Absence(domain), measured))
        assert set(trust) == {"a0", "a1", "a2", "a3"}  # there is nothing to shrink in a column of one category
        trusts.append(list(trust.values()))
    means = np.mean(trusts, axis=0)
    assert means[0] < 0.12
    assert means[1] > 0.99
    assert 0.42 < means[2] < 0.55
    assert means[3] < 0.3
    assert np.median(trusts, axis=0)[3] == 0
    assert np.min(trusts) >= 0
    assert np.max(trusts) <= 1


@pytest.mark.parametrize("sigma", [1.0, 30.0, 100.0, 1000.0])
def test_to_shrink_by_trust_is_hardly_worse_than_the_better_of_keeping_and_uniform(sigma: float) -> None:
    domain, truth = domain_of(12), skewed(12)
    errors = []
    for seed in range(300):
        one = noisy(("a0",), truth, sigma, np.random.default_rng(seed))
        trust = trust_in_columns(domain, merged_of(Absence(domain), [one]))["a0"]
        guesses = [
            one.values,
            np.full(12, one.values.mean()),
            one.values.mean() + trust * (one.values - one.values.mean()),
        ]
        errors.append([np.square(guess - truth).sum() for guess in guesses])
    kept, uniform, shrunk = np.mean(errors, axis=0)
    assert shrunk < min(kept, uniform) + 0.1 * 12 * sigma**2
    assert shrunk < max(kept, uniform)


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
        trust = trust_in_columns(domain, merged_of(Absence(domain), measured))
        assert trust["b"] > 0.99
        trusts.append(trust["a"])
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
