"""Claims on bits: ab ^ cd ^ e ^ f = 0 for each gate, as one sum of products of signs.

With the signs of e, e^a, e^c, e^a^c on the left, those of f, f^b, f^d, f^b^d on the right and H the 4 x 4 Hadamard
matrix, <u, H v> = 4 (-1)^(ab ^ cd ^ e ^ f). So the sum over m gates is 4 m if and only if none is wrong, as long as
8 m < q. It holds for any pairing of left and right positions, so the products of two blocks of gates are a count of
ones: the prover's first polynomial never leaves bit planes. Folding blocks with powers of r is a table of
256 elements for each eight blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
from services.mpc_server.engine.workers import Workers

_LARGE = 64
"""Words of each block from which on an array is cut into blocks by itself, and not copied."""


class Part(NamedTuple):
    """Gates of one side, three planes: (a, c, e) or (b, d, f). Rows are blocks."""

    first: Words
    second: Words
    added: Words


class Planes(NamedTuple):
    """The gates of one prover; None for the side that a party lacks. On both sides parts have the same shapes."""

    left: Sequence[Part] | None
    right: Sequence[Part] | None


def side(planes: Iterable[tuple[Words | None, Words | None, Words | None]], words: int) -> list[Part]:
    """One side of all claims, cut into blocks: a large array by itself, as it is, and what is left of all together.

    A plane that is not given is zero, as is what fills the last part.
    """
    blocks = blocks_of(words)
    parts: list[Part] = []
    rests: list[list[Words]] = [[], [], []]
    for claim in planes:
        size = known(claim[2], None).size
        flat = [np.zeros(size, np.uint64) if one is None else one.reshape(-1) for one in claim]
        columns = size // blocks if size >= _LARGE * blocks else 0
        if columns:
            parts.append(Part(*(one[: blocks * columns].reshape(blocks, columns) for one in flat)))
        for rest, one in zip(rests, flat, strict=True):
            rest.append(one[blocks * columns :])
    small = sum(one.size for one in rests[2])
    if small:
        filling = np.zeros(-small % blocks, np.uint64)
        parts.append(Part(*(np.concatenate([*rest, filling]).reshape(blocks, -1) for rest in rests)))
    return parts


def coefficients(left: Sequence[Part], right: Sequence[Part], q: int, workers: Workers) -> Numbers:
    """The coefficients of the prover's polynomial; the middle one is `target`, if no gate is wrong."""
    blocks = len(left[0].added)

    def counted(one: Part, other: Part) -> npt.NDArray[np.int64]:
        counts = np.zeros(2 * blocks - 1, np.int64)
        pair_counts(*one, *other, counts)
        return counts

    counts = np.sum(workers.each([partial(counted, *pair) for pair in zip(left, right, strict=True)]), axis=0)
    words = sum(one.added.shape[1] for one in left)
    pairs = blocks - np.abs(np.arange(1 - blocks, blocks))
    return np.asarray(4 * (64 * words * pairs - 2 * counts) % q).astype(np.uint64)


def target(words: int) -> int:
    """The claimed coefficient: four for each gate, those included that fill the last block."""
    blocks = blocks_of(words)
    return 256 * blocks * -(-words // blocks)


def fold_left(left: Sequence[Part], r: int, q: int, workers: Workers) -> Numbers:
    """The sum of r^l times the signs of block l."""
    return _folded(left, _powers(left, r, q), False, q, workers)


def fold_right(right: Sequence[Part], r: int, q: int, workers: Workers) -> Numbers:
    """The sum of r^(L-1-l) times the signs of block l, multiplied by H."""
    return _folded(right, _powers(right, r, q)[::-1], True, q, workers)


def _powers(parts: Sequence[Part], r: int, q: int) -> Numbers:
    return geometric(ONE, Scalar(r, 0), len(parts[0].added), q)[:, 0]


def _folded(parts: Sequence[Part], weights: Numbers, turned: bool, q: int, workers: Workers) -> Numbers:
    table = sign_tables(np.ascontiguousarray(weights), q)
    ends = np.cumsum([256 * one.added.shape[1] for one in parts])
    out = np.empty(int(ends[-1]), np.uint64)
    places = [place.reshape(4, -1) for place in np.split(out, ends[:-1])]
    workers.each([partial(fold_signs, *one, table, turned, q, place) for one, place in zip(parts, places, strict=True)])
    return out
