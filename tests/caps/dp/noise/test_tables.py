"""Tables and plans against laws computed in another way: exact integers and twice the digits."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from math import exp, floor, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caps.dp.bounds import NOISE_BITS
from caps.dp.noise import plans
from caps.dp.noise.fixed import EXP_ERROR, ONE, PRECISION, exp_doublings, exp_minus, exp_tables
from caps.dp.noise.plans import (
    gaussian_exists,
    gaussian_plan,
    geometric_exists,
    geometric_plan,
    gumbel_exists,
    gumbel_plan,
    half_gaussian,
    laplace_exists,
    laplace_plan,
    selection_plan,
)
from caps.dp.noise.tables import DIGITS, LIMIT, AliasTable, alias_table
from caps.errors import DomainError

SIGMAS = ["0.1", "0.3", "0.7", "5", "8", "11.9", "24", "50", "73.1", "500", "1000", "5000", "1000000"]


def law(table: AliasTable) -> dict[int, Fraction]:
    return {code: Fraction(mass, 1 << (DIGITS + table.index_bits)) for code, mass in table.masses().items()}


def gaussian(sigma2: Fraction, reach: int) -> dict[int, Fraction]:
    """The discrete Gaussian to 120 digits; the integers left out have less than 10^-60 of it."""
    with localcontext(prec=120):
        rate = Decimal(sigma2.denominator) / Decimal(2 * sigma2.numerator)
        weights = [(-rate * k * k).exp() for k in range(reach + 1)]
        total = weights[0] + 2 * sum(weights[1:])
        half = [Fraction(w / total) for w in weights]
    return {k: half[abs(k)] for k in range(-reach, reach + 1)}


def distance(one: dict[int, Fraction], other: dict[int, Fraction]) -> Fraction:
    return sum((abs(one.get(k, Fraction(0)) - other.get(k, Fraction(0))) for k in one | other), Fraction(0)) / 2


def signed(table: AliasTable) -> dict[int, Fraction]:
    masses = law(table)
    return {k: masses.get(abs(k), Fraction(0)) / (1 if k == 0 else 2) for k in range(-max(masses), max(masses) + 1)}


def joined(one: dict[int, Fraction], other: dict[int, Fraction], factor: int) -> dict[int, Fraction]:
    total: dict[int, Fraction] = {}
    for x, p in one.items():
        for y, q in other.items():
            total[x + factor * y] = total.get(x + factor * y, Fraction(0)) + p * q
    return total


@pytest.mark.parametrize("sigma", ["0.1", "0.3", "0.7", "1.9", "5", "11.9", "20"])
def test_the_distance_of_a_table_is_what_it_says(sigma: str) -> None:
    sigma2 = Fraction(sigma) ** 2
    table = half_gaussian(sigma2)
    true = distance(signed(table), gaussian(sigma2, 30 * max(1, round(float(sigma)))))
    assert true <= table.distance < true + Fraction(1, 2**120)
    assert table.distance <= Fraction(1, 2**82)


def test_the_masses_of_a_table_sum_to_one_exactly() -> None:
    for sigma in SIGMAS:
        table = gaussian_plan(Fraction(sigma) ** 2).table
        assert sum(table.masses().values()) == 1 << (DIGITS + table.index_bits)


def test_tables_are_the_same_everywhere() -> None:
    """Digests written down once: another machine or library version must find the same."""
    assert {
        "gaussian 5": gaussian_plan(Fraction(25)).digest[:16],
        "gaussian 1000": gaussian_plan(Fraction(10**6)).digest[:16],
        "laplace 50": laplace_plan(Fraction(50)).digest[:16],
        "gumbel": selection_plan(Fraction(448), Fraction(1, 2)).digest[:16],
        "gumbel, wide": selection_plan(Fraction(448), Fraction(1, 1000)).digest[:16],
    } == {
        "gaussian 5": "cc4aaa557f77bd85",
        "gaussian 1000": "c47fdb300f3c522a",
        "laplace 50": "b8478f0a1141aaf9",
        "gumbel": "e20fad75b075fe7c",
        "gumbel, wide": "7b258738c4539c38",
    }


@pytest.mark.parametrize("bits", [3, 150, 205, 206, 216, 217, 227, 228, 238, 239, PRECISION, 243, 247, 248, 300])
def test_exponentials_are_within_their_error(bits: int) -> None:
    """At the ends of each range that is treated in its own way, and inside."""
    for t in ((1 << bits) - 1, 1 << bits, (1 << bits) * 10 // 7, (167 << PRECISION) - 1):
        with localcontext(prec=140):
            true = (-Decimal(t) / ONE).exp() * ONE
        assert abs(exp_minus(t, exp_tables()) - true) < EXP_ERROR / 2


@pytest.mark.parametrize(
    ("exponent", "count"), [("-1/3", 12), ("-1/9000000", 30), ("1/9000000", 30), ("5/7", 8), ("50", 3)]
)
def test_doublings_are_within_one_unit(exponent: str, count: int) -> None:
    for i, value in enumerate(exp_doublings(Fraction(exponent), count)):
        doubled = Fraction(exponent) * 2**i
        with localcontext(prec=300):
            true = (Decimal(doubled.numerator) / doubled.denominator).exp()
            assert abs(value - true * ONE) <= max(1, true)


def test_a_table_above_the_limit_is_refused() -> None:
    half = ONE // 2
    alias_table("fair", [0, 1], [half, half])
    lacking = half - (ONE >> 79)
    with pytest.raises(DomainError, match="above 2\\^-80"):
        alias_table("lacking", [0, 1], [half, lacking])


@pytest.mark.parametrize(
    ("codes", "probabilities"), [([0, 0], ["0.5", "0.5"]), ([0, 1], ["1.5", "-0.5"]), ([0, 1], ["0.6", "0.5"])]
)
def test_what_is_no_law_is_refused(codes: list[int], probabilities: list[str]) -> None:
    with pytest.raises(DomainError, match="not a law"):
        alias_table("wrong", codes, [int(Fraction(p) * ONE) for p in probabilities])


def test_one_certain_code_and_uniform_codes_are_exact() -> None:
    for codes in ([5], [3, 1, 2, 0]):
        table = alias_table("even", codes, [ONE // len(codes)] * len(codes))
        assert law(table) == {code: Fraction(1, len(codes)) for code in codes}


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_gaussian_plan_keeps_sigma_exactly_and_the_distance_below_the_limit(sigma: str) -> None:
    sigma2 = Fraction(sigma) ** 2
    plan = gaussian_plan(sigma2)
    base2 = sigma2 / sum(a * a for a in plan.coefficients)
    assert plan.table.digest == half_gaussian(base2).digest
    assert len(plan.coefficients) * plan.table.distance <= plan.distance <= LIMIT
    assert all(s2 >= Fraction(19, 10) ** 2 for s2 in plans._smoothness(sigma2, plan.coefficients))


def test_plans_cost_what_they_should() -> None:
    costs = {
        sigma: (gaussian_plan(Fraction(sigma) ** 2).coefficients, gaussian_plan(Fraction(sigma) ** 2).ands)
        for sigma in SIGMAS
    }
    assert costs["5"] == ((1,), 193)
    assert costs["24"] == ((1, 3), 514)
    assert costs["1000"] == ((1, 4, 22, 88), 1028)
    assert costs["1000000"][1] == 4612


@pytest.mark.parametrize(("sigma", "coefficients"), [("24", 2), ("12.7", 1), ("30", 2)])
def test_exact_convolution_is_within_the_distance(sigma: str, coefficients: int) -> None:
    sigma2 = Fraction(sigma) ** 2
    plan = gaussian_plan(sigma2)
    assert len(plan.coefficients) == coefficients
    total = {0: Fraction(1)}
    for coefficient in plan.coefficients:
        total = joined(total, signed(plan.table), coefficient)
    assert distance(total, gaussian(sigma2, 20 * round(float(sigma)))) <= plan.distance


@pytest.mark.parametrize(("v1", "v2", "k"), [("1.5", "1.5", 1), ("2", "3", 2), ("4", "4", 2)])
def test_the_error_of_a_convolution_is_bounded_by_the_lemma(v1: str, v2: str, k: int) -> None:
    """Log-ratio of the exact convolution to the wide Gaussian: at most tau, and not much less than half of it."""
    one, two = Fraction(v1), Fraction(v2)
    joint, reach = joined(gaussian(one, 45), gaussian(two, 45), k), 12
    true = gaussian(one + k * k * two, 200)
    tau = plans._smoothing_error(one * two / (one + k * k * two))
    worst = max(abs(log(joint[y] / true[y])) for y in range(-reach, reach + 1))
    assert 0.4 * float(tau) < worst <= float(tau)


@pytest.mark.parametrize("sigma2", [0, Fraction(1, 101), -1, 0.25, Fraction(10**16)])
def test_a_variance_no_plan_serves_is_refused(sigma2: Fraction) -> None:
    with pytest.raises(DomainError):
        gaussian_plan(sigma2)


@pytest.mark.parametrize("scale", ["0.1", "1", "3.7", "10"])
def test_digits_of_a_geometric_variable_make_its_law(scale: str) -> None:
    plan = geometric_plan(Fraction(scale))
    total, position = {0: Fraction(1)}, 0
    for table in plan.tables:
        total = joined(total, law(table), 1 << position)
        position += table.index_bits
    with localcontext(prec=120):
        ratio = (-1 / Decimal(scale)).exp()
        true = {g: Fraction((1 - ratio) * ratio**g) for g in range(2 << plan.width)}
    assert distance(total, true) <= plan.distance <= LIMIT
    assert laplace_plan(Fraction(scale)).distance <= LIMIT


def test_scales_no_plan_serves_are_refused() -> None:
    laplace_plan(Fraction(1, 2)), geometric_plan(Fraction(1, 2))  # a cached plan must not serve its inexact twin
    for scale in (Fraction(0), Fraction(1, 200), Fraction(10**13), 0.5):
        with pytest.raises(DomainError, match="exact fraction"):
            laplace_plan(scale)
        with pytest.raises(DomainError, match="exact fraction"):
            geometric_plan(scale)
    with pytest.raises(DomainError, match="exact fraction"):
        laplace_plan(Fraction(10**8))
    assert laplace_plan(Fraction(10**6)).distance <= LIMIT


def cells(plan: plans.GumbelPlan) -> list[tuple[int, int, Fraction]]:
    """(start, length, probability), read from the codes as a sampler does."""
    places, out = plan.width - plan.least, []
    for code, mass in law(plan.table).items():
        start, mask = code % (1 << places), code >> places
        start -= (start >> (places - 1)) << places
        assert mask & (mask + 1) == 0
        assert start & mask == 0
        out.append((start << plan.least, (mask + 1) << plan.least, mass))
    return sorted(out)


@pytest.mark.parametrize(("delta_u", "eps"), [(448, "0.3"), (64, "2"), (2000, "0.05"), (33, "5")])
def test_gumbel_cells_are_within_kappa(delta_u: int, eps: str) -> None:
    """In every cell, evenly spread samples and the law's quantiles differ by less than e = kappa * beta / 2."""
    plan = selection_plan(Fraction(delta_u), Fraction(eps))
    beta, e = float(plan.beta), float(plan.kappa * plan.beta / 2)
    assert plan.beta == 2 * delta_u / Fraction(eps)
    assert plan.kappa <= Fraction(eps) / 32
    assert plan.stretch == 1
    assert plan.distance <= LIMIT
    every = cells(plan)
    assert all(a + size == b for (a, size, _), (b, _, _) in pairwise(every))
    assert len(every) > 0.9 * (1 << plan.table.index_bits)
    worst = 0.0
    for a, size, mass in every:
        inside = a + size * np.linspace(0, 1, 65)
        # Differences of F, as survival differences on the right: no cancellation.
        t = np.exp(-inside / beta)
        share = np.expm1(t[0] - t) / np.expm1(t[0] - t[-1])
        if size > 1:  # a cell of one unit has one sample, in its middle
            worst = max(worst, float(np.abs(a + size * share - inside).max()))
        true = exp(-t[0]) * float(np.expm1(t[0] - t[-1]))
        assert abs(float(mass) - true) <= 1e-9 * true + 1e-24
    assert 0.9 * e < worst + 0.5 <= e


@pytest.mark.parametrize(("delta_u", "eps"), [(448, "0.3"), (64, "2"), (4608, "7")])
def test_the_bounds_of_a_gumbel_plan_hold_with_twice_the_digits(delta_u: int, eps: str) -> None:
    """Its distance is that of the masses, and its kappa that of the cell whose tangent rises most; both closely."""
    plan = selection_plan(Fraction(delta_u), Fraction(eps))
    every, steepest, off = cells(plan), Decimal(0), Fraction(0)
    with localcontext(prec=120):
        beta = Decimal(plan.beta.numerator) / plan.beta.denominator
        for a, size, mass in every:
            t = [(-(2 * a + x * size) / (2 * beta)).exp() for x in range(3)]
            below, middle, above = ((-value).exp() for value in t)
            off += abs(Fraction(above - below) - mass)
            if size > 1:
                share = size / (above - below)
                tangent = abs(share * (middle - below) - size // 2) + abs(share * middle * t[1] / beta - 1) * size / 2
                steepest = max(steepest, tangent)
        outside = Fraction(1 - above) + Fraction((-(-every[0][0] / beta).exp()).exp())
    e = plan.kappa * plan.beta / 2
    assert Fraction(steepest) + Fraction(1, 2) <= e < Fraction(steepest) + Fraction(1, 2) + Fraction(2, 10**20)
    assert (off + outside) / 2 <= plan.distance < (off + outside) / 2 + Fraction(1, 2**120)


def steepest(every: list[tuple[int, int, Fraction]], beta: Fraction) -> float:
    """How unevenly f / F of the cells follows the law's, exp(-x / beta) / beta, at 65 places of each: largest / least.

    Where F is nearly 1 it is no number of its own, and on the left its differences are those of t = exp(-x / beta).
    """
    factors = []
    for a, size, _ in every:
        inside = float(a / beta) + float(size / beta) * np.linspace(0, 1, 65)
        t = np.exp(-inside)
        mass, risen = np.expm1(t[0] - t[-1]), np.linspace(0, 1, 65) * np.expm1(t[0] - t[-1])  # both over F(a)
        factors.append(mass / float(size / beta) / (t * (1 + risen)))
    return float(np.max(factors) / np.min(factors))


@pytest.mark.parametrize(("delta_u", "eps"), [(256, "0.035"), (448, "0.001"), (2304, "0.0001"), (10**6, "1e-7")])
def test_gumbel_cells_are_within_their_stretch(delta_u: int, eps: str) -> None:
    plan = selection_plan(Fraction(delta_u), Fraction(eps))
    every = [(a, size, mass) for a, size, mass in cells(plan) if size > 1]
    assert len(every) > 0.9 * (1 << 11) == 0.9 * (1 << plan.table.index_bits)
    assert plan.range_of(Fraction(eps)) <= Fraction(eps) * Fraction(9, 8)
    assert plan.kappa == plan.stretch / plan.beta
    # The bound on the least factor is not tight where f / F is least inside a cell.
    assert plan.stretch ** Fraction(9, 10) < steepest(every, plan.beta) <= plan.stretch
    for a, size, mass in every:
        t = np.exp(-np.array([float(a / plan.beta), float((a + size) / plan.beta)]))
        assert float(mass) == pytest.approx(exp(-t[0]) * float(np.expm1(t[0] - t[1])), rel=1e-9)


def test_the_factor_of_a_cell_is_bounded_at_both_ends_and_inside() -> None:
    """beta f / (t F) at an end is what it is there; inside it is bounded by the largest t and the largest F."""
    beta = 300
    cells = plans._StretchedCells(Fraction(beta))
    cells.refine(plans.GRAINS // 10)
    for worst, a, bits, *_ in cells._cells:
        with localcontext(prec=60):
            t = [(-Decimal(x) / beta).exp() for x in (a, a + (1 << bits))]
            below, above = ((-value).exp() for value in t)
            f = beta * (above - below) / (1 << bits)
            largest = max(f / (t[0] * below), f / (t[1] * above), t[0] * above / f)
        assert bits == 0 or 1 - worst / plans.GRAINS == pytest.approx(float(largest), rel=1e-12)
    assert {bits > 0 for _, _, bits, *_ in cells._cells} == {True, False}


def test_a_gumbel_precision_no_plan_has_is_refused() -> None:
    for beta, eps, kappa in (
        (Fraction(32), Fraction(1), Fraction(1, 32)),
        (Fraction(10**7), Fraction(1, 1000), Fraction(1, 10**5)),
        (plans.LARGEST_BETA + 1, 512 / plans.LARGEST_BETA, 16 / plans.LARGEST_BETA),
    ):
        with pytest.raises(DomainError, match="finer units, or more than 2\\^11 cells, or wider numbers"):
            gumbel_plan(beta, eps, kappa)
    with pytest.raises(DomainError, match="positive"):
        selection_plan(Fraction(448), Fraction(0))


def test_the_widest_gumbel_noise_does_not_make_scores_overflow() -> None:
    beta = plans.LARGEST_BETA
    assert gumbel_plan(beta, 512 / beta, 16 / beta).width == NOISE_BITS


@pytest.mark.parametrize("octave", range(0, 64, 3))
def test_the_finest_cells_are_no_more_than_there_is_room_for(octave: int) -> None:
    """How many there are depends on where powers of two lie in units of beta: over a factor of two, that is all."""
    beta = (1 << 30) * (1 + Fraction(octave, 64))
    even, stretched = plans._EvenCells(beta), plans._StretchedCells(beta)
    even.refine(floor(plans.FINEST * beta * plans.GRAINS))
    stretched.refine(floor((sqrt(plans.LEAST_STRETCH) - 1) * plans.GRAINS))
    for found in (even, stretched):
        assert 1 << 10 < len(found._cells) <= 1 << 11


def built(build: Callable[..., object], *parameters: Fraction) -> bool:
    try:
        build(*parameters)
    except DomainError:
        return False
    return True


def powers(low: int, high: int) -> st.SearchStrategy[Fraction]:
    """Positive numbers of all sizes in between."""
    return st.builds(
        lambda e, m: Fraction(10) ** e * m, st.integers(low, high), st.fractions(1, 10, max_denominator=99)
    )


@given(powers(-4, 15))
@example(Fraction(1, 100))
@example(Fraction(10**14))
@example(Fraction(10**14) + Fraction(1, 10**9))
@settings(deadline=None, max_examples=60)
def test_whether_a_gaussian_plan_exists_is_known_beforehand(sigma2: Fraction) -> None:
    assert gaussian_exists(sigma2) == built(gaussian_plan, sigma2)


@given(powers(-4, 13))
@example(Fraction(1, 100))
@example(Fraction(10**7))
@example(Fraction(10**7) + Fraction(1, 10**9))
@example(Fraction(10**12))
@example(Fraction(10**12) + Fraction(1, 10**9))
@settings(deadline=None, max_examples=40)
def test_whether_geometric_and_laplace_plans_exist_is_known_beforehand(scale: Fraction) -> None:
    assert geometric_exists(scale) == built(geometric_plan, scale)
    assert laplace_exists(scale) == built(laplace_plan, scale)


@given(st.integers(1, 1 << 33), powers(-9, 2), st.sampled_from([Fraction(1, 32), Fraction(1, 100), Fraction(1)]))
@example(256, Fraction(1, 1464), Fraction(1, 32))
@example(256, Fraction(1, 28), Fraction(1, 32))  # about where cells are cut in another way
@settings(deadline=None, max_examples=60)
def test_whether_a_gumbel_plan_exists_is_known_beforehand(delta_u: int, eps: Fraction, slack: Fraction) -> None:
    beta, kappa = 2 * delta_u / eps, slack * eps
    exists = gumbel_exists(beta, eps, kappa)
    assert exists == built(gumbel_plan, beta, eps, kappa)
    assert exists or slack < Fraction(1, 32) or delta_u < 148 or beta > plans.LARGEST_BETA
    if exists:
        plan = gumbel_plan(beta, eps, kappa)
        assert plan.range_of(eps) <= eps + 4 * kappa
        assert plan.table.index_bits <= 11
        assert plan.width <= NOISE_BITS


def test_pi_squared_is_rounded_down() -> None:
    assert float(plans._PI2_BELOW) == pytest.approx(pi * pi, rel=1e-15)
