"""Fitting the graphical model round by round, as AIM does: the compiled estimator beside `mbi` 2.

The same measurements for both: computed once, from the paper's three datasets and adult. Each side runs in a process of
its own on one processor. `cpu_ratio` is what to read where other work shares the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.datasets import NAMES, load
from bench.generate_rounds import rounds
from bench.generate_tasks import save_rounds
from services.coordinator.generate import create_estimator

LIMIT = 80 << 20
ROUNDS = 100
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_XLA = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """One key per dataset: ours, and `mbi` beside it."""
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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.generate_tasks", estimator, dataset, str(path)],
        env={**os.environ, **_ONE_THREAD, **_XLA},
        stdout=subprocess.PIPE,
        check=True,
        timeout=7200,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [
        f"{'':<22}{'rounds':>7}{'seconds':>10}{'CPU s':>10}{'fit s':>10}{'peak MB':>9}{'model MB':>9}{'loss':>12}"
        f"{'error':>9}   times ours: seconds, CPU"
    ]
    for name, ours in report.items():
        lines.append(_line(name, ours))
        lines += [_line(f"  beside {other}", entry) for other, entry in ours.get("beside", {}).items()]
    return "\n".join(lines)


def _line(label: str, entry: Mapping[str, Any]) -> str:
    text = (
        f"{label:<22}{entry['rounds']:>7}{entry['seconds']:>10.3f}{entry['cpu_seconds']:>10.3f}"
        f"{entry['fit_seconds']:>10.3f}{entry['peak_bytes'] / 2**20:>9.0f}{entry['model_bytes'] / 2**20:>9.2f}"
        f"{entry['loss']:>12.3f}{entry['workload_error']:>9.4f}"
    )
    if "cpu_ratio" in entry:
        text += f"   {entry['seconds_ratio']:9.1f} {entry['cpu_ratio']:9.1f}"
    return text
