"""How SWIFT divides a batch's budget: by one price, within the model's size, from released values only."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import combinations
from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Workload
from caps.dp.privacy import BOUNDED, UNBOUNDED, GaussianBatch
from services.coordinator.algorithms import algorithm, all_pairs
from services.coordinator.algorithms.division import Division, in_parts, interactions, shrunk
from tests.kit.algorithms import BruteForce, clear_oracle, domain_of, run, task_of, tree_bytes

DOMAIN = domain_of(4, 3, 5, 2)
PAIRS = tuple(combinations(DOMAIN.names, 2))
CELLS = np.array([12.0, 20, 8, 15, 6, 10])


def division(guessed: list[float], workload: Workload | None = None, spent: float = 0.001) -> Division:
    return Division(DOMAIN, workload or all_pairs(DOMAIN), UNBOUNDED, PAIRS, np.array(guessed, float), spent)


def everything(cliques):
    return list(cliques)


def expected_error(shares: dict, guessed: np.ndarray, spent: float) -> float:
    """What the division promises to make least, with weights of 1, and columns' parts as they end up."""
    pairs = np.array([shares.get(pair, 0.0) for pair in PAIRS])
    left = 1 / np.sqrt(1 + np.square(guessed / (CELLS / sqrt(pi))) * pairs)
    total = float((guessed * left).sum())
    for i, name in enumerate(DOMAIN.names):
        size = DOMAIN.sizes[i]
        of = [k for k, pair in enumerate(PAIRS) if name in pair]
        known = spent + shares.get((name,), 0.0) + sum(pairs[k] * size / CELLS[k] for k in of)
        total += left[of].sum() * size / sqrt(pi * known)
    return total


@given(st.lists(st.floats(1, 500), min_size=6, max_size=6), st.floats(0.01, 2), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_all_of_the_budget_is_divided_and_no_trade_gains_much(guessed, rho: float, seed: int) -> None:
    shares = division(guessed).divide(rho, everything)
    assert sum(shares.values()) == pytest.approx(rho, rel=1e-6)
    best = expected_error(shares, np.array(guessed), 0.001)
    generator = np.random.default_rng(seed)
    every = [*((name,) for name in DOMAIN.names), *PAIRS]
    for _ in range(10):  # a tenth of the budget to somebody else
        giver, taker = (every[i] for i in generator.permutation(len(every))[:2])
        moved = min(shares.get(giver, 0.0), 0.1 * rho)
        other = {**shares, giver: shares.get(giver, 0.0) - moved, taker: shares.get(taker, 0.0) + moved}
        assert expected_error(other, np.array(guessed), 0.001) >= 0.9 * best


def test_where_pairs_show_nothing_columns_get_everything() -> None:
    shares = division([0.0] * 6).divide(0.5, everything)
    assert set(shares) == {(name,) for name in DOMAIN.names}
    assert sum(shares.values()) == pytest.approx(0.5)
    assert shares["a2",] > shares["a3",]  # five cells have more noise than two


def test_a_strong_pair_gets_more_than_a_weak_one_and_weights_count() -> None:
    strong = division([900, 900, 10, 900, 900, 900]).divide(0.1, everything)
    assert strong.get(("a0", "a3"), 0.0) < strong["a0", "a1"]
    heavy = Workload(PAIRS, (1, 1, 1, 1, 1, 50))
    alike = division([100.0] * 6, heavy).divide(0.1, everything)
    assert alike["a2", "a3"] > 2 * alike["a1", "a3"]


def test_what_has_no_room_is_left_out_and_others_share_its_budget() -> None:
    asked = []

    def fits(cliques):
        asked.append(list(cliques))
        return [clique for clique in cliques if clique != ("a0", "a2")]

    shares = division([100.0, 900, 100, 100, 100, 100]).divide(0.5, fits)
    assert asked[0][0] == ("a0", "a2")  # it gains most, so it is first in the queue
    assert ("a0", "a2") not in shares
    assert sum(shares.values()) == pytest.approx(0.5, rel=1e-6)


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=60), st.integers(0, 3))
@settings(deadline=None)
def test_shares_become_parts_that_use_all_of_them(shares: list[float], more: int) -> None:
    given_ = {(f"a{i}",): share for i, share in enumerate(shares)} | {(f"z{i}",): 0.0 for i in range(more)}
    parts = in_parts(given_, GaussianBatch.PARTS)
    assert sum(parts.values()) == GaussianBatch.PARTS
    assert min(parts.values()) >= 1
    assert set(parts) <= {(f"a{i}",) for i in range(len(shares))}
    assert len(set(parts.values())) <= 26
    odd = [number for number in parts.values() if number not in {m << k for m in (1, 3) for k in range(13)}]
    assert len(odd) <= 1  # the one that takes what is left
    scale = GaussianBatch.PARTS / sum(shares)
    for clique, number in parts.items():
        if number > 1 and number not in odd:
            assert number / (given_[clique] * scale) < 1.34
        if given_[clique] * scale > 8:
            assert number / (given_[clique] * scale) > 0.6


def test_noisy_errors_are_drawn_to_their_mean_by_what_is_noise() -> None:
    generator = np.random.default_rng(1)
    truth = np.full(400, 100.0)
    noisy = truth + generator.normal(0, 50, 400)
    assert np.abs(shrunk(noisy, 50.0) - truth).mean() < 0.3 * np.abs(noisy - truth).mean()
    assert np.allclose(shrunk(noisy, 0.0), noisy)
    assert shrunk(np.array([5.0]), 100.0).tolist() == [5.0]
    assert shrunk(np.array([5.0, 5.0]), 1.0).tolist() == [5.0, 5.0]


def test_a_triple_that_its_pairs_explain_adds_nothing() -> None:
    triple = ("a0", "a1", "a2")
    candidates = [*combinations(triple, 2), triple]
    noise = dict.fromkeys(triple, 6.0)
    pairs = [10.0, 20.0, 30.0]
    own = [sqrt(error**2 - 2 * 36) for error in pairs]
    explained = sqrt(3 * 36 + sum(one**2 for one in own))
    found = interactions(candidates, np.array([*pairs, explained + 40]), noise)
    assert found[:3] == pytest.approx(own)
    assert found[3] == pytest.approx(sqrt((explained + 40) ** 2 - explained**2))
    assert interactions(candidates, np.array([*pairs, explained]), noise)[3] == pytest.approx(0, abs=1e-6)
    assert interactions([("a0", "a1")], np.array([-5.0]), noise).tolist() == [0.0]


def chain(rows: int) -> np.ndarray:
    """a0 and a1 agree, so do a2 and a3; nothing else depends on anything."""
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 3, rows), generator.integers(0, 2, rows)
    return np.stack([first, first, second, second], axis=1)


@pytest.mark.parametrize("relation", [UNBOUNDED, BOUNDED])
def test_swift_measures_what_depends_and_keeps_the_model_small(relation) -> None:
    domain = domain_of(3, 3, 2, 2)
    task = task_of(domain, relation, rho=F(1, 20))
    for limit, expected in ((1 << 20, {("a0", "a1"), ("a2", "a3")}), (8 * (3 + 3 + 4), {("a2", "a3")})):
        chosen = algorithm("swift", {"max_model_bytes": limit})
        done = run(chosen, task, clear_oracle(chosen, task, chain(4000), 5), BruteForce(domain, steps=40))
        _, _, batch = done.requests
        pairs = {clique for clique in batch.cliques if len(clique) > 1}
        assert expected <= pairs
        assert tree_bytes(domain, pairs) <= limit
        assert int(batch.parts.sum()) == GaussianBatch.PARTS
        parts = dict(zip(batch.cliques, batch.parts.tolist(), strict=True))
        assert min(parts[pair] for pair in expected) >= max((parts[pair] for pair in pairs - expected), default=0)
