"""How our mechanisms compare with the published ones and with the floor, from runs paired by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.quality import ALL, CLASSIFIERS
from bench.utility_tasks import ALGORITHMS, FLOOR, OURS

DEVELOPMENT = ("breast-cancer.caps", "compas-caps", "diabetes.caps", "tx10s", "digits")
"""Tables on which constants of mechanisms may be chosen: the three on which some were before there was this suite, and
two that were named with it, before its first run. No other table may be looked at to choose one."""
RELATIVES = {
    "breast-cancer": "breast-cancer.caps",
    "compas": "compas-caps",
    "diabetes": "diabetes.caps",
    "tx10": "tx10s",
}
"""Tables that share persons with a development table, in another coding or with more rows; they are reported apart."""
HALVES = ("development", "relatives", "held out")
JUDGED = ("pair", "worst_pair", "lr_auc", "rf_auc")
"""Metrics in which ours may nowhere be worse than the original."""
FLOOR_MARGIN = 1.05
SWIFT_MARGIN, SWIFT_EPSILON = 1.1, "1"
"""How much more pair error than AIM's SWIFT may have, for its few rounds, and at which epsilon."""
GAIN = 0.95
"""The ratio of mean pair errors, over everything, that ours is to reach."""
LEVEL = 0.95
Run = Mapping[str, Any]
Kind = tuple[str, str, str]
"""Table, epsilon and mechanism."""
Floats = npt.NDArray[np.float64]


def half(table: str) -> str:
    """Where a table is reported. Any table that is not named here is held out."""
    return "development" if table in DEVELOPMENT else "relatives" if table in RELATIVES else "held out"


@dataclass(frozen=True)
class Paired:
    """Ours and the original in one metric: means over the seeds that both have, and the mean difference.

    The interval is that of Student's t at LEVEL. A mechanism that fails has no figures: ours failing where the original
    does not is the verdict `failed`.
    """

    table: str
    epsilon: str
    algorithm: str
    metric: str
    seeds: int
    ours: float
    original: float
    difference: float
    half_width: float
    verdict: str


def groups(runs: Iterable[Run]) -> dict[Kind, dict[int, Run]]:
    """Runs by kind, sorted, and by seed."""
    found: dict[Kind, dict[int, Run]] = {}
    for one in runs:
        found.setdefault((one["table"], one["epsilon"], one["mechanism"]), {})[one["seed"]] = one
    return dict(sorted(found.items(), key=lambda item: (item[0][0], float(item[0][1]), item[0][2])))


def paired(runs: Iterable[Run], metrics: Sequence[str] = ALL) -> list[Paired]:
    """Every table, epsilon, algorithm and metric that both ours and the original have runs of."""
    by_kind, found = groups(runs), []
    for (table, epsilon, mechanism), ours in by_kind.items():
        theirs = by_kind.get((table, epsilon, f"original-{mechanism}"))
        if mechanism not in ALGORITHMS or theirs is None:
            continue
        for metric in metrics:
            made = _pair((table, epsilon, mechanism), metric, ours, theirs)
            if made is not None:
                found.append(made)
    return found


def _pair(kind: Kind, metric: str, ours: Mapping[int, Run], theirs: Mapping[int, Run]) -> Paired | None:
    table, epsilon, algorithm = kind
    seeds = sorted(ours.keys() & theirs.keys())
    both = [(ours[seed], theirs[seed]) for seed in seeds if metric in ours[seed] and metric in theirs[seed]]
    failed = any("failed" in ours[seed] and metric in theirs[seed] for seed in seeds)
    if not both and not failed:
        return None
    a, b = (np.array([pair[side][metric] for pair in both], np.float64) for side in (0, 1))
    if not both:
        unknown = float("nan")
        return Paired(table, epsilon, algorithm, metric, 0, unknown, unknown, unknown, unknown, "failed")
    difference, width = difference_of(a - b)
    verdict = "failed" if failed else judge(metric, difference, width)
    return Paired(
        table, epsilon, algorithm, metric, len(both), float(a.mean()), float(b.mean()), difference, width, verdict
    )


def difference_of(values: Floats) -> tuple[float, float]:
    """The mean, and half the width of its interval: infinite for one value."""
    from scipy import stats  # type: ignore[import-untyped]

    if len(values) < 2:
        return float(values.mean()), float("inf")
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return float(values.mean()), quantile * float(values.std(ddof=1)) / sqrt(len(values))


def judge(metric: str, difference: float, width: float) -> str:
    """Of ours: better or worse if the interval says which, else within noise."""
    if abs(difference) <= width:
        return "within noise"
    return "better" if (difference > 0) == (metric in CLASSIFIERS) else "worse"


def ratio(comparisons: Iterable[Paired], metric: str = "pair") -> float | None:
    """The geometric mean of ours / original over tables and epsilons; None if nothing was compared."""
    logs = [
        log(one.ours / one.original) for one in comparisons if one.metric == metric and one.seeds and one.original > 0
    ]
    return exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Floored:
    """Ours beside the better of the trivial baselines, in mean pair error."""

    table: str
    epsilon: str
    algorithm: str
    ours: float
    floor: float
    which: str

    @property
    def met(self) -> bool:
        """Whether ours is at most a twentieth above the floor. A mechanism without a run that ended is not."""
        return self.ours <= FLOOR_MARGIN * self.floor


def floored(runs: Iterable[Run]) -> list[Floored]:
    """Every table, epsilon and algorithm that has both baselines."""
    means = {kind: _mean_pair(found) for kind, found in groups(runs).items()}
    found = []
    for (table, epsilon, mechanism), ours in means.items():
        base = {name: means.get((table, epsilon, name)) for name in FLOOR}
        known = {name: value for name, value in base.items() if value is not None}
        if mechanism in OURS and len(known) == len(FLOOR):
            which = min(known, key=lambda name: known[name])
            mean = float("inf") if ours is None else ours
            found.append(Floored(table, epsilon, mechanism, mean, known[which], which))
    return found


@dataclass(frozen=True)
class Beside:
    """SWIFT beside AIM, in mean pair error. `spread`: the standard error of the ratio; infinite for one seed each."""

    table: str
    epsilon: str
    swift: float
    aim: float
    spread: float

    @property
    def ratio(self) -> float:
        """SWIFT's error in units of AIM's."""
        return self.swift / self.aim


def beside_aim(runs: Iterable[Run]) -> list[Beside]:
    """Every table and epsilon that both have runs of. Their noise is not the same, so seeds are not paired."""
    by_kind, found = groups(runs), []
    for (table, epsilon, mechanism), swift in by_kind.items():
        aim = by_kind.get((table, epsilon, "aim"))
        if mechanism == "swift" and aim and all("pair" in one for one in (*swift.values(), *aim.values())):
            (mean, error), (other, other_error) = _errors(swift), _errors(aim)
            spread = mean / other * sqrt((error / mean) ** 2 + (other_error / other) ** 2)
            found.append(Beside(table, epsilon, mean, other, spread))
    return found


def _errors(runs: Mapping[int, Run]) -> tuple[float, float]:
    """The mean pair error and its standard error."""
    values = np.array([one["pair"] for one in runs.values()])
    return float(values.mean()), float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else float("inf")


def _mean_pair(runs: Mapping[int, Run]) -> float | None:
    """None if a run failed."""
    values = [one.get("pair") for one in runs.values()]
    return None if None in values else float(np.mean([value for value in values if value is not None]))


def lines(runs: Sequence[Run]) -> list[str]:
    """What a person reads: every comparison, then the verdicts by half, the ratios and the floor."""
    comparisons, floors = paired(runs), floored(runs)
    found = [f"{'':<34}{'metric':>18}{'seeds':>6}{'ours':>9}{'original':>10}{'difference':>12}{'95 %':>10}  verdict"]
    for one in comparisons:
        label = f"{one.table} eps={one.epsilon} {one.algorithm}"
        found.append(
            f"{label:<34}{one.metric:>18}{one.seeds:>6}{one.ours:>9.4f}{one.original:>10.4f}"
            f"{one.difference:>+12.4f}{'+-' + format(one.half_width, '.4f'):>10}  {one.verdict}"
        )
    for name in (*HALVES, None):
        those = [one for one in comparisons if name in (None, half(one.table))]
        if those:
            found += ["", f"{name or 'all tables'}:", *(f"  {line}" for line in _summary(those))]
    found += ["", f"floor (at most {FLOOR_MARGIN:g} x the better of uniform and columns):"]
    found += [
        f"  {one.table} eps={one.epsilon} {one.algorithm}: {one.ours:.4f}, {one.which} {one.floor:.4f}"
        f" = {one.ours / one.floor:.2f} x" + ("" if one.met else "  ABOVE")
        for one in floors
    ]
    found += ["", f"SWIFT beside AIM, mean pair error (at most {SWIFT_MARGIN:g} x at epsilon {SWIFT_EPSILON}):"]
    found += [
        f"  {one.table} eps={one.epsilon}: {one.swift:.4f}, aim {one.aim:.4f} = {one.ratio:.2f} +- {one.spread:.2f} x"
        for one in beside_aim(runs)
    ]
    return found


def _summary(those: Sequence[Paired]) -> list[str]:
    found = []
    for metric in ALL:
        verdicts = Counter(one.verdict for one in those if one.metric == metric)
        if verdicts:
            found.append(f"{metric:<18}" + ", ".join(f"{number} {name}" for name, number in sorted(verdicts.items())))
    for algorithm in (*ALGORITHMS, None):
        value = ratio(one for one in those if algorithm in (None, one.algorithm))
        if value is not None:
            found.append(f"mean pair error, ours / original, geometric mean, {algorithm or 'all'}: {value:.3f}")
    return found
