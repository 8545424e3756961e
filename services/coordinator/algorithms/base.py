"""What all algorithms share: the walk along a schedule, progress, and the registry.

An algorithm is a program (`caps.dp.programs`), which says how it spends the budget and what it may ask about, and a
`loop`, which decides. The loop never names a noise scale: `Walk` takes each mechanism from the schedule, which the
servers walk too, and refuses a step that is not due. It holds no data, reads no clock, draws no randomness and knows no
number of rows, so it is determined by what the oracle answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from math import hypot, pi, sinh, sqrt
from typing import TypeAlias, TypeVar

import numpy as np

from caps.data.domain import Clique
from caps.data.junction import FLOAT_BYTES
from caps.dp.bounds import UNIT_BITS
from caps.dp.effort import fit_seconds
from caps.dp.installed import LOOPS, installed
from caps.dp.oracle import Batch, Comparison, Measurement, Oracle, Selection, rounded_estimate
from caps.dp.privacy.mechanisms import (
    AnyMechanism,
    Gaussian,
    GaussianBatch,
    GaussianErrors,
    Laplace,
    NoisyMax,
    PermuteAndFlip,
)
from caps.dp.privacy.schedule import Choice, Role, Schedule, Step, step_name
from caps.dp.programs.base import Program, Task, chosen, program, registered
from caps.errors import DomainError, LocalError
from caps.wire.coordinator import RunProgress
from services.coordinator.estimation import Estimator, Floats, Measured, Model

PATIENCE = 1 / 4
"""Equal rounds are given up once this part of them in a row shows only noise. One round would be too noisy to tell; and
of columns that get the other three quarters of the budget, the noise is only a seventh wider than with all of it."""


class Stage(StrEnum):
    """What has just been done: a step, in the words of `Role`, or a fit."""

    INITIAL = "initial"
    COMPARE = "compare"
    SELECT = "select"
    MEASURE = "measure"
    GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Progress:
    """What may be shown while a run is going. All of it is public or follows from opened, noisy values.

    error: after a measurement, by how much (L1) the model before it was wrong there; estimated from the noisy answer by
    subtracting what the noise contributes. annealed: after a fit, whether the next rounds spend more. fit_seconds: how
    long the fit that begins now will take, about.
    """

    round: int
    stage: Stage
    clique: Clique | None
    rho_spent: Fraction
    rho: Fraction
    model_bytes: int | None = None
    error: float | None = None
    annealed: bool = False
    fit_seconds: float | None = None

    def view(self) -> RunProgress:
        """The progress as shown to people, with budgets as floats."""
        return RunProgress(
            round=self.round,
            stage=self.stage,
            clique=None if self.clique is None else list(self.clique),
            rho_spent=float(self.rho_spent),
            rho=float(self.rho),
            model_bytes=self.model_bytes,
            error=self.error,
            annealed=self.annealed,
            fit_seconds=self.fit_seconds,
        )


Report: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report to nobody."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The last model, all that was measured (as opened: integers), and what it cost."""

    model: Model
    measurements: tuple[Measured, ...]
    rho_spent: Fraction
    rounds: int


def magnitude(mechanism: AnyMechanism) -> float:
    """Expected absolute value of the noise in a cell; of discrete Laplace noise, 1 / sinh(1 / scale)."""
    match mechanism:
        case Gaussian():
            return sqrt(2 / pi) * mechanism.deviation
        case Laplace():
            return 1 / sinh(1 / mechanism.scale)
    raise LocalError("a selection adds no noise to cells, so it has no magnitude")


@dataclass
class Walk:
    """A run: the only way from a loop to the oracle. Mechanisms come from the schedule, and each step advances it."""

    task: Task
    schedule: Schedule
    oracle: Oracle
    estimator: Estimator
    report: Report = silent
    candidates: int | None = None
    """The most candidates that a selection may have; as many noise values are drawn for each selection."""
    round: int = 0
    measured: list[Measured] = field(default_factory=list)
    worked: float = 0.0
    """Seconds of all fits so far, by the law (`caps.dp.effort`); so it is the same on every machine."""
    _before: Schedule | None = None
    _asked: Counter[Role] = field(default_factory=Counter)
    _surprises: list[tuple[float, int]] = field(default_factory=list)
    """Of each round, the sum of squares of what the measurement differed from what was expected, and its cells."""

    @property
    def going(self) -> bool:
        """Whether a step is due."""
        return self.schedule.step is not None

    @property
    def noise(self) -> float:
        """Expected absolute value of the noise in a cell of this round's measurement."""
        following = self.schedule.after().step
        if following is None or following.role is not Role.MEASURE:
            raise LocalError("the schedule has no further measurement")
        return magnitude(following.mechanism)

    def blurs(self, cliques: Iterable[Clique]) -> list[float]:
        """By how much (L1) noise in the columns, as measured so far, puts off what these say about each clique.

        The errors of different columns are independent, so their squares add up. Pre-condition: every column has been
        measured.
        """
        domain, precision = self.task.domain, dict.fromkeys(self.task.domain.names, 0.0)
        for measured in self.measured:
            if len(measured.clique) == 1:
                precision[measured.clique[0]] += measured.sigma**-2
        error = {
            name: size * sqrt(2 / pi / precision[name]) for name, size in zip(domain.names, domain.sizes, strict=True)
        }
        return [hypot(*(error[name] for name in clique)) for clique in cliques]

    def apart(self, candidates: Iterable[Clique]) -> list[Clique]:
        """The pairs among candidates whose columns no chain of measured marginals connects."""
        part = {name: {name} for name in self.task.domain.names}
        for measured in self.measured:
            joined = set[str]().union(*(part[name] for name in measured.clique))
            part |= dict.fromkeys(joined, joined)
        return [one for one in candidates if len(one) == 2 and part[one[0]] is not part[one[1]]]

    @property
    def rounds_left(self) -> Fraction:
        """How many rounds there would be from this one on, its selection being due, if all cost the same."""
        cost = self.schedule.after().after().spent - self.schedule.spent
        return (self.schedule.rho - self.schedule.spent) / cost

    @property
    def cells(self) -> int:
        """Of all tables that have been measured."""
        return sum(self.task.domain.cells_of(dict.fromkeys(one.clique for one in self.measured)))

    def next_round(self) -> int:
        """Begin a round and return its number."""
        self.round += 1
        return self.round

    def select(
        self,
        candidates: Sequence[Clique],
        estimates: Sequence[Floats],
        *,
        bias: Sequence[float],
        weights: Sequence[int],
    ) -> Clique:
        """SELECT one of the candidates, favouring a large weight (error of its estimate - bias), in people."""
        mechanism = self._due(Role.SELECT, NoisyMax, PermuteAndFlip).mechanism
        assert isinstance(mechanism, NoisyMax | PermuteAndFlip)
        selection = Selection(
            self._name(Role.SELECT),
            tuple(candidates),
            rounded_estimate(np.concatenate([np.ravel(estimate) for estimate in estimates])),
            np.rint(np.array(bias, np.float64) * (1 << UNIT_BITS)).astype(np.int64),
            np.array(weights, np.int64),
            mechanism,
            self.candidates,
        )
        clique = selection.candidates[self.oracle.select(selection)]
        self._advance()
        self._tell(Stage.SELECT, clique)
        return clique

    def measure(self, clique: Clique, estimate: Floats, *, draws: int | None = None) -> Measured:
        """MEASURE this round's marginal; `estimate` is what the model says so far."""
        step = self._due(Role.MEASURE, Gaussian, Laplace)
        measured = self._ask(clique, step, draws)
        self._advance()
        beyond = measured.values - np.ravel(estimate)
        self._surprises.append((float(np.square(beyond / measured.sigma).sum()), beyond.size))
        error = np.abs(beyond).sum() - magnitude(step.mechanism) * beyond.size
        self._tell(Stage.MEASURE, clique, error=max(0.0, float(error)), fit_seconds=self._coming())
        return measured

    def measure_all(self, cliques: Sequence[Clique], *, role: Role = Role.INITIAL, draws: int | None = None) -> None:
        """MEASURE as many marginals as the schedule has for this step, which it charges together."""
        step = self._due(role, Gaussian, Laplace)
        if step.count != len(cliques):
            raise LocalError(f"{step.count} measurements are due, not {len(cliques)}")
        each, spent = step.mechanism.rho(self.task.neighbouring), self.schedule.spent
        for number, clique in enumerate(cliques, 1):
            if role is Role.MEASURE:
                self.round = number
            self._ask(clique, step, draws)
            coming = self._coming() if number == len(cliques) else None
            self._tell(Stage(role.value), clique, spent=spent + number * each, fit_seconds=coming)
        self._advance()

    def compare(self, candidates: Sequence[Clique], estimates: Sequence[Floats]) -> tuple[Floats, float]:
        """COMPARE the candidates' estimates: how far each is off (L1), with noise of this deviation, in people."""
        mechanism = self._due(Role.COMPARE, GaussianErrors).mechanism
        assert isinstance(mechanism, GaussianErrors)
        estimate = rounded_estimate(np.concatenate([np.ravel(one) for one in estimates]))
        opened = self.oracle.compare(Comparison(self._name(Role.COMPARE), tuple(candidates), estimate, mechanism))
        self._advance()
        self._tell(Stage.COMPARE, None)
        return opened.astype(np.float64) / (1 << UNIT_BITS), mechanism.deviation

    @property
    def batch_budget(self) -> float:
        """rho of the batch that is due."""
        mechanism = self._due(Role.MEASURE, GaussianBatch).mechanism
        assert isinstance(mechanism, GaussianBatch)
        return float(mechanism.total)

    def measure_batch(self, parts: Mapping[Clique, int], *, role: Role) -> None:
        """MEASURE all these marginals at once, each with so many parts of the batch's budget."""
        mechanism = self._due(role, GaussianBatch).mechanism
        assert isinstance(mechanism, GaussianBatch)
        batch = Batch(self._name(role), tuple(parts), np.array(list(parts.values()), np.int64), mechanism)
        opened, spent = self.oracle.measure_batch(batch), self.schedule.spent
        ends, due = np.cumsum(batch.sizes(self.oracle.layout))[:-1], len(self.measured) + len(parts)
        self._advance()
        for asked, values in zip(batch.measurements(self.task.neighbouring), np.split(opened, ends), strict=True):
            self.measured.append(Measured(asked.clique, values.astype(np.float64), asked.mechanism.deviation))
            spent += mechanism.total * parts[asked.clique] / mechanism.PARTS
            coming = self._coming() if len(self.measured) == due else None
            self._tell(Stage(role.value), asked.clique, spent=min(spent, self.schedule.spent), fit_seconds=coming)

    def choose(self, *choices: Choice) -> Choice:
        """Take the first of these choices that the schedule allows after the measurement just made, or go on."""
        if self._before is None:
            raise LocalError("there is no choice before a step has been charged")
        choice = next((choice for choice in choices if choice in self._before.choices), Choice.GO_ON)
        self.schedule = self._before.after(choice)
        return choice

    def settles(self, planned: int) -> bool:
        """Settle, if the last of so many planned rounds, `PATIENCE` of them, showed only noise and the schedule allows.

        The columns are to be measured then.
        """
        quiet = self.going and self.quiet(max(1, round(PATIENCE * planned)))
        return quiet and self.choose(Choice.SETTLE) is Choice.SETTLE

    @property
    def noisy(self) -> bool:
        """Whether noise is a hundredth or more, in root mean square, of what rounds showed; if not, `smoothed` would
        change next to nothing."""
        return sum(square for square, _ in self._surprises) <= 100**2 * sum(cells for _, cells in self._surprises)

    def quiet(self, rounds: int) -> bool:
        """Whether the last so many rounds, together, differed from what was expected no more than by noise.

        The squares of n cells of noise, in units of its variance, sum to n on average; what they sum to beyond is an
        estimate, without bias, of the squares of what there is to learn.
        """
        last = self._surprises[-rounds:]
        return len(last) == rounds and sum(square for square, _ in last) <= sum(cells for _, cells in last)

    def fit(self, warm_start: Model | None = None) -> Model:
        """GENERATE: fit a model to all that was measured. Report it with `fitted`.

        As long as a step is due, the fit is rough.
        """
        self.worked += fit_seconds(self._model_bytes() // FLOAT_BYTES, self.cells)
        return self.estimator.fit(tuple(self.measured), total=self.task.total, warm_start=warm_start, rough=self.going)

    def smoothed(self, model: Model) -> Model:
        """The latest model, without what is only noise in the measurements it was fitted to."""
        return self.estimator.smoothed(model, tuple(self.measured))

    def fitted(self, clique: Clique | None = None, *, annealed: bool = False, smoothing: bool = False) -> None:
        """Report that a fit is done. `smoothed` is due after the last one, or before the next selection if told so."""
        coming = self._coming(prior=True) if smoothing or not self.going else None
        model_bytes = self._model_bytes()
        self._tell(Stage.GENERATE, clique, model_bytes=model_bytes, annealed=annealed, fit_seconds=coming)

    def _model_bytes(self) -> int:
        return self.estimator.model_bytes([measured.clique for measured in self.measured])

    def _coming(self, *, prior: bool = False) -> float:
        return self.estimator.fit_seconds([measured.clique for measured in self.measured], prior=prior)

    def _ask(self, clique: Clique, step: Step, draws: int | None) -> Measured:
        assert isinstance(step.mechanism, Gaussian | Laplace)
        values = self.oracle.measure(Measurement(self._name(step.role), clique, step.mechanism, draws))
        measured = Measured(clique, values.astype(np.float64), step.mechanism.deviation)
        self.measured.append(measured)
        return measured

    def _name(self, role: Role) -> str:
        self._asked[role] += 1
        return step_name(role, self._asked[role])

    def _due(self, role: Role, *kinds: type[AnyMechanism]) -> Step:
        step = self.schedule.step
        if step is None or step.role is not role or not isinstance(step.mechanism, kinds):
            raise LocalError(f"no {role} is due in the schedule at this point")
        return step

    def _advance(self) -> None:
        self._before, self.schedule = self.schedule, self.schedule.after()

    def _tell(
        self,
        stage: Stage,
        clique: Clique | None,
        *,
        spent: Fraction | None = None,
        model_bytes: int | None = None,
        error: float | None = None,
        annealed: bool = False,
        fit_seconds: float | None = None,
    ) -> None:
        rho_spent, rho = self.schedule.spent if spent is None else spent, self.schedule.rho
        self.report(Progress(self.round, stage, clique, rho_spent, rho, model_bytes, error, annealed, fit_seconds))


@dataclass(frozen=True)
class Algorithm(Program):
    """A select-measure-generate algorithm: a program with a loop that carries it out."""

    @abstractmethod
    def loop(self, walk: Walk) -> Model:
        """The algorithm itself. Must walk the schedule to its end."""

    def run(self, task: Task, oracle: Oracle, estimator: Estimator, report: Report = silent) -> Outcome:
        """Spend the budget. Raises DomainError before anything is charged if the oracle cannot answer what is asked."""
        if oracle.layout.domain != task.domain:
            raise DomainError("the oracle counts over a different domain than the task's")
        for clique in self.cliques(task):
            oracle.layout.index(clique)
        candidates = len(self.candidates(task)) or None
        walk = Walk(task, self.schedule(task), oracle, estimator, report, candidates)
        oracle.answers()
        model = walk.smoothed(self.loop(walk))
        if walk.going:
            raise LocalError(f"{self.name} ended before its schedule did")
        return Outcome(model, tuple(walk.measured), walk.schedule.spent, walk.round)


class Sizes:
    """Which candidates keep the model small. Sizes are remembered until the model's maximal cliques change."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._maximal: frozenset[Clique] = frozenset()
        self._known: dict[Clique, int] = {}

    def within(self, limit: int, candidates: Iterable[Clique], model: Iterable[Clique]) -> list[Clique]:
        """Candidates with which the model takes at most `limit` bytes, and those already part of it."""
        cliques = {clique: set(clique) for clique in model}
        maximal = frozenset(c for c in cliques if not any(cliques[c] < other for other in cliques.values()))
        if maximal != self._maximal:
            self._maximal, self._known = maximal, {}
        return [candidate for candidate in candidates if self._size(candidate) <= limit]

    def _size(self, candidate: Clique) -> int:
        if candidate not in self._known:
            part = any(set(candidate) <= set(clique) for clique in self._maximal)
            with_it = [*sorted(self._maximal), candidate]
            self._known[candidate] = 0 if part else self._estimator.model_bytes(with_it)
        return self._known[candidate]


_REGISTRY: dict[str, type[Algorithm]] = {}
_A = TypeVar("_A", bound=type[Algorithm])


def register(cls: _A) -> _A:
    """Make an algorithm known by its name. Its program must be known too, or servers could not tell what to refuse."""
    known = registered(cls.name)
    if known is None or not issubclass(cls, known):
        raise LocalError(f"the program of {cls.name} is not in caps.dp.programs, so servers do not know it")
    if _REGISTRY.setdefault(cls.name, cls) is not cls:
        raise LocalError(f"two algorithms are called {cls.name}")
    return cls


def names() -> tuple[str, ...]:
    """The names of all algorithms, those of other packages included."""
    return tuple(sorted({*_REGISTRY, *installed(LOOPS)}))


def algorithm(name: str, parameters: Mapping[str, object] | None = None) -> Algorithm:
    """The algorithm of that name. Raises DomainError if the name or a parameter is unknown."""
    program(name)  # its loop is registered after it
    return chosen(_REGISTRY, name, parameters, LOOPS)
