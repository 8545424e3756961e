"""The privacy filter: a budget fixed in advance, and charges that may depend on everything seen so far.

Mechanisms may be chosen adaptively, with adaptively chosen parameters, as long as their charges add up to at most rho
on every path; the whole is then rho-zCDP (Feldman and Zrnic 2021; Whitehouse et al. 2023). The amount spent when the
run stops depends on the noisy answers, so it is not a privacy parameter: the guarantee is the budget. See
docs/privacy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from caps.basics import canonical
from caps.dp.privacy.allowance import ALLOWANCE, Allowance
from caps.dp.privacy.mechanisms import Charged, mechanism_from_json, mechanism_to_json
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import (
    decode_ratio,
    encode_ratio,
    exact,
    grid_up,
    positive,
    read_count,
    read_flag,
    read_object,
    read_text,
)
from caps.errors import DomainError, LocalError

VERSION = 1
PAPER_SAMPLERS = "paper:"


class BudgetExceeded(LocalError):
    """A charge exceeds what is left of a budget. Nothing was charged."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One step as the ledger records it.

    step: the step's path. mechanism: the ideal law of each of its `count` releases. sampler: the code that drew the
    noise. draws: the number of noise values. distance: a bound on the statistical distance of one draw from its ideal
    law, table and convolution together; rounded up to the grid. certified: whether that bound is proven; the paper's
    samplers have no proven bound.
    """

    step: str
    mechanism: Charged
    count: int
    sampler: str
    draws: int
    distance: Fraction
    certified: bool

    def __post_init__(self) -> None:
        if read_count(self.count) < 1 or read_count(self.draws) < 1:
            raise DomainError("an entry must have at least one release and one draw")
        if exact(self.distance) < 0:
            raise DomainError("a statistical distance must not be negative")
        if read_flag(self.certified) and self.sampler.startswith(PAPER_SAMPLERS):
            raise DomainError("the paper's samplers cannot be certified")
        object.__setattr__(self, "distance", grid_up(self.distance))

    @property
    def eta(self) -> Fraction:
        """Statistical distance of all draws together (union bound)."""
        return self.draws * self.distance

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        """The charge of all releases together."""
        return self.count * self.mechanism.rho(neighbouring)

    def epsilon(self, neighbouring: Neighbouring) -> Fraction | None:
        """The pure-DP charge of all releases together; None if they are not pure."""
        each = self.mechanism.epsilon(neighbouring)
        return None if each is None else self.count * each

    def to_json(self, neighbouring: Neighbouring) -> dict[str, object]:
        """Returns an object for canonical JSON; the charge is included for auditors."""
        return {
            "certified": self.certified,
            "count": self.count,
            "distance": encode_ratio(self.distance),
            "draws": self.draws,
            "mechanism": mechanism_to_json(self.mechanism),
            "rho": encode_ratio(self.rho(neighbouring)),
            "sampler": self.sampler,
            "step": self.step,
        }

    @classmethod
    def from_json(cls, value: object, neighbouring: Neighbouring) -> Entry:
        """The inverse of `to_json`. Raises DomainError if the written charge differs from the computed one."""
        names = ("certified", "count", "distance", "draws", "mechanism", "rho", "sampler", "step")
        members = read_object(value, names)
        entry = cls(
            read_text(members["step"]),
            mechanism_from_json(members["mechanism"]),
            read_count(members["count"]),
            read_text(members["sampler"]),
            read_count(members["draws"]),
            decode_ratio(members["distance"]),
            read_flag(members["certified"]),
        )
        if entry.to_json(neighbouring) != value:
            raise DomainError(f"entry {entry.step} does not state the charge that follows from its mechanism")
        return entry


class Filter:
    """Accepts charges while rho, the statistical distance and, if set, pure epsilon stay within their budgets.

    It uses no I/O, clock or randomness: replaying a ledger's entries into a new filter gives an equal filter.
    """

    __slots__ = ("_entries", "_epsilon", "_eta", "_rho", "allowance", "budget", "neighbouring", "pure_epsilon")

    def __init__(
        self,
        budget: Fraction,
        neighbouring: Neighbouring,
        *,
        allowance: Allowance = ALLOWANCE,
        pure_epsilon: Fraction | None = None,
        entries: Iterable[Entry] = (),
    ) -> None:
        self.budget = positive("budget", budget)
        self.neighbouring = neighbouring
        positive("eta", allowance.eta)
        self.allowance = allowance
        self.pure_epsilon = None if pure_epsilon is None else positive("epsilon", pure_epsilon)
        self._entries: list[Entry] = []
        self._rho = self._eta = self._epsilon = Fraction(0)
        for entry in entries:
            self.charge(entry)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything charged, in order."""
        return tuple(self._entries)

    @property
    def spent(self) -> Fraction:
        """Sum of the charges in rho."""
        return self._rho

    @property
    def eta(self) -> Fraction:
        """Sum of the statistical distances."""
        return self._eta

    @property
    def left(self) -> Fraction:
        """What may still be charged in rho."""
        return self.budget - self._rho

    def charge(self, entry: Entry) -> None:
        """Add an entry. Raises BudgetExceeded, and changes nothing, if any budget would be exceeded."""
        self._rho, self._eta, self._epsilon = self._with(entry)
        self._entries.append(entry)

    def check(self, entry: Entry) -> None:
        """Raises BudgetExceeded if `charge` would. Changes nothing."""
        self._with(entry)

    def _with(self, entry: Entry) -> tuple[Fraction, Fraction, Fraction]:
        """rho, eta and epsilon with one more entry."""
        rho = self._rho + entry.rho(self.neighbouring)
        eta = self._eta + entry.eta
        epsilon = self._epsilon
        if rho > self.budget:
            raise BudgetExceeded(f"step {entry.step}: rho would exceed the budget by {float(rho - self.budget):.3g}")
        if eta > self.allowance.eta:
            raise BudgetExceeded(f"step {entry.step}: the samplers' statistical distance would exceed its limit")
        if self.pure_epsilon is not None:
            pure = entry.epsilon(self.neighbouring)
            if pure is None:
                raise BudgetExceeded(f"step {entry.step}: {entry.mechanism.kind} is not pure DP, but the budget is")
            epsilon += pure
            if epsilon > self.pure_epsilon:
                raise BudgetExceeded(f"step {entry.step}: epsilon would exceed the budget")
        return rho, eta, epsilon

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Filter({float(self.spent):.6g} of {float(self.budget):.6g} rho, {len(self._entries)} entries)"

    def to_json(self) -> bytes:
        """Canonical JSON of the budgets and all entries."""
        return canonical.dump(
            {
                "allowance": self.allowance.to_json(),
                "budget": encode_ratio(self.budget),
                "entries": [entry.to_json(self.neighbouring) for entry in self._entries],
                "neighbouring": self.neighbouring.to_json(),
                "pure_epsilon": None if self.pure_epsilon is None else encode_ratio(self.pure_epsilon),
                "version": VERSION,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Filter:
        """Rebuild by charging every entry again. Raises BudgetExceeded if they do not fit."""
        names = ("allowance", "budget", "entries", "neighbouring", "pure_epsilon", "version")
        members = read_object(canonical.load(data), names)
        entries, pure = members["entries"], members["pure_epsilon"]
        if read_count(members["version"]) != VERSION or not isinstance(entries, list):
            raise DomainError("not a filter of this version")
        neighbouring = Neighbouring.from_json(members["neighbouring"])
        return cls(
            decode_ratio(members["budget"]),
            neighbouring,
            allowance=Allowance.from_json(members["allowance"]),
            pure_epsilon=None if pure is None else decode_ratio(pure),
            entries=(Entry.from_json(entry, neighbouring) for entry in entries),
        )
