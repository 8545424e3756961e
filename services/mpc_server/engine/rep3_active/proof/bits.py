"""Claims on bits: ab ^ cd ^ e ^ f = 0 for each gate, as one sum of products of signs.

With the signs of e, e^a, e^c, e^a^c on the left, those of f, f^b, f^d, f^b^d on the right and H the 4 x 4 Hadamard
matrix, <u, H v> = 4 (-1)^(ab ^ cd ^ e ^ f). So the sum over m gates is 4 m if and only if none is wrong, as long as
8 m < q. It holds for any pairing of left and right positions, so the products of two blocks of gates are a count of
ones: the prover's first polynomial never leaves bit planes. Folding blocks with powers of the challenge is a table of
256 elements for each eight blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caps.shares.ring import Words
from services.mpc_server.engine.rep3_active.proof.field import ONE, Scalar, geometric
from services.mpc_server.engine.rep3_active.proof.filed import known
from services.mpc_server.engine.rep3_active.proof.kernels import (
    Elements,
    fold_signs,
    hadamard,
    pair_counts,
    tables,
)
from services.mpc_server.engine.rep3_active.proof.sizes import blocks_of


def side(planes: Sequence[Sequence[Words | None]], words: int) -> Elements:
    """The three planes of one side of all claims, cut into blocks; what is not given is zero, as is the end."""
    blocks = blocks_of(words)
    out = np.zeros((3, blocks, -(-words // blocks)), np.uint64)
    sizes = [known(one, None).size for one in planes[2]]
    zeros = np.zeros(max(sizes), np.uint64)
    for flat, parts in zip(out.reshape(3, -1), planes, strict=True):
        filled = [zeros[:size] if part is None else part.reshape(-1) for part, size in zip(parts, sizes, strict=True)]
        np.concatenate(filled, out=flat[:words])
    return out


def coefficients(left: Elements, right: Elements, q: int) -> Elements:
    """The coefficients of the prover's polynomial, as words; the middle one is `target`, if no gate is wrong."""
    blocks, words = left.shape[1:]
    pairs = blocks - np.abs(np.arange(1 - blocks, blocks))
    sums = 4 * (64 * words * pairs - 2 * pair_counts(left, right))
    return np.asarray(sums % q).astype(np.uint64)


def target(words: int) -> int:
    """The claimed coefficient: four for each gate, those included that fill the last block."""
    blocks = blocks_of(words)
    return 256 * blocks * -(-words // blocks)


def folded_size(planes: Elements) -> int:
    """Elements of a side after the first fold."""
    return 4 * 64 * int(planes.shape[2])


def fold_left(left: Elements, r: Scalar, q: int, out: Elements) -> None:
    """Write the sum of r^l times the signs of block l."""
    weights = geometric(ONE, r, left.shape[1], q)
    fold_signs(left, tables(weights, True, q), q, out)


def fold_right(right: Elements, r: Scalar, q: int, out: Elements) -> None:
    """Write the sum of r^(L-1-l) times the signs of block l, multiplied by H."""
    weights = np.ascontiguousarray(geometric(ONE, r, right.shape[1], q)[::-1])
    fold_signs(right, tables(weights, True, q), q, out)
    hadamard(out, q)
