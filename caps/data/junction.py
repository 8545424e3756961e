"""Junction trees: from the cliques that were measured to the maximal cliques of a chordal graph, and a tree of them.

Elimination is greedy and deterministic (Koller and Friedman, Probabilistic Graphical Models, 2009, 9.4.3): attributes
whose neighbours are all adjacent come first, because they cost no edge; then the one whose elimination makes the
smallest table.
Sets of attributes are bit masks, because AIM asks for the model size of every candidate in every round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from caps.data.domain import Clique, Domain

FLOAT_BYTES = 8


@dataclass(frozen=True)
class JunctionTree:
    """Maximal cliques, every parent before its children. A forest where attributes are unrelated: roots' parent is -1.

    separators: what each clique shares with its parent; empty for a root.
    """

    domain: Domain
    cliques: tuple[Clique, ...]
    parents: tuple[int, ...]
    separators: tuple[Clique, ...]

    @property
    def cells(self) -> int:
        """Cells of all cliques together."""
        return sum(self.domain.cells(clique) for clique in self.cliques)


def junction_tree(domain: Domain, cliques: Iterable[Clique]) -> JunctionTree:
    """The tree on which every given clique is contained in one of the tree's. It covers all attributes."""
    masks = maximal_masks(domain, cliques)
    sizes = [_cells(domain, mask) for mask in masks]
    # Prim's algorithm: any spanning tree with the most shared attributes has the running intersection property.
    left = set(range(len(masks)))
    order: list[int] = []
    parents: list[int] = []
    best = dict.fromkeys(left, (0, -1))
    while left:
        chosen = max(left, key=lambda i: (best[i][0], -sizes[i], -i))
        left.remove(chosen)
        parents.append(best[chosen][1] if best[chosen][0] else -1)
        for i in left:
            shared = (masks[i] & masks[chosen]).bit_count()
            if shared > best[i][0]:
                best[i] = (shared, len(order))
        order.append(chosen)
    ordered = [masks[i] for i in order]
    separators = [mask & ordered[parent] if parent >= 0 else 0 for mask, parent in zip(ordered, parents, strict=True)]
    return JunctionTree(
        domain,
        tuple(_names(domain, mask) for mask in ordered),
        tuple(parents),
        tuple(_names(domain, mask) for mask in separators),
    )


def model_bytes(domain: Domain, cliques: Iterable[Clique]) -> int:
    """Bytes of the tables of the tree's cliques, from the structure alone."""
    return FLOAT_BYTES * sum(_cells(domain, mask) for mask in maximal_masks(domain, cliques))


def neighbours_of(domain: Domain, cliques: Iterable[Clique]) -> list[int]:
    """With which others each attribute is in a clique, as bit masks over the domain's attributes."""
    neighbours = [0] * len(domain.names)
    for clique in cliques:
        mask = sum(1 << domain.position(name) for name in clique)
        for i in _bits(mask):
            neighbours[i] |= mask & ~(1 << i)
    return neighbours


def maximal_masks(domain: Domain, cliques: Iterable[Clique]) -> list[int]:
    """The maximal cliques of the triangulated graph, as bit masks over the domain's attributes."""
    neighbours = neighbours_of(domain, cliques)
    left = (1 << len(neighbours)) - 1
    ranks = {i: _rank(domain, neighbours, i) for i in _bits(left)}
    maximal: list[int] = []
    while left:
        chosen = min(ranks, key=ranks.__getitem__)
        around, bit = neighbours[chosen], 1 << chosen
        if not any((around | bit) & ~other == 0 for other in maximal):
            maximal.append(around | bit)
        left &= ~bit
        del ranks[chosen]
        touched = around
        for i in _bits(around):
            added = around & ~neighbours[i] & ~(1 << i)
            neighbours[i] = (neighbours[i] | around) & ~(bit | 1 << i)
            if added:  # a new edge may complete the neighbourhood of any attribute adjacent to both ends
                touched |= neighbours[i]
        for i in _bits(touched & left):
            ranks[i] = _rank(domain, neighbours, i)
    return maximal


def _rank(domain: Domain, neighbours: list[int], i: int) -> tuple[bool, int, int]:
    around = neighbours[i]
    fills = any(around & ~neighbours[j] & ~(1 << j) for j in _bits(around))
    return fills, _cells(domain, around | 1 << i), i


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _cells(domain: Domain, mask: int) -> int:
    return prod(domain.sizes[i] for i in _bits(mask))


def _names(domain: Domain, mask: int) -> Clique:
    return tuple(domain.names[i] for i in _bits(mask))
