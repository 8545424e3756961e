"""Synthetic rows from a junction tree, clique by clique from the roots, as private-pgm's synthetic_data("round").

Rows that agree on a clique's separator are one group; its n rows are spread over the clique's new cells by randomized
rounding: each cell gets the expected count n p rounded down or up, up with the probability that makes it unbiased
(systematic rounding: one offset a group). Which row of a group gets which cell changes nothing for the clique, but does
for pairs of attributes that share no clique. Cells are given at random, and then exchanged between rows of a group
where that brings such pairs nearer to what the model expects.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

from caps.basics.uniform import Uniform
from caps.data.domain import Codes, Domain
from caps.errors import DomainError
from services.coordinator.estimation import Floats
from services.coordinator.generate import kernels
from services.coordinator.generate.indexing import TreeIndex
from services.coordinator.generate.queries import Queries

_CHUNK_CELLS = 1 << 22
_PAIR_CELLS = 1 << 16
_EXCHANGES = 8
_MOST_EXCHANGES = 1 << 20
"""Exchanges tried for a clique: this many per row, but fewer if there are many rows, whose errors are small."""


def sample_tree(index: TreeIndex, cells: Floats, total: float, rows: int, uniform: Uniform) -> Codes:
    """Codes in the order of the index's domain. `cells` are the cliques' marginals, which sum to `total`."""
    domain = index.tree.domain
    codes = np.zeros((rows, len(domain.names)), np.int64)
    queries = Queries(index, cells, total, _CHUNK_CELLS)
    placed: list[str] = []
    for k, (clique, sep) in enumerate(zip(index.tree.cliques, index.tree.separators, strict=True)):
        new = [name for name in clique if name not in sep]
        table = cells[index.clique_part(k)].reshape(domain.shape(clique))
        table = table.transpose([clique.index(name) for name in (*sep, *new)])
        given = [domain.position(name) for name in sep]
        groups = _groups(codes[:, given], table.shape[: len(sep)])
        order = np.lexsort((uniform.words(rows), groups))
        present, counts = np.unique(groups, return_counts=True)
        drawn = _spread(table, len(sep), present, counts, uniform)
        codes[order[:, None], [domain.position(name) for name in new]] = np.stack(
            np.unravel_index(drawn, table.shape[len(sep) :]), axis=1
        )
        others = [name for name in placed if name not in sep]
        _exchange(codes, domain, new, others, order, counts, queries, uniform)
        placed += new
    return codes


def _exchange(
    codes: Codes,
    domain: Domain,
    new: list[str],
    others: list[str],
    order: npt.NDArray[np.intp],
    counts: npt.NDArray[np.intp],
    queries: Queries,
    uniform: Uniform,
) -> None:
    """Exchange the new attributes of rows of one group, which `order` lists group after group, where that helps."""
    rows, gaps, pairs, length = len(codes), [], [], 0
    for one, other in product(new, others):
        expected = _expected(domain, queries, one, other, min(rows, _PAIR_CELLS))
        if expected is not None:
            at, to, width = domain.position(one), domain.position(other), expected.shape[1]
            found = np.bincount(codes[:, at] * width + codes[:, to], minlength=expected.size)
            gaps.append(found - expected.ravel() * (rows / expected.sum()))
            pairs.append([at, to, width, length])
            length += expected.size
    if not pairs:
        return
    tries = rows * min(_EXCHANGES, max(1, _MOST_EXCHANGES // rows))
    first = np.arange(tries) % rows
    size, start = np.repeat(counts, counts)[first], np.repeat(np.cumsum(counts) - counts, counts)[first]
    second = start + (uniform.floats(tries) * size).astype(np.intp)
    kernels.exchange(
        codes,
        np.array([domain.position(name) for name in new]),
        order[first],
        order[second],
        np.concatenate(gaps),
        np.array(pairs),
    )


def _expected(domain: Domain, queries: Queries, one: str, other: str, most: int) -> Floats | None:
    """The model's counts of a pair; None if it, or a table on the way to it, has too many cells."""
    if domain.cells((one, other)) > most:
        return None
    clique = domain.clique((one, other))
    try:
        table = queries.marginal(clique)
    except DomainError:
        return None
    return table if clique[0] == one else table.T


def _groups(codes: Codes, shape: tuple[int, ...]) -> npt.NDArray[np.intp]:
    return np.ravel_multi_index(tuple(codes.T), shape) if shape else np.zeros(len(codes), np.intp)


def _spread(
    table: Floats, given: int, present: npt.NDArray[np.intp], counts: npt.NDArray[np.intp], uniform: Uniform
) -> npt.NDArray[np.intp]:
    """Cells for the rows of each group, group after group."""
    width = int(np.prod(table.shape[given:]))
    step = max(1, _CHUNK_CELLS // width)
    drawn = [np.empty(0, np.intp)]
    for begin in range(0, len(present), step):
        groups, sizes = present[begin : begin + step], counts[begin : begin + step, None]
        chances = table[np.unravel_index(groups, table.shape[:given])] if given else table
        upto = np.cumsum(chances.reshape(len(groups), width), axis=1)
        edges = np.floor(upto * (sizes / upto[:, -1:]) + uniform.floats(len(groups))[:, None]).astype(np.intp)
        edges[:, -1] = sizes[:, 0]
        repeats = np.diff(np.minimum(edges, sizes), axis=1, prepend=0)
        drawn.append(np.repeat(np.arange(repeats.size), repeats.ravel()) % width)
    return np.concatenate(drawn)
