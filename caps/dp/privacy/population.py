"""What all studies of one population together cost its persons. docs/privacy.md, "Populations", has the proofs.

Studies with different relations or multiplicities say different things about a person, so their budgets cannot simply
be added. All are first restated for the worst case among them, by group privacy: a chain of g neighbours turns
rho-zCDP into g^2 rho-zCDP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from caps.dp.privacy.allowance import ALLOWANCE, NOTHING, Allowance
from caps.dp.privacy.neighbouring import Neighbouring, Relation
from caps.dp.privacy.rational import decode_ratio, encode_ratio, exact, read_object
from caps.dp.privacy.zcdp import LARGEST, calibrate, folded_epsilon, satisfies
from caps.errors import DomainError


@dataclass(frozen=True, slots=True)
class Reservation:
    """The most that a study may cost its persons: rho under its own relation, and the allowance in delta."""

    MEMBERS: ClassVar[tuple[str, ...]] = ("allowance", "neighbouring", "rho")
    """The members of its JSON."""

    rho: Fraction
    neighbouring: Neighbouring
    allowance: Allowance = ALLOWANCE

    def __post_init__(self) -> None:
        if exact(self.rho) < 0:
            raise DomainError("a budget must not be negative")

    def under(self, worst: Neighbouring) -> Fraction:
        """rho restated for a relation that is at least as strong as this one."""
        own = self.neighbouring
        if worst.multiplicity < own.multiplicity or Relation.BOUNDED is own.relation is not worst.relation:
            raise DomainError("a budget cannot be restated for a weaker relation")
        # K rows are ceil(K / k) persons of at most k rows; replacing one means removing it and adding another.
        persons = -(-worst.multiplicity // own.multiplicity)
        sides = 1 if own.relation is worst.relation else 2
        return (persons * sides) ** 2 * self.rho

    def to_json(self) -> dict[str, object]:
        """Returns an object for canonical JSON."""
        return {
            "allowance": self.allowance.to_json(),
            "neighbouring": self.neighbouring.to_json(),
            "rho": encode_ratio(self.rho),
        }

    @classmethod
    def from_json(cls, value: object) -> Reservation:
        """The inverse of `to_json`."""
        members = read_object(value, cls.MEMBERS)
        return cls(
            decode_ratio(members["rho"]),
            Neighbouring.from_json(members["neighbouring"]),
            Allowance.from_json(members["allowance"]),
        )


def together(reservations: Iterable[Reservation]) -> Reservation:
    """What several studies of the same persons cost, under the worst of their relations and multiplicities.

    One bounded study makes the sum bounded: it says nothing about a person who is only added or removed. Statistical
    distances simply add up: they are between the real and the ideal run on one table, whatever its neighbours.
    """
    studies = list(reservations)
    relations = {study.neighbouring.relation for study in studies}
    worst = Neighbouring(
        Relation.BOUNDED if Relation.BOUNDED in relations else Relation.UNBOUNDED,
        max((study.neighbouring.multiplicity for study in studies), default=1),
    )
    rho = sum((study.under(worst) for study in studies), Fraction(0))
    return Reservation(rho, worst, sum((study.allowance for study in studies), NOTHING))


@dataclass(frozen=True, slots=True)
class PopulationBudget:
    """What all studies of a population may cost its persons together: (epsilon, delta)-DP."""

    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        calibrate(self.epsilon, self.delta)  # raises DomainError if there is no room for any study

    def admits(self, studies: Iterable[Reservation]) -> bool:
        """Whether these studies together provably stay within this budget."""
        total = together(studies)
        return total.rho <= LARGEST and satisfies(total.rho, total.allowance, self.epsilon, self.delta)

    def left(self, taken: Sequence[Reservation], beside: Neighbouring, allowance: Allowance = ALLOWANCE) -> Fraction:
        """The rho left for one more study of this relation, given those already admitted; 0 if nothing is left."""
        worst = together([*taken, Reservation(Fraction(0), beside, allowance)])
        try:
            limit = calibrate(self.epsilon, self.delta, worst.allowance)
        except DomainError:  # the allowances alone take all of delta
            return Fraction(0)
        factor = Reservation(Fraction(1), beside).under(worst.neighbouring)
        return max(limit - worst.rho, Fraction(0)) / factor

    def refusal(self, taken: Sequence[Reservation], study: Reservation, delta: Fraction) -> str:
        """Why a study at this delta is not admitted, in words: what is left for a study like it."""
        left = self.left(taken, study.neighbouring, study.allowance)
        epsilon = folded_epsilon(left, study.allowance, delta)
        words = (
            f"rho {float(left):.4g} left on this server, which is epsilon {float(epsilon):.3g} at the study's delta, "
            f"and the study needs rho {float(study.rho):.4g}"
        )
        if all(one.neighbouring == study.neighbouring for one in taken):
            return words
        worst = together([*taken, study]).neighbouring
        return (
            f"{words}; since not all of its studies have one neighbouring relation and multiplicity, they are added up "
            f"as {worst.relation} with up to {worst.multiplicity} rows a person"
        )
