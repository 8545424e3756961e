"""How the cells of marginals come out of one-hot columns: which columns to multiply, and where each cell then is.

Cells of one attribute are sums of columns; of two, entries of a Gram matrix; of more, products of two sets of columns,
at least one of which consists of products itself. Those have to be sent, so a greedy choice keeps them few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from caps.data.domain import Domain, Layout
from caps.errors import DomainError
from services.mpc_server.engine.shares import Indices

Part: TypeAlias = tuple[int, ...]
"""Attributes by their position in the domain, ascending."""
MAX_DEGREE = 8


class Cross(NamedTuple):
    """A product of two column ranges of the pool, and the cells taken from it."""

    left: slice
    right: Indices
    cells: tuple[Indices, Indices]


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """How the cells of a layout come out of one-hot columns. Public: it depends on the layout alone.

    The pool starts as the one-hot columns; each level appends products of its columns. Cells of one attribute are sums
    of columns; of two, entries of the Gram matrix of the `paired` columns; of more, products of two parts of the pool.
    """

    width: int
    levels: tuple[tuple[Indices, Indices], ...]
    singles: Indices
    paired: Indices
    pairs: tuple[Indices, Indices]
    crosses: tuple[Cross, ...]
    order: Indices

    @property
    def products(self) -> int:
        """The number of product columns, which is how many elements a row costs."""
        return sum(len(left) for left, _ in self.levels)

    @property
    def cells(self) -> int:
        """Cells that are products of matrices."""
        return len(self.pairs[0]) + sum(len(cross.cells[0]) for cross in self.crosses)


@lru_cache(maxsize=64)
def recipe_of(layout: Layout) -> Recipe:
    """The recipe for a layout, with as few product columns as a greedy choice finds."""
    domain = layout.domain
    parts = [tuple(domain.position(name) for name in clique) for clique in layout.cliques]
    if max(map(len, parts)) > MAX_DEGREE:
        raise DomainError(f"cannot count marginals of more than {MAX_DEGREE} attributes")
    built, splits = _choose_products(domain, [part for part in parts if len(part) > 2])

    start: dict[Part, int] = {(position,): offset for position, offset in enumerate(domain.offsets)}
    levels = []
    end = domain.width
    for level in range(1, 1 + max((level for level, _, _ in built.values()), default=0)):
        lefts, rights = [], []
        for part, (own, left, right) in built.items():
            if own == level:
                start[part] = end
                codes = codes_of(domain, part)
                lefts.append(start[left] + _number(domain, left, codes))
                rights.append(start[right] + _number(domain, right, codes))
                end += len(lefts[-1])
        levels.append((np.concatenate(lefts), np.concatenate(rights)))

    where = dict(zip(parts, layout.offsets, strict=True))
    sought: list[Indices] = []  # positions in the layout, in the order in which cells are made

    def seek(part: Part) -> dict[int, Indices]:
        codes = codes_of(domain, part)
        sought.append(where[part] + _number(domain, part, codes))
        return codes

    singles = [domain.offsets[part[0]] + seek(part)[part[0]] for part in parts if len(part) == 1]
    twos = [part for part in parts if len(part) == 2]
    used = sorted({position for part in twos for position in part})
    paired = _joined([domain.offsets[position] + np.arange(domain.sizes[position]) for position in used])
    in_paired = dict(zip(used, np.cumsum([0, *(domain.sizes[position] for position in used)]), strict=False))
    rows, columns = [], []
    for part in twos:
        codes = seek(part)
        rows.append(in_paired[part[0]] + codes[part[0]])
        columns.append(in_paired[part[1]] + codes[part[1]])

    crosses = []
    for left in sorted({left for left, _ in splits.values()}):
        partners = sorted({right for one, right in splits.values() if one == left})
        widths = [_cells(domain, right) for right in partners]
        base = dict(zip(partners, np.cumsum([0, *widths]), strict=False))
        cells = []
        for part, (one, right) in splits.items():
            if one == left:
                codes = seek(part)
                cells.append((_number(domain, left, codes), base[right] + _number(domain, right, codes)))
        crosses.append(
            Cross(
                slice(start[left], start[left] + _cells(domain, left)),
                np.concatenate(
                    [start[right] + np.arange(width) for right, width in zip(partners, widths, strict=True)]
                ),
                (np.concatenate([row for row, _ in cells]), np.concatenate([column for _, column in cells])),
            )
        )
    order = np.empty(layout.cells, np.intp)
    order[_joined(sought)] = np.arange(layout.cells)
    pairs = (_joined(rows), _joined(columns))
    return Recipe(domain.width, tuple(levels), _joined(singles), paired, pairs, tuple(crosses), order)


class _Market:
    """Which parts to multiply: each is priced at its columns, divided among the cliques that could use it."""

    def __init__(self, domain: Domain, cliques: Sequence[Part]) -> None:
        self._domain = domain
        self._wanted = Counter(part for clique in cliques for part in _proper_parts(clique))
        self._prices: dict[Part, float] = {}
        self._splits: dict[Part, list[tuple[Part, Part]]] = {}
        self.built: dict[Part, tuple[int, Part, Part]] = {}

    def price(self, part: Part) -> float:
        """The price of having the part among the columns."""
        if len(part) == 1 or part in self.built:
            return 0.0
        if part not in self._prices:
            own = _cells(self._domain, part) / max(self._wanted[part], 1)
            self._prices[part] = self.cheapest(part)[0] + own
        return self._prices[part]

    def cheapest(self, part: Part) -> tuple[float, tuple[Part, Part]]:
        """The price of two parts that make up this one, and the two."""
        if part not in self._splits:
            self._splits[part] = list(_splits(self._domain, part))
        return min((self.price(one) + self.price(other), (one, other)) for one, other in self._splits[part])

    def build(self, part: Part) -> int:
        """Add the part to the columns; return the level at which it is made."""
        if len(part) == 1:
            return 0
        if part not in self.built:
            _, (one, other) = self.cheapest(part)
            self.built[part] = (1 + max(self.build(one), self.build(other)), one, other)
        return self.built[part][0]

    def served(self, cliques: Sequence[Part]) -> None:
        """Update all prices: these cliques need nothing more."""
        self._wanted.subtract(part for clique in cliques for part in _proper_parts(clique))
        self._prices.clear()


def _choose_products(
    domain: Domain, cliques: Sequence[Part]
) -> tuple[dict[Part, tuple[int, Part, Part]], dict[Part, tuple[Part, Part]]]:
    """Parts to be multiplied, as {part: (level, left, right)}, and the two parts each clique is counted from.

    Greedy: the clique that is cheapest to serve is served, with all others that are then free, and prices are updated.
    Of the 36 pairs that all triples of nine attributes of one size could use, 16 are multiplied.
    """
    market = _Market(domain, cliques)
    splits: dict[Part, tuple[Part, Part]] = {}
    waiting = list(cliques)
    while waiting:
        _, parts = min(market.cheapest(clique) for clique in waiting)
        for part in parts:
            market.build(part)
        offers = {clique: market.cheapest(clique) for clique in waiting}
        free = {clique: split for clique, (cost, split) in offers.items() if cost == 0}
        market.served(list(free))
        splits |= free
        waiting = [clique for clique in waiting if clique not in free]
    return market.built, splits


def _proper_parts(clique: Part) -> Iterator[Part]:
    for count in range(2, len(clique)):
        yield from combinations(clique, count)


def _splits(domain: Domain, part: Part) -> Iterator[tuple[Part, Part]]:
    """All ways to cut a part in two, the one with more cells first."""
    first, *others = part
    for count in range(len(others)):
        for chosen in combinations(others, count):
            one = (first, *chosen)
            other = tuple(position for position in part if position not in one)
            yield (one, other) if _cells(domain, one) >= _cells(domain, other) else (other, one)


def _cells(domain: Domain, part: Part) -> int:
    return prod(domain.sizes[position] for position in part)


def codes_of(domain: Domain, part: Part) -> dict[int, Indices]:
    """For each attribute of a part its code in every cell, row-major."""
    grid = np.indices([domain.sizes[position] for position in part]).reshape(len(part), -1)
    return dict(zip(part, grid, strict=True))


def _number(domain: Domain, part: Part, codes: Mapping[int, Indices]) -> Indices:
    """The number of the cell of `part` that the codes fall into."""
    numbers = np.zeros(len(next(iter(codes.values()))), np.intp)
    for position in part:
        numbers = numbers * domain.sizes[position] + codes[position]
    return numbers


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, np.intp), *parts])
