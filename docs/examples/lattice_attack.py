"""One released count gives the true count away, if noise is scaled after it was sampled. Computed, not quoted.

The paper's measure step draws z, the sum of 12 uniforms on the grid 2^-16 minus 6, and releases x + sigma * z in fixed
point with 16 fractional bits. Products land on one in sigma of the representable numbers, and x is an integer, so x and
x + 1 can be released as the same number only where two such sparse sets happen to meet. This program finds how often
they do, then plays the attack on random releases, and does both again with the integer sampler that CaPS uses.

    python -m docs.examples.lattice_attack
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import erf, sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.dp.noise import clear
from caps.dp.noise.plans import GaussianPlan, gaussian_plan
from caps.shares.prss import expand
from caps.shares.ring import Z16, Z64

FRAC = 16
ONE = 1 << FRAC
SIGMAS = ("1.5", "8.56", "18.27", "73.10", "77.05", "94.37", "133.45")
"""1.5, and what the paper's experiments use: AIM with d=9 eps=10, MWEM d=9 eps=1, AIM d=9, 9, 10, 15 and 30 eps=1."""
RELEASES = 20_000

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Law: TypeAlias = tuple[Integers, Floats]
"""Values in ascending order, and their probabilities."""


def _seed(label: str) -> bytes:
    return hashlib.sha256(f"caps lattice attack {label}".encode()).digest()


def irwin_hall() -> Law:
    """The sum of 12 uniforms on the grid 2^-16, minus 6, in units of 2^-16: 12 moving averages."""
    law = np.ones(1)
    for _ in range(12):
        sums = np.cumsum(np.concatenate([law, np.zeros(ONE - 1)])) / ONE
        sums[ONE:] -= sums[:-ONE].copy()
        law = sums
    # Far out, rounding leaves sums that are below 0 by less than 1e-15.
    return np.arange(len(law)) - 6 * ONE, law.clip(0)


def scaled(unit: Law, sigma: str) -> Law:
    """sigma * z in fixed point, the product cut off to 16 fractional bits: floor."""
    values, probabilities = unit
    return (values * round(Fraction(sigma) * ONE)) >> FRAC, probabilities


def scaled_at_random(unit: Law, sigma: str) -> Law:
    """The same, rounded up with the probability of what is cut off."""
    values, probabilities = unit
    products = values * round(Fraction(sigma) * ONE)
    cut = (products & (ONE - 1)) / ONE
    both = np.concatenate([products >> FRAC, (products >> FRAC) + 1])
    mass = np.concatenate([probabilities * (1 - cut), probabilities * cut])
    possible = np.concatenate([np.ones(len(cut), np.bool_), cut > 0])
    support, where = np.unique(both[possible], return_inverse=True)
    return support, np.bincount(where, mass[possible]).astype(np.float64)


def integer_law(plan: GaussianPlan) -> Law:
    """What the default sampler draws, from the integer weights of its table: magnitude, sign and convolution."""
    masses = plan.table.masses()
    reach = max(masses)
    half = np.array([masses.get(k, 0) for k in range(reach + 1)], np.float64) / 2.0 ** (80 + plan.table.index_bits)
    base = np.concatenate([half[:0:-1] / 2, half[:1], half[1:] / 2])
    law = np.ones(1)
    for coefficient in plan.coefficients:
        spread = np.zeros((len(base) - 1) * coefficient + 1)
        spread[::coefficient] = base
        law = np.convolve(law, spread)
    return np.arange(len(law)) - (len(law) - 1) // 2, law


def _find(law: Law, values: Integers) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Which of the values the law can take, and their probabilities."""
    support, probabilities = law
    index = np.searchsorted(support, values).clip(0, len(support) - 1)
    possible = support[index] == values
    return possible, np.where(possible, probabilities[index], 0.0)


def told_apart(law: Law, step: int) -> tuple[float, float]:
    """Total variation distance of x + noise and x + 1 + noise, and how likely a release excludes x + 1 altogether."""
    values, here = law
    possible, other = _find(law, values - step)
    only_here, only_there = here[~possible].sum(), 1 - other.sum()
    return float(np.abs(here - other)[possible].sum() + only_here + only_there) / 2, float(only_here)


def guesses(law: Law, noise: Integers, step: int) -> float:
    """The share of releases for which the better explained of x and x + 1 is the true one. Ties count half."""
    truth = expand(_seed("truth"), b"coin", noise.shape, Z64).astype(np.int64) & 1
    release = truth * step + noise
    (_, right), (_, wrong) = _find(law, release - truth * step), _find(law, release - (1 - truth) * step)
    return float(np.mean((right > wrong) + 0.5 * (right == wrong)))


def paper_noise(sigma: str, count: int) -> Integers:
    """Draws by the paper's arithmetic."""
    uniforms = expand(_seed(f"uniforms {sigma}"), b"uniforms", (12, count), Z16).astype(np.int64)
    products: Integers = (uniforms.sum(0) - 6 * ONE) * round(Fraction(sigma) * ONE)
    return products >> FRAC


def integer_noise(plan: GaussianPlan, sigma: str, count: int) -> Integers:
    """Draws of the default sampler."""
    return clear.discrete_gaussian(clear.FreshBits(lambda _: _seed(f"bits {sigma}")), b"/attack", plan, (count,))


@cache
def rows() -> list[dict[str, float]]:
    """Every figure that the table prints, per sigma."""
    unit = irwin_hall()
    table = []
    for sigma in SIGMAS:
        plan = gaussian_plan(Fraction(sigma) ** 2)
        law, at_random, ours = scaled(unit, sigma), scaled_at_random(unit, sigma), integer_law(plan)
        distance, certain = told_apart(law, ONE)
        random_distance, random_certain = told_apart(at_random, ONE)
        our_distance, our_certain = told_apart(ours, 1)
        table.append(
            {
                "sigma": float(Fraction(sigma)),
                "ideal": erf(1 / (2 * sqrt(2) * float(Fraction(sigma)))),
                "paper": distance,
                "paper certain": certain,
                "paper right": guesses(law, paper_noise(sigma, RELEASES), ONE),
                "random": random_distance,
                "random certain": random_certain,
                "ours": our_distance,
                "ours certain": our_certain,
                "ours right": guesses(ours, integer_noise(plan, sigma, RELEASES), 1),
            }
        )
    return table


def main(show: Callable[[str], None] = print) -> None:
    """Print the table."""
    show("          ideal | scaled, cut off (paper)   | scaled, random  | integer sampler (CaPS)")
    show(" sigma       TV |    TV  certain   guessed  |    TV  certain  |     TV  certain   guessed")
    for row in rows():
        show(
            f"{row['sigma']:6.2f}  {row['ideal']:7.4f} | {row['paper']:5.3f}  {row['paper certain']:7.3f}"
            f"  {row['paper right']:8.4f}  | {row['random']:5.3f}  {row['random certain']:7.3f}  |"
            f" {row['ours']:6.4f}  {row['ours certain']:7.0e}  {row['ours right']:8.4f}"
        )
    show(f"guessed: share of {RELEASES} releases whose x was told from x + 1; blind guessing gives 0.5")


if __name__ == "__main__":
    main()
