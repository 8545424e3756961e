"""Claims on combinations of elementwise products: R (2 s(left) o s(right)) C + e + f = 0, with public coins R and C.

The prover knew R and C when it sent its 48 x 48 numbers, so all of them are checked, each with carries of its own.

Entry (a, b) counts the power 48 a + b of the challenge, so that the product in row t and column u of the table counts
g_t h_u. The inner product is that of all left words, times g_t h_u, with all right words: it is folded in groups of
consecutive rows before it is ever a vector of field elements.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from caps.shares.ring import Words
from services.mpc_server.engine.kernels import BLOCK_ROWS
from services.mpc_server.engine.rep3_active.proof.chains import Integers, limbs_of
from services.mpc_server.engine.rep3_active.proof.field import ONE, Scalar, geometric
from services.mpc_server.engine.rep3_active.proof.filed import DeviationClaim, known
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Elements,
    bucket_sums,
    fold_rows,
    gather,
    row_products,
    scale,
    tables,
    transpose,
)
from services.mpc_server.engine.rep3_active.proof.sizes import (
    COMBINATIONS,
    GROUP,
    LIMB,
    Equations,
    limb_count,
    stage_rows,
)
from services.mpc_server.engine.rep3_active.proof.source import BYTE_BITS, Coins, Source, Toss, Weights, added_sum

_KEPT = 1 << 26
"""Bytes up to which what a matrix is spread to is kept between the passes over it."""
Limbs = npt.NDArray[np.int16]


class DeviationSource(Source):
    """One claim. Rows come in stages, each of which is small enough for sums over the integers."""

    def __init__(self, claim: DeviationClaim, equations: Equations) -> None:
        self.equations = equations
        self._claim, self._limbs = claim, equations.limbs
        self._pairs = [(i, s - i) for s in range(self._limbs) for i in range(s + 1)]
        self._stage_rows = stage_rows(claim.columns, claim.bits)

    def _added(self, matrix: Words) -> npt.NDArray[np.uint16]:
        return limbs_of(matrix, self._claim.bits)

    def _blocks(self, toss: Toss, side: int) -> Iterator[Limbs]:
        """What blocks of rows are spread to, on the left (0) or on the right (1): limbs as they are paired, row by row.

        Rows are filled up to whole groups.
        """
        claim = self._claim
        matrix = known(claim.right if side else claim.left, None)
        order = [pair[side] for pair in self._pairs]
        key = ("spread", id(matrix), id(claim.spread), claim.bits, *order)
        if key in toss.found:
            yield from toss.found[key]
            return
        kept: list[Limbs] | None = [] if 2 * len(order) * claim.rows * claim.columns <= _KEPT else None
        buffer = np.empty((claim.columns, min(BLOCK_ROWS, claim.rows)), matrix.dtype)
        for start in range(0, claim.rows, BLOCK_ROWS):
            limbs = _centred(claim.spread(np.asarray(matrix[start : start + BLOCK_ROWS]), buffer), claim.bits)
            rows = limbs[0].shape[1]
            block = np.zeros((-(-rows // GROUP) * GROUP, len(order) * claim.columns), np.int16)
            transpose(np.concatenate([limbs[i] for i in order]) if len(order) > 1 else limbs[0], block)
            if kept is not None:
                kept.append(block)
            yield block
        if kept is not None:
            toss.found[key] = kept

    def _octets(self, toss: Toss, start: int) -> Coins:
        """The coins of a block of rows, eight in a byte."""
        claim = self._claim
        key = ("coins", id(claim.row_coins), start)
        if key not in toss.found:
            coins = claim.row_coins(start, min(BLOCK_ROWS, claim.rows - start))
            toss.found[key] = np.packbits(coins, axis=1, bitorder="little")
        found: Coins = toss.found[key]
        return found

    def sums(self, toss: Toss) -> Integers:
        claim, limbs = self._claim, self._limbs
        assert claim.e is not None
        assert claim.f is not None
        out = np.zeros((self.equations.stages, self.equations.count, limbs), np.int64)
        columns = claim.column_coins.astype(np.int64)
        # Rows with the same eight coins are added up first, so each is added six times instead of 48.
        buckets = np.zeros((COMBINATIONS // 8, 256, len(self._pairs) * claim.columns), np.int64)
        blocks = zip(self._blocks(toss, 0), self._blocks(toss, 1), strict=True)
        for number, (left, right) in enumerate(blocks):
            bucket_sums(left, right, self._octets(toss, number * BLOCK_ROWS), buckets)
            after = (number + 1) * BLOCK_ROWS
            if after % self._stage_rows == 0 or after >= claim.rows:
                stage = (after - 1) // self._stage_rows
                combined = np.concatenate([BYTE_BITS.T @ one for one in buckets])
                for (i, j), part in zip(self._pairs, np.split(combined, len(self._pairs), axis=1), strict=True):
                    out[stage, :, i + j] += 2 * (part @ columns).reshape(-1)
                buckets[:] = 0
        out[0] += self._added(claim.e)
        out[0] += self._added(claim.f)
        return out

    def _row_weights(self, toss: Toss, weights: Weights) -> Elements:
        """What rows count, the weight of their stage included; rows that fill up the last group count nothing."""
        claim, q = self._claim, weights.q
        whole = -(-claim.rows // GROUP) * GROUP
        out = np.zeros((whole, 2), np.uint64)
        table = tables(weights.spaced(COMBINATIONS * self._limbs, COMBINATIONS), q)
        size = self.equations.count * self._limbs
        for start in range(0, claim.rows, BLOCK_ROWS):
            part = gather(self._octets(toss, start), table, q)
            stage = start // self._stage_rows
            scale(part, weights.after(stage * size).first.words(), q)
            out[start : start + len(part)] = part
        return out

    def _column_weights(self, weights: Weights) -> Elements:
        """What columns count, pair by pair of limbs, twice."""
        q = weights.q
        table = tables(weights.spaced(self._limbs, COMBINATIONS), q)
        octets = np.packbits(self._claim.column_coins, axis=1, bitorder="little")
        of_columns = gather(np.ascontiguousarray(octets), table, q)
        found = []
        for i, j in self._pairs:
            part = of_columns.copy()
            scale(part, weights.ratio.power(i + j, weights.q).times(Scalar(2, 0), weights.q).words(), q)
            found.append(part)
        return np.concatenate(found)

    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        assert self._claim.e is not None
        return [], added_sum(self._added(self._claim.e), weights)

    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        assert self._claim.f is not None
        return [], added_sum(self._added(self._claim.f), weights)

    def coefficients(self, toss: Toss, weights: Weights) -> Elements:
        """The coefficients of the product of what `fold_left` and `fold_right` return, as polynomials in r.

        The middle one is left at 0: it is claimed, not sent.
        """
        q = weights.q
        rows, columns = self._row_weights(toss, weights), self._column_weights(weights)
        out = np.zeros((2 * GROUP - 1, 2), np.uint64)
        for number, (left, right) in enumerate(zip(self._blocks(toss, 0), self._blocks(toss, 1), strict=True)):
            row_products(left, right, rows[number * BLOCK_ROWS :], columns, GROUP, q, out)
        return out

    def fold_left(self, toss: Toss, weights: Weights, r: Scalar) -> Elements:
        """The sum over the rows l of each group of r^l times the weighted words."""
        q = weights.q
        rows = self._row_weights(toss, weights)
        for l, power in enumerate(geometric(ONE, r, GROUP, weights.q)):
            part = np.ascontiguousarray(rows[l::GROUP])
            scale(part, power, q)
            rows[l::GROUP] = part
        return self._folded(toss, 0, rows, self._column_weights(weights), weights.q)

    def fold_right(self, toss: Toss, r: Scalar, q: int) -> Elements:
        """The sum over the rows l of each group of r^(L-1-l) times the words."""
        rows = np.tile(geometric(ONE, r, GROUP, q)[::-1], (-(-self._claim.rows // GROUP), 1))
        return self._folded(toss, 1, rows, np.empty((0, 2), np.uint64), q)

    def _folded(self, toss: Toss, side: int, rows: Elements, columns: Elements, q: int) -> Elements:
        out, at = np.empty((self.equations.elements, 2), np.uint64), 0
        for number, block in enumerate(self._blocks(toss, side)):
            size = block.size // GROUP
            fold_rows(block, rows[number * BLOCK_ROWS :], columns, GROUP, q, out[at : at + size])
            at += size
        return out


def _centred(words: Words, bits: int) -> list[Limbs]:
    """The centred limbs of words."""
    spare = 8 * words.itemsize - bits
    rest = np.ascontiguousarray(words).view(f"i{words.itemsize}")
    if spare:
        rest = (rest << spare) >> spare
    found = [rest.astype(np.int16, copy=False)]
    for _ in range(limb_count(bits) - 1):
        rest = (rest - found[-1]) >> LIMB
        found.append(rest.astype(np.int16))
    return found
