"""Claims on bits: ab ^ cd ^ e ^ f = 0 for each gate, as one sum of products of signs.

With the signs of e, e^a, e^c, e^a^c on the left, those of f, f^b, f^d, f^b^d on the right and H the 4 x 4 Hadamard
matrix, <u, H v> = 4 (-1)^(ab ^ cd ^ e ^ f). So the sum over m gates is 4 m if and only if none is wrong, as long as
8 m < q. It holds for any pairing of left and right positions, so the products of two blocks of gates are a count of
ones: the prover's first polynomial never leaves bit planes. Folding blocks with powers of the challenge is a table of
256 elements for each eight blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.field import ONE, Scalar, geometric
from services.mpc_server.engine.rep3_active.proof.filed import known
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Numbers,
    fold_signs,
    pair_counts,
    sign_tables,
)
from services.mpc_server.engine.rep3_active.proof.sizes import blocks_of


class Planes(NamedTuple):
    """The gates of one prover: (a, c, e) and (b, d, f), cut into blocks; None for what a party lacks."""

    left: Words | None
    right: Words | None


def side(planes: Sequence[Sequence[Words | None]], words: int) -> Words:
    """The three planes of one side of all claims, cut into blocks; what is not given is zero, as is the end."""
    blocks = blocks_of(words)
    out = np.empty((3, blocks, -(-words // blocks)), np.uint64)
    sizes = [known(one, None).size for one in planes[2]]
    for flat, parts in zip(out.reshape(3, -1), planes, strict=True):
        at = 0
        for part, size in zip(parts, sizes, strict=True):
            flat[at : at + size] = 0 if part is None else part.reshape(-1)
            at += size
        flat[at:] = 0
    return out


def coefficients(left: Words, right: Words, q: int) -> Numbers:
    """The coefficients of the prover's polynomial; the middle one is `target`, if no gate is wrong."""
    blocks, words = left.shape[1:]
    pairs = blocks - np.abs(np.arange(1 - blocks, blocks))
    sums = 4 * (64 * words * pairs - 2 * pair_counts(left, right))
    return np.asarray(sums % q).astype(np.uint64)


def target(words: int) -> int:
    """The claimed coefficient: four for each gate, those included that fill the last block."""
    blocks = blocks_of(words)
    return 256 * blocks * -(-words // blocks)


def fold_left(left: Words, r: int, q: int) -> Numbers:
    """The sum of r^l times the signs of block l."""
    return _folded(left, _powers(left, r, q), False, q)


def fold_right(right: Words, r: int, q: int) -> Numbers:
    """The sum of r^(L-1-l) times the signs of block l, multiplied by H."""
    return _folded(right, _powers(right, r, q)[::-1], True, q)


def _powers(planes: Words, r: int, q: int) -> Numbers:
    return geometric(ONE, Scalar(r, 0), planes.shape[1], q)[:, 0]


def _folded(planes: Words, weights: Numbers, turned: bool, q: int) -> Numbers:
    out = np.empty((4, 64 * planes.shape[2]), np.uint64)
    fold_signs(planes, sign_tables(np.ascontiguousarray(weights), q), turned, q, out)
    return out.reshape(-1)
