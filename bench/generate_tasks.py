"""One side of `python -m bench generate`, in a process of its own: fit every round, then answer all candidates.

`python -m bench.generate_tasks ESTIMATOR DATASET ROUNDS.npz`, on one processor; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.datasets import load
from bench.generate_rounds import pairs
from caps.data.quality import marginals_error
from services.coordinator.estimation import Measured, Model
from services.coordinator.generate import create_estimator, loss


def save_rounds(path: Path, rounds: Iterable[list[Measured]]) -> int:
    """Store rounds of measurements; returns how many."""
    arrays: dict[str, Any] = {}
    count = 0
    for count, measured in enumerate(rounds, 1):
        for one in measured:
            key = json.dumps([count, len(arrays), one.clique, one.sigma])
            arrays[key] = one.values
    np.savez(path, allow_pickle=False, **arrays)
    return count


def load_rounds(path: Path) -> Iterator[list[Measured]]:
    """What save_rounds stored."""
    rounds: dict[int, list[Measured]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            number, _, clique, sigma = json.loads(key)
            rounds.setdefault(number, []).append(Measured(tuple(clique), arrays[key], sigma))
    yield from rounds.values()


def run(estimator_name: str, dataset_name: str, path: Path) -> dict[str, Any]:
    """Time the fits and the candidates' marginals, round by round, each fit starting from the one before."""
    began = time.perf_counter()
    dataset = load(dataset_name)
    layout = pairs(dataset)
    loading = time.perf_counter()
    estimator = create_estimator(estimator_name, dataset.domain)
    started = time.perf_counter()
    measured: list[Measured] = []
    model: Model | None = None
    fits, answering, cpu = [], 0.0, _cpu_seconds()
    rounds = list(load_rounds(path))
    for number, new in enumerate(rounds, 1):
        measured += new
        wall = time.perf_counter()
        model = estimator.fit(measured, warm_start=model, rough=number < len(rounds))
        fits.append(time.perf_counter() - wall)
        wall = time.perf_counter()
        estimates = model.marginals(layout.cliques)
        answering += time.perf_counter() - wall
    assert model is not None
    cpu = _cpu_seconds() - cpu
    answers = layout.marginals(dataset.codes[dataset.train])
    modelled = np.concatenate([mu.ravel() for mu in estimates])
    return {
        "seconds": sum(fits) + answering,
        "fit_seconds": sum(fits),
        "marginals_seconds": answering,
        "import_seconds": started - loading,
        "data_seconds": loading - began,
        "slowest_fit": max(fits),
        "cpu_seconds": cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "model_bytes": estimator.model_bytes(m.clique for m in measured),
        "rounds": len(fits),
        "loss": loss(model, measured),
        "workload_error": marginals_error(layout, answers, modelled),
    }


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # one processor each, whatever threads a library starts
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
