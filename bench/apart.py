"""Whole studies with the three servers far apart: AIM, with its rounds, beside SWIFT, with three openings.

The lines are those of `bench.network`. A study goes from the upload to published rows; its MPC rounds are all that
server S1 counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from statistics import mean, median
from typing import Any

from bench import studies
from bench.datasets import load
from bench.network import LINES, Looker, far_apart
from caps.data.quality import workload_error
from services.coordinator.algorithms import all_pairs

ALGORITHMS = ("aim", "swift")
GOAL, GOAL_LINE = 5.0, "80 ms"
"""How many times faster SWIFT is to be, and where."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--dataset", default="diabetes.caps")
    parser.add_argument("--setting", default="vertical", choices=studies.SETTINGS)
    parser.add_argument("--repeats", type=int, default=3, help="studies of each algorithm on each line (default 3)")
    parser.add_argument("--lines", nargs="+", default=["relay", "20 ms", GOAL_LINE], choices=list(LINES))


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One key per line and algorithm: the median of times and rounds, and the mean error."""
    report: dict[str, Any] = {}
    dataset = load(options.dataset)
    layout, truth = all_pairs(dataset.domain).layout(dataset.domain), dataset.codes[dataset.train]
    for name in options.lines:
        with far_apart(LINES[name]) as federation:
            for algorithm in ALGORITHMS:
                runs = []
                for i in range(options.repeats + 1):  # the first warms up
                    look = Looker(federation)
                    codes, entry = studies.perform(
                        federation, dataset, algorithm=algorithm, setting=options.setting, seed=i, watch=look
                    )
                    look.counted()
                    rounds, sent = look.total
                    error = workload_error(layout, truth, codes)
                    runs.append({**entry, "mpc_rounds": rounds, "mpc_bytes": sent, "error": error})
                report[f"{name}, {algorithm}"] = {
                    "dataset": options.dataset,
                    "setting": options.setting,
                    "error": mean(run["error"] for run in runs[1:]),
                    **{what: median(run[what] for run in runs[1:]) for what in ("seconds", "run", "loop", "steps")},
                    "mpc_rounds": median(run["mpc_rounds"] for run in runs[1:]),
                    "mpc_bytes": median(run["mpc_bytes"] for run in runs[1:]),
                }
                record(report)
    return report


def faster(report: Mapping[str, Any], line: str) -> float | None:
    """How many times faster than the first algorithm the other is on a line; None if either was not measured."""
    first, other = (report.get(f"{line}, {algorithm}") for algorithm in ALGORITHMS)
    return first["seconds"] / other["seconds"] if first and other else None


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<22}{'error':>9}{'steps':>7}{'MPC rounds':>12}{'kB':>9}{'run s':>9}{'study s':>9}{'faster':>8}"]
    for name, entry in report.items():
        line, _, algorithm = name.rpartition(", ")
        times = faster(report, line) if algorithm != ALGORITHMS[0] else None
        missed = "  MISSED" if times is not None and line == GOAL_LINE and times < GOAL else ""
        lines.append(
            f"{name:<22}{entry['error']:>9.4f}{entry['steps']:>7.0f}{entry['mpc_rounds']:>12.0f}"
            f"{entry['mpc_bytes'] / 1e3:>9.1f}{entry['run']:>9.2f}{entry['seconds']:>9.2f}"
            + (f"{times:>7.1f}x" if times is not None else "")
            + missed
        )
    return "\n".join(lines)
