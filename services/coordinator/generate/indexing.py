"""The index maps of a junction tree and the cliques measured on it: what the compiled kernels need, computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.domain import Clique, Domain
from caps.data.junction import JunctionTree

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


_Pair: TypeAlias = tuple[int, Clique, int, Clique]
"""Where a table begins and its attributes; the same of a smaller one."""

_WORTH_SPLITTING = 1 << 10


@dataclass(frozen=True)
class TreeIndex:
    """Where each table lies in its flat array, and the links between tables (see kernels)."""

    tree: JunctionTree
    factors: tuple[Clique, ...]
    offsets: Integers
    """First cell of each factor, then of each auxiliary table, and the cells of all."""
    cell_offsets: Integers
    """The same of the tree's cliques."""
    sep_cells: int
    parents: Integers
    starts: Integers
    links: Integers
    maps: npt.NDArray[np.int32]

    def part(self, k: int) -> slice:
        """Where factor k lies."""
        return slice(int(self.offsets[k]), int(self.offsets[k + 1]))

    def clique_part(self, k: int) -> slice:
        """Where tree clique k lies."""
        return slice(int(self.cell_offsets[k]), int(self.cell_offsets[k + 1]))


def index_tree(tree: JunctionTree, factors: Sequence[Clique]) -> TreeIndex:
    """The index for these factors, each contained in a clique of the tree.

    Each is linked to the smallest table that contains it: another factor's, an auxiliary one, or a clique's. Auxiliary
    tables stand between a large clique and its factors, so that not every factor takes a pass over the clique.
    """
    domain = tree.domain
    homes = [smallest(domain, factor, tree.cliques) for factor in factors]
    tables = list(factors)
    for k, clique in enumerate(tree.cliques):
        inside = [factor for factor, home in zip(factors, homes, strict=True) if home == k]
        tables += [table for table in _between(domain, clique, inside) if table not in tables]
    offsets = _offsets(cells(domain, table) for table in tables)
    cell_offsets = _offsets(cells(domain, clique) for clique in tree.cliques)
    sep_offsets = _offsets(cells(domain, sep) for sep in tree.separators)
    groups: list[list[_Pair]] = [[] for _ in tree.cliques]
    within: list[_Pair] = []
    for k in sorted(range(len(tables)), key=lambda k: -len(tables[k])):
        larger = [table if set(tables[k]) < set(table) else () for table in tables]
        home = smallest(domain, tables[k], larger)
        if home >= 0:
            within.append((int(offsets[home]), tables[home], int(offsets[k]), tables[k]))
        else:
            home = smallest(domain, tables[k], tree.cliques)
            groups[home].append((int(cell_offsets[home]), tree.cliques[home], int(offsets[k]), tables[k]))
    own = [
        (int(cell_offsets[k]), clique, int(sep_offsets[k]), tree.separators[k]) for k, clique in enumerate(tree.cliques)
    ]
    above = [
        (int(cell_offsets[max(parent, 0)]), tree.cliques[max(parent, 0)], int(sep_offsets[k]), tree.separators[k])
        for k, parent in enumerate(tree.parents)
    ]
    links, maps = _links(domain, [*own, *above, *(pair for group in groups for pair in group), *within])
    starts = 2 * len(tree.cliques) + np.cumsum([0, *map(len, groups)])
    parents = np.array(tree.parents, np.int64)
    return TreeIndex(
        tree,
        tuple(factors),
        offsets,
        cell_offsets,
        int(sep_offsets[-1]),
        parents,
        starts.astype(np.int64),
        links,
        maps,
    )


def _between(domain: Domain, clique: Clique, factors: list[Clique]) -> list[Clique]:
    """Auxiliary tables: the clique without its largest attribute, without its second largest, and so on within them."""
    factors = [factor for factor in factors if not any(set(factor) < set(other) for other in factors)]
    if cells(domain, clique) < _WORTH_SPLITTING or len(clique) < 3:
        return []
    tables = []
    for dropped in reversed(clique[-2:]):
        rest = tuple(name for name in clique if name != dropped)
        inside = [factor for factor in factors if dropped not in factor]
        factors = [factor for factor in factors if dropped in factor]
        if len(inside) > 1:
            tables += [rest, *_between(domain, rest, inside)]
    return tables


def cells(domain: Domain, names: Clique) -> int:
    """As Domain.cells, and 1 for no attributes."""
    return prod(domain.sizes[domain.position(name)] for name in names)


def smallest(domain: Domain, part: Clique, cliques: Sequence[Clique]) -> int:
    """The position of the smallest clique that contains all of `part`; -1 if none does."""
    wanted = set(part)
    homes = [k for k, clique in enumerate(cliques) if wanted <= set(clique)]
    return min(homes, key=lambda k: cells(domain, cliques[k]), default=-1)


def link(domain: Domain, large: Clique, small: Clique) -> tuple[Integers, npt.NDArray[np.int32]]:
    """The link and the map from one table to a smaller one, both at the beginning of their arrays."""
    links, maps = _links(domain, [(0, large, 0, small)])
    return links[0], maps


def _links(domain: Domain, tables: Iterable[_Pair]) -> tuple[Integers, npt.NDArray[np.int32]]:
    rows, maps, length = [], [], 0
    for large_at, large, small_at, small in tables:
        block, along, indices = _blocks(domain, large, small)
        rows.append([large_at, cells(domain, large), small_at, cells(domain, small), block, along, length])
        maps.append(indices)
        length += len(indices)
    return np.array(rows, np.int64), np.concatenate(maps)


def _blocks(domain: Domain, large: Clique, small: Clique) -> tuple[int, int, npt.NDArray[np.int32]]:
    """How many trailing cells stay together, whether they run along in the small table, and where each block goes."""
    kept = [name in set(small) for name in large]
    sizes = [domain.sizes[domain.position(name)] for name in large]
    strides, stride = [0] * len(large), 1
    for axis in reversed(range(len(large))):
        if kept[axis]:
            strides[axis] = stride
            stride *= sizes[axis]
    outer, block = len(large), 1
    while outer and kept[outer - 1] == kept[-1]:
        outer -= 1
        block *= sizes[outer]
    indices = np.zeros(1, np.int32)
    for size, step in zip(sizes[:outer], strides[:outer], strict=True):
        indices = np.add.outer(indices, np.arange(size, dtype=np.int32) * np.int32(step)).ravel()
    return block, int(kept[-1]), indices


def _offsets(sizes: Iterable[int]) -> Integers:
    return np.cumsum([0, *sizes]).astype(np.int64)
