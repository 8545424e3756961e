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
from typing import ClassVar, Protocol, Self

from caps.dp.privacy.mechanisms import AnyMechanism, Gaussian, GaussianBatch, Laplace, NoisyMax, PermuteAndFlip
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.rational import grid_down, positive, read_count, significant_down
from caps.errors import DomainError

SMALLEST_PART = Fraction(1, 2**80)
_NEARLY = 1 - Fraction(1, 2**32)
"""Mechanisms that cost almost the same may be rounded differently, in the last of 64 digits."""
MAX_ROUNDS = 100_000
"""Far more than any budget can be divided into."""


class Role(StrEnum):
    """What a step does."""

    INITIAL = "initial"
    COMPARE = "compare"
    SELECT = "select"
    MEASURE = "measure"


class Choice(StrEnum):
    """What a loop may decide after a measurement, from what has been released. Servers admit what a schedule allows.

    ANNEAL: the next rounds cost more each. SETTLE: rounds are given up; the columns are measured again and, in AIM, the
    edges of a tree.
    """

    GO_ON = "go on"
    ANNEAL = "anneal"
    SETTLE = "settle"


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

    @property
    def requests(self) -> int:
        """How many requests make the step: one for each release, or one for all candidates that are compared."""
        return 1 if self.role is Role.COMPARE else self.count


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

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What the loop may decide after `step`. The first is to go on."""

    def after(self, choice: Choice = Choice.GO_ON) -> Self:
        """The schedule once `step` has been charged. Raises DomainError if there is no such choice."""

    def following(self) -> tuple[Self, ...]:
        """Every schedule that may come after `step`; more than one where the loop has a choice."""

    @property
    def widest_again(self) -> Gaussian | None:
        """The widest noise with which columns may be measured if the loop settles; None if it cannot.

        Pre-condition: nothing has been charged yet.
        """

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """Mechanisms that bracket the run: each that may be due is one of them or between two of a kind.

        Pre-condition: nothing has been charged yet.
        """

    def totals(self) -> tuple[Total, ...]:
        """All releases if the loop always goes on, in the order in which each kind begins.

        The work does not grow with rounds. Pre-condition: nothing has been charged yet.
        """


@dataclass(frozen=True, slots=True)
class AimSchedule:
    """AIM (McKenna, Mullins, Sheldon and Miklau 2022): initial measurements, then rounds of select and measure.

    A tenth of a round selects. An initial measurement costs as much as one of a first round.

    A round that shows nothing but noise was too cheap. The caller may then anneal: rounds cost twice as much. Once a
    round costs a sixteenth of rho or more, the caller may settle instead. A third of what is left, or as much as at
    first if that is more, measures the initial marginals again; the rest is spent on the edges of a tree. There are as
    many as can cost what a round did, but no more than a tree has. If there is not enough for one, the initial
    marginals get all.

    A round that would leave less than another round's cost is the last and takes all that is left. Before it, at least
    the cost of the previous round remains, so the budget is never empty at this point, whatever is chosen.

    Deviation from private-pgm's aim.py: there annealing makes rounds four times as dear, which passes by the cost that
    would have been right, and ends a run on a small table with one or two pairs, measured with most of the budget;
    nothing settles; and the charge of a selection ignores its arithmetic errors (docs/adr/0021).
    """

    MEASURE_SHARE: ClassVar[Fraction] = Fraction(9, 10)
    DEARER: ClassVar[int] = 2
    DEAR: ClassVar[Fraction] = Fraction(1, 16)
    """Rounds that cost this part of rho, or more, may be given up."""
    AGAIN: ClassVar[Fraction] = Fraction(1, 3)
    """What the initial marginals get of what is left then, if that is not less than they cost at first."""

    rho: Fraction
    neighbouring: Neighbouring
    first: Gaussian
    select: NoisyMax
    measure: Gaussian
    initial: int
    role: Role | None = Role.INITIAL
    last: bool = False
    edges: int | None = None
    """How many are still to be selected, once the loop has settled."""
    spent: Fraction = Fraction(0)
    pure_epsilon: None = None

    @classmethod
    def start(cls, rho: Fraction, neighbouring: Neighbouring, *, initial: int, rounds: int) -> AimSchedule:
        """`initial` counts the marginals measured before the first round; `rounds` are the most there may be."""
        if read_count(initial) < 1:
            raise DomainError("AIM must have at least one initial measurement")
        budget = _divisible(rho, max(_at_least_one(rounds), initial))
        each = budget / (rounds + cls.MEASURE_SHARE * initial)
        select, measure = _split(each, neighbouring, cls.MEASURE_SHARE)
        return cls(budget, neighbouring, measure, select, measure, initial)

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

    def after(self, choice: Choice = Choice.GO_ON) -> AimSchedule:
        """See Schedule."""
        step = self.step
        if step is None:
            raise DomainError("the schedule has ended")
        if choice not in self.choices:
            raise DomainError(f"the schedule does not allow to {choice} after this step")
        done = replace(self, spent=self.spent + step.rho(self.neighbouring))
        if self.role is Role.SELECT:
            return replace(done, role=Role.MEASURE)
        if self.last or self.edges == 0:
            return replace(done, role=None)
        if self.edges is not None:
            return replace(done, role=Role.SELECT, edges=self.edges - 1)
        match choice:
            case Choice.GO_ON:
                return done._next_round()
            case Choice.ANNEAL:
                return done.annealed()._next_round()
            case Choice.SETTLE:
                return done._settled()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Only the measurement of a round that is neither the last nor that of an edge leaves a choice."""
        if self.role is not Role.MEASURE or self.last or self.edges is not None:
            return (Choice.GO_ON,)
        dear = self.round_cost >= self.DEAR * self.rho
        return tuple(Choice) if dear else (Choice.GO_ON, Choice.ANNEAL)

    def following(self) -> tuple[AimSchedule, ...]:
        """The schedule for each choice there is."""
        return tuple(self.after(choice) for choice in self.choices)

    def annealed(self) -> AimSchedule:
        """The schedule with rounds of `DEARER` times the cost."""
        select, measure = _split(self.DEARER * self.round_cost, self.neighbouring, self.MEASURE_SHARE)
        return replace(self, select=select, measure=measure)

    def _settled(self) -> AimSchedule:
        """The schedule in which what is left is spent on the initial marginals and on edges."""
        left = self.rho - self.spent
        again = max(self.AGAIN * left, self.initial * self.first.rho(self.neighbouring))
        edges = max(0, min((left - again) // self.round_cost, self.initial - 1))
        first = _shared(again if edges else left, self.initial, self.neighbouring)
        settled = replace(self, role=Role.INITIAL, first=first, edges=edges)
        if not edges:
            return settled
        rest = left - self.initial * first.rho(self.neighbouring)
        select, measure = _split(rest / edges, self.neighbouring, self.MEASURE_SHARE)
        return replace(settled, select=select, measure=measure)

    @property
    def widest_again(self) -> Gaussian | None:
        """The widest noise with which initial marginals may be measured again; None if they cannot be.

        Where they share the rest with edges they get at least what they had, so all of the least there is for them
        alone decides, or what they had. Pre-condition: nothing has been charged yet.
        """
        dear = self.cheapest_edge
        if dear is None:
            return None
        least = min(dear, _NEARLY * self.initial * self.first.rho(self.neighbouring))
        return _shared(least, self.initial, self.neighbouring)

    @property
    def cheapest_edge(self) -> Fraction | None:
        """The least that an edge costs: what the cheapest dear round does that is not the last; it leaves as much, or
        more. None if there is no such round.

        If any path comes to one, then the one that always anneals. It is not walked. Pre-condition: nothing has been
        charged yet.
        """
        dear = cost = self.round_cost
        while dear < self.DEAR * self.rho:
            dear *= self.DEARER
        before = (dear - cost) / (self.DEARER - 1)  # all cheaper rounds, one of each cost
        if self.rho - self.initial * self.first.rho(self.neighbouring) < _NEARLY * (before + 2 * dear):
            return None
        return _NEARLY * dear

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """The mechanisms of the cheapest and the dearest round: with any choice, no round costs less than the first or
        more than all of rho. Initial marginals measured again share at most all of rho.
        """
        rounds = [_split(rho, self.neighbouring, self.MEASURE_SHARE) for rho in (_NEARLY * self.round_cost, self.rho)]
        again = _shared(self.rho, self.initial, self.neighbouring)
        columns = () if (widest := self.widest_again) is None else (widest, again)
        return self.first, *columns, *(mechanism for both in rounds for mechanism in both)

    def totals(self) -> tuple[Total, ...]:
        """See Schedule."""
        left, cost = self.rho - self.initial * self.first.rho(self.neighbouring), self.round_cost
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

    @property
    def round_cost(self) -> Fraction:
        """What a round costs: a selection and a measurement."""
        return self.select.rho(self.neighbouring) + self.measure.rho(self.neighbouring)

    def _next_round(self) -> AimSchedule:
        left = self.rho - self.spent
        if left >= 2 * self.round_cost:
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
    """A schedule whose steps are all known in advance: cycles, one after the other.

    Where there are `columns`, the loop may settle after a measurement: all that is left then measures so many columns;
    unless they would have wider noise than rounds have.
    """

    MEASURE_SHARE: ClassVar[Fraction] = AimSchedule.MEASURE_SHARE

    rho: Fraction
    neighbouring: Neighbouring
    cycles: tuple[Cycle, ...]
    pure_epsilon: Fraction | None = None
    columns: int = 0
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

    @property
    def choices(self) -> tuple[Choice, ...]:
        """To go on; after a measurement, also to settle, where there are columns and enough is left for them."""
        step = self.step
        if not self.columns or step is None or step.role is not Role.MEASURE:
            return (Choice.GO_ON,)
        left = self.rho - self.after().spent
        return (Choice.GO_ON, Choice.SETTLE) if left >= self._enough(step) else (Choice.GO_ON,)

    def _enough(self, step: Step) -> Fraction:
        """What columns cost with the noise of this measurement."""
        return self.columns * step.rho(self.neighbouring)

    def after(self, choice: Choice = Choice.GO_ON) -> Self:
        """See Schedule."""
        step = self.step
        if step is None:
            raise DomainError("the schedule has ended")
        done = replace(self, position=self.position + 1, spent=self.spent + step.rho(self.neighbouring))
        if choice is Choice.GO_ON:
            return done
        if choice not in self.choices:
            raise DomainError(f"the schedule does not allow to {choice} after this step")
        again = _shared(self.rho - done.spent, self.columns, self.neighbouring)
        return replace(done, cycles=(Cycle((Step(Role.INITIAL, again, self.columns),)),), columns=0, position=0)

    def following(self) -> tuple[Self, ...]:
        """The schedule for each choice there is."""
        return tuple(self.after(choice) for choice in self.choices)

    @property
    def widest_again(self) -> Gaussian | None:
        """See Schedule."""
        left = self._left_to_columns()
        return _shared(left[-1], self.columns, self.neighbouring) if left else None

    def _left_to_columns(self) -> tuple[Fraction, ...]:
        """What is left for columns if the loop settles as soon, and as late, as it can; empty if it cannot.

        Only the last cycle has measurements: each of its turns ends with one.
        """
        *before, rounds = self.cycles
        if not self.columns:
            return ()
        start = self.rho - sum((cycle.times * self._cost(cycle) for cycle in before), Fraction(0))
        latest = min((start - self._enough(rounds.steps[-1])) // self._cost(rounds), rounds.times - 1)
        return tuple(start - turns * self._cost(rounds) for turns in (1, latest)) if latest >= 1 else ()

    def _cost(self, cycle: Cycle) -> Fraction:
        return sum((step.rho(self.neighbouring) for step in cycle.steps), Fraction(0))

    def extremes(self) -> tuple[AnyMechanism, ...]:
        """All mechanisms of cycles that have not ended, of a batch those of its smallest and its largest part; and the
        narrowest and the widest of columns.
        """
        found: dict[AnyMechanism, None] = {}
        for mechanism in (step.mechanism for cycle, _ in self._ahead() for step in cycle.steps):
            if isinstance(mechanism, GaussianBatch):
                ends = (1, mechanism.PARTS)
                found |= dict.fromkeys(mechanism.part(parts, self.neighbouring) for parts in ends)
            else:
                found[mechanism] = None
        again = [_shared(left, self.columns, self.neighbouring) for left in self._left_to_columns()]
        return tuple(found | dict.fromkeys(again))

    def totals(self) -> tuple[Total, ...]:
        """See Schedule."""
        return tuple(
            Total(step.role, step.mechanism, cycle.times * step.count) for cycle in self.cycles for step in cycle.steps
        )


class MwemSchedule(FixedSchedule):
    """MWEM+PGM (McKenna, Sheldon and Miklau 2019): `rounds` equal rounds of select and measure.

    Where the budget is in rho the loop may settle: what rounds that show only noise leave measures the columns.

    Deviation from private-pgm's mwem+pgm.py: there nothing settles; and the neighbouring relation enters the selection
    too. There the bounded case selects with the sensitivity of the unbounded one, and so spends four times the rho it
    states for selection.
    """

    __slots__ = ()

    @classmethod
    def gaussian(cls, rho: Fraction, neighbouring: Neighbouring, *, rounds: int, columns: int) -> MwemSchedule:
        """Rounds of rho / rounds each: exponential mechanism and Gaussian noise."""
        budget = _divisible(rho, max(_at_least_one(rounds), read_count(columns)))
        select, measure = _split(budget / rounds, neighbouring, cls.MEASURE_SHARE)
        return cls(budget, neighbouring, (_rounds(select, measure, rounds),), columns=columns)

    @classmethod
    def laplace(cls, epsilon: Fraction, neighbouring: Neighbouring, *, rounds: int) -> MwemSchedule:
        """Rounds of epsilon / rounds each, pure DP: permute-and-flip and Laplace noise. It cannot settle."""
        each = positive("epsilon", epsilon) / _at_least_one(rounds)
        select = PermuteAndFlip(significant_down((1 - cls.MEASURE_SHARE) * each))
        measure = Laplace.of_epsilon(cls.MEASURE_SHARE * each, neighbouring)
        rho = rounds * (select.rho(neighbouring) + measure.rho(neighbouring))
        return cls(rho, neighbouring, (_rounds(select, measure, rounds),), pure_epsilon=Fraction(epsilon))


class MstSchedule(FixedSchedule):
    """MST (McKenna, Miklau and Sheldon 2021): columns are measured, then edges chosen and measured.

    Deviation from private-pgm's mst.py: a tenth of rho chooses edges, as in AIM, not a third; columns and edges get
    equal parts of the rest (docs/adr/0021). Each edge is measured as soon as it is chosen.
    """

    __slots__ = ()

    @classmethod
    def start(cls, rho: Fraction, neighbouring: Neighbouring, *, columns: int) -> MstSchedule:
        """`columns` one-way marginals, then a spanning tree of columns - 1 edges, one by one."""
        if read_count(columns) < 2:
            raise DomainError("a spanning tree needs at least two columns")
        budget, edges = _divisible(rho, 10 * columns), columns - 1
        one_way = _shared(cls.MEASURE_SHARE / 2 * budget, columns, neighbouring)
        edge = _shared(cls.MEASURE_SHARE / 2 * budget, edges, neighbouring)
        select = NoisyMax.costing(grid_down((1 - cls.MEASURE_SHARE) * budget / edges))
        initial = Cycle((Step(Role.INITIAL, one_way, columns),))
        return cls(budget, neighbouring, (initial, _rounds(select, edge, edges)))


def _rounds(select: AnyMechanism, measure: AnyMechanism, rounds: int) -> Cycle:
    return Cycle((Step(Role.SELECT, select), Step(Role.MEASURE, measure)), rounds)


def _shared(rho: Fraction, marginals: int, neighbouring: Neighbouring) -> Gaussian:
    """The noise of so many marginals that cost at most rho together."""
    return Gaussian.costing(grid_down(rho / marginals), neighbouring)


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
