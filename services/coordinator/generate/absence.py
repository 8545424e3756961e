"""Values that persons do not have: what a marginal counts of them, and what a model says about them.

A person counts in a marginal only if none of its values is missing, so marginals of one table have different sums. The
model is therefore of a wider domain. An attribute that may be missing has one more category, the last, for "missing":
of a measured marginal it is fitted to the other cells alone, and how many persons lack a value follows from the number
of all persons.

Where tables are joined, a person whom a holder does not have lacks all of that holder's columns at once. Such a group
of attributes has an attribute of its own, whether the person has them, to which fixed potentials tie them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import log
from typing import NamedTuple

import numpy as np

from caps.data.domain import MISSING, Attribute, Clique, Codes, Domain
from services.coordinator.estimation import Floats, Measured

NEVER = -1e6
"""The potential of what cannot be: other potentials, which are free to differ by hundreds where only their sum counts,
never make up for it. It is finite, so that differences are numbers."""
_UNSEEN = -60.0
"""The potential of what there is no evidence for: among all people on earth there is none of it, unless measurements
say otherwise."""
_SURE = 1e3
"""What a number of persons that is known weighs beside the best known sum; sums weigh the inverse of their standard
deviation. Much more, and rounding would hide who lacks something."""


class Persons(NamedTuple):
    """How many persons there are, with the standard deviation of that, and whether everybody has every group."""

    total: float
    everybody: bool
    deviation: float


@dataclass(frozen=True)
class Absence:
    """Which attributes of a domain may be missing: the nullable ones each by itself, those of a group together.

    Pre-conditions: no attribute is in two groups.
    """

    domain: Domain
    groups: tuple[Clique, ...] = ()

    @cached_property
    def presences(self) -> Clique:
        """The names of the attributes that say whether a person has a group; none is a name of the domain's."""
        names = []
        for number in range(1, len(self.groups) + 1):
            name = f"has group {number}"
            while name in self.domain.names:
                name += "'"
            names.append(name)
        return tuple(names)

    @cached_property
    def may_lack(self) -> frozenset[str]:
        """The attributes of which a value may be missing."""
        nullable = {attribute.name for attribute in self.domain.attributes if attribute.nullable}
        return frozenset(nullable.union(*self.groups))

    @cached_property
    def wide(self) -> Domain:
        """The domain of the model."""
        own = [Attribute(one.name, one.size + (one.name in self.may_lack)) for one in self.domain.attributes]
        return Domain((*own, *(Attribute(name, 2) for name in self.presences)))

    @cached_property
    def structure(self) -> dict[Clique, Floats]:
        """The fixed potentials, flat and in the order of the wide domain.

        A person who lacks a group lacks its attributes; one who has it has those that are not nullable. Nobody lacks
        everything.
        """
        found: dict[Clique, Floats] = {}
        for group, presence in zip(self.groups, self.presences, strict=True):
            for name in group:
                attribute = self.domain.attributes[self.domain.position(name)]
                table = np.zeros((attribute.size + 1, 2))
                table[:-1, 0] = NEVER
                table[-1, 1] = 0.0 if attribute.nullable else NEVER
                found[name, presence] = table.ravel()
        if self.groups and not set(self.domain.names).difference(*self.groups):
            nothing = np.zeros(1 << len(self.groups))
            nothing[0] = NEVER
            found[self.presences] = nothing
        return found

    @cached_property
    def everybody(self) -> dict[Clique, Floats]:
        """The fixed potentials if everybody has every group."""
        return self.structure | {(presence,): np.array([_UNSEEN, 0.0]) for presence in self.presences}

    def widened(self, clique: Clique, values: Floats) -> Floats:
        """A flat table of the domain as one of the wide domain, with 0 wherever a value is missing."""
        table = np.zeros(self.wide.shape(clique))
        table[self._present(clique)] = values.reshape(self.domain.shape(clique))
        return table.ravel()

    def narrowed(self, clique: Clique, table: Floats) -> Floats:
        """What a marginal counts: the part of a table of the wide domain in which no value is missing."""
        return np.ascontiguousarray(table[self._present(clique)])

    def _present(self, clique: Clique) -> tuple[slice, ...]:
        return tuple(slice(size) for size in self.domain.shape(clique))

    def marked(self, codes: Codes) -> Codes:
        """Rows of the wide domain as rows of the domain, with MISSING for values that are."""
        own = codes[:, : len(self.domain.names)]
        return np.where(own == np.array(self.domain.sizes), MISSING, own)

    def inside(self, clique: Iterable[str]) -> Clique:
        """The attributes of a clique of the wide domain that are the domain's own."""
        return tuple(name for name in clique if name not in self.presences)

    @cached_property
    def columns(self) -> tuple[Clique, ...]:
        """The cliques of independent columns: each attribute alone, or with whether a person has its group."""
        tied = {name: presence for group, presence in zip(self.groups, self.presences, strict=True) for name in group}
        return tuple((name, tied[name]) if name in tied else (name,) for name in self.wide.names)

    def independent(self, tables: Mapping[Clique, Floats]) -> dict[Clique, Floats]:
        """Potentials of independent columns, whose exponentials sum to 1 or a little less, from tables of `columns`.

        Columns of a group are independent given that a person has it.
        """
        found = dict(self.structure)
        for clique, table in tables.items():
            if len(clique) == 1:
                found[clique] = np.log(table / table.sum()).ravel()
                continue
            attribute = self.domain.attributes[self.domain.position(clique[0])]
            potentials = self.structure[clique].reshape(-1, 2).copy()
            given = table[: attribute.size + attribute.nullable, 1]
            potentials[: len(given), 1] = np.log(given / given.sum())
            found[clique] = potentials.ravel()
        return found

    def persons(self, measurements: Sequence[Measured], total: float | None = None) -> Persons:
        """How many persons there are, from the sums of marginals, unless it is known; and whether all have everything.

        A sum is the number of persons who have all of a marginal's groups, plus noise of a known variance, if no
        attribute of it is nullable. At first everybody has every group. A set of groups is admitted as all that some
        persons have, the one that explains the sums best (weighted least squares, with no negative numbers), as long as
        the sums are evidence for it (Schwarz 1978). Otherwise the noise would make up persons who lack something, many
        if the table is small. If every marginal has a nullable attribute, the largest sum is the best that is known.
        """
        nullable = {attribute.name for attribute in self.domain.attributes if attribute.nullable}
        whole = [one for one in measurements if nullable.isdisjoint(one.clique)]
        if not whole:
            if total is not None:
                return Persons(total, everybody=True, deviation=0.0)
            known = [(float(one.values.sum()), one.sigma * float(np.sqrt(one.values.size))) for one in measurements]
            most, deviation = max(known, default=(1.0, 0.0))
            return Persons(max(1.0, most), everybody=True, deviation=deviation)
        deviations = np.array([one.sigma * np.sqrt(one.values.size) for one in whole])
        sums = np.array([one.values.sum() for one in whole]) / deviations
        patterns = np.array(list(product((1, 0), repeat=len(self.groups))), bool)
        if self.presences in self.structure:
            patterns = patterns[:-1]  # nobody has nothing
        needed = np.array([[not set(group).isdisjoint(one.clique) for group in self.groups] for one in whole], bool)
        counted = ~(needed[:, None, :] & ~patterns[None, :, :]).any(axis=2) / deviations[:, None]
        if total is not None:  # as if it had been measured, almost without noise
            sure = _SURE / deviations.min()
            counted, sums = np.vstack([counted, np.full(len(patterns), sure)]), np.append(sums, sure * total)
        every = range(len(patterns))

        def explained(admitted: Sequence[int]) -> tuple[float, Sequence[int], Floats]:
            """What these sets leave unexplained, and what their numbers count for themselves; the numbers."""
            each = _least_squares(counted[:, admitted], sums)
            unexplained = float(np.square(counted[:, admitted] @ each - sums).sum())
            return unexplained + log(len(sums)) * np.count_nonzero(each), admitted, each

        best = explained([0])
        while True:
            further = [explained([*best[1], other]) for other in every if other not in best[1]]
            better = min([*further, explained(every)], key=lambda one: one[0])
            if better[0] >= best[0]:
                break
            best = better
        _, admitted, each = best
        everybody = len(admitted) == 1
        if total is not None:
            return Persons(total, everybody, deviation=0.0)
        some = counted[:, [pattern for pattern, number in zip(admitted, each, strict=True) if number > 0] or [0]]
        deviation = float(np.sqrt(np.linalg.pinv(some.T @ some).sum()))
        return Persons(max(1.0, float(each.sum())), everybody, deviation)


def _least_squares(a: Floats, b: Floats) -> Floats:
    """The x >= 0 that minimises |a x - b| (Lawson and Hanson 1974, chapter 23)."""
    x, free = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    least = 1e-10 * float(np.abs(a.T @ b).max(initial=1.0))
    for _ in range(3 * a.shape[1]):  # it ends much sooner, but for rounding
        slope = np.where(free, -np.inf, a.T @ (b - a @ x))
        if slope.max() <= least:
            break
        free[slope.argmax()] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(a[:, free], b)[0]
            down = free & (trial <= 0)
            if not down.any():
                break
            x += (x[down] / (x[down] - trial[down])).min() * (trial - x)
            free &= x > least * 1e-6
            x[~free] = 0.0
        x = trial
    return x
