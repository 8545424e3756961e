"""What all programs share: the task, the parameters and their checks, and the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import ClassVar, TypeVar, get_type_hints

from caps.data.domain import Clique, Domain, Workload
from caps.dp.bounds import MOST_COUNTED
from caps.dp.effort import Fits
from caps.dp.installed import PROGRAMS, bring, installed
from caps.dp.privacy.neighbouring import Neighbouring, Relation
from caps.dp.privacy.rational import positive, read_count
from caps.dp.privacy.schedule import Schedule
from caps.errors import DomainError, LocalError

MAX_POOLED = 1 << 19
"""The most noise values a run may draw for measurements if it discards some: half of ETA_MAX at 2^-80 each."""
MAX_WEIGHT = 1 << 20
"""The largest weight of a candidate, after division by the common divisor: scores stay far from 2^62."""


@dataclass(frozen=True)
class Task:
    """The part of the agreement that an algorithm must know.

    The budget is `rho` (zCDP) or `pure_epsilon`, not both. `total` is the number of rows if it is public, which
    requires that neighbours have equally many: under the unbounded relation it is refused. No cell of a marginal counts
    more than `largest_count`, whatever holders send.
    """

    domain: Domain
    workload: Workload
    neighbouring: Neighbouring
    rho: Fraction | None = None
    pure_epsilon: Fraction | None = None
    total: int | None = None
    largest_count: int = MOST_COUNTED

    def __post_init__(self) -> None:
        object.__setattr__(self, "workload", self.workload.over(self.domain))
        if (self.rho is None) == (self.pure_epsilon is None):
            raise DomainError("a task must have one budget: rho or pure epsilon")
        positive("the budget", self.zcdp if self.pure_epsilon is None else self.pure_epsilon)
        if self.total is not None:
            if self.neighbouring.relation is not Relation.BOUNDED:
                raise DomainError("the number of rows is not public under the unbounded relation")
            positive("the number of rows", read_count(self.total))

    @property
    def zcdp(self) -> Fraction:
        """rho. Raises DomainError if the budget is pure."""
        if self.rho is None:
            raise DomainError("Gaussian noise is not pure DP and needs a budget in rho")
        return self.rho

    @cached_property
    def one_ways(self) -> tuple[Clique, ...]:
        """The cliques of one attribute each."""
        return tuple((name,) for name in self.domain.names)


def all_pairs(domain: Domain) -> Workload:
    """The default workload: every pair of attributes, with weight 1. Raises DomainError if these are too many."""
    pairs = domain.pairs or (domain.names,)
    return Workload(pairs, (1,) * len(pairs), domain)


def pairs_for(label: str, domain: Domain) -> Workload:
    """Every pair of attributes; those with the label are given a weight: they count as much as all others together.

    Of d attributes, d - 1 pairs have the label and (d - 1)(d - 2) / 2 have not: the weight is (d - 2) / 2, rounded up.
    """
    pairs = all_pairs(domain).cliques
    weight = max(1, (len(domain.names) - 1) // 2)
    return Workload(pairs, tuple(weight if label in pair else 1 for pair in pairs), domain)


def reduced(weights: Sequence[int]) -> list[int]:
    """Weights divided by their common divisor. This changes no selection, because the noise shrinks with them."""
    common = gcd(*weights)
    if max(weights) // common > MAX_WEIGHT:
        raise DomainError(f"weights of candidates differ by more than a factor {MAX_WEIGHT}; use coarser weights")
    return [weight // common for weight in weights]


def pooled_draws(largest: int, rounds: int) -> int | None:
    """The cells of the largest candidate: this many noise values can be drawn before the choice is known.

    None, meaning only as many as needed, if the draws would add up to a statistical distance that matters.
    """
    return largest if rounds * largest <= MAX_POOLED else None


@dataclass(frozen=True)
class Program(ABC):
    """What an algorithm may request. Its fields are its parameters: integers, booleans or None."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for parameter in fields(self):
            value, hint = getattr(self, parameter.name), hints[parameter.name]
            if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
                raise DomainError(f"{self.name}: {parameter.name} cannot be {value!r}")
            if not isinstance(value, bool) and value is not None and value < 1:
                raise DomainError(f"{self.name}: {parameter.name} must be positive")

    @abstractmethod
    def schedule(self, task: Task) -> Schedule:
        """How the budget is spent, known in advance to the loop and to the servers."""

    @abstractmethod
    def cliques(self, task: Task) -> tuple[Clique, ...]:
        """Every marginal that may be requested: what the servers must count."""

    def initial(self, task: Task) -> tuple[Clique, ...]:
        """The cliques that the initial steps measure, in order; by default none."""
        return ()

    def candidates(self, task: Task) -> dict[Clique, int]:
        """Every clique that may be a candidate of a selection, with its weight; by default none."""
        return {}

    def draws(self, task: Task) -> int | None:
        """Noise values for each marginal measured after a selection; None means as many as it has cells."""
        return None

    def fits(self, task: Task) -> Fits | None:
        """The most that fitting models takes the coordinator; None if only their junction trees could tell."""
        return None


P = TypeVar("P", bound=Program)
_C = TypeVar("_C", bound=type[Program])
_REGISTRY: dict[str, type[Program]] = {}


def register(cls: _C) -> _C:
    """Make a program known by its name."""
    if _REGISTRY.setdefault(cls.name, cls) is not cls:
        raise LocalError(f"two programs are called {cls.name}")
    return cls


def registered(name: str) -> type[Program] | None:
    """The program of that name, if there is one."""
    return _REGISTRY.get(name)


def names() -> tuple[str, ...]:
    """The names of all programs, those of other packages included."""
    return tuple(sorted({*_REGISTRY, *installed(PROGRAMS)}))


def program(name: str, parameters: Mapping[str, object] | None = None) -> Program:
    """The program of this name. Raises DomainError if the name or a parameter is unknown."""
    return chosen(_REGISTRY, name, parameters, PROGRAMS)


def chosen(registry: Mapping[str, type[P]], name: str, parameters: Mapping[str, object] | None, group: str) -> P:
    """The registry's entry of this name, or that of another package. Raises DomainError if there is none, or a
    parameter is unknown. `group`: the entry points of what is registered here.
    """
    if name not in registry and bring(group, name) and name not in registry:
        raise DomainError(f"the package that should bring the algorithm {name} does not register it")
    cls = registry.get(name)
    if cls is None:
        choice = ", ".join(sorted({*registry, *installed(group)}))
        raise DomainError(
            f"there is no algorithm {name!r} here; choose one of {choice}, or install the package that brings it"
        )
    known = [parameter.name for parameter in fields(cls)]
    for unknown in sorted(set(parameters or {}) - set(known)):
        raise DomainError(f"{name} has no parameter {unknown!r}; it takes {', '.join(known) or 'none'}")
    return replace(cls(), **(parameters or {}))
