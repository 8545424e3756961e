"""What members of a family say about each other, against sums over every possibility."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.coordinator.generate.pooling import STRAYS, pooled


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_probabilities_are_what_all_possibilities_make_of_them(
    seed: int, members: int, kinds: int, strengths: int
) -> None:
    """Every kind, common strength and stray is as probable as any other; given these, members are independent."""
    evidence = np.random.default_rng(seed).normal(0, 3, (members, kinds, strengths))
    expected = np.zeros_like(evidence)
    for kind, common, stray in product(range(kinds), range(strengths), STRAYS):
        weights = stray ** np.abs(np.arange(strengths) - common)
        weights = weights / weights.sum()
        for each in product(range(strengths), repeat=members):
            likely = np.prod([weights[one] * np.exp(evidence[m, kind, one]) for m, one in enumerate(each)])
            for m, one in enumerate(each):
                expected[m, kind, one] += likely
    expected /= expected.sum(axis=(1, 2), keepdims=True)
    assert pooled(evidence) == pytest.approx(expected, rel=1e-9)


def test_a_member_of_which_nothing_is_known_is_like_the_others_and_one_that_is_known_is_not() -> None:
    doubtful, known = np.zeros(5), np.array([0.0, 0, 0, 0, 40])
    others = np.array([[20.0, 0, 0, 0, 0]] * 9)
    odds = pooled(np.array([doubtful, known, *others])[:, None, :])
    assert odds[0, 0, 0] > 0.5 > 5 * odds[0, 0, 4]
    assert odds[1, 0, 4] > 0.999
    assert pooled(doubtful[None, None, :])[0, 0] == pytest.approx(np.full(5, 0.2), abs=0.1)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e12])
def test_evidence_beyond_what_floats_can_tell_apart_decides(scale: float) -> None:
    evidence = np.array([[[0.0, -1, -2]], [[-2.0, -1, 0]], [[-1.0, 0, -2]]]) * scale
    odds = pooled(evidence)
    assert np.isfinite(odds).all()
    assert odds[:, 0].argmax(axis=1).tolist() == [0, 2, 1]
    assert odds.sum(axis=(1, 2)) == pytest.approx(1)
