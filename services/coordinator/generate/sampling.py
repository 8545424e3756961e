"""Synthetic rows from a junction tree, clique by clique from the roots, as private-pgm's synthetic_data("round").

Rows that agree on a clique's separator are one group; its n rows are spread over the clique's new cells by randomized
rounding: each cell gets the expected count n p rounded down or up, up with the probability that makes it unbiased
(systematic rounding: one offset a group). Which row of the group gets which cell is random.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caps.domain import Codes
from caps.uniform import Uniform
from services.coordinator.generate.plan import Plan
from services.coordinator.measured import Floats

_CHUNK_CELLS = 1 << 22


def sample_tree(plan: Plan, cells: Floats, rows: int, uniform: Uniform) -> Codes:
    """Codes in the order of the plan's domain."""
    domain = plan.tree.domain
    codes = np.zeros((rows, len(domain.names)), np.int64)
    for k, (clique, sep) in enumerate(zip(plan.tree.cliques, plan.tree.separators, strict=True)):
        new = [name for name in clique if name not in sep]
        table = cells[plan.clique_part(k)].reshape(domain.shape(clique))
        table = table.transpose([clique.index(name) for name in (*sep, *new)])
        given = [domain.position(name) for name in sep]
        groups = _groups(codes[:, given], table.shape[: len(sep)])
        order = np.lexsort((uniform.words(rows), groups))
        present, counts = np.unique(groups, return_counts=True)
        drawn = _spread(table, len(sep), present, counts, uniform)
        codes[order[:, None], [domain.position(name) for name in new]] = np.stack(
            np.unravel_index(drawn, table.shape[len(sep) :]), axis=1
        )
    return codes


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
