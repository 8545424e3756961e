"""Federated runs beside central ones (the paper's Table 1): classifiers and workload error.

CDP is the clear twin. CaPS(H), (V) and mixed are whole studies: CSV files, three servers over TLS, downloaded rows. One
split into train and test rows per dataset; seeds differ in noise, in the division among holders and in sampling. What
was measured before is kept: a command given again goes on where it ended.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench import central, results, studies
from bench.datasets import Dataset, load
from bench.quality import METRICS, classifier_scores
from caps.data.domain import Codes
from caps.data.quality import workload_error
from deploy.federation import Federation
from services.coordinator.algorithms import all_pairs

NAMES = ("breast-cancer.caps", "compas-caps", "diabetes.caps")
ALGORITHMS = ("aim", "mwem")
EPSILONS = ("1", "0.1", "10")
ADULT = "adult"
CENTRAL = "central"
MARGIN = 1.0
"""Spreads of CDP within which two means count as equivalent."""
Floats = npt.NDArray[np.float64]
_TINY = 1e-12

PAPER = {
    ("breast-cancer.caps", "aim"): {
        "central": (0.49, 0.58, 0.47, 0.54, 0.30),
        "horizontal": (0.49, 0.45, 0.43, 0.44, 0.23),
        "vertical": (0.51, 0.53, 0.48, 0.51, 0.23),
    },
    ("breast-cancer.caps", "mwem"): {
        "central": (0.50, 0.51, 0.48, 0.44, 0.24),
        "horizontal": (0.55, 0.54, 0.49, 0.46, 0.21),
        "vertical": (0.44, 0.49, 0.43, 0.50, 0.21),
    },
    ("compas-caps", "aim"): {
        "central": (0.67, 0.65, 0.62, 0.61, 0.017),
        "horizontal": (0.66, 0.65, 0.62, 0.61, 0.019),
        "vertical": (0.68, 0.67, 0.63, 0.62, 0.015),
    },
    ("compas-caps", "mwem"): {
        "central": (0.66, 0.62, 0.62, 0.59, 0.022),
        "horizontal": (0.66, 0.61, 0.60, 0.58, 0.022),
        "vertical": (0.66, 0.64, 0.61, 0.60, 0.022),
    },
    ("diabetes.caps", "aim"): {
        "central": (0.76, 0.74, 0.68, 0.66, 0.14),
        "horizontal": (0.77, 0.72, 0.65, 0.63, 0.13),
        "vertical": (0.73, 0.71, 0.66, 0.63, 0.13),
    },
    ("diabetes.caps", "mwem"): {
        "central": (0.62, 0.57, 0.55, 0.55, 0.15),
        "horizontal": (0.64, 0.60, 0.52, 0.56, 0.14),
        "vertical": (0.67, 0.63, 0.60, 0.58, 0.14),
    },
}
"""CaPS (ICML 2024), Table 1, means of 3 runs at epsilon 1, in the order of METRICS."""


class Case(NamedTuple):
    """What distinguishes one run from all others."""

    dataset: str
    algorithm: str
    epsilon: str
    setting: str
    seed: int


KEY = Case._fields


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--seeds", type=int, default=20, help="runs of each kind at epsilon 1 (default 20)")
    parser.add_argument("--other-seeds", type=int, default=3, help="runs of each kind at other epsilons (default 3)")
    parser.add_argument("--adult-seeds", type=int, default=2, help="runs of each kind on adult (default 2)")
    for name, choices in (
        ("datasets", (*NAMES, ADULT)),
        ("algorithms", ALGORITHMS),
        ("epsilons", EPSILONS),
        ("settings", (CENTRAL, *studies.SETTINGS)),
    ):
        parser.add_argument(f"--{name}", nargs="+", default=choices, choices=choices, help="only these (default: all)")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run after so many minutes (default 600)")


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Every run that is not there yet; `record` is told after each."""
    before = results.current("federated")
    runs: list[dict[str, Any]] = before["report"]["runs"] if before else []
    known = {_case(run) for run in runs}
    deadline = time.monotonic() + 60 * options.minutes
    with ExitStack() as stack:

        @cache
        def federation() -> Federation:
            return stack.enter_context(studies.federation())

        for case in plan(options):
            if case in known:
                continue
            if time.monotonic() > deadline:
                break
            codes, timing = _perform(case, federation)
            dataset = _dataset(case.dataset)
            runs.append({**case._asdict(), **scores(dataset, codes), "rows": len(codes), **timing})
            record({"runs": runs})
    return {"runs": runs}


def plan(options: argparse.Namespace) -> Iterator[Case]:
    """The paper's tables at epsilon 1, then at other epsilons, then adult: AIM at epsilon 1.

    Each has the central runs first, then the services', seed by seed: what is cut short is balanced.
    """
    for names, algorithms, epsilons, seeds in (
        (NAMES, ALGORITHMS, EPSILONS[:1], options.seeds),
        (NAMES, ALGORITHMS, EPSILONS[1:], options.other_seeds),
        ((ADULT,), ALGORITHMS[:1], EPSILONS[:1], options.adult_seeds),
    ):
        for settings in ((CENTRAL,), studies.SETTINGS):
            for seed, epsilon, name, chosen, setting in product(range(seeds), epsilons, names, algorithms, settings):
                case = Case(name, chosen, epsilon, setting, seed)
                if _wanted(case, options):
                    yield case


def _wanted(case: Case, options: argparse.Namespace) -> bool:
    return (
        case.dataset in options.datasets
        and case.algorithm in options.algorithms
        and case.epsilon in options.epsilons
        and case.setting in options.settings
    )


def _case(run: Mapping[str, Any]) -> Case:
    return Case(*(run[key] for key in KEY))


def _perform(case: Case, federation: Callable[[], Federation]) -> tuple[Codes, dict[str, Any]]:
    name, chosen, epsilon, setting, seed = case
    dataset = _dataset(name)
    if setting == CENTRAL:
        return central.perform(dataset, chosen, epsilon, seed=seed)
    return studies.perform(
        federation(), dataset, algorithm=chosen, setting=setting, epsilon=epsilon, seed=seed, timeout=3600
    )


@cache
def _dataset(name: str) -> Dataset:
    return load(name)


def scores(dataset: Dataset, codes: Codes) -> dict[str, float]:
    """Everything in METRICS."""
    layout = all_pairs(dataset.domain).layout(dataset.domain)
    found = classifier_scores(dataset.domain, dataset.label, codes, dataset.codes[dataset.test])
    return found | {"error": workload_error(layout, dataset.codes[dataset.train], codes)}


def summarise(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each dataset, algorithm, epsilon and setting: mean and spread of every metric, and how it compares to CDP."""
    groups, rows = _groups(report), []
    for kind, runs in groups.items():
        row: dict[str, Any] = {**dict(zip(KEY, kind, strict=False)), "runs": len(runs)}
        base = groups.get((*kind[:-1], CENTRAL), [])
        for metric in METRICS:
            values = _values(runs, metric)
            row[metric] = {"mean": float(values.mean()), "spread": _spread(values)}
            if row["setting"] != CENTRAL and len(base) > 1 and len(runs) > 1:
                row[metric] |= compare(values, _values(base, metric))
        rows.append(row)
    return sorted(rows, key=lambda row: tuple(str(row[key]) for key in KEY[:-1]))


def pooled(report: Mapping[str, Any], setting: str, metric: str, epsilon: str = "1") -> dict[str, Any] | None:
    """All datasets and algorithms together, each in units of its own CDP spread about its own CDP mean."""
    groups, ours, theirs = _groups(report), [], []
    for name, chosen in product((*NAMES, ADULT), ALGORITHMS):
        base, runs = (groups.get((name, chosen, epsilon, where), []) for where in (CENTRAL, setting))
        if len(base) > 2 and len(runs) > 1:
            values = _values(base, metric)
            mean, spread = values.mean(), _spread(values) or _TINY
            theirs.append((values - mean) / spread)
            ours.append((_values(runs, metric) - mean) / spread)
    return compare(np.concatenate(ours), np.concatenate(theirs)) if ours else None


def _groups(report: Mapping[str, Any]) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """Runs that differ in the seed alone."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in report["runs"]:
        groups.setdefault(tuple(run[key] for key in KEY[:-1]), []).append(run)
    return groups


def _values(runs: Sequence[Mapping[str, Any]], metric: str) -> Floats:
    return np.array([run[metric] for run in runs], np.float64)


def compare(values: Floats, base: Floats) -> dict[str, Any]:
    """Two one-sided t tests (Welch) at 5 %, as the 90 % interval of the difference of means in spreads of the base.

    Equivalent if the interval lies within +-MARGIN. `within`: the mean is no more than a spread from the base's mean.
    """
    from scipy import stats  # type: ignore[import-untyped]

    spread = _spread(base) or _TINY
    difference = (values.mean() - base.mean()) / spread
    a, b = values.var(ddof=1) / len(values), base.var(ddof=1) / len(base)
    freedom = (a + b) ** 2 / (a**2 / (len(values) - 1) + b**2 / (len(base) - 1)) if a + b else 1.0
    half = float(stats.t.ppf(0.95, freedom)) * np.sqrt(a + b) / spread
    return {
        "difference": float(difference),
        "interval": [float(difference - half), float(difference + half)],
        "equivalent": bool(abs(difference) + half < MARGIN),
        "within": bool(abs(difference) <= 1),
    }


def _spread(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<44}{'runs':>5}" + "".join(f"{metric:>18}" for metric in METRICS)]
    for row in summarise(report):
        label = f"{row['dataset']} {row['algorithm']} eps={row['epsilon']} {row['setting']}"
        cells = "".join(f"{row[m]['mean']:>10.3f} +-{row[m]['spread']:.3f}" for m in METRICS)
        lines.append(f"{label:<44}{row['runs']:>5}{cells}")
    return "\n".join(lines)
