"""Conversions against an independent optimum in mpmath, OpenDP and dp-accounting."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction as F
from functools import cache
from typing import Any

import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caps.dp.privacy import Allowance, calibrate, cdp_delta, cdp_eps, cdp_rho, folded_epsilon, pure_rho, satisfies
from caps.dp.privacy.rational import exp_up, ln_down, ln_up, significant_down, significant_up, sqrt_down
from caps.errors import DomainError

pytestmark = pytest.mark.property

TIGHT = F(1, 10**15)
ORDERS = 1 + np.geomspace(1e-3, 1e6, 4000)


@pytest.fixture(autouse=True, scope="module")
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(100):
        yield


def drawn(low: float, high: float) -> st.SearchStrategy[F]:
    """Rationals spread evenly over orders of magnitude."""
    exponents = st.floats(float(np.log10(low)), float(np.log10(high)))
    return exponents.map(lambda e: F(10**e).limit_denominator(10**30)).filter(lambda x: x > 0)


rhos, epsilons, deltas = drawn(1e-9, 100), drawn(1e-3, 100), drawn(1e-30, 0.5)


def real(x: F) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator


def true_log_delta(rho: F, epsilon: F) -> mpmath.mpf:
    """min over orders of the bound, found by bisection on its derivative in log t: another way than the code's."""
    r, e = real(rho), real(epsilon)
    low, high = mpmath.mpf(-600), mpmath.mpf(200)
    for _ in range(220):
        middle = (low + high) / 2
        t = mpmath.exp(middle)
        if (2 * t + 1) * r - e - mpmath.log1p(1 / t) > 0:
            high = middle
        else:
            low = middle
    t = mpmath.exp(low)
    return t * ((1 + t) * r - e) - t * mpmath.log1p(1 / t) - mpmath.log1p(t)


@cache
def opendp_profile(rho: float) -> Any:
    dp.enable_features("contrib", "honest-but-curious")
    measurement = dp.m.make_user_measurement(
        dp.atom_domain(T=bool),
        dp.discrete_distance(),
        dp.zero_concentrated_divergence(),
        function=lambda _: 0,
        privacy_map=lambda _: rho,
    )
    return dp.c.make_zCDP_to_approxDP(measurement).map(1)


def accountant(rho: float) -> RdpAccountant:
    accountant = RdpAccountant(orders=ORDERS)
    accountant.compose(dp_event.ZCDpEvent(rho))
    return accountant


@given(rhos, epsilons)
@settings(max_examples=60, deadline=None)
@example(F(1, 10**9), F(100))
@example(F(100), F(1, 1000))
def test_delta_is_above_the_optimum_and_close(rho: F, epsilon: F) -> None:
    delta, log_delta = cdp_delta(rho, epsilon), true_log_delta(rho, epsilon)
    if log_delta > -20000:
        assert log_delta <= mpmath.log(real(delta)) <= log_delta + TIGHT
    else:
        assert 0 < delta < F(1, 10**8000)


@given(rhos, deltas)
@settings(max_examples=60, deadline=None)
def test_epsilon_is_above_the_optimum_and_close(rho: F, delta: F) -> None:
    epsilon = cdp_eps(rho, delta)
    assert epsilon == 0 or true_log_delta(rho, epsilon) <= mpmath.log(real(delta))
    if epsilon * (1 - TIGHT) > 0:
        assert true_log_delta(rho, epsilon * (1 - TIGHT)) > mpmath.log(real(delta))


@given(epsilons, deltas)
@settings(max_examples=60, deadline=None)
def test_rho_is_below_the_optimum_and_close(epsilon: F, delta: F) -> None:
    rho = cdp_rho(epsilon, delta)
    assert true_log_delta(rho, epsilon) <= mpmath.log(real(delta))
    assert true_log_delta(rho * (1 + TIGHT), epsilon) > mpmath.log(real(delta))
    assert cdp_delta(rho, epsilon) <= delta


@given(drawn(1e-6, 10), drawn(1e-12, 1e-2))
@settings(max_examples=40, deadline=None)
def test_epsilon_and_delta_are_opendps(rho: F, delta: F) -> None:
    profile = opendp_profile(float(rho))
    epsilon = cdp_eps(F(float(rho)), F(float(delta)))
    assert float(epsilon) == pytest.approx(profile.epsilon(float(delta)), rel=1e-9, abs=1e-12)
    at = max(float(epsilon), 1e-3)
    assert float(cdp_delta(F(float(rho)), F(at))) == pytest.approx(profile.delta(at), rel=1e-9)


@given(drawn(1e-5, 10), drawn(1e-12, 1e-2))
@settings(max_examples=40, deadline=None)
def test_epsilon_is_dp_accountings_up_to_its_choice_of_orders(rho: F, delta: F) -> None:
    theirs = accountant(float(rho)).get_epsilon(float(delta))
    ours = float(cdp_eps(F(float(rho)), F(float(delta))))
    assert theirs * (1 - 1e-4) <= ours <= theirs * (1 + 1e-12)


@given(drawn(0.01, 20), drawn(1e-12, 1e-3))
@settings(max_examples=60, deadline=None)
@example(F(19), F(1, 10**9))
@example(F(20), F(1, 10**9))
def test_a_calibrated_run_keeps_its_promise(epsilon: F, delta: F) -> None:
    allowance = Allowance()
    if allowance.of_delta(epsilon) >= delta:
        with pytest.raises(DomainError):
            calibrate(epsilon, delta)
        return
    rho = calibrate(epsilon, delta)
    assert satisfies(rho, allowance, epsilon, delta)
    stated = folded_epsilon(rho, allowance, delta)
    assert satisfies(rho, allowance, stated, delta)
    assert stated <= epsilon
    # Where the allowance takes most of delta, a smaller epsilon, with less of it to cover, may be as true.
    assert epsilon * (1 - TIGHT) < stated or 2 * allowance.of_delta(epsilon) > delta
    assert not satisfies(rho * (1 + TIGHT), allowance, epsilon, delta)


@given(drawn(1e-6, 1), drawn(1e-9, 1e-3), drawn(1e-18, 1e-15))
@settings(max_examples=40, deadline=None)
@example(F(1, 10**6), F(1, 10**3), F(1, 10**13))
def test_folding_a_distance_costs_epsilon_and_no_more_than_needed(rho: F, delta: F, eta: F) -> None:
    allowance = Allowance(eta / 4, eta / 4, eta)
    epsilon = folded_epsilon(rho, allowance, delta)
    assert satisfies(rho, allowance, epsilon, delta)
    if cdp_eps(rho, delta) == 0:
        assert epsilon == 0
        return
    assert epsilon > cdp_eps(rho, delta)
    assert not satisfies(rho, allowance, epsilon * (1 - TIGHT), delta)


def divergence(order: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """Renyi divergence of randomised response, summed over its two outcomes."""
    p, q = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon)), 1 / (1 + mpmath.exp(epsilon))
    return mpmath.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)


@given(drawn(1e-4, 50), drawn(1e-6, 1e4))
@settings(max_examples=80, deadline=None)
def test_the_charge_of_pure_dp_covers_the_worst_case_at_every_order(epsilon: F, above_one: F) -> None:
    order = 1 + real(above_one)
    assert divergence(order, real(epsilon)) <= order * real(pure_rho(epsilon))


@given(drawn(1e-4, 50))
@settings(max_examples=40, deadline=None)
def test_the_charge_of_pure_dp_is_tight_and_at_most_half_the_square(epsilon: F) -> None:
    rho = pure_rho(epsilon)
    assert rho <= epsilon**2 / 2 + F(1, 2**128)
    assert divergence(1 + mpmath.mpf("1e-20"), real(epsilon)) >= real(rho) * (1 - mpmath.mpf("1e-12"))


@given(st.fractions(min_value=-500, max_value=500), drawn(1e-30, 1e30))
@settings(max_examples=100, deadline=None)
def test_elementary_bounds_enclose_the_truth(x: F, y: F) -> None:
    power, log = mpmath.exp(real(x)), mpmath.log(real(y))
    assert power < real(exp_up(x)) < power * (1 + mpmath.mpf("1e-75"))
    assert real(ln_down(y)) < log < real(ln_up(y)) < real(ln_down(y)) + mpmath.mpf("1e-75")


@given(drawn(1e-40, 1e40))
def test_scales_round_to_64_bits_in_the_direction_named(x: F) -> None:
    for rounded in (significant_up(x), significant_down(x)):
        assert abs(rounded / x - 1) < F(1, 2**62)
        assert (rounded.numerator // (rounded.numerator & -rounded.numerator)).bit_length() <= 64
        assert rounded.denominator.bit_count() == 1
    assert significant_down(x) <= x <= significant_up(x)
    assert sqrt_down(x) ** 2 <= x < (sqrt_down(x) * (1 + F(1, 2**64))) ** 2
