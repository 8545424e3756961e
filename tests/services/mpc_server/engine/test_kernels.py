"""The integer products on float64 BLAS, against Python's unbounded integers."""

from __future__ import annotations

import asyncio
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.errors import ShareError
from caps.shares.ring import RINGS, Z16, Z22, Z24, Z32, Z64, Ring
from services.mpc_server.engine.kernels import BLOCK_ROWS, gram_mod, gram_of_parts, matmul_mod, subset_sums
from services.mpc_server.engine.verbs import gram
from services.mpc_server.testing.world import World, uniform_words

pytestmark = pytest.mark.property


def exactly(x: np.ndarray, y: np.ndarray, ring: Ring) -> np.ndarray:
    product = x.astype(object) @ y.astype(object)
    return np.array(product % (1 << ring.bits), dtype=object).astype(ring.dtype)


rings = st.sampled_from(list(RINGS.values()))


@settings(deadline=None, max_examples=60)
@given(rings, st.integers(0, 40), st.integers(1, 12), st.integers(0, 2**32))
def test_gram_is_exact(ring: Ring, rows: int, columns: int, seed: int) -> None:
    x, y = uniform_words(seed, (rows, columns), ring), uniform_words(seed + 1, (rows, columns), ring)
    assert np.array_equal(gram_mod(x), exactly(x.T, x, ring))
    assert np.array_equal(gram_mod(x, y), exactly((x + y).T, x + y, ring))


@settings(deadline=None, max_examples=60)
@given(rings, st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_matmul_is_exact(ring: Ring, rows: int, inner: int, columns: int, seed: int) -> None:
    x, y = uniform_words(seed, (rows, inner), ring), uniform_words(seed + 1, (inner, columns), ring)
    assert np.array_equal(matmul_mod(x, y), exactly(x, y, ring))


@pytest.mark.parametrize("ring", RINGS.values(), ids=repr)
@pytest.mark.parametrize("word", [0, 1, 0x7F, 0x80, 0x7FFF, 0x8000, 0xFFFF, 1 << 31, (1 << 63) + 0x8000, (1 << 64) - 1])
def test_extreme_words_over_several_blocks_are_exact(ring: Ring, word: int) -> None:
    """The largest limbs there are, summed over more rows than one block holds: where a lost bit would show."""
    word &= (1 << ring.bits) - 1
    rows = 2 * BLOCK_ROWS + 3
    x = np.full((rows, 2), word, ring.dtype)
    expected = rows * word * word % (1 << ring.bits)
    assert gram_mod(x).tolist() == [[expected] * 2] * 2
    assert matmul_mod(np.ascontiguousarray(x.T), x).tolist() == [[expected] * 2] * 2


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([Z22, Z24]), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
def test_words_of_32_bits_are_multiplied_modulo_less(
    ring: Ring, rows: int, inner: int, columns: int, seed: int
) -> None:
    """Higher bits of the factors do not matter."""
    x, y = uniform_words(seed, (rows, inner), Z32), uniform_words(seed + 1, (inner, columns), Z32)
    same = uniform_words(seed + 2, (rows, inner), Z32)
    assert np.array_equal(ring.reduce(matmul_mod(x, y, modulo=ring)), exactly(x, y, ring))
    assert np.array_equal(ring.reduce(gram_mod(x, modulo=ring)), exactly(x.T, x, ring))
    assert np.array_equal(ring.reduce(gram_mod(x, same, modulo=ring)), exactly((x + same).T, x + same, ring))


@pytest.mark.parametrize("modulo", [Z22, Z24], ids=repr)
@pytest.mark.parametrize("bits", [15, 16, 21, 22, 23, 24, 32])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_the_widest_factors_are_exact_over_several_blocks(modulo: Ring, bits: int, beside: int) -> None:
    """1,023 squares of odd numbers are odd: were a word of 22 bits not centred, the sum of a block would be rounded."""
    word, rows = ((1 << bits) + beside) % (1 << 32), 3 * BLOCK_ROWS
    x = np.full((rows, 40), word, np.uint32)
    x[BLOCK_ROWS - 1 :: BLOCK_ROWS] = 0
    expected = (rows - 3) * word * word % (1 << modulo.bits)
    assert np.all(modulo.reduce(gram_mod(x, modulo=modulo)) == expected)
    assert np.all(modulo.reduce(matmul_mod(np.ascontiguousarray(x.T), x, modulo=modulo)) == expected)


@pytest.mark.parametrize(("ring", "modulo"), [(Z16, Z16), (Z32, Z22), (Z32, Z32), (Z64, Z64)])
def test_a_matrix_in_parts_has_the_products_of_the_whole(ring: Ring, modulo: Ring) -> None:
    rows = BLOCK_ROWS + 5
    x, y = uniform_words(1, (rows, 9), ring), uniform_words(2, (rows, 9), ring)
    cuts = [slice(0, 4), slice(4, 5), slice(5, 9)]
    for parts, whole in (
        ([(x[:, cut], y[:, cut]) for cut in cuts], gram_mod(x, y, modulo=modulo)),
        ([(x[:, cut],) for cut in cuts], gram_mod(x, modulo=modulo)),
    ):
        assert np.array_equal(gram_of_parts(parts, modulo=modulo), whole)


@pytest.mark.parametrize("ring", [RINGS[8], Z16, Z32], ids=repr)
@pytest.mark.parametrize("word", [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_subset_sums_are_exact(ring: Ring, word: int) -> None:
    chosen = uniform_words(1, (BLOCK_ROWS, 5), RINGS[8]).view(np.uint8) & 1
    chosen[:, 0] = 1
    x = uniform_words(2, (3, BLOCK_ROWS), ring).copy()
    x[0] = word & ((1 << ring.bits) - 1)
    assert np.array_equal(subset_sums(x, chosen), exactly(x, chosen, ring))


def test_what_is_not_exact_is_refused() -> None:
    x = np.zeros((4, 4), Z32.dtype)
    for modulo in (Z16, Z64):
        with pytest.raises(ShareError, match="do not hold"):
            gram_mod(x, modulo=modulo)
        with pytest.raises(ShareError, match="do not hold"):
            matmul_mod(x, x, modulo=modulo)
    with pytest.raises(ShareError, match="not exact"):
        subset_sums(x.astype(np.uint64), np.zeros((4, 1), np.uint8))
    with pytest.raises(ShareError, match="not exact"):
        subset_sums(np.zeros((1, (1 << 21) + 1), Z16.dtype), np.zeros(((1 << 21) + 1, 1), np.uint8))


def test_counting_needs_at_most_half_the_memory_of_the_shares_on_top_of_them() -> None:
    """The shares of 50,000 rows and 200 columns stay as they are; the product works in blocks beside them."""
    rows, columns = 50_000, 200
    one_hot = np.zeros((rows, columns), Z16.dtype)
    one_hot[np.arange(rows), np.arange(rows) % columns] = 1

    async def measure() -> tuple[int, int]:
        world = World(1)
        parties = [world.runtime(channel) for channel in world.channels()]
        shares = world.share([party.context for party in parties], one_hot)
        # One party's pass, up to its message: all of its local work.
        protocol = gram(parties[0].context.step("gram"), shares[0])
        tracemalloc.start()
        try:
            protocol.send(None)
            return tracemalloc.get_traced_memory()[1], sum(part.nbytes for part in shares[0].components)
        finally:
            tracemalloc.stop()
            protocol.close()

    extra, held = asyncio.run(measure())
    assert extra <= held / 2


@pytest.mark.parametrize("rows", [614, 3000])
def test_two_way_counts_of_one_hot_columns_are_exact_and_their_cost_does_not_grow_with_rows(rows: int) -> None:
    codes = np.stack([uniform_words(column, (rows,), Z64) % np.uint64(5) for column in range(9)])
    one_hot = (codes.T[:, :, None] == np.arange(5)).reshape(rows, 45).astype(Z16.dtype)
    outcome = World(5).run(gram, one_hot)
    assert np.array_equal(outcome.value, one_hot.T @ one_hot)
    assert outcome.sent == (45 * 46 // 2 * 2,) * 3
    assert outcome.rounds == 1
