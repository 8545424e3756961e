"""For tests of the loops: an estimator without approximation, oracles that answer at will or from a record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import prod

import numpy as np

from caps.data.domain import Attribute, Clique, Domain, Layout
from caps.data.quality import marginals_error
from caps.dp.clear import ClearOracle
from caps.dp.effort import PRIOR_FITS, fit_seconds
from caps.dp.oracle import Batch, Comparison, Measurement, Selection
from caps.dp.privacy import AimSchedule, Choice, Entry, Filter, Neighbouring, Role, Schedule
from caps.shares.prss import expand
from caps.shares.ring import Z64, plane_words
from services.coordinator.algorithms import Algorithm, Outcome, Progress, Stage, Task, all_pairs
from services.coordinator.estimation import Measured


def domain_of(*sizes: int) -> Domain:
    return Domain(tuple(Attribute(f"a{i}", size) for i, size in enumerate(sizes)))


def rows_of(domain: Domain, seed: int, rows: int) -> np.ndarray:
    """Codes in which each column mostly follows the one before it, from a skewed first."""
    generator = np.random.default_rng(seed)
    columns = [np.minimum(generator.geometric(0.45, rows) - 1, domain.sizes[0] - 1)]
    for size in domain.sizes[1:]:
        fresh = generator.integers(0, size, rows)
        columns.append(np.where(generator.random(rows) < 0.75, columns[-1] % size, fresh))
    return np.stack(columns, axis=1)


def task_of(domain: Domain, neighbouring: Neighbouring, *, workload=None, **budget) -> Task:
    budget = budget or {"rho": Fraction(1, 2)}
    return Task(domain, workload or all_pairs(domain), neighbouring, **budget)


@dataclass(frozen=True)
class SeededBits:
    """Bits by label and seed."""

    seed: int

    def bits(self, label, width, shape):
        words = plane_words(int(np.prod(shape, dtype=int)))
        return expand(self.seed.to_bytes(32, "little"), label, (width, words), Z64)


def clear_oracle(algorithm: Algorithm, task: Task, codes: np.ndarray, seed: int = 0) -> ClearOracle:
    schedule = algorithm.schedule(task)
    budget = Filter(schedule.rho, task.neighbouring, pure_epsilon=schedule.pure_epsilon)
    return ClearOracle(codes, Layout(task.domain, algorithm.cliques(task)), task.neighbouring, budget, SeededBits(seed))


@dataclass
class Recorder:
    """Passes requests on, and keeps them with the answers."""

    inner: object
    requests: list = field(default_factory=list)
    results: list = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return self.inner.layout

    def answers(self) -> None:
        self.inner.answers()

    def compare(self, comparison: Comparison) -> np.ndarray:
        return self._keep(comparison, self.inner.compare(comparison))

    def select(self, selection: Selection) -> int:
        return self._keep(selection, self.inner.select(selection))

    def measure_batch(self, batch: Batch) -> np.ndarray:
        return self._keep(batch, self.inner.measure_batch(batch))

    def measure(self, measurement: Measurement) -> np.ndarray:
        return self._keep(measurement, self.inner.measure(measurement))

    def _keep(self, request, result):
        self.requests.append(request)
        self.results.append(result)
        return result


@dataclass
class Recorded:
    """Answers from a record: no data anywhere."""

    layout: Layout
    results: list

    def answers(self) -> None:
        pass

    def select(self, selection: Selection) -> int:
        return self.results.pop(0)

    compare = measure = measure_batch = select


@dataclass
class Whimsical:
    """Answers at random, and charges a filter as a server does, but for the time it takes to build noise tables."""

    layout: Layout
    budget: Filter
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    spread: float = 30.0

    def answers(self) -> None:
        pass

    def select(self, selection: Selection) -> int:
        selection.check(self.layout)
        self._charge(selection, len(selection.candidates))
        return int(self.generator.integers(len(selection.candidates)))

    def compare(self, comparison: Comparison) -> np.ndarray:
        comparison.check(self.layout)
        count = len(comparison.candidates)
        entry = Entry(comparison.step, comparison.mechanism, count, "none", count, Fraction(1, 2**81), certified=True)
        self.budget.charge(entry)
        return np.rint(self.generator.normal(50, self.spread, count) * 256).astype(int)

    def measure_batch(self, batch: Batch) -> np.ndarray:
        batch.check(self.layout)
        self._charge(batch, batch.draws(self.layout))
        return np.rint(self.generator.normal(50, self.spread, batch.draws(self.layout))).astype(int)

    def measure(self, measurement: Measurement) -> np.ndarray:
        self._charge(measurement, measurement.noise_values(self.layout))
        return np.rint(self.generator.normal(50, self.spread, self.layout.domain.cells(measurement.clique))).astype(int)

    def _charge(self, request, draws: int) -> None:
        self.budget.charge(Entry(request.step, request.mechanism, 1, "none", draws, Fraction(1, 2**81), certified=True))


def whimsical(algorithm: Algorithm, task: Task, seed: int = 0) -> Whimsical:
    schedule = algorithm.schedule(task)
    budget = Filter(schedule.rho, task.neighbouring, pure_epsilon=schedule.pure_epsilon)
    return Whimsical(Layout(task.domain, algorithm.cliques(task)), budget, np.random.default_rng(seed))


@dataclass
class Joint:
    """A model as its full table."""

    domain: Domain
    table: np.ndarray
    total: float

    def marginal(self, clique: Clique) -> np.ndarray:
        others = tuple(i for i, name in enumerate(self.domain.names) if name not in clique)
        return self.table.sum(axis=others)

    def marginals(self, cliques: Sequence[Clique]) -> list[np.ndarray]:
        return [self.marginal(clique) for clique in cliques]


def tree_bytes(domain: Domain, cliques: Iterable[Clique]) -> int:
    """Of the cliques, as if they were a junction tree already."""
    parts = [set(clique) for clique in cliques]
    parts += [{name} for name in domain.names]
    distinct = {frozenset(part) for part in parts if not any(part < other for other in parts)}
    return 8 * sum(domain.cells(part) for part in distinct)


@dataclass
class BruteForce:
    """Least squares, weighted by 1 / sigma^2, over the exponential family: mirror descent on the full table."""

    domain: Domain
    steps: int = 150
    fits: list = field(default_factory=list)
    rough: list[bool] = field(default_factory=list)
    smoothings: list = field(default_factory=list)

    def fit(
        self, measurements: Sequence[Measured], *, total=None, warm_start: Joint | None = None, rough=False
    ) -> Joint:
        self.fits.append((tuple(measurements), total))
        self.rough.append(rough)
        merged: dict[Clique, list[np.ndarray]] = {}
        for m in measurements:
            values, weight = merged.get(m.clique, [np.zeros(m.values.size), 0.0])
            merged[m.clique] = [values + m.values / m.sigma**2, weight + m.sigma**-2]
        index = np.indices(self.domain.sizes).reshape(len(self.domain.sizes), -1)
        blocks, targets, weights = [], [], []
        for clique, (values, weight) in merged.items():
            axes = [self.domain.position(name) for name in clique]
            cell = np.ravel_multi_index(tuple(index[axes]), self.domain.shape(clique))
            blocks.append(np.eye(values.size)[cell].T)
            targets.append(values / weight)
            weights.append(np.full(values.size, weight))
        if total is None:
            precision = [weight[0] / weight.size for weight in weights]
            total = max(1.0, np.average([target.sum() for target in targets], weights=precision))
        design, target, weight = (np.concatenate(parts) for parts in (blocks, targets, weights))
        table = np.full(prod(self.domain.sizes), 1.0) if warm_start is None else warm_start.table.ravel() + 1e-12
        table = table / table.sum() * total
        rate = 1 / (total * weight.max() * len(blocks))
        loss = np.inf
        for _ in range(self.steps):
            error = design @ table - target
            new_loss = float(weight @ error**2)
            rate, loss = (rate * 1.1 if new_loss <= loss else rate / 2), new_loss
            gradient = design.T @ (weight * error)
            step = -rate * gradient
            table = table * np.exp(np.clip(step - step.max(), -200, 0))
            table *= total / table.sum()
        return Joint(self.domain, table.reshape(self.domain.sizes), total)

    def smoothed(self, model: Joint, measurements: Sequence[Measured]) -> Joint:
        self.smoothings.append(tuple(measurements))
        return model

    def model_bytes(self, cliques: Sequence[Clique]) -> int:
        return tree_bytes(self.domain, cliques)

    def fit_seconds(self, cliques: Sequence[Clique], *, prior: bool = False) -> float:
        return fit_seconds(tree_bytes(self.domain, cliques) // 8, 0) * (PRIOR_FITS if prior else 1)


@dataclass
class Stub:
    """Models that move far (AIM goes on), not at all (it anneals, then settles) or now and then."""

    domain: Domain
    move: float = 0.5
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    moves: int = 0

    def fit(self, measurements, *, total=None, warm_start=None, rough=False) -> Joint:
        if warm_start is not None and self.generator.random() >= self.move:
            return warm_start
        self.moves += 1
        table = np.zeros(self.domain.sizes)
        table[tuple(self.moves % size for size in self.domain.sizes)] = 1e6  # every marginal of two cells or more moves
        return Joint(self.domain, table, 1e6)

    def smoothed(self, model: Joint, measurements: Sequence[Measured]) -> Joint:
        return model

    def model_bytes(self, cliques: Sequence[Clique]) -> int:
        return tree_bytes(self.domain, cliques)

    def fit_seconds(self, cliques: Sequence[Clique], *, prior: bool = False) -> float:
        return fit_seconds(tree_bytes(self.domain, cliques) // 8, 0) * (PRIOR_FITS if prior else 1)


def choices_of(events: Sequence[Progress]) -> list[Choice]:
    """What AIM chose after each round, from its reports."""
    found = []
    for number, event in enumerate(events):
        if event.stage is Stage.GENERATE and event.clique is not None:
            settled = number + 1 < len(events) and events[number + 1].stage is Stage.INITIAL
            found.append(Choice.ANNEAL if event.annealed else Choice.SETTLE if settled else Choice.GO_ON)
    return found


def replay(schedule: Schedule, requests: Sequence[object], events: Sequence[Progress]) -> Schedule:
    """What a server does: let each request pass only if the schedule has it due. Returns the schedule's end."""
    following = iter(requests)
    made = iter(choices_of(events))
    while (step := schedule.step) is not None:
        for _ in range(step.requests):
            request = next(following)
            assert isinstance(request, Selection) == (step.role is Role.SELECT)
            assert request.mechanism == step.mechanism
        chooses = step.role is Role.MEASURE and (isinstance(schedule, AimSchedule) or schedule.columns > 0)
        schedule = schedule.after(next(made) if chooses else Choice.GO_ON)
    assert next(following, None) is None
    return schedule


def inferred(schedule: Schedule, requests: Sequence[object]) -> Schedule:
    """The same without being told of choices: what is asked for next says it."""
    remaining = list(requests)
    while (step := schedule.step) is not None:
        assert all(request.mechanism == step.mechanism for request in remaining[: step.requests])
        remaining = remaining[step.requests :]
        states = schedule.following()
        fitting = [s for s in states if not (s.step and remaining) or s.step.mechanism == remaining[0].mechanism]
        assert fitting
        assert len(fitting) == 1 or fitting[0] == fitting[1]
        schedule = fitting[0]
    assert not remaining
    return schedule


@dataclass
class Run:
    outcome: Outcome
    requests: list
    results: list
    events: list[Progress]
    estimator: object


def run(algorithm: Algorithm, task: Task, oracle, estimator) -> Run:
    recorder, events = Recorder(oracle), []
    outcome = algorithm.run(task, recorder, estimator, events.append)
    return Run(outcome, recorder.requests, recorder.results, events, estimator)


def model_error(task: Task, codes: np.ndarray, model) -> float:
    """The workload error of a model itself, without a sample."""
    layout = task.workload.layout(task.domain)
    answered = np.concatenate([marginal.ravel() for marginal in model.marginals(layout.cliques)])
    return marginals_error(layout, layout.marginals(codes), answered)


def pairs_of(domain: Domain) -> list[Clique]:
    return list(combinations(domain.names, 2))
