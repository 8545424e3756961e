"""The neighbouring relation: what one person can change, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from caps.dp.privacy.rational import read_count, read_flag, read_object, read_text
from caps.errors import DomainError


class Relation(StrEnum):
    """How two neighbouring tables differ."""

    UNBOUNDED = "unbounded"  # one person more or less; the number of rows is never revealed
    BOUNDED = "bounded"  # one person replaced by another; the number of rows is public


@dataclass(frozen=True, slots=True)
class Neighbouring:
    """A neighbouring relation on the joined table, in which one person may have up to `multiplicity` rows.

    The factors bound the change of one marginal. Unbounded: up to k rows appear, at worst all in one cell, so the
    change has L2 and L1 norm at most k. Bounded: k rows leave and k others come; the two parts are non-negative
    vectors of opposite sign, so the squared L2 norm is at most k^2 + k^2 and the L1 norm at most 2k. A score
    w * (||x - y||_1 - c) changes by at most |w| times the L1 norm (triangle inequality).

    moves: whether two holders may bring the same value. The first holder's value counts; once the person is removed
    there, the second holder's counts, which may differ. Then k rows move from one cell to another, and the change has
    L1 norm 2k and squared L2 norm 2k^2. In the bounded case this happens twice, and both moves may be between the same
    two cells: 4k and 8k^2.
    """

    relation: Relation
    multiplicity: int = 1
    moves: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.relation, Relation):
            raise DomainError("a relation must be unbounded or bounded")
        if read_count(self.multiplicity) < 1:
            raise DomainError("the multiplicity must be at least 1")
        read_flag(self.moves)

    @property
    def moved(self) -> Neighbouring:
        """The same relation where removing a person moves counts between sets of holders: some may keep the person."""
        return replace(self, moves=True)

    @property
    def l2_squared(self) -> int:
        """The square of the L2 sensitivity of one marginal."""
        bounded, moves = self._factors
        return (8 if bounded and moves else 2 if bounded or moves else 1) * self.multiplicity**2

    @property
    def l1(self) -> int:
        """The L1 sensitivity of one marginal."""
        bounded, moves = self._factors
        return (1 + bounded) * (1 + moves) * self.multiplicity

    @property
    def score_factor(self) -> int:
        """The sensitivity of a score of weight 1."""
        return self.l1

    @property
    def _factors(self) -> tuple[bool, bool]:
        return self.relation is Relation.BOUNDED, self.moves

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {"moves": self.moves, "multiplicity": self.multiplicity, "relation": self.relation.value}

    @classmethod
    def from_json(cls, value: object) -> Neighbouring:
        """The inverse of `to_json`."""
        fields = read_object(value, ("moves", "multiplicity", "relation"))
        relation = read_text(fields["relation"])
        if relation not in set(Relation):
            raise DomainError("a relation must be unbounded or bounded")
        return cls(Relation(relation), read_count(fields["multiplicity"]), read_flag(fields["moves"]))


UNBOUNDED = Neighbouring(Relation.UNBOUNDED)
BOUNDED = Neighbouring(Relation.BOUNDED)
