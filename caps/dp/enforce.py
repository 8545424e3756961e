"""What a server lets a coordinator request: only the steps of the study's program, in its order and with its noise.

An `Enforcer` is a value without I/O. It follows from what all parties signed and from the requests admitted so far, so
a server rebuilds it after a crash by admitting its record again. It does not count the budget: the `Filter` does.

Where a loop has a choice that it does not announce (AIM's next round), all schedules that may follow are kept, and the
mechanism of the next request shows which one it is. On each of them the charges add up to at most the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from caps.data.domain import Clique, Layout
from caps.dp.oracle import (
    Batch,
    Comparison,
    Measurement,
    Plan,
    Request,
    Selection,
    comparison_plan,
    measurement_plan,
    selection_plan,
)
from caps.dp.privacy.filter import Entry
from caps.dp.privacy.mechanisms import AnyMechanism, Gaussian, GaussianBatch, GaussianErrors, Laplace
from caps.dp.privacy.neighbouring import Neighbouring
from caps.dp.privacy.schedule import Role, Schedule, Step, step_name
from caps.dp.programs import Program, Task
from caps.errors import DomainError, NotDue


@dataclass(frozen=True, slots=True)
class Upcoming:
    """A step that may come, and what it needs: enough to build its noise tables and draw its noise in advance.

    draws: the most noise values it may need. weight: the largest weight of a candidate that may be selected, else None.
    """

    step: str
    mechanism: AnyMechanism
    draws: int
    weight: int | None

    @property
    def selects(self) -> bool:
        """Whether it is a selection."""
        return self.weight is not None

    def plan(self, neighbouring: Neighbouring) -> Plan:
        """The noise of the step; for a selection, that of a candidate of the largest weight."""
        if isinstance(self.mechanism, Gaussian | Laplace):
            return measurement_plan(self.mechanism)
        if isinstance(self.mechanism, GaussianErrors):
            return comparison_plan(self.mechanism)
        assert self.weight is not None
        assert not isinstance(self.mechanism, GaussianBatch)  # of a batch, the mechanism of one of its parts is given
        return selection_plan(self.mechanism, self.weight, neighbouring)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that was due: its charge to the ledger, and the enforcer for the next request."""

    entry: Entry
    enforcer: Enforcer


@dataclass(frozen=True, slots=True)
class _Rules:
    """What stays the same in a run."""

    task: Task
    layout: Layout
    initial: tuple[Clique, ...]
    candidates: Mapping[Clique, int]
    draws: int | None
    weight: int
    """The largest weight of a candidate."""
    largest: int
    """Cells of the largest candidate."""

    def cells(self, clique: Clique) -> int:
        return self.layout.domain.cells(clique)

    @property
    def initial_part(self) -> int:
        """What each initial marginal gets of a batch's budget."""
        return GaussianBatch.PARTS // len(self.initial)

    def initial_at(self, number: int) -> Clique:
        """The clique of the initial measurement of this number, from 0; those that are measured again come in order."""
        return self.initial[number % len(self.initial)]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A schedule that the run may follow, and how many releases of its current step were admitted."""

    schedule: Schedule
    done: int = 0

    @property
    def step(self) -> Step:
        assert self.schedule.step is not None  # ended branches are not kept
        return self.schedule.step

    def following(self) -> list[_Branch]:
        """What may come after one more release."""
        if self.done + 1 < self.step.requests:
            return [replace(self, done=self.done + 1)]
        return [_Branch(schedule) for schedule in self.schedule.following() if schedule.step is not None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Enforcer:
    """The requests admitted so far, and what may follow them. Immutable."""

    _rules: _Rules
    _branches: tuple[_Branch, ...]
    _asked: Mapping[Role, int]
    _offered: tuple[tuple[Clique, ...], ...] = ()
    """The candidates of each selection that no measurement has followed yet; after its answer, only the one selected.

    There are as many as a program selects before it measures: one, or the edges of a tree. So what is copied at each
    step does not grow with the run.
    """
    _measured: tuple[Clique, ...] = ()
    """What was measured for selections, in the current step."""

    @classmethod
    def start(cls, program: Program, task: Task, layout: Layout) -> Enforcer:
        """The enforcer before the first step. Raises DomainError if the layout lacks a clique of the program."""
        if layout.domain != task.domain:
            raise DomainError("the layout and the task have different domains")
        layout.require(program.cliques(task))
        schedule = program.schedule(task)
        candidates = program.candidates(task)
        weight, largest = max(candidates.values(), default=0), max(layout.domain.cells_of(candidates), default=0)
        rules = _Rules(task, layout, program.initial(task), candidates, program.draws(task), weight, largest)
        return cls(rules, (_Branch(schedule),), dict.fromkeys(Role, 0))

    @property
    def position(self) -> int:
        """How many requests were admitted."""
        return sum(self._asked.values())

    @property
    def ended(self) -> bool:
        """Whether nothing more is due."""
        return not self._branches

    def __repr__(self) -> str:
        return f"Enforcer({self.position} admitted, due: {self.due()})"

    def due(self) -> str:
        """What may be requested now, in words. Public."""
        steps = [f"{self._name(branch)} by {_shown(branch.step.mechanism)}" for branch in self._branches]
        return " or ".join(dict.fromkeys(steps)) or "nothing"

    @property
    def left(self) -> int:
        """How many requests are known, whatever the loop decides: those that remain of the step, on every branch.

        After a first batch, which is one request, comes a comparison whose noise is known as well.
        """
        known = min((branch.step.requests - branch.done for branch in self._branches), default=0)
        return known + (known == 1 and self._compares_next)

    @property
    def _compares_next(self) -> bool:
        following = [after.step.role for branch in self._branches for after in branch.following()]
        batched = all(isinstance(branch.step.mechanism, GaussianBatch) for branch in self._branches)
        return batched and following == [Role.COMPARE]

    def upcoming(self, ahead: int = 1) -> list[Upcoming]:
        """Every step that may be among the next `ahead`, soonest first."""
        found: dict[Upcoming, None] = {}
        level = [(branch, self._asked) for branch in self._branches]
        for _ in range(ahead):
            found |= dict.fromkeys(one for branch, asked in level for one in self._upcoming(branch.step, asked))
            level = [
                (after, _one_more(asked, branch.step.role)) for branch, asked in level for after in branch.following()
            ]
        return list(found)

    def admit(self, request: Request) -> Admitted:
        """Check a request and price it. Raises NotDue, or DomainError if it does not fit the layout."""
        following = self.after(request)
        layout, neighbouring = self._rules.layout, self._rules.task.neighbouring
        match request:
            case Comparison():
                return Admitted(request.entry(), following)
            case Selection():
                return Admitted(request.entry(neighbouring), following)
            case Measurement():
                return Admitted(request.entry(layout), following)
            case Batch():
                return Admitted(request.entry(layout, neighbouring), following)

    def after(self, request: Request) -> Enforcer:
        """The enforcer after this request has been admitted; refuses what `admit` refuses."""
        branches = self._fitting(request)
        role = branches[0].step.role  # the same for all: their steps have one name
        moved = self
        match request:
            case Comparison():
                self._check_comparison(request)
            case Batch():
                self._check_batch(request, role)
            case Selection():
                self._check_selection(request)
                moved = replace(self, _offered=(*self._offered, request.candidates))
            case Measurement():
                self._check_measurement(request, role)
                if role is Role.MEASURE:
                    goes_on = any(branch.done + 1 < branch.step.requests for branch in branches)
                    measured = (*self._measured, request.clique) if goes_on else ()
                    moved = replace(self, _offered=self._offered[1:], _measured=measured)
        following: list[_Branch] = []
        for after in (after for branch in branches for after in branch.following()):
            if after not in following:
                following.append(after)
        return replace(moved, _branches=tuple(following), _asked=_one_more(self._asked, role))

    def answered(self, position: int) -> Enforcer:
        """The enforcer after the latest selection was answered: only the selected clique may be measured for it."""
        if not self._offered or not 0 <= position < len(self._offered[-1]):
            raise DomainError("the latest selection has no such candidate")
        return replace(self, _offered=(*self._offered[:-1], (self._offered[-1][position],)))

    def _fitting(self, request: Request) -> list[_Branch]:
        """The branches in which the request's kind, name and mechanism are due."""
        fitting = [branch for branch in self._branches if _kind(branch.step) == request.kind]
        if not fitting:
            raise self._refusal(f"a {request.kind}")
        fitting = [branch for branch in fitting if self._name(branch) == request.step]
        if not fitting:
            raise self._refusal(f"a step {request.step[:64]!r}")
        fitting = [branch for branch in fitting if branch.step.mechanism == request.mechanism]
        if not fitting:
            raise self._refusal(f"{request.step} by {_shown(request.mechanism)}")
        return fitting

    def _check_comparison(self, request: Comparison) -> None:
        if request.candidates != tuple(self._rules.candidates):
            raise self._refusal("a comparison of cliques that are not all the program's candidates, in order,")
        request.check(self._rules.layout, self._rules.task.largest_count)

    def _check_batch(self, request: Batch, role: Role) -> None:
        rules = self._rules
        request.check(rules.layout)
        if role is not Role.INITIAL:
            return  # what is in the layout may be in a batch, however its budget is divided
        if request.cliques != rules.initial or set(request.parts.tolist()) != {rules.initial_part}:
            raise self._refusal("a batch other than the initial marginals, in order and in equal parts,")

    def _check_selection(self, request: Selection) -> None:
        known = self._rules.candidates
        if not request.candidates or not all(candidate in known for candidate in request.candidates):
            raise self._refusal("a selection among cliques that are not the program's candidates")
        if len(set(request.candidates)) < len(request.candidates):
            raise self._refusal("a selection with a candidate given twice")
        request.check(self._rules.layout, self._rules.task.largest_count)
        if request.noise_values != len(known):
            raise self._refusal(f"a selection with {request.noise_values} noise values, not {len(known)},")
        if request.weights.tolist() != [known[candidate] for candidate in request.candidates]:
            raise self._refusal("a selection with weights other than the program's")

    def _check_measurement(self, request: Measurement, role: Role) -> None:
        number, rules = self._asked[role], self._rules
        allowed: tuple[Clique, ...]
        if role is Role.INITIAL:
            allowed, draws = (rules.initial_at(number),), None
        else:
            allowed, draws = (self._offered[0] if self._offered else ()), rules.draws
        if request.clique not in allowed:
            raise self._refusal("a measurement of a clique that is not due")
        if role is Role.MEASURE and request.clique in self._measured:
            raise self._refusal("a second measurement of a clique in one step")
        cells = rules.cells(request.clique)
        expected, asked = (cells if count is None else count for count in (draws, request.draws))
        if asked != expected:
            raise self._refusal(f"a measurement with {asked} noise values, not {expected},")

    def _upcoming(self, step: Step, asked: Mapping[Role, int]) -> Iterator[Upcoming]:
        """Nothing if the noise depends on how the loop will divide a budget."""
        number, rules = asked[step.role], self._rules
        name, mechanism = step_name(step.role, number + 1), step.mechanism
        if isinstance(mechanism, GaussianBatch):
            if step.role is Role.INITIAL:
                part = mechanism.part(rules.initial_part, rules.task.neighbouring)
                yield Upcoming(name, part, sum(map(rules.cells, rules.initial)), None)
            return
        if step.role is Role.COMPARE or step.role is Role.SELECT:
            weight = rules.weight if step.role is Role.SELECT else None
            yield Upcoming(name, mechanism, len(rules.candidates), weight)
            return
        if step.role is Role.INITIAL:
            draws = rules.cells(rules.initial_at(number))
        elif rules.draws is not None:
            draws = rules.draws
        else:
            ahead = number - self._asked[step.role]
            offered = self._offered[ahead] if ahead < len(self._offered) else None
            draws = rules.largest if offered is None else max(rules.layout.domain.cells_of(offered))
        yield Upcoming(name, mechanism, draws, None)

    def _name(self, branch: _Branch) -> str:
        return step_name(branch.step.role, self._asked[branch.step.role] + 1)

    def _refusal(self, asked: str) -> NotDue:
        return NotDue(f"{asked} is not due; due now: {self.due()}")


def _kind(step: Step) -> str:
    """The kind of the requests that make this step."""
    if step.role is Role.COMPARE or step.role is Role.SELECT:
        return step.role.value
    return Batch.kind if isinstance(step.mechanism, GaussianBatch) else Measurement.kind


def _one_more(asked: Mapping[Role, int], role: Role) -> Mapping[Role, int]:
    return {**asked, role: asked[role] + 1}


def _shown(mechanism: AnyMechanism) -> str:
    parameters = [f"{field.name} {float(getattr(mechanism, field.name)):.9g}" for field in fields(mechanism)]
    return f"{mechanism.kind} ({', '.join(parameters)})"
