"""Combinations of matrices: what they miss, counted over all coins of a few combinations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from services.mpc_server.engine.rep3_active.proof.matrices import class_sums, project, symmetric


def all_matrices(rows: int, columns: int) -> list[np.ndarray]:
    cells = product((0, 1), repeat=rows * columns)
    return [np.array(one, np.int64).reshape(rows, columns) for one in cells]


@pytest.mark.parametrize("combinations", [2, 3, 4])
def test_a_wrong_gram_matrix_is_missed_as_rarely_as_said(combinations: int) -> None:
    """At most 4 of 2^c coins, for any symmetric error modulo 2: the docstring's bound with c in place of 48."""
    coins = all_matrices(2, combinations)
    for cells in product((0, 1), repeat=3):
        error = symmetric(np.array(cells))
        if error.any():
            missed = sum(not (class_sums(r.T @ error @ r, 2) % 2).any() for r in coins)
            assert missed <= 4 / 2**combinations * len(coins)


@pytest.mark.parametrize("combinations", [1, 2, 3])
def test_a_wrong_product_is_missed_as_rarely_as_said(combinations: int) -> None:
    """At most 2 of 2^c coins, on both sides, for any error modulo 2."""
    coins = all_matrices(2, combinations)
    for error in all_matrices(2, 2):
        if error.any():
            missed = sum(not (class_sums(r.T @ error @ c, 1) % 2).any() for r in coins for c in coins)
            assert missed <= 2 / 2**combinations * len(coins) ** 2


def test_errors_that_one_step_would_miss_are_seen() -> None:
    """With the same rows on both sides and i + j = s, an error off the diagonal would never be seen."""
    error = np.array([[0, 1], [1, 0]])
    coins = all_matrices(2, 3)
    assert not any((class_sums(r.T @ error @ r, 1) % 2).any() for r in coins)
    assert any((class_sums(r.T @ error @ r, 2) % 2).any() for r in coins)


@pytest.mark.parametrize("ring_bits", [7, 16, 22, 32, 40, 64])
def test_projections_are_exact(ring_bits: int) -> None:
    rng = np.random.default_rng(ring_bits)
    dtype = np.uint16 if ring_bits <= 16 else np.uint32 if ring_bits <= 32 else np.uint64
    for rows, widths in ((1, (1,)), (2500, (3, 520))):
        parts = [rng.integers(0, np.iinfo(dtype).max, (rows, width), dtype, endpoint=True) for width in widths]
        parts[-1][:] = np.iinfo(dtype).max
        coins = rng.integers(0, 2, (sum(widths), 48), np.uint8)
        coins[:, 0] = 1
        whole = np.concatenate(parts, axis=1)
        expected = (whole @ coins.astype(dtype)) & dtype((1 << ring_bits) - 1)
        assert np.array_equal(project(parts, coins, ring_bits), expected)


def test_a_triangle_becomes_a_symmetric_matrix() -> None:
    for width in (1, 2, 5, 100):
        whole = symmetric(np.arange(width * (width + 1) // 2))
        assert np.array_equal(whole, whole.T)
        assert np.array_equal(whole[np.triu_indices(width)], np.arange(width * (width + 1) // 2))
