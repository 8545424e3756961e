"""Exact products of integer matrices modulo 2^k on float64 BLAS.

numpy multiplies integer matrices one element at a time; BLAS multiplies doubles an order of magnitude faster and is
exact as long as every sum stays below 2^53. So entries are cut into centred 16-bit limbs (|limb| <= 2^15), and rows are
taken in blocks: 2^30 per product leaves room for 2^23 of them. Only limb pairs that matter modulo 2^k are multiplied:
one for Z_2^16, three for Z_2^32, ten for Z_2^64. Buffers are a few blocks, whatever the number of rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caps.ring import Ring, Words, ring_of

LIMB = 16
BLOCK_ROWS = 1024
"""Rows per block: a block of a few hundred columns stays in cache between cast and product."""
_SMALL = 1 << 14
"""Below this many multiplications, numpy's own integer product is quicker than the casts."""

Doubles = npt.NDArray[np.float64]


def gram_mod(x: Words, y: Words | None = None) -> Words:
    """(x + y)^T (x + y) modulo 2^k, or x^T x. The sum is formed block by block, never in full."""
    ring = ring_of(x)
    rows, columns = x.shape
    total = np.zeros((columns, columns), np.uint64)
    limbs = ring.bits // LIMB or 1
    buffers = [np.empty((min(BLOCK_ROWS, rows), columns)) for _ in range(limbs)]
    for start in range(0, rows, BLOCK_ROWS):
        block = x[start : start + BLOCK_ROWS]
        if y is not None:
            block = block + y[start : start + BLOCK_ROWS]
        parts = _limbs(block, ring, buffers)
        for i, low in enumerate(parts):
            total += _shifted(low.T @ low, 2 * i)
            for j in range(i + 1, limbs - i):
                cross = _shifted(low.T @ parts[j], i + j)
                total += cross
                total += cross.T
    return total.astype(ring.dtype)


def matmul_mod(x: Words, y: Words) -> Words:
    """x @ y modulo 2^k."""
    ring = ring_of(x)
    rows, inner = x.shape
    columns = y.shape[1]
    if rows * inner * columns <= _SMALL:
        return np.asarray(x @ y)
    total = np.zeros((rows, columns), np.uint64)
    limbs = ring.bits // LIMB or 1
    for start in range(0, inner, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, inner)
        left = _limbs(x[:, start:stop], ring, [np.empty((rows, stop - start)) for _ in range(limbs)])
        right = _limbs(y[start:stop], ring, [np.empty((stop - start, columns)) for _ in range(limbs)])
        for i, part in enumerate(left):
            for j in range(limbs - i):
                total += _shifted(part @ right[j], i + j)
    return total.astype(ring.dtype)


def _limbs(block: Words, ring: Ring, buffers: list[Doubles]) -> list[Doubles]:
    """block = sum of limb_i * 2^(16 i) modulo 2^k, each limb centred, in the buffers given."""
    rows = block.shape[0]
    rest = ring.signed(np.ascontiguousarray(block))
    parts = []
    for position, buffer in enumerate(buffers):
        part = buffer[:rows]
        if position + 1 == len(buffers):
            part[...] = rest
        else:
            limb = rest.astype(np.int16)
            part[...] = limb
            # What the limb leaves is a multiple of 2^16, so the shift is exact even where the difference wrapped.
            rest = (rest - limb) >> LIMB
        parts.append(part)
    return parts


def _shifted(product: Doubles, position: int) -> npt.NDArray[np.uint64]:
    """product * 2^(16 position) modulo 2^64."""
    return product.astype(np.int64).view(np.uint64) << np.uint64(LIMB * position)
