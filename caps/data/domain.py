"""The public schema of a study: attributes, cliques of attributes, and the place of each marginal in one flat vector.

Everything here is public and agreed by all parties, so each class has one canonical form and a digest of it. Nothing
here holds a share, and nothing is inferred from data.

The marginal of a clique counts the rows with each combination of codes of its attributes. Attributes are always in the
order of the domain; cells are in row-major order, so the last attribute runs fastest. A row in which an attribute of
the clique is missing (code -1) does not count in that marginal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from math import comb, prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.basics import canonical
from caps.errors import DomainError

Clique: TypeAlias = tuple[str, ...]
"""Names of one or more attributes, in domain order."""

Codes: TypeAlias = npt.NDArray[np.int64]
"""One row per person, one column per attribute of the domain: category numbers from 0, or -1 for missing."""

MISSING = -1
MAX_SIZE = 65_535
"""The most categories of one attribute: the sum over its one-hot columns must not wrap in Z_2^16."""
MAX_ATTRIBUTES = 1024
MAX_CELLS = 1 << 24
"""The most cells in one marginal, and in all marginals of a layout together."""
MAX_WEIGHT = (1 << 31) - 1
MAX_PARTS = 1 << 19
"""The most parts of the queries of a workload, parts that several have counted each time: all pairs of 591 columns.

It also bounds the attributes of a query, to 19: a query of d attributes has 2^d - 1 parts.
"""
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class Attribute:
    """One column of the joined table: `size` categories, numbered from 0; `nullable` if a value may be missing."""

    name: str
    size: int
    nullable: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= _MAX_NAME or not self.name.isprintable():
            raise DomainError(f"an attribute's name must have 1 to {_MAX_NAME} printable characters")
        if not _is_integer(self.size) or not 1 <= self.size <= MAX_SIZE:
            raise DomainError(f"attribute {self.name} must have 1 to {MAX_SIZE} categories, not {self.size!r}")
        if not isinstance(self.nullable, bool):
            raise DomainError(f"attribute {self.name}: nullable must be true or false, not {self.nullable!r}")

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {"name": self.name, "nullable": self.nullable, "size": self.size}


@dataclass(frozen=True)
class Domain:
    """The attributes of the joined table, in the order that fixes everything else."""

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        attributes = tuple(self.attributes)
        object.__setattr__(self, "attributes", attributes)
        if not 1 <= len(attributes) <= MAX_ATTRIBUTES:
            raise DomainError(f"a domain must have 1 to {MAX_ATTRIBUTES} attributes, not {len(attributes)}")
        if not all(isinstance(attribute, Attribute) for attribute in attributes):
            raise DomainError("a domain must consist of Attribute objects")
        _refuse_repeats("attribute", self.names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Attribute names, in order."""
        return tuple(attribute.name for attribute in self.attributes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Categories of each attribute."""
        return tuple(attribute.size for attribute in self.attributes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First one-hot column of each attribute."""
        return tuple(int(offset) for offset in np.cumsum([0, *self.sizes])[:-1])

    @property
    def width(self) -> int:
        """Number of one-hot columns: the sum of all sizes."""
        return sum(self.sizes)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    @cached_property
    def pairs(self) -> tuple[Clique, ...]:
        """Every pair of attributes. Raises DomainError if these have more than MAX_PARTS parts."""
        count = len(self.names)
        if 3 * comb(count, 2) > MAX_PARTS:
            raise DomainError(f"{count} columns have {comb(count, 2):,} pairs, too many to consider: use fewer columns")
        return tuple(combinations(self.names, 2))

    def position(self, name: str) -> int:
        """The attribute's position in the domain."""
        position = self._positions.get(name)
        if position is None:
            raise DomainError(f"the domain has no attribute {name!r}")
        return position

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def columns(self, name: str) -> slice:
        """The one-hot columns of an attribute."""
        position = self.position(name)
        return slice(self.offsets[position], self.offsets[position] + self.sizes[position])

    def clique(self, names: Iterable[str]) -> Clique:
        """These attributes in domain order. Raises DomainError if there are none, or one is unknown or repeated."""
        return tuple([self.names[position] for position in sorted([self.position(name) for name in _distinct(names)])])

    def ordered(self, cliques: Sequence[Sequence[str]]) -> tuple[Clique, ...]:
        """`clique` of each of them. There may be 10^5, nearly always in order already: that is found out at once."""
        try:
            positions = np.fromiter(map(self._positions.__getitem__, chain.from_iterable(cliques)), np.int64)
            ends = np.cumsum([len(clique) for clique in cliques], dtype=np.int64)
        except (KeyError, TypeError):  # not names of attributes: `clique` says which
            return tuple([self.clique(clique) for clique in cliques])
        rises = np.diff(positions, prepend=-1) > 0
        rises[ends[:-1][ends[:-1] < len(rises)]] = True  # where the next clique begins
        if {tuple}.issuperset(map(type, cliques)) and all(cliques) and rises.all():
            return tuple(cliques)  # type: ignore[arg-type]
        return tuple([self.clique(clique) for clique in cliques])

    def shape(self, clique: Iterable[str]) -> tuple[int, ...]:
        """Sizes of the clique's attributes: the shape of its marginal."""
        return tuple(self.sizes[self.position(name)] for name in self.clique(clique))

    def cells(self, clique: Iterable[str]) -> int:
        """Number of cells of the clique's marginal."""
        return prod(self.shape(clique))

    def cells_of(self, cliques: Iterable[Clique]) -> list[int]:
        """Number of cells of each marginal; there may be 10^5. Pre-condition: they are this domain's (`clique`)."""
        size = dict(zip(self.names, self.sizes, strict=True))
        return [prod([size[name] for name in clique]) for clique in cliques]

    def project(self, names: Iterable[str]) -> Domain:
        """The domain of only these attributes."""
        return Domain(tuple(self.attributes[self.position(name)] for name in self.clique(names)))

    def downward_closure(self, cliques: Iterable[Sequence[str]]) -> tuple[Clique, ...]:
        """The cliques and all their non-empty subsets, smallest first, then in domain order.

        Raises DomainError, before it makes any, if these are more than MAX_PARTS.
        """
        listed = tuple(cliques)
        refuse_many_parts(listed)
        place, ordered, parts = self._positions, self.ordered(listed), list[Clique]()
        for degree in range(1, max(map(len, ordered), default=0) + 1):
            found = dict.fromkeys(chain.from_iterable(combinations(clique, degree) for clique in ordered))
            parts += sorted(found, key=lambda part: [place[name] for name in part])
        return tuple(parts)

    def check_codes(self, codes: npt.ArrayLike) -> Codes:
        """`codes` as an array. Raises DomainError unless it is n x d integers, each a category or -1."""
        array = np.asarray(codes)
        if array.ndim != 2 or array.shape[1] != len(self.attributes) or array.dtype.kind not in "iu":
            raise DomainError(f"codes must be integers in {len(self.attributes)} columns")
        wrong = ((array < MISSING) | (array >= np.array(self.sizes))).any(axis=0)
        if wrong.any():
            raise DomainError(f"codes of attribute {self.names[int(wrong.argmax())]} are outside its categories")
        return array.astype(np.int64, copy=False)

    def one_hot(self, codes: npt.ArrayLike) -> npt.NDArray[np.uint16]:
        """The n x `width` one-hot columns of rows of codes: one 1 in each attribute's block, none if it is missing."""
        array = self.check_codes(codes)
        columns = np.zeros((len(array), self.width), np.uint16)
        rows, positions = np.nonzero(array != MISSING)
        columns[rows, np.array(self.offsets)[positions] + array[rows, positions]] = 1
        return columns

    def to_json(self) -> list[dict[str, object]]:
        """Returns an array for canonical JSON."""
        return [attribute.to_json() for attribute in self.attributes]

    def digest(self) -> bytes:
        """SHA-256 of the canonical form."""
        return canonical.digest("domain", {"attributes": self.to_json()})


@dataclass(frozen=True)
class Layout:
    """The marginals of a list of cliques, one after the other in one flat vector."""

    domain: Domain
    cliques: tuple[Clique, ...]

    def __post_init__(self) -> None:
        cliques = self.domain.ordered(self.cliques)
        object.__setattr__(self, "cliques", cliques)
        if not cliques:
            raise DomainError("a layout must have at least one clique")
        _refuse_repeats("clique", cliques)
        if self.cells > MAX_CELLS:
            raise DomainError(f"the marginals have {self.cells} cells; at most {MAX_CELLS} are allowed")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Cells of each marginal."""
        return tuple(self.domain.cells_of(self.cliques))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First cell of each marginal."""
        return tuple(int(offset) for offset in np.cumsum([0, *self.sizes])[:-1])

    @cached_property
    def cells(self) -> int:
        """Number of cells of all marginals."""
        return sum(self.sizes)

    @cached_property
    def _indices(self) -> dict[Clique, int]:
        return {clique: index for index, clique in enumerate(self.cliques)}

    def index(self, clique: Iterable[str]) -> int:
        """The index of the clique's marginal."""
        index = self._indices.get(self.domain.clique(clique))
        if index is None:
            raise DomainError("the layout has no such clique")
        return index

    def require(self, cliques: Iterable[Clique]) -> None:
        """Raises DomainError unless all these cliques, which are in domain order, are in the layout."""
        if not self._indices.keys() >= set(cliques):
            raise DomainError("the layout has no such clique")

    def part(self, clique: Iterable[str]) -> slice:
        """Where the clique's marginal lies in the flat vector."""
        index = self.index(clique)
        return slice(self.offsets[index], self.offsets[index] + self.sizes[index])

    def positions(self, cliques: Iterable[Iterable[str]]) -> npt.NDArray[np.intp]:
        """Where the cells of some of the marginals lie, in the order of the cliques given."""
        parts = [self.part(clique) for clique in cliques]
        return np.concatenate([np.arange(part.start, part.stop, dtype=np.intp) for part in parts])

    def marginals(self, codes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """All marginals of a table, computed in the clear: what the protocols must return on shares."""
        array = self.domain.check_codes(codes)
        counts = np.empty(self.cells, np.int64)
        for clique in self.cliques:
            part = self.part(clique)
            values = array[:, [self.domain.position(name) for name in clique]]
            values = values[(values != MISSING).all(axis=1)]
            cells = np.ravel_multi_index(tuple(values.T), self.domain.shape(clique))
            counts[part] = np.bincount(cells, minlength=part.stop - part.start)
        return counts

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {"attributes": self.domain.to_json(), "cliques": [list(clique) for clique in self.cliques]}

    def digest(self) -> bytes:
        """SHA-256 of the canonical form."""
        return canonical.digest("layout", self.to_json())


@dataclass(frozen=True)
class Workload:
    """The marginals that the analyst wants to be accurate: cliques, each with an integer weight."""

    cliques: tuple[Clique, ...]
    weights: tuple[int, ...]
    domain: Domain | None = field(default=None, compare=False, repr=False)
    """If it is given, every clique is in the order of this domain: `over` makes it so."""

    def __post_init__(self) -> None:
        own = self.domain
        cliques = tuple(map(_distinct, self.cliques)) if own is None else own.ordered(self.cliques)
        weights = tuple(self.weights)
        object.__setattr__(self, "cliques", cliques)
        object.__setattr__(self, "weights", weights)
        if not cliques:
            raise DomainError("a workload must have at least one clique")
        if len(weights) != len(cliques):
            raise DomainError(f"a workload of {len(cliques)} cliques must have as many weights, not {len(weights)}")
        _refuse_repeats("clique", [tuple(sorted(one)) for one in cliques] if own is None else cliques)
        if not all(_is_integer(weight) and 1 <= weight <= MAX_WEIGHT for weight in set(weights)):
            raise DomainError(f"weights must be integers from 1 to {MAX_WEIGHT}")

    def over(self, domain: Domain) -> Workload:
        """The same workload with every clique in domain order."""
        return self if self.domain is domain else Workload(self.cliques, self.weights, domain)

    @cached_property
    def parts(self) -> tuple[Clique, ...]:
        """Every part of a clique (`Domain.downward_closure`). Pre-condition: the workload is over a domain."""
        assert self.domain is not None
        return self.domain.downward_closure(self.cliques)

    @cached_property
    def largest(self) -> int:
        """Cells of the largest marginal. Pre-condition: the workload is over a domain."""
        assert self.domain is not None
        return max(self.domain.cells_of(self.cliques))

    def layout(self, domain: Domain) -> Layout:
        """The marginals of the workload's cliques."""
        return Layout(domain, self.cliques)

    def to_json(self) -> list[dict[str, object]]:
        """Returns an array for canonical JSON."""
        return [
            {"clique": list(clique), "weight": weight}
            for clique, weight in zip(self.cliques, self.weights, strict=True)
        ]

    def digest(self) -> bytes:
        """SHA-256 of the canonical form; take it `over` the domain, which fixes the order inside a clique."""
        return canonical.digest("workload", {"queries": self.to_json()})


def refuse_many_parts(cliques: Sequence[Sequence[str]]) -> None:
    """Raises DomainError if the cliques have more than MAX_PARTS parts. It does not make them: there may be 2^1000."""
    widest = max(map(len, cliques), default=0)
    if widest >= MAX_PARTS.bit_length():
        raise DomainError(
            f"a query has {widest} attributes; at most {MAX_PARTS.bit_length() - 1} are allowed, because all its parts "
            "are considered"
        )
    parts = sum([(1 << len(clique)) - 1 for clique in cliques])
    if parts > MAX_PARTS:
        raise DomainError(
            f"the {len(cliques):,} queries have {parts:,} parts; at most {MAX_PARTS:,} are allowed: use fewer queries, "
            "smaller ones or fewer columns"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):  # iterating would give its letters
        raise DomainError("a clique must be a sequence of names, not one name")
    listed = list(names)
    if not {str}.issuperset(map(type, listed)) and not all(isinstance(name, str) for name in listed):
        raise DomainError("a clique must consist of attribute names")
    return listed


def _distinct(names: Iterable[str]) -> Clique:
    """One or more names, each given once. Raises DomainError otherwise."""
    listed = tuple(_names(names))
    if not listed:
        raise DomainError("a clique must have at least one attribute")
    _refuse_repeats("attribute of a clique", listed)
    return listed


def _refuse_repeats(what: str, items: Sequence[object]) -> None:
    if len(set(items)) == len(items):
        return
    seen: set[object] = set()
    for item in items:
        if item in seen:
            raise DomainError(f"{what} {item!r} is given twice")
        seen.add(item)
