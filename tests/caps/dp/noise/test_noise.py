"""Samples against the exact laws: the right scale is accepted, 0.9 and 1.1 of it are rejected. Seeds are fixed."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from caps.dp.noise import clear, plans
from caps.dp.noise.plans import GumbelPlan, gaussian_plan, geometric_plan, laplace_plan, selection_plan
from caps.dp.noise.tables import DIGITS
from caps.shares.ring import Z64
from docs.examples import lattice_attack
from services.mpc_server.engine import sampling
from services.mpc_server.testing.world import World

pytestmark = pytest.mark.statistical

ACCEPTED, REJECTED = 1e-3, 1e-9
SIGMAS = ["0.7", "5", "11.9", "24", "73.1", "1000"]
SCALES = ["0.7", "5", "50", "1000"]


def bits(seed: str) -> clear.FreshBits:
    numbers = count()
    return clear.FreshBits(lambda size: hashlib.sha256(f"{seed}/{next(numbers)}".encode()).digest()[:size])


def gaussian(sigma: float, x: np.ndarray) -> np.ndarray:
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


def laplace(scale: float, x: np.ndarray) -> np.ndarray:
    weights = np.exp(-np.abs(x) / scale)
    return weights / weights.sum()


def geometric(scale: float, x: np.ndarray) -> np.ndarray:
    weights = np.where(x >= 0, np.exp(-np.maximum(x, 0) / scale), 0)
    return weights / weights.sum()


def p_value(sample: np.ndarray, values: np.ndarray, probabilities: np.ndarray, cells: int) -> float:
    """Chi-square over about `cells` runs of values that are equally likely, as far as whole values allow."""
    reach = np.cumsum(probabilities) * cells
    cell = np.minimum(np.ceil(reach - 1e-9), cells).astype(int)
    _, cell = np.unique(cell, return_inverse=True)
    expected = np.bincount(cell, probabilities) * len(sample)
    observed = np.bincount(cell[np.searchsorted(values, sample)], minlength=len(expected))
    keep = expected > 0
    assert not observed[~keep].any()
    return float(stats.chisquare(observed[keep], expected[keep] * (observed.sum() / expected[keep].sum())).pvalue)


def fits(sample: np.ndarray, law, scale: float, cells: int = 40) -> None:
    reach = 60 * scale + 60
    values = np.arange(-int(reach), int(reach) + 1)
    assert np.gcd.reduce(np.diff(np.unique(sample))) == 1
    assert p_value(sample, values, law(scale, values), cells) > ACCEPTED
    for wrong in (0.9, 1.1):
        assert p_value(sample, values, law(scale * wrong, values), cells) < REJECTED


@pytest.mark.parametrize("sigma", SIGMAS)
def test_discrete_gaussian(sigma: str) -> None:
    plan, size = gaussian_plan(Fraction(sigma) ** 2), 200_000
    sample = clear.discrete_gaussian(bits(f"gaussian {sigma}"), b"/x", plan, (size,))
    fits(sample, gaussian, float(sigma))
    values = np.arange(-50 * round(float(sigma)) - 50, 50 * round(float(sigma)) + 51)
    law = gaussian(float(sigma), values)
    variance, fourth = law @ values**2, law @ values.astype(float) ** 4
    assert abs(np.mean(sample**2) - variance) < 5 * np.sqrt((fourth - variance**2) / size)
    assert abs(np.mean(sample)) < 5 * np.sqrt(variance / size)


@pytest.mark.parametrize("scale", SCALES)
def test_discrete_laplace_and_geometric(scale: str) -> None:
    plan = laplace_plan(Fraction(scale))
    fits(clear.discrete_laplace(bits(f"laplace {scale}"), b"/x", plan, (200_000,)), laplace, float(scale))
    fits(
        clear.geometric(bits(f"geometric {scale}"), b"/x", geometric_plan(Fraction(scale)), (200_000,)),
        geometric,
        float(scale),
    )


@pytest.mark.parametrize("sigma", SIGMAS)
def test_discrete_gaussian_on_shares(sigma: str) -> None:
    outcome = World(5).run(
        sampling.discrete_gaussian, plan=gaussian_plan(Fraction(sigma) ** 2), shape=(20_000,), ring=Z64
    )
    fits(outcome.value.view(np.int64), gaussian, float(sigma), 20)


def test_other_noise_on_shares() -> None:
    size = (20_000,)
    x = World(6).run(sampling.discrete_laplace, plan=laplace_plan(Fraction(50)), shape=size, ring=Z64).value
    fits(x.view(np.int64), laplace, 50, 20)
    g = World(7).run(sampling.geometric, plan=geometric_plan(Fraction(50)), shape=size).value
    fits(g.view(np.int64), geometric, 50, 20)


def integer_law(plan: GumbelPlan) -> tuple[int, np.ndarray]:
    """The lowest sample and the probability of every one, from the masses of the table: cells filled evenly."""
    places, spans = plan.width - plan.least, []
    for code, mass in plan.table.masses().items():
        start = code % (1 << places)
        start -= (start >> (places - 1)) << places
        spans.append((start << plan.least, ((code >> places) + 1) << plan.least, mass))
    spans.sort()
    weights = [np.full(size, mass / size / 2.0 ** (DIGITS + plan.table.index_bits)) for _, size, mass in spans]
    return spans[0][0], np.concatenate(weights)


def selection_law(low: int, law: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The probability that each candidate is the first with the largest noisy score: summed over its noise."""
    at_most = np.concatenate([[0.0], np.cumsum(law)])

    def below(limits: np.ndarray) -> np.ndarray:
        return at_most[np.clip(limits - low, 0, len(law))]

    values = low + np.arange(len(law))
    chances = []
    for i, score in enumerate(scores):
        total = law.copy()
        for j, other in enumerate(scores):
            if i != j:
                total *= below(values + score - other + (j > i))
        chances.append(total.sum())
    return np.array(chances)


SELECTIONS = [(448, "0.3"), (448, "2"), (448, "0.1"), (64, "1")]


@pytest.mark.parametrize(("delta_u", "eps"), SELECTIONS)
def test_selection_probabilities_stay_within_kappa_of_the_exponential_mechanism(delta_u: int, eps: str) -> None:
    plan = selection_plan(Fraction(delta_u), Fraction(eps))
    beta, kappa = float(plan.beta), float(plan.kappa)
    low, law = integer_law(plan)
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(15):
        scores = np.rint(rng.normal(0, 3 * beta, rng.integers(2, 7))).astype(np.int64)
        chances = selection_law(low, law, scores)
        assert abs(chances.sum() - 1) < 1e-9
        logits = (scores - scores.max()) / beta
        ideal = np.exp(logits) / np.exp(logits).sum()
        worst = max(worst, float(np.abs(np.log(chances / ideal)).max()))
    assert worst <= kappa
    # The bound means something: with noise of another scale it would not hold.
    off = np.exp(logits * 1.1) / np.exp(logits * 1.1).sum()
    assert np.abs(np.log(chances / off)).max() > kappa


def widest_range(plan: GumbelPlan, delta_u: int) -> float:
    """The widest range of log-ratios found between scores that differ by delta_u, each up or down."""
    (low, law), rng, found = integer_law(plan), np.random.default_rng(4), []
    for _ in range(40):
        scores = np.rint(rng.uniform(-5, 5, rng.integers(2, 4)) * float(plan.beta)).astype(np.int64)
        moved = scores + delta_u * np.where(np.arange(len(scores)) == rng.integers(len(scores)), 1, -1)
        ratios = np.log(selection_law(low, law, moved) / selection_law(low, law, scores))
        found.append(float(ratios.max() - ratios.min()))
    return max(found)


def test_selections_between_neighbours_stay_within_the_range_that_is_charged() -> None:
    eps = Fraction(3, 100)
    plan = selection_plan(Fraction(150), eps)
    assert plan.stretch > 1
    assert eps < widest_range(plan, 150) <= plan.range_of(eps) <= eps * Fraction(9, 8)
    # Noise in cells this coarse is further from the law than an eighth of eps allows for, and says so.
    cells = plans._StretchedCells(Fraction(1000))
    cells.refine(9 * plans.GRAINS)
    assert eps * Fraction(9, 8) < widest_range(cells.plan(), 15) <= cells.plan().range_of(eps)


@pytest.mark.parametrize("where", ["clear", "shares"])
def test_gumbel_samples_follow_the_law_and_select_like_the_exponential_mechanism(where: str) -> None:
    plan = selection_plan(Fraction(448), Fraction(1, 2))
    beta = float(plan.beta)
    candidates, trials = 5, 60_000 if where == "clear" else 12_000
    if where == "clear":
        noise = clear.gumbel(bits("gumbel"), b"/x", plan, (trials, candidates))
    else:
        words = World(8).run(sampling.gumbel, plan=plan, shape=(trials, candidates)).value
        noise = (words << np.uint64(64 - plan.width)).view(np.int64) >> (64 - plan.width)
    assert np.gcd.reduce(np.diff(np.unique(noise))) == 1
    assert stats.kstest((noise.reshape(-1)[:20_000] + 0.5) / beta, stats.gumbel_r.cdf).pvalue > ACCEPTED
    for wrong in (0.9, 1.1):
        assert stats.kstest(noise.reshape(-1) / (beta * wrong), stats.gumbel_r.cdf).pvalue < REJECTED
    scores = np.rint(beta * np.array([0, 1, -0.5, 0.3, 2])).astype(np.int64)
    picked = np.bincount((noise + scores).argmax(1), minlength=candidates)
    ideal = np.exp(scores / beta) / np.exp(scores / beta).sum()
    assert stats.chisquare(picked, ideal * trials).pvalue > ACCEPTED
    flatter = np.exp(scores / beta * 0.8) / np.exp(scores / beta * 0.8).sum()
    assert stats.chisquare(picked, flatter * trials).pvalue < REJECTED


def test_the_lattice_attack_breaks_scaled_noise_and_not_the_integer_sampler() -> None:
    rows = {row["sigma"]: row for row in lattice_attack.rows()}
    for sigma in (18.27, 73.1, 77.05, 94.37, 133.45):
        row = rows[sigma]
        assert row["paper"] == pytest.approx(1, abs=1e-9)
        assert row["paper certain"] == pytest.approx(1, abs=1e-9)
        assert row["paper right"] == 1
    for row in rows.values():
        assert row["ours certain"] < 1e-20
        assert row["ours"] == pytest.approx(row["ideal"], rel=0.02)
        error = 1 / np.sqrt(lattice_attack.RELEASES)
        assert abs(2 * row["ours right"] - 1 - row["ours"]) < 4 * error


def test_the_lattice_attack_is_documented_as_it_runs() -> None:
    lines: list[str] = []
    lattice_attack.main(lines.append)
    assert "\n".join(lines) in (Path(__file__).parents[4] / "docs/lattice-attack.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SIGMAS)
def test_discrete_gaussian_on_many_shares(sigma: str) -> None:
    """A million samples on shares: scales 2% off are rejected too."""
    outcome = World(9).run(
        sampling.discrete_gaussian, plan=gaussian_plan(Fraction(sigma) ** 2), shape=(1_000_000,), ring=Z64
    )
    sample = outcome.value.view(np.int64)
    values = np.arange(-int(60 * float(sigma)) - 60, int(60 * float(sigma)) + 61)
    assert p_value(sample, values, gaussian(float(sigma), values), 100) > ACCEPTED
    for wrong in (0.98, 1.02):
        assert p_value(sample, values, gaussian(float(sigma) * wrong, values), 100) < REJECTED
