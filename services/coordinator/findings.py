"""What a release says about itself, although nobody holds the data: post-processing of its published files alone.

If the study publishes its noisy counts, the model follows from them, and figures compare it with them. If it does not,
only the synthetic rows and the report are public, and figures are of these; what would need the counts is left out.

How far the model can be from the data, for a pair of columns. Distances are L1, in persons; a marginal of fewer columns
is never further away. Let M be the model and C the true counts.

- Measured: |C - M| <= |Y - M| + |noise|, where Y are noisy counts and the noise is as large as its law allows.
- Selected against: a step chose one candidate s for being approximated worst, up to noise, so that for each of the m
  others score(r) <= score(s) + scale (ln m + t) with probability 1 - e^-t (McSherry and Talwar 2007; permute-and-flip
  is never worse). Scores are distances from the estimate E of that step, and score(s) is bounded because s was measured
  next. So |C - M| <= |C - E| + |E - M|; the least of all steps counts.

All of these hold together with probability 95 %. They rest on the noise, not on anything about the data.

A release never changes, so what takes long is computed once, before the release is published, and kept in a file beside
it. The file is neither published nor signed: where it is missing, or other software wrote it, it is made anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, pairwise, product
from math import erf, exp, inf, pi, sqrt
from math import log as ln
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import TypeAdapter, ValidationError

from caps.audit.measurements import labels
from caps.basics.files import replace_private
from caps.basics.recent import Recent
from caps.client.estimates import Release as Estimates
from caps.data.domain import MISSING, Clique, Codes
from caps.dp.bounds import UNIT_BITS
from caps.dp.oracle import Measurement, Selection
from caps.dp.privacy import Laplace
from caps.service import logs
from caps.study import Manifest
from caps.wire import request_from_json
from caps.wire.releases import MEASUREMENTS, REPORT, TRANSCRIPT, Fit, Measurements, NoisyMarginal, Report
from services.coordinator.estimation import Floats, Model
from services.coordinator.generate import load_model
from services.coordinator.publish import MODEL, SOFTWARE, Publisher
from services.coordinator.store import Release

State: TypeAlias = Literal["measured", "implied", "unknown"]
TOGETHER = 0.05
"""The probability that any of the bounds of a release fails."""
LEVELS = (3.0, 6.0, 12.0)
"""Where colours change, in units of noise: a pair that was measured and explained is below the first, because its bound
is the distance to the noisy counts and what their noise may add; then it doubles."""
EDGES = np.linspace(-3.75, 3.75, 16)
"""Of the histogram of residuals; the outermost bins take what is beyond."""
MOST_KEPT = 4
"""Releases whose findings are held in memory: those of one are as large as its model."""
MOST_CODES = 1 << 25
"""The most codes of synthetic rows to hold so that questions can be asked of them: 256 MB."""
FILE = "findings.json"
_MOST_CELLS = 1 << 22
"""The most cells of candidates to compare with the model."""
_WORST = 10
"""Cells that are named for being explained worst."""

log = logging.getLogger("caps.coordinator")


@dataclass(frozen=True)
class Pair:
    """Two columns. bound: of the distance between the model and the data, in persons; noise: what noise alone makes."""

    columns: tuple[int, int]
    state: State
    bound: float | None
    noise: float | None
    association: float
    """Cramér's V: 0 if the synthetic columns are independent, 1 if one follows from the other."""

    @property
    def ratio(self) -> float | None:
        """The bound in units of noise."""
        return self.bound / self.noise if self.bound is not None and self.noise else None

    @property
    def level(self) -> int:
        """The colour: 0 without a bound, else 1 to 4."""
        return 0 if self.ratio is None else 1 + sum(self.ratio > one for one in LEVELS)


@dataclass(frozen=True)
class OneWay:
    """One column: the synthetic counts of its cells, and the noisy ones with their intervals if they are published."""

    name: str
    cells: tuple[str, ...]
    synthetic: tuple[float, ...]
    measured: tuple[float, ...] | None
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Residual:
    """A cell of a measured table: how many standard deviations of noise the model is above the noisy count."""

    table: Clique
    cell: tuple[str, ...]
    model: float
    measured: int
    sigmas: float


@dataclass(frozen=True)
class Score:
    """How many persons are in the same cell in the model and in the noisy counts, beside what noise alone would leave.

    like: the share of persons that one would have to ask at random to err as much as noise does; None if unknown.
    """

    columns: int
    tables: int
    agreement: float
    attainable: float
    like: float | None


@dataclass(frozen=True)
class Round:
    """A round's measurements; round 0 has those of single columns that come first."""

    number: int
    cliques: tuple[Clique, ...]


@dataclass(frozen=True)
class Residuals:
    """All of them: bins, how many are in each, how many would be if they were fresh noise; the worst; their spread.

    spread: the standard deviation of all; 1 if they were fresh noise, None if there are none.
    """

    bins: tuple[str, ...]
    counted: tuple[int, ...]
    expected: tuple[float, ...]
    worst: tuple[Residual, ...]
    spread: float | None


@dataclass(frozen=True)
class Kept:
    """What is computed once for a release. software: whose computation it is."""

    software: str
    one_ways: tuple[OneWay, ...]
    scores: tuple[Score, ...]
    pairs: tuple[Pair, ...]
    residuals: Residuals
    rounds: tuple[Round, ...]


_KEPT = TypeAdapter(Kept)


class Findings:
    """Of one release."""

    def __init__(self, release: Release, file: Callable[[str], Path]) -> None:
        """file: where the release's file of a name is."""
        self.release = release
        self.manifest: Manifest = release.certificate.manifest
        self.published = self.manifest.publication.measurements
        """Whether the noisy counts are."""
        self.names = self.manifest.domain.names
        self.cells = cells_of(self.manifest)
        self._file = file

    @cached_property
    def report(self) -> Report:
        """What is published about privacy and quality."""
        return Report.model_validate_json(self._file(REPORT).read_bytes())

    @cached_property
    def measurements(self) -> Measurements | None:
        """The noisy counts, if they are published."""
        return Measurements.model_validate_json(self._file(MEASUREMENTS).read_bytes()) if self.published else None

    @cached_property
    def _model(self) -> Model:
        return load_model(self._file(MODEL))

    def _steps(self) -> Iterator[dict[str, Any]]:
        """The requests and answers of the transcript, one after the other: together they may be large."""
        if self.published:
            with self._file(TRANSCRIPT).open("rb") as lines:
                yield from map(json.loads, lines)

    @cached_property
    def _kept(self) -> Kept:
        try:
            found = _KEPT.validate_json(self._file(FILE).read_bytes())
            if found.software == SOFTWARE:
                return found
        except (FileNotFoundError, ValidationError):
            pass
        made = self._computed()
        self._keep(made)
        return made

    def _keep(self, made: Kept) -> None:
        try:
            replace_private(self._file(FILE), _KEPT.dump_json(made))
        except OSError as error:  # it can be computed again
            logs.say(log, "findings not kept", level=logging.WARNING, reason=error.strerror)

    def prepare(self) -> None:
        """Compute what takes long, from the files as they are now, and keep it."""
        self._keep(self._computed())

    def _computed(self) -> Kept:
        return Kept(SOFTWARE, self._one_ways(), self._scores(), tuple(self._pairs()), self._residuals(), self._rounds())

    @property
    def one_ways(self) -> tuple[OneWay, ...]:
        """Every column by itself, in the schema's order."""
        return self._kept.one_ways

    @property
    def scores(self) -> tuple[Score, ...]:
        """By the number of columns of the measured tables."""
        return self._kept.scores

    @cached_property
    def pairs(self) -> dict[tuple[int, int], Pair]:
        """All pairs of columns, by their positions."""
        return {pair.columns: pair for pair in self._kept.pairs}

    @property
    def residuals(self) -> Residuals:
        """The model against the noisy counts, cell by cell."""
        return self._kept.residuals

    @property
    def rounds(self) -> tuple[Round, ...]:
        """What was measured, round by round."""
        return self._kept.rounds

    @property
    def persons(self) -> float:
        """How many persons the model stands for."""
        return self.report.estimated_total

    @cached_property
    def _rows(self) -> Codes | None:
        """The synthetic rows as they were published, drawn again; None if they are many and not needed."""
        body = self.release.certificate.release.document
        if self.published and body.rows * len(self.names) > MOST_CODES:
            return None
        return self._model.sample(body.rows, seed=bytes.fromhex(body.seed))

    @cached_property
    def estimates(self) -> Estimates:
        """Answers questions about persons, with intervals."""
        return Estimates(self.manifest, self.measurements, self._rows, persons=self.persons)

    @cached_property
    def _noisy(self) -> Estimates:
        """The same of the noisy counts alone, without the rows, which would have to be drawn."""
        return Estimates(self.manifest, self.measurements)

    @property
    def counts_rows(self) -> bool:
        """Whether `estimates` knows what the rows say."""
        return self._rows is not None

    def synthetic(self, cliques: Sequence[Clique]) -> list[Floats]:
        """What the release says of these columns, in persons: the model, or the rows if only they are public."""
        if self.published:
            return self._model.marginals(cliques)
        return [self._tabulated(clique) for clique in cliques]

    def _tabulated(self, clique: Clique) -> Floats:
        assert self._rows is not None
        shape = [len(self.cells[name]) for name in clique]
        codes = self._rows[:, [self.names.index(name) for name in clique]]
        there = codes[(codes != MISSING).all(axis=1)]
        found = np.bincount(np.ravel_multi_index(tuple(there.T), shape), minlength=int(np.prod(shape)))
        return np.asarray(found * (self.persons / len(codes)), np.float64).reshape(shape)

    # Columns.

    def _one_ways(self) -> tuple[OneWay, ...]:
        found = []
        for name, synthetic in zip(self.names, self.synthetic([(name,) for name in self.names]), strict=True):
            measured: tuple[float, ...] | None = None
            low: tuple[float, ...] = ()
            high: tuple[float, ...] = ()
            if self.published and self._noisy.counts([name]) is not None:
                intervals = self._noisy.estimate(group_by=name)
                measured = tuple(one.count for one in intervals)
                low, high = tuple(one.low or 0.0 for one in intervals), tuple(one.high or 0.0 for one in intervals)
            found.append(OneWay(name, self.cells[name], tuple(synthetic.tolist()), measured, low, high))
        return tuple(found)

    def _scores(self) -> tuple[Score, ...]:
        fits: dict[int, list[Fit]] = {}
        for one in self.report.quality.marginals:
            fits.setdefault(len(one.attributes), []).append(one)
        return tuple(self._score(columns, group) for columns, group in sorted(fits.items()))

    def _score(self, columns: int, fits: Sequence[Fit]) -> Score:
        twice = 2 * max(self.persons, 1.0)

        def agreeing(distances: Iterable[float]) -> float:
            return float(np.mean([max(0.0, 1 - distance / twice) for distance in distances]))

        like = None
        if self.published:
            # A sample of a share q errs by about sqrt(2 / pi) sqrt(n (1 - q) / q) in a cell of n persons.
            spreads = [
                float(np.sqrt(2 / pi * np.maximum(table, 0)).sum())
                for table in self.synthetic([one.attributes for one in fits])
            ]
            like = float(np.mean([a * a / (a * a + b.noise**2) for a, b in zip(spreads, fits, strict=True)]))
        return Score(
            columns,
            len(fits),
            agreeing(one.distance for one in fits),
            agreeing(one.noise for one in fits),
            like,
        )

    # Pairs.

    def _pairs(self) -> Iterator[Pair]:
        sizes = [len(self.cells[name]) for name in self.names]
        joined = _components(len(self.names), self._positions(self._measured))
        seen = {pair for clique in self._positions(self._measured) for pair in combinations(clique, 2)}
        bounds = self._bounds() if self.published else {}
        for first in range(len(sizes) - 1):
            others = range(first + 1, len(sizes))
            tables = self.synthetic([(self.names[first], self.names[second]) for second in others])
            for second, table in zip(others, tables, strict=True):
                pair = first, second
                state: State = (
                    "measured" if pair in seen else "implied" if joined[first] == joined[second] else "unknown"
                )
                clique = self.names[first], self.names[second]
                least, noise = bounds.get(clique, inf), self._noise(clique)
                if noise is not None and (direct := self._explained(clique, table)) is not None:
                    least = min(least, direct)
                vacuous = least >= 2 * self.persons  # whatever the data are, no two tables are further apart
                yield Pair(pair, state, None if vacuous else least, noise, _association(table))

    def worst_pairs(self, most: int = 5) -> list[Pair]:
        """The pairs with the largest bounds in units of noise; those without a bound come first."""
        order = {"unknown": 0, "implied": 1, "measured": 2}
        known = sorted(self.pairs.values(), key=lambda one: (-(one.ratio or inf), order[one.state], one.columns))
        return known[:most] if self.published else []

    def pair(self, first: int, second: int) -> tuple[Floats, Floats | None, float]:
        """The synthetic counts of a pair's cells, the noisy ones if there are any, and the deviation of their noise."""
        clique = self.names[first], self.names[second]
        measured = self._noisy.counts(clique) if self.published else None
        synthetic = self.synthetic([clique])[0]
        return synthetic, None if measured is None else measured.values, 0.0 if measured is None else measured.deviation

    @property
    def _measured(self) -> list[Clique]:
        return [one.attributes for one in self.report.quality.marginals]

    def _positions(self, cliques: Iterable[Clique]) -> list[tuple[int, ...]]:
        return [tuple(sorted(self.names.index(name) for name in clique)) for clique in cliques]

    @property
    def _tables(self) -> tuple[NoisyMarginal, ...]:
        return () if self.measurements is None else self.measurements.measurements

    @property
    def _laplace(self) -> bool:
        return any(one.noise == Laplace.kind for one in self._tables)

    @cached_property
    def _usual(self) -> float | None:
        """The noise of a table of several columns: the median of those measured, or of all if none has several."""
        several = [one.sigma for one in self._tables if len(one.attributes) > 1]
        every = several or [one.sigma for one in self._tables]
        return float(np.median(every)) if every else None

    def _noise(self, clique: Clique) -> float | None:
        """The distance that noise alone makes: the pair's own, or what it would be if it had been measured."""
        measured = self._noisy.counts(clique) if self.published else None
        deviation = self._usual if measured is None else measured.deviation
        size = len(self.cells[clique[0]]) * len(self.cells[clique[1]])
        return None if deviation is None else size * deviation * (1 / sqrt(2) if self._laplace else sqrt(2 / pi))

    def _explained(self, clique: Clique, table: Floats) -> float | None:
        """The bound from a measurement."""
        measured = self._noisy.counts(clique)
        if measured is None:
            return None
        distance = float(np.abs(measured.values - table).sum())
        return distance + self._largest_noise(table.size, measured.deviation)

    @cached_property
    def _tail(self) -> float:
        """ln(1 / probability) of each event that may break a bound: each selection, and each table of noise."""
        pairs = len(self.names) * (len(self.names) - 1) // 2
        return ln((len(self._selections) + len(self._tables) + pairs) / TOGETHER)

    def _largest_noise(self, cells: int, deviation: float) -> float:
        """The sum of the absolute values of so much noise, except with a probability of e^-tail.

        Normal noise: the sum is Lipschitz with constant sqrt(cells). Laplace noise: the sum has a Gamma law.
        """
        if self._laplace:
            return deviation / sqrt(2) * (cells + sqrt(2 * cells * self._tail) + self._tail)
        return deviation * (cells * sqrt(2 / pi) + sqrt(2 * cells * self._tail))

    @cached_property
    def _selections(self) -> list[tuple[Selection, int]]:
        """The selections of the run, each with the position that was selected."""
        found = []
        for step in self._steps():
            if step["request"]["kind"] == "select":
                request = request_from_json(step["request"])
                assert isinstance(request, Selection)
                found.append((request, int(step["answer"]["value"])))
        return found

    def _bounds(self) -> dict[Clique, float]:
        """Pairs with the least bound that selections give."""
        cliques = self._compared()
        model = [table.ravel() for table in self._model.marginals(cliques)]
        number = {clique: position for position, clique in enumerate(cliques)}
        sizes, unit = self._sizes, 1 << UNIT_BITS
        least = np.full(len(cliques), inf)
        for selection, chosen in self._selections:
            ends = np.cumsum([sizes[clique] for clique in selection.candidates])
            measured = self._noisy.counts(selection.candidates[chosen])
            weights, biases = selection.weights.astype(np.float64), selection.bias.astype(np.float64)
            listed = [number.get(clique, -1) for clique in selection.candidates]
            known = np.flatnonzero((np.array(listed) >= 0) & (weights > 0))
            if measured is None or not known.size:
                continue
            estimates = np.split(selection.estimate / unit, ends[:-1])
            error = float(np.abs(measured.values.ravel() - estimates[chosen]).sum())
            error += self._largest_noise(measured.values.size, measured.deviation)
            largest = int(np.abs(selection.weights).max())
            scale = float(selection.mechanism.scale(largest << UNIT_BITS, self.manifest.task.neighbouring))
            score = weights[chosen] * (unit * error - biases[chosen])
            score += scale * (ln(len(selection.candidates)) + self._tail)
            ours = np.array(listed)[known]
            moved = np.abs(
                np.concatenate([estimates[one] for one in known]) - np.concatenate([model[one] for one in ours])
            )
            starts = np.concatenate([[0], np.cumsum([model[one].size for one in ours])[:-1]])
            away = (score / weights[known] + biases[known]) / unit + np.add.reduceat(moved, starts)
            least[ours] = np.minimum(least[ours], away)
        found: dict[Clique, float] = {}
        for clique, bound in zip(cliques, least.tolist(), strict=True):
            for pair in combinations(clique, 2):
                if bound < found.get(pair, inf) and self._noisy.covers(clique, pair):
                    found[pair] = bound
        return found

    @cached_property
    def _sizes(self) -> dict[Clique, int]:
        """The cells of every table that can be asked for."""
        return dict(zip(self.manifest.layout.cliques, self.manifest.layout.sizes, strict=True))

    def _compared(self) -> list[Clique]:
        """The candidates of selections that have a pair, the smallest first, as many as fit."""
        cells, found = 0, []
        distinct = {clique for selection, _ in self._selections for clique in selection.candidates if len(clique) > 1}
        for clique in sorted(distinct, key=lambda one: (self._sizes[one], one)):
            cells += self._sizes[clique]
            if cells > _MOST_CELLS:
                break
            found.append(clique)
        return found

    # Residuals.

    def _residuals(self) -> Residuals:
        tables = self.synthetic([one.attributes for one in self._tables])
        found = [
            (one, (table.ravel() - np.array(one.values, np.float64)) / one.sigma)
            for one, table in zip(self._tables, tables, strict=True)
        ]
        shown = [f"{(low + high) / 2:g}" for low, high in pairwise(EDGES)]
        shown[0], shown[-1] = f"≤ {shown[0]}", f"≥ {shown[-1]}"
        counted, expected = np.zeros(len(shown), np.int64), np.zeros(len(shown))
        inner = EDGES[1:-1]
        worst: list[Residual] = []
        for one, values in found:
            counted += np.bincount(np.searchsorted(inner, values), minlength=len(shown))
            law = _laplace_below if one.noise == Laplace.kind else _normal_below
            expected += values.size * np.diff([0.0, *(law(edge) for edge in inner), 1.0])
            worst += _worst_of(one, values)
        return Residuals(
            tuple(shown),
            tuple(counted.tolist()),
            tuple(expected.tolist()),
            tuple(sorted(worst, key=lambda residual: -abs(residual.sigmas))[:_WORST]),
            float(np.sqrt(np.mean(np.concatenate([values for _, values in found]) ** 2))) if found else None,
        )

    # Rounds.

    def _rounds(self) -> tuple[Round, ...]:
        found: dict[int, list[Clique]] = {}
        for number, clique in self._in_rounds():
            found.setdefault(number, []).append(clique)
        return tuple(Round(number, tuple(cliques)) for number, cliques in sorted(found.items()))

    def _in_rounds(self) -> Iterator[tuple[int, Clique]]:
        if not self.published:  # the report has them in the order of steps; columns come first
            number = 0
            for clique in self._measured:
                number += len(clique) > 1
                yield number, clique
            return
        for step in self._steps():
            if step["request"]["kind"] == "measure":
                request = request_from_json(step["request"])
                assert isinstance(request, Measurement)
                digits = request.step.removeprefix("round").partition("-")[0]
                yield int(digits) if digits.isdigit() else 0, request.clique


class AllFindings:
    """The findings of a coordinator's releases; those of the last few are held in memory."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._held: Recent[str, Findings] = Recent(MOST_KEPT)

    def of(self, release: str) -> Findings:
        """Of one release. Raises Problem if it is not published."""
        found = self._publisher.release(release)
        return self._held.find(release) or self._held.keep(release, self._findings(found))

    def prepare(self, release: Release) -> None:
        """Before a release is published. A figure that cannot be computed must not hold it back."""
        try:
            self._findings(release).prepare()
        except Exception as error:  # noqa: BLE001  whoever looks at the page sees it again; its text may quote a value
            logs.say(log, "findings not computed", level=logging.WARNING, error=type(error).__name__)

    def _findings(self, release: Release) -> Findings:
        return Findings(release, partial(self._publisher.file, release.release))


def cells_of(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """The public names of all cells, by column."""
    return {name: tuple(labels(manifest.schema_, name)) for name in manifest.domain.names}


def _components(count: int, cliques: Iterable[Sequence[int]]) -> list[int]:
    """For each position, the least one that a chain of cliques joins it to."""
    found = list(range(count))
    for clique in cliques:
        least = min(found[one] for one in clique)
        merged = {found[one] for one in clique}
        found = [least if one in merged else one for one in found]
    return found


def _worst_of(table: NoisyMarginal, sigmas: Floats) -> list[Residual]:
    """The cells of a table that the model explains worst."""
    cells = list(product(*table.categories)) if sigmas.size else []
    return [
        Residual(
            table.attributes,
            cells[place],
            table.values[place] + float(sigmas[place]) * table.sigma,
            table.values[place],
            float(sigmas[place]),
        )
        for place in np.argsort(-np.abs(sigmas))[:_WORST].tolist()
    ]


def _association(table: Floats) -> float:
    """Cramér's V of a table of counts."""
    counts = np.maximum(table, 0)
    total = counts.sum()
    if total <= 0 or min(counts.shape) < 2:
        return 0.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    squares = np.divide((counts - expected) ** 2, expected, out=np.zeros_like(expected), where=expected > 0)
    return float(min(1.0, sqrt(squares.sum() / total / (min(counts.shape) - 1))))


def _normal_below(value: float) -> float:
    return (1 + erf(value / sqrt(2))) / 2


def _laplace_below(value: float) -> float:
    tail = exp(-sqrt(2) * abs(value)) / 2
    return tail if value < 0 else 1 - tail
