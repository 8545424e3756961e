"""Compiled arithmetic against Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.mpc_server.engine.rep3_active.proof import kernels
from services.mpc_server.engine.rep3_active.proof.field import ONE, ZERO, Q, Scalar, geometric, scalar

PRIMES = (Q, 7, 31, 8191)
HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], object)


def drawn(rng: np.random.Generator, count: int, q: int) -> np.ndarray:
    """Elements, the extreme ones among them."""
    out = rng.integers(0, q, (count, 2), np.uint64)
    ends = np.array([0, 1, q - 1, q // 2], np.uint64)
    chosen = rng.random((count, 2)) < 0.3
    out[chosen] = rng.choice(ends, chosen.sum())
    return out


def scalars(elements: np.ndarray) -> list[Scalar]:
    return [scalar(one) for one in elements.reshape(-1, 2)]


def total(values: Any, q: int) -> Scalar:
    result = ZERO
    for one in values:
        result = result.plus(one, q)
    return result


def small(value: int, q: int) -> Scalar:
    return Scalar(int(value) % q, 0)


@pytest.mark.parametrize("q", PRIMES)
def test_scalars_are_a_field(q: int) -> None:
    """Every element but 0 has an inverse: its power of q^2 - 2."""
    rng = np.random.default_rng(q % 1000)
    for one in scalars(drawn(rng, 50, q)):
        assert one == ZERO or one.power(q * q - 2, q).times(one, q) == ONE


@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 33])
def test_vectors(q: int, count: int) -> None:
    rng = np.random.default_rng(count)
    u, v = drawn(rng, count, q), drawn(rng, count, q)
    (r,) = scalars(drawn(rng, 1, q))
    us, vs, half = scalars(u), scalars(v), (count + 1) // 2
    assert scalars(geometric(us[0], r, count, q)) == [us[0].times(r.power(i, q), q) for i in range(count)]
    low = total((us[i].times(vs[i + half], q) for i in range(count - half)), q)
    high = total((us[i + half].times(vs[i], q) for i in range(count - half)), q)
    assert scalars(kernels.cross(u, v, q)) == [low, high]
    us += [ZERO] * (2 * half - count)
    vs += [ZERO] * (2 * half - count)
    left, right = kernels.fold_left(u.copy(), r.words(), q), kernels.fold_right(v.copy(), r.words(), q)
    assert scalars(left) == [us[i].plus(us[i + half].times(r, q), q) for i in range(half)]
    assert scalars(right) == [vs[i].times(r, q).plus(vs[i + half], q) for i in range(half)]
    scaled, added = u.copy(), v.copy()
    kernels.scale(scaled, r.words(), q)
    assert scalars(scaled) == [one.times(r, q) for one in scalars(u)]
    kernels.add_scaled(added, u, r.words(), q)
    assert scalars(added) == [y.plus(x.times(r, q), q) for x, y in zip(scalars(u), scalars(v), strict=True)]
    assert scalar(kernels.total(u, q)) == total(scalars(u), q)
    words = rng.integers(0, 1 << 16, count, np.uint64)
    expected = total((x.times(small(w, q), q) for x, w in zip(scalars(u), words, strict=True)), q)
    assert scalar(kernels.weighted(words, u, q)) == expected


@pytest.mark.parametrize("q", PRIMES)
def test_bits_and_tables(q: int) -> None:
    rng = np.random.default_rng(1)
    weights, octets = drawn(rng, 16, q), rng.integers(0, 256, (20, 2), np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little")
    expected = [total((w for w, bit in zip(scalars(weights), row, strict=True) if bit), q) for row in bits]
    assert scalars(kernels.gather(octets, kernels.tables(weights, q), q)) == expected
    flags = rng.integers(0, 2, 16, np.uint8)
    expected = [w.times(small(1 - 2 * int(bit), q), q) for w, bit in zip(scalars(weights), flags, strict=True)]
    assert scalars(kernels.signed(weights, flags, q)) == expected
    expected = [w.times(small(1 << i, q), q) for w in scalars(weights) for i in range(5)]
    assert scalars(kernels.doubled(weights, 5, q)) == expected


def fold_signs(planes: np.ndarray, weights: np.ndarray, q: int, *, turned: bool = False) -> np.ndarray:
    """By which, word and bit: the kernel has positions byte by byte within some words."""
    words = planes.shape[2]
    out = np.empty((4, 64 * words), np.uint64)
    kernels.fold_signs(*planes, kernels.sign_tables(weights, q), turned, q, out)
    parts = [out[:, 64 * start : 64 * min(start + 8, words)] for start in range(0, words, 8)]
    return np.concatenate([one.reshape(4, 8, -1).swapaxes(1, 2).reshape(4, -1, 64) for one in parts], axis=1)


@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize(("blocks", "words"), [(8, 1), (16, 7), (32, 8), (64, 9), (128, 18)])
def test_gates_fold_to_the_signs_of_their_bits(q: int, blocks: int, words: int) -> None:
    rng = np.random.default_rng(blocks)
    left, right = (rng.integers(0, 1 << 64, (3, blocks, words), np.uint64) for _ in range(2))
    weights = np.ascontiguousarray(drawn(rng, blocks, q)[:, 0])
    planes = np.stack([left[2], left[2] ^ left[0], left[2] ^ left[1], left[2] ^ left[0] ^ left[1]])
    places = (planes[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    signs = 1 - 2 * places.astype(object)
    expected = (signs * weights.astype(object)[:, None, None]).sum(axis=1) % q
    assert np.array_equal(fold_signs(left, weights, q).astype(object), expected)
    turned = np.tensordot(HADAMARD, expected, axes=1) % q
    assert np.array_equal(fold_signs(left, weights, q, turned=True).astype(object), turned)
    counts = np.zeros(2 * blocks - 1, np.int64)
    kernels.pair_counts(*left, *right, counts)
    for delta in (1 - blocks, -3, 0, 5, blocks - 1):
        pairs = [(l, l - delta) for l in range(blocks) if 0 <= l - delta < blocks]
        gates = [(left[0, l] & right[0, k]) ^ (left[1, l] & right[1, k]) ^ left[2, l] ^ right[2, k] for l, k in pairs]
        assert counts[delta + blocks - 1] == sum(int(np.bitwise_count(one).sum()) for one in gates)


def test_the_hadamard_form_counts_wrong_gates() -> None:
    """For all 64 gates of three left and three right bits: 4 if right, -4 if wrong."""
    bits = np.arange(64, dtype=np.uint64)
    a, c, e, b, d, f = ((np.uint64(sum(((int(x) >> i) & 1) << int(x) for x in bits))) for i in range(6))
    left, right = (np.zeros((3, 8, 1), np.uint64) for _ in range(2))
    left[:, 0, 0], right[:, 0, 0] = (a, c, e), (b, d, f)
    weights = np.zeros(8, np.uint64)
    weights[0] = 1
    u, v = fold_signs(left, weights, Q)[:, 0].astype(object), fold_signs(right, weights, Q, turned=True)[:, 0]
    wrong = int(a & b ^ c & d ^ e ^ f)
    for gate in range(64):
        assert u[:, gate] @ v[:, gate] % Q == (-4 if (wrong >> gate) & 1 else 4) % Q


@pytest.mark.parametrize("q", PRIMES)
def test_limbs(q: int) -> None:
    rng = np.random.default_rng(2)
    left, right = rng.integers(0, 1 << 16, (9, 3), np.uint16), rng.integers(0, 1 << 16, (9, 4), np.uint16)
    left[0], right[0] = 65535, 65535
    index = np.array([0, 0, 1, 1, 1, 2, 2, 0, 1])
    sums = kernels.limb_sums(left, right, index, 3, 4)
    for claim, s in np.ndindex(3, 4):
        pairs = [(t, i) for t in range(9) for i in range(3) if index[t] == claim and 0 <= s - i < 4]
        assert int(sums[claim, s]) == sum(int(left[t, i]) * int(right[t, s - i]) for t, i in pairs)
    weights, places = drawn(rng, 3, q), drawn(rng, 4, q)
    found = kernels.limb_rights(right, weights, index, places, 3, q).reshape(3, 9, 2)
    for i, t in np.ndindex(3, 9):
        inner = total((scalar(places[i + j]).times(small(right[t, j], q), q) for j in range(4 - i)), q)
        assert scalar(found[i, t]) == inner.times(scalar(weights[index[t]]), q)


@pytest.mark.parametrize("q", PRIMES)
def test_sums_of_doubles_are_joined(q: int) -> None:
    rng = np.random.default_rng(3)
    parts = rng.integers(0, 1 << 53, (30, 4)).astype(np.float64)
    parts[0] = (1 << 53) - 1
    for row, found in zip(parts, scalars(kernels.joined(parts, q)), strict=True):
        low_x, high_x, low_y, high_y = (int(one) for one in row)
        assert found == Scalar((low_x + (high_x << 31)) % q, (low_y + (high_y << 31)) % q)


@pytest.mark.parametrize("q", PRIMES)
@pytest.mark.parametrize("width", [1, 5, 248, 251])
def test_rows_are_folded_and_paired(q: int, width: int) -> None:
    rng = np.random.default_rng(width)
    rows, blocks = 16, 8
    left, right = (rng.integers(-(1 << 15), 1 << 15, (rows, width)).astype(np.int16) for _ in range(2))
    # The worst for exactness: all at their largest, with one sign.
    left[:4], right[:4] = -(1 << 15), -(1 << 15)
    weights, columns = drawn(rng, rows, q), drawn(rng, width, q)
    w, h = scalars(weights), scalars(columns)
    folded = np.empty((rows // blocks * width, 2), np.uint64)
    for of_columns in (columns, columns[:0]):
        kernels.fold_rows(left, weights, of_columns, blocks, q, folded)
        for g, u in ((0, 0), (1, width - 1), (1, width // 2)):
            chosen = range(g * blocks, (g + 1) * blocks)
            expected = total((w[t].times(small(left[t, u], q), q) for t in chosen), q)
            expected = expected.times(h[u], q) if len(of_columns) else expected
            assert scalar(folded[g * width + u]) == expected
    out = np.zeros((2 * blocks - 1, 2), np.uint64)
    kernels.row_products(left, right, weights, columns, blocks, q, out)
    assert scalar(out[blocks - 1]) == ZERO
    x = left.astype(np.int64)
    for delta in (1 - blocks, -1, 2, blocks - 1):
        expected = ZERO
        for t in range(rows):
            k = t % blocks - delta
            if 0 <= k < blocks:
                products = (x[t] * right[t - t % blocks + k].astype(np.int64)).tolist()
                inner = total((h[u].times(small(products[u], q), q) for u in range(width)), q)
                expected = expected.plus(inner.times(w[t], q), q)
        assert scalar(out[delta + blocks - 1]) == expected


def test_rows_are_added_up_by_bytes() -> None:
    rng = np.random.default_rng(4)
    left, right = (rng.integers(-(1 << 15), 1 << 15, (40, 70)).astype(np.int16) for _ in range(2))
    octets = rng.integers(0, 256, (37, 6), np.uint8)
    buckets = np.zeros((6, 256, 70), np.int64)
    kernels.bucket_sums(left, right, octets, buckets)
    products = left.astype(np.int64) * right
    for g in range(6):
        expected = np.zeros((256, 70), np.int64)
        np.add.at(expected, octets[:, g], products[:37])
        assert np.array_equal(buckets[g], expected)
    target = np.zeros((72, 40), np.int16)
    kernels.transpose(left, target)
    assert np.array_equal(target[:70], left.T)
    assert not target[70:].any()
