"""Run time (the paper's Table 2): whole studies through the services beside central AIM and MWEM+PGM, in one run.

Central with our estimator runs in this process, warm; central with `mbi` 2 in a process of its own, as its users would.
The services' time goes from the upload to the release; approvals come before it and are shown beside it. Each is the
median of `--repeats`, `mbi` but one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import product
from statistics import median
from typing import Any

from bench import central, studies
from bench.datasets import load
from bench.federated import ALGORITHMS, NAMES

PAPER = {
    ("breast-cancer.caps", "aim"): (98.065, 99.789, 98.992),
    ("breast-cancer.caps", "mwem"): (81.187, 82.905, 100.295),
    ("compas-caps", "aim"): (153.383, 155.559, 301.390),
    ("compas-caps", "mwem"): (61.477, 61.656, 152.153),
    ("diabetes.caps", "aim"): (97.222, 113.909, 97.403),
    ("diabetes.caps", "mwem"): (60.926, 63.727, 91.760),
}
"""CaPS (ICML 2024), Table 2: seconds of CDP, CaPS(H), CaPS(V) on 8 vCPUs, simulated on one machine."""

PARTS = ("agree", "upload", "begin", "compute", "select", "measure", "generate", "waiting", "publish")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--datasets", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--without-peers", action="store_true", help="skip mbi, which takes minutes")
    parser.add_argument("--schemes", action="store_true", help="studies under every scheme, without central runs")


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One key per dataset and algorithm."""
    report: dict[str, Any] = {}
    with studies.federation() as federation:
        studies.perform(federation, load(options.datasets[0]), algorithm="aim", setting="horizontal")  # warms up
        for chosen, name in product(options.algorithms, options.datasets):
            dataset = load(name)
            central.perform(dataset, chosen, "1")  # compiles
            runs = [central.perform(dataset, chosen, "1")[1] for _ in range(options.repeats)]
            entry: dict[str, Any] = {"central": middle(runs)}
            for setting in ("horizontal", "vertical"):
                runs = [
                    studies.perform(federation, dataset, algorithm=chosen, setting=setting, seed=i)[1]
                    for i in range(options.repeats)
                ]
                entry[setting] = middle(runs)
            report[f"{name}/{chosen}"] = entry
            record(report)
            if not options.without_peers:
                entry["mbi"] = _mbi(name, chosen)
                record(report)
    return report


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of median time, and the time of all."""
    chosen = min(runs, key=lambda run: abs(run["seconds"] - median(one["seconds"] for one in runs)))
    return {**chosen, "all": [run["seconds"] for run in runs]}


def _mbi(dataset: str, chosen: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.central", "mbi", dataset, chosen, "1"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=3600,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def allowed(entry: Mapping[str, Any]) -> dict[str, float | None]:
    """Seconds within which each goal is met, if known: central `mbi`'s; twice our central time and 3 s."""
    return {
        "beats mbi": entry["mbi"]["seconds"] if "mbi" in entry else None,
        "within 2x + 3 s": 2 * entry["central"]["seconds"] + 3,
    }


def goals(entry: Mapping[str, Any]) -> dict[str, bool | None]:
    """Whether H and V meet each goal."""
    return {
        f"{setting} {goal}": None if limit is None else entry[setting]["seconds"] <= limit
        for setting in ("horizontal", "vertical")
        for goal, limit in allowed(entry).items()
    }


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<42}{'seconds':>9}{'rounds':>7}" + "".join(f"{part:>9}" for part in PARTS)]
    for name, entry in report.items():
        for kind, one in entry.items():
            found = {**one, **one["parts"]}
            cells = "".join(f"{found[part]:>9.2f}" if part in found else f"{'':>9}" for part in PARTS)
            lines.append(f"{name + ' ' + kind:<42}{one['seconds']:>9.2f}{one['rounds']:>7}{cells}")
    return "\n".join(lines)
