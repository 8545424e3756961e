"""Marginals of any clique of a calibrated junction tree, many at once.

A clique within one of the tree's is a projection. Otherwise variables are eliminated along the subtree that connects
its attributes (Koller and Friedman 2009, 10.3.3): each branch sends P(attributes asked for | separator) upwards.
Messages and projections are kept, so that all pairs of d attributes take about d messages per clique, not d^2.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

import numpy as np

from caps.data.domain import Clique
from caps.errors import DomainError
from services.coordinator.estimation import Floats
from services.coordinator.generate import kernels
from services.coordinator.generate.indexing import TreeIndex, cells, link, smallest


class Queries:
    """Answers about one calibrated model. Cliques are in the order of the index's domain; tables have their shape."""

    def __init__(self, index: TreeIndex, tables: Floats, total: float, max_cells: int) -> None:
        self._index = index
        self._tree = index.tree
        self._domain = index.tree.domain
        self._tables = tables
        self._total = total
        self._max_cells = max_cells
        self._projections: list[dict[Clique, Floats]] = [{} for _ in index.tree.cliques]
        self._messages: dict[tuple[int, Clique], tuple[Clique, Floats]] = {}

    def marginal(self, clique: Clique) -> Floats:
        """Expected counts."""
        self._refuse_large(clique)
        home = smallest(self._domain, clique, self._tree.cliques)
        if home >= 0:
            return self._projection(home, clique)
        groups: dict[int, list[str]] = {}
        for name in clique:
            groups.setdefault(self._roots[self._tops[name]], []).append(name)
        names: Clique = ()
        table = np.array(self._total)
        for group in groups.values():  # unrelated attributes are independent
            part_names, part = self._connected(tuple(group))
            names, table = names + part_names, np.multiply.outer(table, part / self._total)
        return table.transpose([names.index(name) for name in clique])

    @cached_property
    def _tops(self) -> dict[str, int]:
        """The clique nearest to the root that has the attribute."""
        tops: dict[str, int] = {}
        for k, clique in enumerate(self._tree.cliques):
            for name in clique:
                tops.setdefault(name, k)
        return tops

    @cached_property
    def _roots(self) -> list[int]:
        roots: list[int] = []
        for k, parent in enumerate(self._tree.parents):
            roots.append(k if parent < 0 else roots[parent])
        return roots

    def _connected(self, clique: Clique) -> tuple[Clique, Floats]:
        """The marginal of attributes of one component, and the order of its axes."""
        home = smallest(self._domain, clique, self._tree.cliques)
        if home >= 0:
            return clique, self._projection(home, clique)
        nodes = {self._tops[name] for name in clique}
        while len(nodes) > 1:  # parents come before children, so the greatest is no one's ancestor
            deepest = max(nodes)
            nodes = nodes - {deepest} | {self._tree.parents[deepest]}
        return self._combined(nodes.pop(), clique, clique)

    def _combined(self, k: int, wanted: Clique, kept: Clique) -> tuple[Clique, Floats]:
        """The marginal of `kept`: attributes of clique k, and of branches below it where `wanted`."""
        clique = set(self._tree.cliques[k])
        branches: dict[int, list[str]] = {}
        for name in wanted:
            if name not in clique:
                node = self._tops[name]
                while self._tree.parents[node] != k:
                    node = self._tree.parents[node]
                branches.setdefault(node, []).append(name)
        messages = [self._message(node, tuple(names)) for node, names in branches.items()]
        needed = [{name for name in kept if name in clique}]
        for node in reversed(branches):  # what must survive each contraction
            needed.append(needed[-1] | set(self._tree.separators[node]))
        names = tuple(name for name in self._tree.cliques[k] if name in needed[-1])
        table = self._projection(k, names)
        outside: set[str] = set()
        for message, keep in zip(messages, reversed(needed[:-1]), strict=True):
            names, table = self._contract(names, table, *message, keep | outside)
            outside |= set(names) - clique
        return names, table

    def _message(self, k: int, wanted: Clique) -> tuple[Clique, Floats]:
        """P(wanted | separator of clique k), and the order of its axes: the separator's first."""
        if (k, wanted) not in self._messages:
            sep = self._tree.separators[k]
            names, table = self._combined(k, wanted, tuple(dict.fromkeys(sep + wanted)))
            order = sep + wanted
            joint = table.transpose([names.index(name) for name in order])
            given = self._projection(k, sep).reshape(self._shape(sep) + (1,) * len(wanted))
            self._messages[k, wanted] = order, joint / np.where(given > 0, given, 1)
        return self._messages[k, wanted]

    def _contract(
        self, names: Clique, table: Floats, given: Clique, message: Floats, keep: set[str]
    ) -> tuple[Clique, Floats]:
        """Multiply by a message and sum out what is not kept, as one batch of matrix products."""
        new = tuple(name for name in given if name not in names)
        shared = tuple(name for name in given if name in names)
        batch = tuple(name for name in shared if name in keep)
        summed = tuple(name for name in shared if name not in keep)
        rest = tuple(name for name in names if name not in shared)
        self._refuse_large(batch + rest + new)
        left = table.transpose([names.index(name) for name in batch + rest + summed])
        right = message.transpose([given.index(name) for name in batch + summed + new])
        b, r, s, n = (prod(self._shape(part)) for part in (batch, rest, summed, new))
        product = np.matmul(left.reshape(b, r, s), right.reshape(b, s, n))
        return batch + rest + new, product.reshape(self._shape(batch + rest + new))

    def _projection(self, k: int, names: Clique) -> Floats:
        """Clique k's marginal over some of its attributes, by way of the smallest one at hand."""
        known = self._projections[k]
        if names not in known:
            source, flat = self._tree.cliques[k], self._tables[self._index.clique_part(k)]
            home = smallest(self._domain, names, tuple(known))
            if home >= 0:
                source = tuple(known)[home]
                flat = np.ascontiguousarray(known[source]).ravel()
            known[names] = kernels.project(flat, *link(self._domain, source, names)).reshape(self._shape(names))
        return known[names]

    def _shape(self, names: Clique) -> tuple[int, ...]:
        return tuple(self._domain.sizes[self._domain.position(name)] for name in names)

    def _refuse_large(self, names: Clique) -> None:
        size = cells(self._domain, names)
        if size > self._max_cells:
            raise DomainError(f"this marginal needs a table of {size} cells, more than the limit of {self._max_cells}")
