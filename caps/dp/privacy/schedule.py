"""How each algorithm spends its budget, step by step, in exact arithmetic.

A schedule is a value: `step` is the one step allowed now, `after()` the schedule once that step has been charged. The
coordinator's loop and each server's enforcement walk the same object, so a coordinator that requests anything else is
refused. All states that can follow are known before the step has run, so noise can be drawn in advance.

In every case the charges add up to at most `rho`; a schedule walked to its end has spent at least (1 - 1e-9) rho.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import ClassVar, Protocol, Self

from caps.dp.privacy.mechanisms import AnyMechanism, Gaussian, Laplace, NoisyMax, PermuteAndFlip
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import grid_down, positive, read_count, significant_down
from caps.errors import DomainError

LEAST_RISE = Fraction(5, 4)
"""Annealing that would raise the cost of AIM's rounds by less is skipped, because new noise needs new tables."""
SMALLEST_PART = Fraction(1, 2**80)
MAX_ROUNDS = 100_000
"""Far more than any budget can be divided into."""


class Role(StrEnum):
    """What a step does."""

    INITIAL = "initial"
    SELECT = "select"
    MEASURE = "measure"


def step_name(role: Role, number: int) -> str:
    """The name of the `number`-th release of this role in a run, from 1, used by the loop and by servers."""
    return f"initial{number}" if role is Role.INITIAL else f"round{number}-{role.value}"


@dataclass(frozen=True, slots=True)
class Step:
    """`count` releases by one mechanism, charged together."""

    role: Role
    mechanism: AnyMechanism
    count: int = 1

    def rho(self, neighbouring: Neighbouring) -> Fraction:
        """The charge of the step."""
        return self.count * self.mechanism.rho(neighbouring)


@dataclass(frozen=True, slots=True)
class Total:
    """All releases of a schedule that one mechanism makes in one role. last: in the round that takes what is left."""

    role: Role
    mechanism: AnyMechanism
    releases: int
    last: bool = False


class Schedule(Protocol):
    """The interface of all schedules."""

    @property
    def rho(self) -> Fraction:
        """The most that all steps together may be charged."""

    @property
    def pure_epsilon(self) -> Fraction | None:
        """The most that all steps together cost as pure DP; None if some step is not pure."""

    @property
    def neighbouring(self) -> Neighbouring:
        """The relation that the noise is calibrated to."""

    @property
    def spent(self) -> Fraction:
        """The charges of all steps before `step`."""

    @property
    def step(self) -> Step | None:
        """The only step allowed now; None at the end."""

    def after(self, *, anneal: bool = False) -> Self:
        """The schedule once `step` has been charged."""

    def following(self) -> tuple[Self, ...]:
        """Every schedule that may come after `step`; more than one where the loop has a choice."""

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """Mechanisms that bracket the rest of the run: each that may be due is one of them or between two of a kind."""

    def totals(self) -> tuple[Total, ...]:
        """All releases without annealing, in the order in which each kind begins. The work does not grow with rounds.

        Pre-condition: nothing has been charged yet.
        """


@dataclass(frozen=True, slots=True)
class AimSchedule:
    """AIM (McKenna, Mullins, Sheldon and Miklau 2022): initial measurements, then rounds of select and measure.

    A quarter of rho is for the initial measurements; each round costs its share of the rest, a sixth of it to select.
    After a round the caller may anneal: rounds then cost four times as much (sigma halves and epsilon doubles), but
    never so much that fewer than `least_rounds` would be left. A round that would leave less than another round's cost
    is the last and takes all that is left. Before it, at least the cost of the previous round remains, so the budget is
    never empty at this point, whatever is annealed.

    Deviation from private-pgm's aim.py: there an initial measurement costs as much as one of the first round, a tenth
    of a round selects, annealing has no bound, and the charge of a selection ignores its arithmetic errors. The columns
    of a small table are then hardly known, and annealing ends a run after a few rounds.
    """

    INITIAL_SHARE: ClassVar[Fraction] = Fraction(1, 4)
    MEASURE_SHARE: ClassVar[Fraction] = Fraction(5, 6)
    LEAST_ROUNDS: ClassVar[Fraction] = Fraction(5, 4)
    """Per initial measurement."""

    rho: Fraction
    neighbouring: Neighbouring
    first: Gaussian
    select: NoisyMax
    measure: Gaussian
    initial: int
    role: Role | None = Role.INITIAL
    last: bool = False
    spent: Fraction = Fraction(0)
    pure_epsilon: None = None

    @classmethod
    def start(cls, rho: Fraction, neighbouring: Neighbouring, *, initial: int, rounds: int) -> AimSchedule:
        """`initial` counts the marginals measured before the first round; `rounds` are planned, without annealing."""
        if read_count(initial) < 1:
            raise DomainError("AIM must have at least one initial measurement")
        budget = _divisible(rho, max(_at_least_one(rounds), initial))
        first = Gaussian.costing(grid_down(cls.INITIAL_SHARE * budget / initial), neighbouring)
        select, measure = _split((1 - cls.INITIAL_SHARE) * budget / rounds, neighbouring, cls.MEASURE_SHARE)
        return cls(budget, neighbouring, first, select, measure, initial)

    @property
    def least_rounds(self) -> int:
        """The least number of rounds of equal cost that annealing leaves."""
        return ceil(self.LEAST_ROUNDS * self.initial)

    @property
    def step(self) -> Step | None:
        match self.role:
            case Role.INITIAL:
                return Step(Role.INITIAL, self.first, self.initial)
            case Role.SELECT:
                return Step(Role.SELECT, self.select)
            case Role.MEASURE:
                return Step(Role.MEASURE, self.measure)
        return None

    def after(self, *, anneal: bool = False) -> AimSchedule:
        """The schedule once `step` has been charged. Only a measurement that is not the last may be annealed."""
        step = self.step
        if step is None:
            raise DomainError("the schedule has ended")
        if anneal and (self.role is not Role.MEASURE or self.last):
            raise DomainError("annealing must follow the measurement of a round that is not the last")
        done = replace(self, spent=self.spent + step.rho(self.neighbouring))
        if self.role is Role.SELECT:
            return replace(done, role=Role.MEASURE)
        if self.last:
            return replace(done, role=None)
        return (done._annealed() if anneal else done)._next_round()

    def following(self) -> tuple[AimSchedule, ...]:
        """The schedule without annealing, and with annealing where it is allowed."""
        if self.role is Role.MEASURE and not self.last:
            return self.after(), self.after(anneal=True)
        return (self.after(),)

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """The mechanisms of the cheapest and the dearest round: with any annealing, no round costs less than this one's
        charge or more than all of rho.

        This round's own mechanisms are included, because splitting its charge again may change the last digit.
        """
        rounds = [_split(rho, self.neighbouring, self.MEASURE_SHARE) for rho in (self._round_cost, self.rho)]
        return self.first, self.select, self.measure, *(mechanism for both in rounds for mechanism in both)

    def totals(self) -> tuple[Total, ...]:
        """See Schedule."""
        left, cost = self.rho - self.initial * self.first.rho(self.neighbouring), self._round_cost
        rounds = max(left // cost - 1, 0)  # each of them leaves at least what another one costs
        last = replace(self, spent=self.rho - left + rounds * cost)._next_round()
        assert last.last
        found = (
            Total(Role.INITIAL, self.first, self.initial),
            Total(Role.SELECT, self.select, rounds),
            Total(Role.MEASURE, self.measure, rounds),
            Total(Role.SELECT, last.select, 1, last=True),
            Total(Role.MEASURE, last.measure, 1, last=True),
        )
        return tuple(total for total in found if total.releases)

    def _annealed(self) -> AimSchedule:
        share, cost = (self.rho - self.spent) / self.least_rounds, self._round_cost
        if share >= 4 * cost:
            select = NoisyMax(2 * self.select.epsilon_star, 2 * self.select.kappa)
            return replace(self, select=select, measure=Gaussian(self.measure.sigma_squared / 4))
        if share < LEAST_RISE * cost:
            return self
        select, measure = _split(share, self.neighbouring, self.MEASURE_SHARE)
        return replace(self, select=select, measure=measure)

    @property
    def _round_cost(self) -> Fraction:
        return self.select.rho(self.neighbouring) + self.measure.rho(self.neighbouring)

    def _next_round(self) -> AimSchedule:
        left = self.rho - self.spent
        if left >= 2 * self._round_cost:
            return replace(self, role=Role.SELECT)
        select, measure = _split(left, self.neighbouring, self.MEASURE_SHARE)
        return replace(self, role=Role.SELECT, select=select, measure=measure, last=True)


@dataclass(frozen=True, slots=True)
class Cycle:
    """Steps that follow one another, so many times."""

    steps: tuple[Step, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class FixedSchedule:
    """A schedule whose steps are all known in advance: cycles, one after the other."""

    rho: Fraction
    neighbouring: Neighbouring
    cycles: tuple[Cycle, ...]
    pure_epsilon: Fraction | None = None
    position: int = 0
    spent: Fraction = Fraction(0)

    @property
    def step(self) -> Step | None:
        for cycle, position in self._ahead():
            return cycle.steps[position % len(cycle.steps)]
        return None

    def _ahead(self) -> Iterator[tuple[Cycle, int]]:
        """The cycles that have not ended, and how many steps of each are done."""
        done = self.position
        for cycle in self.cycles:
            if done < len(cycle.steps) * cycle.times:
                yield cycle, done
            done = max(done - len(cycle.steps) * cycle.times, 0)

    def after(self, *, anneal: bool = False) -> Self:
        """The schedule once `step` has been charged."""
        step = self.step
        if step is None:
            raise DomainError("the schedule has ended")
        if anneal:
            raise DomainError("only AIM anneals")
        return replace(self, position=self.position + 1, spent=self.spent + step.rho(self.neighbouring))

    def following(self) -> tuple[Self, ...]:
        """The one schedule that comes next."""
        return (self.after(),)

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """All mechanisms of cycles that have not ended."""
        return tuple(dict.fromkeys(step.mechanism for cycle, _ in self._ahead() for step in cycle.steps))

    def totals(self) -> tuple[Total, ...]:
        """See Schedule."""
        return tuple(
            Total(step.role, step.mechanism, cycle.times * step.count) for cycle in self.cycles for step in cycle.steps
        )


class MwemSchedule(FixedSchedule):
    """MWEM+PGM (McKenna, Sheldon and Miklau 2019): `rounds` equal rounds of select and measure.

    Deviation from private-pgm's mwem+pgm.py: the neighbouring relation enters the selection too. There the bounded
    case selects with the sensitivity of the unbounded one, and so spends four times the rho it states for selection.
    """

    __slots__ = ()
    MEASURE_SHARE: ClassVar[Fraction] = Fraction(9, 10)

    @classmethod
    def gaussian(cls, rho: Fraction, neighbouring: Neighbouring, *, rounds: int) -> MwemSchedule:
        """Rounds of rho / rounds each: exponential mechanism and Gaussian noise."""
        budget = _divisible(rho, _at_least_one(rounds))
        select, measure = _split(budget / rounds, neighbouring, cls.MEASURE_SHARE)
        return cls(budget, neighbouring, (_rounds(select, measure, rounds),))

    @classmethod
    def laplace(cls, epsilon: Fraction, neighbouring: Neighbouring, *, rounds: int) -> MwemSchedule:
        """Rounds of epsilon / rounds each, pure DP: permute-and-flip and Laplace noise."""
        each = positive("epsilon", epsilon) / _at_least_one(rounds)
        select = PermuteAndFlip(significant_down((1 - cls.MEASURE_SHARE) * each))
        measure = Laplace.of_epsilon(cls.MEASURE_SHARE * each, neighbouring)
        rho = rounds * (select.rho(neighbouring) + measure.rho(neighbouring))
        return cls(rho, neighbouring, (_rounds(select, measure, rounds),), pure_epsilon=Fraction(epsilon))


class MstSchedule(FixedSchedule):
    """MST (McKenna, Miklau and Sheldon 2021): a third of rho each to measure columns, choose edges, measure edges."""

    __slots__ = ()

    @classmethod
    def start(cls, rho: Fraction, neighbouring: Neighbouring, *, columns: int) -> MstSchedule:
        """`columns` one-way marginals, then a spanning tree of columns - 1 edges, chosen one by one."""
        if read_count(columns) < 2:
            raise DomainError("a spanning tree needs at least two columns")
        budget, edges = _divisible(rho, 3 * columns), columns - 1
        one_way = Gaussian.costing(grid_down(budget / (3 * columns)), neighbouring)
        edge = Gaussian.costing(grid_down(budget / (3 * edges)), neighbouring)
        select = NoisyMax.costing(grid_down(budget / (3 * edges)))
        cycles = (
            Cycle((Step(Role.INITIAL, one_way, columns),)),
            Cycle((Step(Role.SELECT, select),), edges),
            Cycle((Step(Role.MEASURE, edge, edges),)),
        )
        return cls(budget, neighbouring, cycles)


def _rounds(select: AnyMechanism, measure: AnyMechanism, rounds: int) -> Cycle:
    return Cycle((Step(Role.SELECT, select), Step(Role.MEASURE, measure)), rounds)


def _split(rho: Fraction, neighbouring: Neighbouring, measuring: Fraction) -> tuple[NoisyMax, Gaussian]:
    """One round that costs at most rho, rounded down to the grid: the share `measuring` of it to measure."""
    select = NoisyMax.costing(grid_down((1 - measuring) * rho))
    return select, Gaussian.costing(grid_down(measuring * rho), neighbouring)


def _divisible(rho: Fraction, parts: int) -> Fraction:
    """rho on the grid. Raises DomainError if a part would be so small that the grid's rounding matters."""
    if positive("rho", rho) < parts * SMALLEST_PART:
        raise DomainError(f"rho is too small to divide into {parts} parts")
    return grid_down(rho)


def _at_least_one(rounds: int) -> int:
    if not 1 <= read_count(rounds) <= MAX_ROUNDS:
        raise DomainError(f"an algorithm must have 1 to {MAX_ROUNDS} rounds")
    return rounds
