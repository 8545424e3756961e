"""Claims on products of matrices, by random binary combinations of their rows and columns.

A product that is wrong by a matrix E, not 0 modulo 2^k, is combined to the 48 x 48 matrix R E C, and that to the sums
over its antidiagonals i + j = s: the coefficients of the polynomial a(X)^T E c(X), where a and c are vectors of random
polynomials of degree 47 over Z_2 (the power of two that divides E is divided out). E c(X) is zero with probability
at most 2^-48, and if some entry of it is not, a(X)^T E c(X) is zero for at most one value of that entry of a, since
polynomials over Z_2 have no divisors of zero: 2^-47 in all, with 95 equations.

In a Gram matrix E is symmetric, and the same rows R serve on both sides, with weights i + 2 j = s: the coefficients of
the sum of E_ab a_a(X) a_b(X^2) = E_ab a_a a_b^2. In one a_a of a row of E that is not zero this is a polynomial of
degree at most 3, and the zero polynomial only if E_aa = 0 and the sum of E_ab a_b is zero, which has probability
at most 2^-48: at most 3 of 2^48 values are roots, so 2^-46 in all, with 142 equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.chains import Integers, limbs_of
from services.mpc_server.engine.rep3_active.proof.field import ZERO, Scalar
from services.mpc_server.engine.rep3_active.proof.kernels import Elements, add_scaled, joined
from services.mpc_server.engine.rep3_active.proof.sizes import COMBINATIONS, LIMB, Equations, limb_count
from services.mpc_server.engine.rep3_active.proof.source import Coins, Source, Toss, Weights, added_sum

N = TypeVar("N", bound=np.generic)

_ROWS = 2048
"""Rows per block: what is made of one stays in the cache."""
_NARROW = 512
"""Columns of 16 bits whose sums are exact in single precision."""
_HALF = 31


def project(parts: Sequence[Words], coins: Coins, bits: int) -> Words:
    """Matrices side by side, times a matrix of zeros and ones: modulo 2^bits, in the smallest words that hold it."""
    rows, first = parts[0].shape[0], 0
    out = np.zeros((rows, coins.shape[1]), np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.uint64)
    for part in parts:
        chosen = coins[first : first + part.shape[1]]
        first += part.shape[1]
        # Words of up to 32 bits are one signed factor, others are two; sums of 2^21 of them are exact in doubles.
        narrow = bits <= 16 and len(chosen) <= _NARROW
        floats: npt.NDArray[Any] = chosen.astype(np.float32 if narrow else np.float64)
        buffer = np.empty((min(_ROWS, rows), len(chosen)), floats.dtype)
        for start in range(0, rows, _ROWS):
            block = np.asarray(part[start : start + _ROWS])
            target, cast = out[start : start + _ROWS], buffer[: len(block)]
            for shift in (0,) if bits <= 32 else (0, 32):
                word = np.dtype(np.uint16 if bits <= 16 else np.uint32)
                half = (block >> block.dtype.type(shift) if shift else block).astype(word, copy=False)
                cast[...] = half if bits > 32 else np.ascontiguousarray(half).view(f"i{word.itemsize}")
                product = (cast @ floats).astype(np.int32 if narrow else np.int64)
                words = product.astype(out.dtype)
                target += words << out.dtype.type(shift) if shift else words
    if bits < 8 * out.itemsize:
        out &= out.dtype.type((1 << bits) - 1)
    return out


def class_sums(matrix: npt.NDArray[N], step: int) -> npt.NDArray[N]:
    """The sums of the entries (i, j) of a matrix of combinations that have the same i + step * j."""
    i = np.arange(len(matrix))
    out = np.zeros((len(matrix) - 1) * (1 + step) + 1, matrix.dtype)
    np.add.at(out, i[:, None] + step * i, matrix)
    return out


def float_limbs(weights: Elements) -> npt.NDArray[np.float64]:
    """The columns low x, high x, low y, high y of elements, 31 bits apart."""
    low = weights & np.uint64((1 << _HALF) - 1)
    high = weights >> np.uint64(_HALF)
    return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Side:
    """Matrices with one row for each summand, side by side, and the coins of their columns."""

    parts: Sequence[Words]
    label: bytes

    def projected(self, toss: Toss, bits: int) -> Words:
        key = (self.label, bits, *map(id, self.parts))
        if key not in toss.found:
            width = sum(part.shape[1] for part in self.parts)
            toss.found[key] = project(self.parts, toss.coins(self.label, width), bits)
        found: Words = toss.found[key]
        return found


class MatrixSource(Source):
    """The sum over pairs of (left^T right), or of (right^T left) where `turned`, + e + f = 0.

    A matrix whose columns become rows of the product is weighted by powers i, the other one by powers step * j.
    """

    def __init__(
        self,
        equations: Equations,
        *,
        step: int,
        pairs: Sequence[tuple[Side | None, Side | None, bool]],
        e: Words | None,
        f: Words | None,
        labels: tuple[bytes, bytes],
    ) -> None:
        self.equations = equations
        self._pairs, self._bits, self._step, self._labels = pairs, equations.bits, step, labels
        self._e, self._f = e, f

    def _added(self, toss: Toss, matrix: Words) -> npt.NDArray[np.uint16]:
        """The limbs of what e or f adds to each equation."""
        one, other = self._labels
        half = project([matrix], toss.coins(other, matrix.shape[1]), self._bits)
        whole = project([half.T], toss.coins(one, matrix.shape[0]), self._bits)
        return limbs_of(class_sums(whole.T, self._step), self._bits)

    def sums(self, toss: Toss) -> Integers:
        assert self._f is not None
        total = self._added(toss, self._f).T.astype(np.int64)
        products: dict[tuple[int, int], Integers] = {}
        for left, right, turned in self._pairs:
            assert left is not None
            assert right is not None
            key = (id(left), id(right))
            if key not in products:
                products[key] = _products(
                    left.projected(toss, self._bits), right.projected(toss, self._bits), self._bits
                )
            for i, j in np.ndindex(products[key].shape[:2]):
                if i + j < len(total):
                    product = products[key][i, j]
                    total[i + j] += class_sums(product.T if turned else product, self._step)
        # What e adds is what makes a true claim true: so a prover need not know e, which would be another product.
        summed = sum(
            (one.astype(np.uint64) << np.uint64(LIMB * place) for place, one in enumerate(total)), np.uint64(0)
        )
        total += limbs_of(np.negative(summed), self._bits).T
        return total.T[None]

    def _powers(self, weights: Weights, *, first: bool) -> tuple[Elements, Elements]:
        """The weights of the combinations of a matrix whose columns become rows of the product, and of the other."""
        limbs = self.equations.limbs
        return (
            weights.spaced(limbs, COMBINATIONS, first=first),
            weights.spaced(self._step * limbs, COMBINATIONS, first=first),
        )

    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        powers, found, weighed = self._powers(weights, first=False), [], {}
        for side, _, turned in self._pairs:
            assert side is not None
            if id(side) not in weighed:
                weighed[id(side)] = _weighted(side.projected(toss, self._bits), powers, self._bits, weights.q)
            found += weighed[id(side)][turned]
        # A prover has no e, and does not ask for what it adds.
        return found, ZERO if self._e is None else added_sum(self._added(toss, self._e), weights)

    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        assert self._f is not None
        limbs = self.equations.limbs
        places = weights.spaced(1, limbs)
        powers, found, weighed = self._powers(weights, first=True), [], {}
        for _, side, turned in self._pairs:
            assert side is not None
            if id(side) not in weighed:
                weighed[id(side)] = _weighted(side.projected(toss, self._bits), powers, self._bits, weights.q)
            of_limbs = weighed[id(side)][not turned]
            if limbs == 1:
                found += of_limbs
                continue
            for i in range(limbs):
                vector = np.zeros_like(of_limbs[0])
                for j in range(limbs - i):
                    add_scaled(vector, of_limbs[j], places[i + j], weights.q)
                found.append(vector)
        return found, added_sum(self._added(toss, self._f), weights)


def _float_limbs(words: Words, bits: int) -> list[npt.NDArray[np.float64]]:
    """The limbs of a block of words, each as a matrix."""
    if bits == LIMB:
        return [words.astype(np.float64)]
    limbs = limbs_of(words, bits).reshape(*words.shape, -1)
    return [limbs[..., i].astype(np.float64) for i in range(limbs.shape[-1])]


def _products(x: Words, y: Words, bits: int) -> Integers:
    """x_i^T y_j for all limbs i and j."""
    limbs = limb_count(bits)
    total = np.zeros((limbs, limbs, x.shape[1], y.shape[1]), np.int64)
    for start in range(0, len(x), _ROWS):
        xs, ys = (_float_limbs(one[start : start + _ROWS], bits) for one in (x, y))
        for i, j in np.ndindex(limbs, limbs):
            if i + j < limbs:
                total[i, j] += (xs[i].T @ ys[j]).astype(np.int64)
    return total


def _weighted(words: Words, weights: Sequence[Elements], bits: int, q: int) -> list[list[Elements]]:
    """For each set of weights and each limb of the words of a matrix, the weighted sums of its rows."""
    floats = np.hstack([float_limbs(one) for one in weights])
    found = [[np.empty((len(words), 2), np.uint64) for _ in range(limb_count(bits))] for _ in weights]
    for start in range(0, len(words), _ROWS):
        for i, block in enumerate(_float_limbs(words[start : start + _ROWS], bits)):
            sums = block @ floats
            for number, vectors in enumerate(found):
                vectors[i][start : start + _ROWS] = joined(sums[:, 4 * number : 4 * number + 4], q)
    return found


def symmetric(triangle: Words) -> Words:
    """A symmetric matrix from its upper triangle."""
    width = (math.isqrt(8 * triangle.size + 1) - 1) // 2
    out = np.empty((width, width), triangle.dtype)
    upper = np.triu_indices(width)
    out[upper] = out.T[upper] = triangle.reshape(-1)
    return out
