"""What members of a family say about each other, against sums over every possibility."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.generate.pooling import pooled, priors

STRAYS = (1.0, 1 / 2, 1 / 8)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_probabilities_are_what_all_possibilities_make_of_them(seed: int, members: int, strengths: int) -> None:
    """Every common strength and stray is as probable as any other; given these, members are independent."""
    evidence = np.random.default_rng(seed).normal(0, 3, (members, strengths))
    expected, before = np.zeros_like(evidence), np.zeros_like(evidence)
    for common, stray in product(range(strengths), STRAYS):
        weights = stray ** np.abs(np.arange(strengths) - common)
        weights = weights / weights.sum()
        for each in product(range(strengths), repeat=members):
            likely = [weights[one] * np.exp(evidence[m, one]) for m, one in enumerate(each)]
            for m, one in enumerate(each):
                expected[m, one] += np.prod(likely)
                before[m, one] += weights[one] * np.prod(likely[:m] + likely[m + 1 :])
    assert pooled(evidence, STRAYS) == pytest.approx(expected / expected.sum(axis=1, keepdims=True), rel=1e-9)
    assert priors(evidence, STRAYS) == pytest.approx(before / before.sum(axis=1, keepdims=True), rel=1e-9)


def test_a_member_of_which_nothing_is_known_is_like_the_others_and_one_that_is_known_is_not() -> None:
    doubtful, known = np.zeros(5), np.array([0.0, 0, 0, 0, 40])
    others = np.array([[20.0, 0, 0, 0, 0]] * 9)
    odds = pooled(np.array([doubtful, known, *others]), STRAYS)
    assert odds[0, 0] > 0.5 > 5 * odds[0, 4]
    assert odds[1, 4] > 0.999
    assert pooled(doubtful[None, :], STRAYS)[0] == pytest.approx(np.full(5, 0.2), abs=0.1)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e12])
def test_evidence_beyond_what_floats_can_tell_apart_decides(scale: float) -> None:
    evidence = np.array([[0.0, -1, -2], [-2.0, -1, 0], [-1.0, 0, -2]]) * scale
    odds = pooled(evidence, STRAYS)
    assert np.isfinite(odds).all()
    assert odds.argmax(axis=1).tolist() == [0, 2, 1]
    assert odds.sum(axis=1) == pytest.approx(1)
