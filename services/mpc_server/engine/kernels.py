"""Exact products of integer matrices modulo 2^k on float64 BLAS.

numpy multiplies integer matrices one element at a time; BLAS multiplies doubles an order of magnitude faster and is
exact as long as every sum stays below 2^53. So rows are taken in blocks of 1,024, and entries of up to 22 bits are
centred: |x| <= 2^21, and 1,024 products of 2^42 are 2^52. Larger ones are cut into centred 16-bit limbs, and only the
pairs that matter modulo 2^k are multiplied: three for Z_2^32, ten for Z_2^64. Buffers are a few blocks, whatever the
number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.errors import ShareError
from caps.shares.ring import Z22, Ring, Words, ring_of

LIMB = 16
BLOCK_ROWS = 1024
"""Rows per block: a block of a few hundred columns stays in cache between cast and product."""
_MOST_SUMMANDS = 1 << 21
"""The most signed 32-bit words in a sum, which is then at most 2^52."""
_EXACT = 53
"""Bits of an integer that a double holds."""
_SMALL = 1 << 14
"""Below this many multiplications, numpy's own integer product is quicker than the casts."""

Doubles = npt.NDArray[np.float64]


def gram_mod(x: Words, y: Words | None = None, *, modulo: Ring | None = None) -> Words:
    """(x + y)^T (x + y) modulo 2^k, or x^T x, with k as in `gram_of_parts`."""
    return gram_of_parts([(x,) if y is None else (x, y)], modulo=modulo)


def gram_of_parts(
    parts: Sequence[Sequence[Words]], *, modulo: Ring | None = None, mixed: Callable[[Words, Words], Words] = np.add
) -> Words:
    """x^T x modulo 2^k for x that comes in parts, side by side, each as summands. It is formed block by block only.

    mixed: how two summands combine: they may be subtracted instead.

    k is that of `modulo` if given, else of the words' own ring; then higher bits of the result mean nothing.
    """
    ring = _ring(parts[0][0], modulo)
    rows = parts[0][0].shape[0]
    ends = np.cumsum([0, *(part[0].shape[1] for part in parts)])
    total = np.zeros((ends[-1], ends[-1]), np.uint64)
    buffers = [np.empty((min(BLOCK_ROWS, rows), ends[-1])) for _ in range(_limb_count(ring))]
    for start in range(0, rows, BLOCK_ROWS):
        limbs = [buffer[: rows - start] for buffer in buffers]
        for part, (first, last) in zip(parts, pairwise(ends), strict=True):
            block, *others = (np.asarray(summand[start : start + BLOCK_ROWS]) for summand in part)
            for other in others:
                block = mixed(block, other)
            _cut(block, ring, [limb[:, first:last] for limb in limbs])
        for i, low in enumerate(limbs):
            total += _shifted(low.T @ low, 2 * i)
            for j in range(i + 1, len(limbs) - i):
                cross = _shifted(low.T @ limbs[j], i + j)
                total += cross
                total += cross.T
    return total.astype(ring.dtype)


def matmul_mod(x: Words, y: Words, *, modulo: Ring | None = None) -> Words:
    """x @ y modulo 2^k, with k as in `gram_of_parts`."""
    ring = _ring(x, modulo)
    rows, inner = x.shape
    columns = y.shape[1]
    if rows * inner * columns <= _SMALL:
        return np.asarray(x @ y)
    total = np.zeros((rows, columns), np.uint64)
    limbs = _limb_count(ring)
    for start in range(0, inner, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, inner)
        left = [np.empty((rows, stop - start)) for _ in range(limbs)]
        right = [np.empty((stop - start, columns)) for _ in range(limbs)]
        _cut(x[:, start:stop], ring, left)
        _cut(y[start:stop], ring, right)
        for i, part in enumerate(left):
            for j in range(limbs - i):
                total += _shifted(part @ right[j], i + j)
    return total.astype(ring.dtype)


def subset_sums(x: Words, chosen: npt.NDArray[np.uint8]) -> Words:
    """x @ chosen modulo 2^k, for a matrix of zeros and ones."""
    return subset_totals(x, chosen).astype(x.dtype)


def subset_totals(x: Words, chosen: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """The same modulo 2^64, for x as centred integers: a word of up to 32 bits is one exact factor then."""
    ring = ring_of(x)
    if ring.bits > 32 or x.shape[1] > _MOST_SUMMANDS:
        raise ShareError(f"sums of {x.shape[1]} words of {ring!r} are not exact in doubles")
    product = ring.signed(x).astype(np.float64) @ chosen.astype(np.float64)
    return product.astype(np.int64).view(np.uint64)


def times_words(matrix: Doubles, words: Words, *, bits: int = Z22.bits) -> npt.NDArray[np.uint64]:
    """matrix @ words modulo 2^64, for centred integers of so many bits and a vector of words of 64 bits.

    Words are cut into limbs that are as long as sums of their products are exact.
    """
    room = _EXACT - (bits - 1) - (matrix.shape[1] - 1).bit_length()
    if room < 1:
        raise ShareError(f"sums of {matrix.shape[1]} products of {bits} bits are not exact in doubles")
    shifts = np.arange(0, 64, room, dtype=np.uint64)
    limbs = (words[:, None] >> shifts) & np.uint64((1 << room) - 1)
    products = (matrix @ limbs.astype(np.float64)).astype(np.int64).view(np.uint64)
    return np.asarray((products << shifts).sum(axis=1, dtype=np.uint64))


def centred(words: Words, ring: Ring) -> npt.NDArray[np.signedinteger[Any]]:
    """Elements of a ring as the integers around 0."""
    return ring.signed(np.ascontiguousarray(words))


def is_one_factor(ring: Ring) -> bool:
    """Whether a centred element is one exact factor of a product in doubles."""
    return _limb_count(ring) == 1


def _ring(words: Words, modulo: Ring | None) -> Ring:
    ring = ring_of(words)
    if modulo is not None and modulo.dtype != ring.dtype:
        raise ShareError(f"words of {ring!r} do not hold {modulo!r}")
    return ring if modulo is None else modulo


def _limb_count(ring: Ring) -> int:
    return 1 if ring.bits <= Z22.bits else -(-ring.bits // LIMB)


def _cut(block: Words, ring: Ring, limbs: Sequence[Doubles]) -> None:
    """Fill the limbs so that block = sum of limb_i * 2^(16 i) modulo 2^k, each of them centred."""
    rest = centred(block, ring)
    for limb in limbs[:-1]:
        low = rest.astype(np.int16)
        limb[...] = low
        # What a limb leaves is a multiple of 2^16, so the shift is exact even where the difference wrapped.
        rest = (rest - low) >> LIMB
    limbs[-1][...] = rest


def _shifted(product: Doubles, position: int) -> npt.NDArray[np.uint64]:
    """product * 2^(16 position) modulo 2^64."""
    return product.astype(np.int64).view(np.uint64) << np.uint64(LIMB * position)
