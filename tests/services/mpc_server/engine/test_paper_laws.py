"""The laws of the paper's noise and selection. Seeds are fixed: each verdict is the same in every run.

A judge accepts the right law, rejects its scale times 0.9 and 1.1, and rejects what the paper prints literally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from caps.shares.ring import Z64
from services.mpc_server.engine.context import together
from services.mpc_server.engine.paper import mechanisms as paper
from services.mpc_server.engine.paper.fixed import decode_fixed
from services.mpc_server.testing.world import World

pytestmark = pytest.mark.statistical

COUNT, SCALE = 40_000, 73.1
ACCEPT, REJECT = 1e-3, 1e-6


@dataclass(frozen=True)
class Law:
    """A sampler and the law it is to have at scale 1."""

    measure: Callable[..., Any]
    cdf: Callable[[Any], Any]
    variance: float
    kurtosis: float
    bound: float


GRID = np.linspace(-6, 6, 2001)
TWELVE = stats.irwinhall(12).cdf(GRID + 6)
LAWS = {
    "irwin-hall": Law(paper.paper_measure_irwin_hall, lambda x: np.interp(x, GRID, TWELVE), 1, 2.9, 6),
    "box-muller": Law(paper.paper_measure_box_muller, stats.norm.cdf, 1, 3, np.sqrt(40 * np.log(2))),
    "laplace": Law(paper.paper_measure_laplace, stats.laplace.cdf, 2, 6, 20 * np.log(2)),
    "laplace-inverse": Law(paper.paper_measure_laplace_inverse, stats.laplace.cdf, 2, 6, 20 * np.log(2)),
}
each_law = pytest.mark.parametrize("name", LAWS)


@cache
def drawn(name: str) -> Any:
    """Released answers less the true ones."""
    answers = np.arange(COUNT) * 100
    released = World(31).run(LAWS[name].measure, answers.astype(Z64.dtype), scale=SCALE).value
    return decode_fixed(released) - answers


def fits(noise: Any, law: Law, scale: float) -> float:
    return float(stats.kstest(noise / scale, law.cdf).pvalue)


@each_law
def test_noise_fits_its_scale_and_no_other(name: str) -> None:
    law, noise = LAWS[name], drawn(name)
    assert fits(noise, law, SCALE) > ACCEPT
    assert fits(noise, law, 0.9 * SCALE) < REJECT
    assert fits(noise, law, 1.1 * SCALE) < REJECT


@each_law
def test_moments_of_the_noise(name: str) -> None:
    law, noise = LAWS[name], drawn(name) / SCALE
    deviation = np.sqrt(law.variance)
    assert abs(noise.mean()) < 4 * deviation / np.sqrt(COUNT)
    assert abs(noise.var() / law.variance - 1) < 4 * np.sqrt((law.kurtosis - 1) / COUNT)
    # The standard error of a kurtosis: sqrt(24 / n) for normal noise, about 36 / sqrt(n) for Laplace noise.
    spread = 36.0 if law.kurtosis == 6 else np.sqrt(24)
    assert abs(stats.kurtosis(noise, fisher=False) - law.kurtosis) < 4 * spread / np.sqrt(COUNT)
    assert np.abs(noise).max() <= law.bound + 1e-3


@each_law
def test_cells_are_independent(name: str) -> None:
    """Neighbours, and the two halves of one Box-Muller draw, which share a radius."""
    noise = drawn(name)
    for other in (np.roll(noise, 1), np.roll(noise, COUNT // 2)):
        assert abs(stats.spearmanr(noise, other).statistic) < 4 / np.sqrt(COUNT)


@cache
def small(name: str) -> Any:
    """Unit noise with 8 fractional bits in ulps: coarse enough to know its law exactly."""
    sampled = World(32).run(LAWS[name].measure, np.zeros(COUNT, Z64.dtype), scale=1.0, frac=8).value
    return Z64.signed(sampled)


def chi_square(values: Any, pmf: dict[int, float]) -> float:
    """Fit of integers to a law; improbable values are pooled, impossible ones fail."""
    if not set(values.tolist()) <= set(pmf):
        return 0.0
    found = dict.fromkeys(pmf, 0) | dict(zip(*np.unique(values, return_counts=True), strict=True))
    pairs = sorted(((len(values) * p, int(found[value])) for value, p in pmf.items()), reverse=True)
    common = [pair for pair in pairs if pair[0] >= 10]
    rare = [pair for pair in pairs if pair[0] < 10]
    if rare:
        common.append((sum(p[0] for p in rare), sum(p[1] for p in rare)))
    expected, observed = np.array(common).T
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def law_of(values: Any) -> dict[int, float]:
    support, counts = np.unique(values, return_counts=True)
    return {int(v): c / len(values) for v, c in zip(support, counts, strict=True)}


STEPS = np.arange(256)
LOGS = np.rint(256 * np.log((STEPS + 1) / 256)).astype(int)
HALVES = 2 * STEPS + 1 - 256
INVERSE = np.rint(-np.sign(HALVES) * 256 * np.log(1 - np.abs(HALVES) / 256)).astype(int)
WITHOUT_SIGN = np.where(HALVES > 0, INVERSE, 0)
"""The appendix's pseudocode to the letter, sgn in {0, 1}."""


def sum_of_uniforms(draws: int) -> dict[int, float]:
    pmf = np.ones(1)
    for _ in range(draws):
        pmf = np.convolve(pmf, np.full(256, 1 / 256))
    return {int(v) - 6 * 256: float(p) for v, p in enumerate(pmf)}


def test_irwin_hall_adds_twelve_uniform_numbers_and_not_thirteen() -> None:
    assert chi_square(small("irwin-hall"), sum_of_uniforms(12)) > ACCEPT
    assert chi_square(small("irwin-hall"), sum_of_uniforms(13)) < REJECT


def test_laplace_noise_is_a_logarithm_with_a_random_sign() -> None:
    """The exact law with 8 bits: every uniform number from 1/256 to 1 once with each sign, and never 0."""
    assert chi_square(small("laplace"), law_of(np.concatenate([LOGS, -LOGS]))) > ACCEPT
    assert chi_square(small("laplace"), law_of(LOGS)) < REJECT


def test_inverse_laplace_noise_has_both_signs() -> None:
    """With the sign of the pseudocode, 0 or 1, half the cells would be released as they are."""
    noise = small("laplace-inverse")
    assert chi_square(noise, law_of(INVERSE)) > ACCEPT
    assert chi_square(noise, law_of(WITHOUT_SIGN)) < REJECT
    assert np.mean(WITHOUT_SIGN == 0) == 0.5
    assert np.mean(drawn("laplace-inverse") == 0) < 0.001
    assert abs(np.mean(noise < 0) - 0.5) < 4 * 0.5 / np.sqrt(COUNT)


def test_box_muller_draws_the_largest_radius_as_often_as_any_other() -> None:
    """The radius of u = 1/256, among 8-bit numbers; if ln 0 were taken for ln 1/256, it would come twice as often."""
    cosines, sines = small("box-muller").reshape(2, -1) / 256
    largest, second = np.sqrt(-2 * np.log([1 / 256, 2 / 256]))
    seen = int(np.sum(np.hypot(cosines, sines) > (largest + second) / 2))
    assert stats.binomtest(seen, COUNT // 2, 1 / 256).pvalue > ACCEPT
    assert stats.binomtest(seen, COUNT // 2, 2 / 256).pvalue < REJECT


@each_law
def test_the_noise_gives_the_answer_away(name: str) -> None:
    """Why none is certified: scaled by 73.1, multiples of 2^-16 leave x + noise and x + 1 + noise nothing in common."""
    frac = 16
    factor = round(SCALE * 2**frac)

    def possible(noise: Any) -> Any:
        """Whether some unit noise, scaled and rounded down, is this."""
        unit = -(-(noise << frac) // factor)
        return (unit * factor) >> frac == noise

    released = World(33).run(LAWS[name].measure, np.full(2000, 5, Z64.dtype), scale=SCALE, frac=frac).value
    noise = Z64.signed(released) - (5 << frac)
    assert np.all(possible(noise))
    assert not np.any(possible(noise - (1 << frac)))
    assert not np.any(possible(noise + (1 << frac)))


ERRORS = np.array([900, 1000, 700, 0, 960, 400, 850, -(2**40)])
EPSILON, SENSITIVITY = 0.12, 18
RATE = EPSILON / (2 * SENSITIVITY)
ROWS = 40_000


async def many_choices(ctx: Any, errors: Any) -> Any:
    """pi_NORM and pi_PROB once, then pi_RC for many rows at once."""
    normalised = await paper.paper_normalise(ctx.step("norm"), errors)
    probabilities = await paper.paper_probabilities(
        ctx.step("prob"), normalised, epsilon=EPSILON, sensitivity=SENSITIVITY
    )
    return await paper.paper_random_index(ctx.step("choice"), probabilities[None][np.zeros(ROWS, np.intp)])


def softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def test_selection_frequencies_are_those_of_the_exponential_mechanism() -> None:
    chosen = World(34).run(many_choices, ERRORS.astype(np.int64).view(Z64.dtype)).value
    counts = np.bincount(chosen.astype(int), minlength=len(ERRORS))
    assert counts[-1] == 0

    def fit(factor: float) -> float:
        return float(stats.chisquare(counts[:-1], ROWS * softmax(factor * RATE * ERRORS[:-1])).pvalue)

    assert fit(1.0) > ACCEPT
    assert fit(0.9) < REJECT
    assert fit(1.1) < REJECT
    assert fit(2.0) < REJECT  # the factor 1/2 forgotten


async def many_selections(ctx: Any, answers: Any, *, select: Any, **public: Any) -> Any:
    return tuple(await together(*(select(ctx.step(i), answers, **public) for i in range(60))))


@pytest.mark.parametrize("algorithm", ["aim", "mwem"])
def test_whole_selections_fit(algorithm: str) -> None:
    """Three queries whose errors are 5, 10 and 12 counts, in units of 1/16, weighted or penalised."""
    answers = np.array([10, 10, 10, 10, 10, 10], Z64.dtype)
    sizes = np.array([1, 2, 3])
    estimate = 16 * np.array([15, 4, 14, 6, 14, 14])
    public: dict[str, Any] = {"estimate": estimate, "sizes": sizes, "unit": 16}
    if algorithm == "aim":
        public |= {"weights": [2, 1, 1], "biases": [16, 32, 0], "epsilon": 1.0, "sensitivity": 2}
        scores, rate = np.array([2 * (5 - 1), 10 - 2, 12]), 1.0 / 4
    else:
        public |= {"epsilon": 0.6}
        scores, rate = np.array([5, 10, 12]) - sizes, 0.6 / 2
    select = getattr(paper, f"paper_select_{algorithm}")
    chosen = World(35).run(many_selections, answers, select=select, **public).value
    counts = np.bincount(np.array(chosen, int), minlength=3)
    assert stats.chisquare(counts, 60 * softmax(rate * scores)).pvalue > 0.01
    assert stats.chisquare(counts, 60 * softmax(-rate * scores)).pvalue < REJECT
