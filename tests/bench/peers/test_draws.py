"""The peers' noise: laws, totals, and rounding that keeps every number."""

import numpy as np
import pytest

from bench.peers.draws import Draws, deviation, number_of_rows, spread
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain
from services.coordinator.estimation import Measured

DOMAIN = Domain((Attribute("a", 2), Attribute("b", 3)))
CODES = np.array([[0, 0], [0, 2], [1, 2], [1, 2]])


def draws(seed="draws"):
    return Draws(DOMAIN, CODES, Uniform(seed))


def test_counts_are_the_marginals():
    assert draws().counts(("a",)).tolist() == [2, 2]
    assert draws().counts(("a", "b")).tolist() == [1, 0, 1, 0, 0, 2]


def test_the_same_seed_gives_the_same_noise_and_another_does_not():
    first, second, other = (draws(seed).measure(("a", "b"), 3.0).values for seed in ("x", "x", "y"))
    assert (first == second).all()
    assert (first != other).all()


@pytest.mark.statistical
def test_noise_is_gaussian_of_its_deviation():
    values = 2.5 * draws().normal(200_000)
    assert abs(values.mean()) < 5 * 2.5 / np.sqrt(len(values))
    assert abs(values.std() / 2.5 - 1) < 0.01
    assert abs((np.abs(values) < 2.5).mean() - 0.6827) < 0.005


@pytest.mark.statistical
def test_choices_follow_the_exponential_mechanism():
    one, epsilon = draws(), 1.5
    chosen = np.array([one.choose([0.0, 2.0, 4.0], epsilon, sensitivity=2.0) for _ in range(20_000)])
    weights = np.exp(0.5 * epsilon / 2.0 * np.array([0.0, 2.0, 4.0]))
    assert np.abs(np.bincount(chosen) / len(chosen) - weights / weights.sum()).max() < 0.02


def test_a_marginal_that_costs_rho():
    assert 0.5 / deviation(0.02) ** 2 == pytest.approx(0.02)


def test_the_number_of_rows_weighs_sums_by_their_variance():
    sharp, blunt = Measured(("a",), np.array([40.0, 60.0]), 1.0), Measured(("b",), np.array([70.0, 50.0, 80.0]), 10.0)
    assert number_of_rows([sharp, blunt]) == pytest.approx((100 / 2 + 200 / 300) / (1 / 2 + 1 / 300))
    assert number_of_rows([Measured(("a",), np.array([-40.0, 3.0]), 1.0)]) == 1.0


def test_rounding_keeps_every_group_and_is_off_by_less_than_one():
    shares = np.array([[0.2, 0.3, 0.5], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    rows = np.array([7, 10, 4, 5])
    numbers = spread(shares, rows, Uniform("spread"))
    assert (numbers.sum(axis=1) == rows).all()
    expected = rows[:, None] * np.array([[0.2, 0.3, 0.5], [1 / 3] * 3, [1 / 3] * 3, [0, 1, 0]])
    assert (np.abs(numbers - expected) < 1).all()


@pytest.mark.statistical
def test_what_is_left_over_goes_where_most_was_cut_off():
    drawn = np.array([spread(np.array([[0.9, 0.1]]), np.array([1]), Uniform(i))[0] for i in range(2000)])
    assert abs(drawn[:, 0].mean() - 0.9) < 0.03


def test_columns_that_may_be_missing_are_refused():
    with pytest.raises(ValueError, match="nullable"):
        Draws(Domain((Attribute("a", 2, nullable=True),)), CODES[:, :1], Uniform(0))
