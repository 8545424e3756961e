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
from services.mpc_server.engine.rep3_active.proof.filed import DeviationClaim
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Elements,
    fold_rows,
    gather,
    row_products,
    scale,
    tables,
)
from services.mpc_server.engine.rep3_active.proof.sizes import (
    COMBINATIONS,
    GROUP,
    LIMB,
    Equations,
    limb_count,
    stage_rows,
)
from services.mpc_server.engine.rep3_active.proof.source import Coins, Source, Toss, Weights, added_sum

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

    def _blocks(self, toss: Toss, side: str) -> Iterator[Limbs]:
        """The limbs of what blocks of rows are spread to: limb, column, row; rows are filled up to whole groups."""
        claim = self._claim
        matrix: Words = getattr(claim, side)
        key = ("spread", id(matrix), id(claim.spread), claim.bits)
        if key in toss.found:
            yield from toss.found[key]
            return
        kept: list[Limbs] | None = [] if 2 * self._limbs * claim.rows * claim.columns <= _KEPT else None
        buffer = np.empty((claim.columns, min(BLOCK_ROWS, claim.rows)), matrix.dtype)
        for start in range(0, claim.rows, BLOCK_ROWS):
            words = claim.spread(matrix[start : start + BLOCK_ROWS], buffer)
            block = _centred(words, claim.bits)
            if kept is not None:
                kept.append(block)
            yield block
        if kept is not None:
            toss.found[key] = kept

    def _coins(self, toss: Toss, start: int) -> Coins:
        claim = self._claim
        key = ("coins", id(claim.row_coins), start)
        if key not in toss.found:
            toss.found[key] = claim.row_coins(start, min(BLOCK_ROWS, claim.rows - start))
        found: Coins = toss.found[key]
        return found

    def sums(self, toss: Toss) -> Integers:
        claim, limbs = self._claim, self._limbs
        assert claim.e is not None
        assert claim.f is not None
        out = np.zeros((self.equations.stages, self.equations.count, limbs), np.int64)
        columns = claim.column_coins.astype(np.int64)
        combined = np.zeros((limbs, claim.columns, COMBINATIONS), np.int64)
        blocks = zip(self._blocks(toss, "left"), self._blocks(toss, "right"), strict=True)
        for number, (left, right) in enumerate(blocks):
            coins = self._coins(toss, number * BLOCK_ROWS)
            for i, j in self._pairs:
                product = np.multiply(left[i], right[j], dtype=np.int32)[:, : len(coins)]
                combined[i + j] += (product.astype(np.float64) @ coins.astype(np.float64)).astype(np.int64)
            after = (number + 1) * BLOCK_ROWS
            if after % self._stage_rows == 0 or after >= claim.rows:
                stage = (after - 1) // self._stage_rows
                for limb in range(limbs):
                    out[stage, :, limb] = 2 * (combined[limb].T @ columns).reshape(-1)
                combined[:] = 0
        out[0] += self._added(claim.e)
        out[0] += self._added(claim.f)
        return out

    def _row_weights(self, toss: Toss, weights: Weights) -> Elements:
        """What rows count, the weight of their stage included; rows that fill up the last group count nothing."""
        claim, q = self._claim, weights.q
        whole = -(-claim.rows // GROUP) * GROUP
        out = np.zeros((whole, 2), np.uint64)
        table = tables(weights.spaced(COMBINATIONS * self._limbs, COMBINATIONS), False, q)
        size = self.equations.count * self._limbs
        for start in range(0, claim.rows, BLOCK_ROWS):
            octets = np.packbits(self._coins(toss, start), axis=1, bitorder="little")
            part = gather(octets, table, q)
            stage = start // self._stage_rows
            scale(part, weights.after(stage * size).first.words(), q)
            out[start : start + len(part)] = part
        return out

    def _column_weights(self, weights: Weights) -> Elements:
        """What columns count, pair by pair of limbs, twice."""
        q = weights.q
        table = tables(weights.spaced(self._limbs, COMBINATIONS), False, q)
        octets = np.packbits(self._claim.column_coins, axis=1, bitorder="little")
        of_columns = gather(np.ascontiguousarray(octets), table, q)
        found = []
        for i, j in self._pairs:
            part = of_columns.copy()
            scale(part, weights.ratio.power(i + j, weights.q).times(Scalar(2, 0), weights.q).words(), q)
            found.append(part)
        return np.concatenate(found)

    def _virtual(self, block: Limbs, which: int) -> Limbs:
        """The limbs of one side as they are paired with those of the other."""
        if self._limbs == 1:
            whole: Limbs = block[0]
            return whole
        return np.concatenate([block[pair[which]] for pair in self._pairs])

    def left(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        assert self._claim.e is not None
        return [], added_sum(self._added(self._claim.e), weights)

    def right(self, toss: Toss, weights: Weights) -> tuple[list[Elements], Scalar]:
        assert self._claim.f is not None
        return [], added_sum(self._added(self._claim.f), weights)

    def coefficients(self, toss: Toss, weights: Weights) -> Elements:
        """The coefficients of the product of what `fold_left` and `fold_right` return, as polynomials in r."""
        q = weights.q
        rows, columns = self._row_weights(toss, weights), self._column_weights(weights)
        out = np.zeros((2 * GROUP - 1, 2), np.uint64)
        blocks = zip(self._blocks(toss, "left"), self._blocks(toss, "right"), strict=True)
        for number, (left, right) in enumerate(blocks):
            part = rows[number * BLOCK_ROWS :][: left.shape[2]]
            row_products(self._virtual(left, 0), self._virtual(right, 1), part, columns, GROUP, q, out)
        return out

    def fold_left(self, toss: Toss, weights: Weights, r: Scalar) -> Elements:
        """The sum over the rows l of each group of r^l times the weighted words."""
        q = weights.q
        rows = self._row_weights(toss, weights)
        for l, power in enumerate(geometric(ONE, r, GROUP, weights.q)):
            part = np.ascontiguousarray(rows[l::GROUP])
            scale(part, power, q)
            rows[l::GROUP] = part
        return self._folded(toss, "left", rows, self._column_weights(weights), weights.q)

    def fold_right(self, toss: Toss, r: Scalar, q: int) -> Elements:
        """The sum over the rows l of each group of r^(L-1-l) times the words."""
        rows = np.tile(geometric(ONE, r, GROUP, q)[::-1], (-(-self._claim.rows // GROUP), 1))
        ones = np.zeros((len(self._pairs) * self._claim.columns, 2), np.uint64)
        ones[:, 0] = 1
        return self._folded(toss, "right", rows, ones, q)

    def _folded(self, toss: Toss, side: str, rows: Elements, columns: Elements, q: int) -> Elements:
        out = np.empty((len(rows) // GROUP * len(columns), 2), np.uint64)
        at, which = 0, 0 if side == "left" else 1
        for number, block in enumerate(self._blocks(toss, side)):
            data = self._virtual(block, which)
            part = rows[number * BLOCK_ROWS :][: data.shape[1]]
            fold_rows(data, part, columns, GROUP, q, out, at)
            at += data.shape[0] * (data.shape[1] // GROUP)
        return out


def _centred(words: Words, bits: int) -> Limbs:
    """The centred limbs of words that are spread to columns and rows: limb, column, row; whole groups of rows."""
    columns, rows = words.shape
    limbs = limb_count(bits)
    out = np.zeros((limbs, columns, -(-rows // GROUP) * GROUP), np.int16)
    spare = 8 * words.itemsize - bits
    rest = (words << words.dtype.type(spare)).view(f"i{words.itemsize}") >> spare
    for limb in range(limbs):
        low = rest.astype(np.int16)
        out[limb, :, :rows] = low
        rest = (rest - low) >> LIMB
    return out
