"""Fitting the graphical model: round by round, the compiled estimator beside `mbi` 2, and in whole runs of AIM.

Round by round, the measurements are the same for both: computed once, from the paper's three datasets and adult. Each
side, and each run, has a process of its own on one processor. Seconds of the processor are what to read where other
work shares the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.datasets import NAMES, load
from bench.generate_rounds import rounds
from bench.generate_tasks import save_rounds
from services.coordinator.generate import create_estimator

LIMIT = 80 << 20
ROUNDS = 100
RUNS = ("adult", "20x8", "40x8", "60x4")
MOST_SECONDS = {"20x8": 60.0}
"""CPU seconds that whole runs at epsilon 1 may take."""
LOSS_GAP = 0.001
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_XLA = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--repeats", type=int, default=7, help="measured repetitions of each task (default 7)")
    parser.add_argument("--without-peers", action="store_true", help="skip mbi, which takes minutes")
    parser.add_argument("--only", choices=("rounds", "whole"), help="one of the two parts; both by default")
    parser.add_argument("--tables", nargs="+", default=RUNS, metavar="TABLE", help="of whole runs: a name, or 20x8")
    parser.add_argument("--seeds", type=int, default=10, help="whole runs of adult, and of other real tables")
    parser.add_argument("--epsilon", default="1", help="of whole runs (default 1)")


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """rounds: one key per dataset, ours and `mbi` beside it; whole: one list per table, an entry for each seed."""
    report: dict[str, Any] = {"rounds": {}, "whole": {}}
    if options.only != "whole":
        report["rounds"] = _rounds(options.repeats, peers=not options.without_peers)
        record(report)
    for name in () if options.only == "rounds" else options.tables:
        runs = report["whole"].setdefault(name, [])
        for seed in range(1 if "x" in name and name[0].isdigit() else options.seeds):
            runs.append(_process("bench.generate_runs", [name, options.epsilon, str(seed)]))
            record(report)
    return report


def _rounds(repeats: int, *, peers: bool) -> dict[str, Any]:
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            dataset, path = load(name), Path(folder, f"{name}.npz")
            save_rounds(path, rounds(dataset, create_estimator("kernel", dataset.domain), limit=LIMIT, most=ROUNDS))
            ours = [_side("kernel", name, path) for _ in range(1 if name == "adult" else repeats)]
            report[name] = min(ours, key=lambda one: one["cpu_seconds"]) | {
                "seconds": median(one["seconds"] for one in ours),
                "cpu_seconds": median(one["cpu_seconds"] for one in ours),
            }
            if peers:
                theirs = _side("mbi", name, path)
                theirs["seconds_ratio"] = theirs["seconds"] / report[name]["seconds"]
                theirs["cpu_ratio"] = theirs["cpu_seconds"] / report[name]["cpu_seconds"]
                theirs["loss_ratio"] = theirs["loss"] / report[name]["loss"]
                report[name]["beside"] = {"mbi": theirs}
    return report


def _side(estimator: str, dataset: str, path: Path) -> dict[str, Any]:
    return _process("bench.generate_tasks", [estimator, dataset, str(path)])


def _process(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *arguments],
        env={**os.environ, **_ONE_THREAD, **_XLA},
        stdout=subprocess.PIPE,
        check=True,
        timeout=7200,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = []
    if report["rounds"]:
        lines.append(
            f"{'':<22}{'rounds':>7}{'seconds':>10}{'CPU s':>10}{'fit s':>10}{'peak MB':>9}{'model MB':>9}{'loss':>12}"
            f"{'error':>9}   times ours: seconds, CPU"
        )
    for name, ours in report["rounds"].items():
        lines.append(_line(name, ours))
        lines += [_line(f"  beside {other}", entry) for other, entry in ours.get("beside", {}).items()]
    if report["whole"]:
        lines.append(
            f"{'whole runs':<12}{'CPU s':>8}{'fits':>8}{'prior':>8}{'cand.':>8}{'sizes':>8}{'oracle':>8}{'sample':>8}"
            f"{'rounds':>8}{'iterations':>12}{'peak MB':>9}{'model MB':>10}{'loss':>12}{'above least':>13}{'error':>9}"
        )
    for name, entries in report["whole"].items():
        lines += [_run(name, entry) for entry in entries]
    return "\n".join(lines)


def _run(label: str, entry: Mapping[str, Any]) -> str:
    names = ("fits", "prior", "candidates", "sizes", "oracle", "sampling")
    parts = "".join(f"{entry['parts'][name]:>8.2f}" for name in names)
    return (
        f"{label:<12}{entry['cpu_seconds']:>8.2f}{parts}"
        f"{entry['rounds']:>8}{entry['iterations']:>12,}{entry['peak_bytes'] / 2**20:>9.0f}"
        f"{entry['model_bytes'] / 2**20:>10.2f}{entry['loss']:>12.2f}{entry['loss_gap']:>12.4%} {entry['error']:>9.4f}"
    )


def _line(label: str, entry: Mapping[str, Any]) -> str:
    text = (
        f"{label:<22}{entry['rounds']:>7}{entry['seconds']:>10.3f}{entry['cpu_seconds']:>10.3f}"
        f"{entry['fit_seconds']:>10.3f}{entry['peak_bytes'] / 2**20:>9.0f}{entry['model_bytes'] / 2**20:>9.2f}"
        f"{entry['loss']:>12.3f}{entry['workload_error']:>9.4f}"
    )
    if "cpu_ratio" in entry:
        text += f"   {entry['seconds_ratio']:9.1f} {entry['cpu_ratio']:9.1f}"
    return text
