"""Conversions between zCDP and (epsilon, delta)-DP, always rounded towards more privacy.

A rho-zCDP mechanism (Bun and Steinke 2016) is (epsilon, delta)-DP with

    ln delta = t ((1 + t) rho - epsilon) + t ln(t / (1 + t)) - ln(1 + t)        for every t > 0,

where t + 1 is the Renyi order (Canonne, Kamath and Steinke 2020, Proposition 7 and Corollary 13). Solved for any of the
three, the equation gives a valid bound for every t; only its tightness depends on t. So a search finds t, and the bound
at this t is evaluated with directed rounding: an error in the search can cost utility, not privacy.

The bound is convex in t, and its best value concave in epsilon and in rho, so Newton's method converges from the safe
side. Results are within a relative 2**-60 of the optimum over t. The search also uses `decimal`, so all machines agree.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction

from caps.dp.privacy.allowance import ALLOWANCE, Allowance
from caps.dp.privacy.rational import exact, exp_up, grid_down, grid_up, ln_down, ln_up, positive
from caps.errors import DomainError

LARGEST = Fraction(1000)
_SEARCH = Context(prec=50, Emin=-9999, Emax=9999)
_CLOSE = Decimal("1e-20")
_NEWTON_STEPS = 200
_SETTLED = Fraction(1, 2**100)
_LIFT = 1 + Fraction(1, 2**90)
_MARGIN = 1 - Fraction(1, 2**64)


def cdp_delta(rho: int | Fraction, epsilon: int | Fraction) -> Fraction:
    """The least delta, rounded up, such that rho-zCDP implies (epsilon, delta)-DP."""
    rho, epsilon = _loss("rho", rho), _loss("epsilon", epsilon)
    if rho == 0:
        return Fraction(0)
    t = _best_order(rho, epsilon)
    log_delta = t * ((1 + t) * rho - epsilon) + t * ln_up(t / (1 + t)) - ln_down(1 + t)
    return exp_up(log_delta) if log_delta < 0 else Fraction(1)


def cdp_eps(rho: int | Fraction, delta: int | Fraction) -> Fraction:
    """The least epsilon, rounded up, such that rho-zCDP implies (epsilon, delta)-DP."""
    rho, delta = _loss("rho", rho), _probability(delta)
    if rho == 0:
        return Fraction(0)
    log_delta = ln_down(delta)
    epsilon = _classical_epsilon(rho, log_delta)
    for _ in range(_NEWTON_STEPS):
        t = _best_order(rho, epsilon)
        better = (1 + t) * rho + ln_up(t / (1 + t)) - (log_delta + ln_down(1 + t)) / t
        if better <= 0:
            return Fraction(0)
        gain, epsilon = epsilon - better, min(better, epsilon)
        if gain <= epsilon * _SETTLED:
            break
    return grid_up(epsilon)


def cdp_rho(epsilon: int | Fraction, delta: int | Fraction) -> Fraction:
    """The greatest rho, rounded down to the grid, such that rho-zCDP implies (epsilon, delta)-DP.

    The relative margin of 2**-64 makes `cdp_delta(cdp_rho(epsilon, delta), epsilon) <= delta` hold in spite of the
    upward rounding of the left side.
    """
    epsilon, delta = positive("epsilon", _loss("epsilon", epsilon)), _probability(delta)
    log_delta = ln_down(delta)
    rho = _classical_rho(epsilon, log_delta)
    for _ in range(_NEWTON_STEPS):
        t = _best_order(rho, epsilon)
        better = (epsilon - ln_up(t / (1 + t)) + (log_delta + ln_down(1 + t)) / t) / (1 + t)
        gain, rho = better - rho, max(better, rho)
        if gain <= rho * _SETTLED:
            break
    return grid_down(rho * _MARGIN)


def calibrate(epsilon: int | Fraction, delta: int | Fraction, allowance: Allowance = ALLOWANCE) -> Fraction:
    """The rho that a run may spend to be (epsilon, delta)-DP, given what else delta must cover. Rounded down."""
    return cdp_rho(epsilon, _left_of(_probability(delta), _loss("epsilon", epsilon), allowance))


def folded_epsilon(rho: int | Fraction, allowance: Allowance, delta: int | Fraction) -> Fraction:
    """The least epsilon, rounded up, with cdp_delta(rho, epsilon) + allowance.of_delta(epsilon) <= delta.

    A mechanism that differs from a rho-zCDP one by the allowance is then (epsilon, delta)-DP. The iteration climbs to
    the fixed point from below, so its last value is lifted a little and returned only once the inequality is verified.
    """
    delta = _probability(delta)
    epsilon = cdp_eps(rho, delta)
    for _ in range(_NEWTON_STEPS):
        lifted = grid_up(epsilon * _LIFT)
        epsilon = cdp_eps(rho, _left_of(delta, lifted, allowance))
        if epsilon <= lifted:
            return lifted
    raise DomainError("delta does not cover the distances and probabilities that it must")


def satisfies(rho: int | Fraction, allowance: Allowance, epsilon: int | Fraction, delta: int | Fraction) -> bool:
    """Whether a mechanism that differs from a rho-zCDP one by the allowance is provably (epsilon, delta)-DP."""
    return cdp_delta(rho, epsilon) + allowance.of_delta(epsilon) <= _probability(delta)


def pure_rho(epsilon: int | Fraction) -> Fraction:
    """The rho, rounded up to the grid, of any epsilon-DP mechanism: epsilon tanh(epsilon / 2), at most epsilon^2 / 2.

    Every epsilon-DP pair of output laws is a post-processing of randomised response (Kairouz, Oh and Viswanath 2015),
    whose divergence of order a is ln(cosh((a - 1/2) epsilon) / cosh(epsilon / 2)) / (a - 1); tanh(x)/x falls, so this
    is at most a epsilon tanh(epsilon / 2) (Steinke 2024, "Tight RDP & zCDP bounds from pure DP"). Discrete Laplace
    noise on a count attains it as a -> 1. The smaller epsilon + e**-epsilon - 1 of Harrison and Manurangsi (2026)
    belongs to continuous Laplace noise, and would under-count here.
    """
    epsilon = _loss("epsilon", epsilon)
    return grid_up(min(epsilon**2 / 2, epsilon * (1 - 2 / (1 + exp_up(epsilon)))))


def _loss(name: str, value: int | Fraction) -> Fraction:
    number = exact(value)
    if not 0 <= number <= LARGEST:
        raise DomainError(f"{name} must be from 0 to {LARGEST}")
    return number


def _probability(value: int | Fraction) -> Fraction:
    delta = exact(value)
    if not 0 < delta < 1:
        raise DomainError("delta must lie strictly between 0 and 1")
    return delta


def _left_of(delta: Fraction, epsilon: Fraction, allowance: Allowance) -> Fraction:
    taken = allowance.of_delta(epsilon)
    if taken >= delta:
        raise DomainError(
            f"delta must exceed {float(taken):.2g}, which covers the distance of noise and of pseudorandom functions "
            "from their ideals and the chance that a check of inputs errs"
        )
    return delta - taken


def _best_order(rho: Fraction, epsilon: Fraction) -> Fraction:
    """Order minus one that nearly minimises delta: the root of (2t + 1) rho - epsilon + ln(t / (1 + t)).

    That function is concave and increasing, so Newton's method started left of the root never passes it.
    """
    with localcontext(_SEARCH):
        r, e = _rounded(rho), _rounded(epsilon)
        t = max((e - r) / (2 * r), min(1 / (2 * r), min(e - r - 1, Decimal(0)).exp()))
        for _ in range(_NEWTON_STEPS):
            step = (e - (2 * t + 1) * r - (t / (1 + t)).ln()) / (2 * r + 1 / (t * (1 + t)))
            t += step
            if abs(step) <= t * _CLOSE:
                break
        return Fraction(t)


def _classical_epsilon(rho: Fraction, log_delta: Fraction) -> Fraction:
    """rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016), above the optimum."""
    with localcontext(_SEARCH):
        r, log = _rounded(rho), -_rounded(log_delta)
        return Fraction(r + 2 * (r * log).sqrt())


def _classical_rho(epsilon: Fraction, log_delta: Fraction) -> Fraction:
    """The inverse of `_classical_epsilon`, below the optimum; halved, because it may be rounded up."""
    with localcontext(_SEARCH):
        e, log = _rounded(epsilon), -_rounded(log_delta)
        return Fraction((e / ((e + log).sqrt() + log.sqrt())) ** 2 / 2)


def _rounded(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)
