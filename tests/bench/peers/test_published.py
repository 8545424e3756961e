"""The published loops: what they spend, what they learn without noise, and their rows."""

from itertools import combinations, pairwise
from math import sqrt

import numpy as np
import pytest

from bench.peers import published
from bench.peers.draws import Draws
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain
from services.coordinator.generate import create_estimator

DOMAIN = Domain((Attribute("a", 2), Attribute("b", 3), Attribute("c", 4), Attribute("d", 2)))


def rows(count=3000):
    """d follows a, c follows b; a and b are independent."""
    uniform = Uniform("rows")
    a, b = uniform.integers(count, 2), uniform.integers(count, 3)
    c = np.where(uniform.floats(count) < 0.8, b, 3)
    d = np.where(uniform.floats(count) < 0.9, a, 1 - a)
    return np.stack([a, b, c, d], axis=1)


class Accounted(Draws):
    """Adds up what is asked for."""

    def __init__(self, domain, codes, uniform, spent=None):
        super().__init__(domain, codes, uniform)
        self.measured, self.chosen = [], []

    def measure(self, clique, sigma):
        self.measured.append((clique, 0.5 / sigma**2))
        return super().measure(clique, sigma)

    def choose(self, scores, epsilon, sensitivity=1.0):
        self.chosen.append(epsilon**2 / 8)
        return super().choose(scores, epsilon, sensitivity)

    @property
    def spent(self):
        return sum(cost for _, cost in self.measured) + sum(self.chosen)


def kernel(domain):
    return create_estimator("kernel", domain)


def perform(name, rho, seed=0):
    draws = Accounted(DOMAIN, rows(), Uniform(seed))
    return draws, published.MECHANISMS[name](draws, rho, kernel)


def distance(synthetic):
    """The largest error of a pair."""
    real, found = (Draws(DOMAIN, codes, Uniform(0)) for codes in (rows(), synthetic))
    pairs = combinations(DOMAIN.names, 2)
    return max(
        0.5 * np.abs(real.counts(pair) / len(real.codes) - found.counts(pair) / len(synthetic)).sum() for pair in pairs
    )


@pytest.mark.parametrize("name", ["aim", "mwem"])
@pytest.mark.parametrize("rho", [0.01, 1.0])
def test_a_loop_spends_all_of_its_budget_and_no_more(name, rho):
    draws, _ = perform(name, rho)
    assert draws.spent == pytest.approx(rho, rel=1e-9)


def test_mst_spends_thirds(monkeypatch):
    merged = []
    monkeypatch.setattr(published, "Draws", lambda *given: merged.append(Accounted(*given)) or merged[-1])
    draws, made = perform("mst", 0.3)
    assert sum(cost for _, cost in draws.measured) == pytest.approx(0.1)
    assert sum(draws.chosen) == pytest.approx(0.1)
    assert sum(cost for _, cost in merged[0].measured) == pytest.approx(0.1)
    assert made.rounds == 3


@pytest.mark.parametrize("name", published.MECHANISMS)
def test_without_noise_a_loop_finds_what_depends_on_what(name):
    _, made = perform(name, 1e5)
    assert len(made.codes) == pytest.approx(3000, abs=2)
    assert distance(made.codes) < 0.03


def test_aim_begins_with_columns_at_the_price_of_a_planned_round():
    draws, made = perform("aim", 0.5)
    assert [clique for clique, _ in draws.measured[:4]] == [("a",), ("b",), ("c",), ("d",)]
    planned = 0.5 / (16 * 4)
    assert all(cost == pytest.approx(0.9 * planned) for _, cost in draws.measured[:4])
    assert draws.chosen[0] == pytest.approx(0.1 * planned)
    assert made.rounds == len(draws.chosen) < 64  # annealed


def test_aim_anneals_by_halves_without_bound():
    draws, _ = perform("aim", 0.05)
    costs = [cost for _, cost in draws.measured[4:-1]]  # the last round takes what is left
    steps = {round(later / earlier, 6) for earlier, later in pairwise(costs)}
    assert steps == {1.0, 4.0} or steps == {4.0}


@pytest.mark.parametrize("seed", range(4))
def test_the_last_round_of_aim_costs_no_less_than_the_one_before(seed):
    draws, _ = perform("aim", 0.02 * (seed + 1), seed)
    before, last = [cost for _, cost in draws.measured[-2:]]
    assert last >= before * (1 - 1e-9)


def test_mwem_has_a_round_for_each_column():
    draws, made = perform("mwem", 0.4)
    assert made.rounds == len(draws.measured) == len(draws.chosen) == 4
    assert {round(cost, 9) for _, cost in draws.measured} == {0.09}
    assert all(len(clique) == 2 for clique, _ in draws.measured)


def test_mst_merges_rare_values_and_draws_them_again():
    uniform = Uniform(0)
    codes = np.array([[0, 2], [1, 0], [2, 1], [3, 0]])
    domain = Domain((Attribute("a", 4), Attribute("b", 3)))
    merging = {"a": np.array([True, False, True, False]), "b": np.array([True, True, True])}
    assert published._merged_domain(domain, merging).sizes == (3, 3)
    merged = published._merged_codes(Draws(domain, codes, uniform), merging)
    assert merged.tolist() == [[0, 2], [2, 0], [1, 1], [2, 0]]
    drawn = published._unmerged(merged.repeat(50, axis=0), merging, uniform)
    assert set(drawn[merged.repeat(50, axis=0)[:, 0] == 2, 0]) == {1, 3}
    kept = merged.repeat(50, axis=0)[:, 0] != 2
    assert (drawn[kept] == codes.repeat(50, axis=0)[kept]).all()


def test_a_merged_column_is_brought_to_the_total_by_its_variances():
    column = published.Measured(("a",), np.array([90.0, 1.0, 2.0, 3.0]), 5.0)
    merged = published._merged_column(column, np.array([True, False, False, False]), total=100.0)
    assert merged.values.tolist() == [90 + 1.0, 6 + 3.0]


def test_a_limit_of_bytes_keeps_what_is_already_part_of_the_model():
    estimator = kernel(DOMAIN)
    sizes = published.Sizes(estimator)
    pairs = list(combinations(DOMAIN.names, 2))
    part = [published.Measured(("b", "c"), np.zeros(12), 1.0)]
    assert sizes.within(0, pairs, part) == [("b", "c")]
    assert sizes.within(1 << 20, pairs, part) == pairs


def test_rows_follow_the_model_in_pairs_of_a_clique():
    draws = Draws(DOMAIN, rows(), Uniform(1))
    model = kernel(DOMAIN).fit([draws.measure(pair, sqrt(0.01)) for pair in (("a", "d"), ("b", "c"))], total=3000.9)
    codes = published.sample(model, Uniform(2))
    assert len(codes) == 3000
    found = Draws(DOMAIN, codes, Uniform(0))
    for pair in (("a", "d"), ("b", "c")):
        assert np.abs(found.counts(pair) - model.marginal(pair).ravel()).max() < 3
