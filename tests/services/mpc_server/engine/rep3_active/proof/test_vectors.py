"""Vectors that are over F_q in part: halved as if all of them were over F_{q^2}."""

from __future__ import annotations

import numpy as np
import pytest

from services.mpc_server.engine.rep3_active.proof import vectors
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Q, Scalar, scalar
from services.mpc_server.engine.rep3_active.proof.vectors import Vector, cross, fold_left, fold_right


def drawn(rng: np.random.Generator, numbers: int, elements: int, q: int) -> Vector:
    ends = np.array([0, 1, q - 1], np.uint64)
    words = rng.integers(0, q, numbers + 2 * elements, np.uint64)
    words = np.where(rng.random(len(words)) < 0.3, rng.choice(ends, len(words)), words)
    return Vector(words[:numbers].copy(), words[numbers:].reshape(-1, 2).copy())


def product(u: np.ndarray, v: np.ndarray, q: int) -> Scalar:
    result = ZERO
    for x, y in zip(u, v, strict=True):
        result = result.plus(scalar(x).times(scalar(y), q), q)
    return result


@pytest.mark.parametrize("q", [Q, 7, 8191])
@pytest.mark.parametrize(("numbers", "elements"), [(0, 1), (0, 5), (2, 0), (6, 1), (8, 4), (4, 7)])
def test_a_halving_keeps_the_inner_product(q: int, numbers: int, elements: int) -> None:
    """<u_0 + r u_1, r v_0 + v_1> is the polynomial with <u, v> in the middle, at r: the kernels know no other law."""
    rng = np.random.default_rng(numbers + elements)
    u, v = drawn(rng, numbers, elements, q), drawn(rng, numbers, elements, q)
    r = scalar(drawn(rng, 0, 1, q).elements[0])
    low, high = (scalar(one) for one in cross(u, v, q))
    middle = product(u.embedded(), v.embedded(), q)
    left, right = fold_left(u, r, q), fold_right(v, r, q)
    assert not len(left.numbers)
    assert not len(right.numbers)
    assert len(left.elements) == len(right.elements) == numbers // 2 + (elements + 1) // 2
    expected = low.plus(middle.times(r, q), q).plus(high.times(r.times(r, q), q), q)
    assert product(left.elements, right.elements, q) == expected


def test_numbers_are_embedded_before_elements() -> None:
    vector = Vector(np.array([3, 4], np.uint64), np.array([[5, 6]], np.uint64))
    assert vector.embedded().tolist() == [[3, 0], [4, 0], [5, 6]]
    assert vectors.of_elements(vector.elements).embedded().tolist() == [[5, 6]]
