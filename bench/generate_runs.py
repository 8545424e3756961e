"""Whole central runs of AIM for `python -m bench generate`: where the processor's time goes, and what it is worth.

`python -m bench.generate_runs TABLE EPSILON SEED` makes one, in a process of its own, and prints one JSON object. TABLE
is one of the benchmarks' tables, or an invented one: `20x8` has 20 columns of 8 categories and 500,000 rows. All noise
follows from the seed, so a run can be repeated, before and after a change.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from bench.central import oracle_of, task_of
from bench.datasets import Dataset, load
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain
from caps.data.quality import workload_error
from caps.dp.oracle import Oracle
from services.coordinator.algorithms import algorithm
from services.coordinator.estimation import Estimator, Model
from services.coordinator.generate import create_estimator, loss, size_of

ROWS = 500_000
_LONG_TOLERANCE, _LONG_ITERATIONS = 1e-7, 10_000
"""Of the fit that finds the least loss of what a run measured: each limit is far beyond that of the run's own."""


def table_of(name: str) -> Dataset:
    """One of the benchmarks' tables, or an invented one."""
    found = re.fullmatch(r"(\d+)x(\d+)", name)
    return invented(int(found[1]), int(found[2]), ROWS) if found else load(name)


def invented(columns: int, size: int, rows: int) -> Dataset:
    """Rows of a random tree: each column depends on one before it, more or less steeply.

    Its distribution given the other's value is that of independent exponential variables, to a power, over their sum:
    with the power 1 all distributions are equally probable; with 3 one category has most of it.
    """
    uniform = Uniform(f"bench generate {columns} x {size}")
    codes = np.empty((rows, columns), np.int64)
    for column in range(columns):
        parent = int(uniform.integers(1, max(column, 1))[0])
        power = 0.5 + 2.5 * float(uniform.floats(1)[0])
        weights = (-np.log1p(-uniform.floats(size * size)).reshape(size, size)) ** power
        ends = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
        given = codes[:, parent] if column else np.zeros(rows, np.int64)
        codes[:, column] = (uniform.floats(rows)[:, None] > ends[given, :-1]).sum(axis=1)
    domain = Domain(tuple(Attribute(f"c{column:02}", size) for column in range(columns)))
    return Dataset(f"{columns}x{size}", domain, codes, np.arange(rows), np.arange(0), None)


class Metered:
    """Anything, with the processor's time of its methods counted, by name."""

    def __init__(self, inner: object, spent: dict[str, float], results: Callable[[str, Any], None] | None = None):
        self._inner, self._spent, self._results = inner, spent, results

    def __getattr__(self, name: str) -> Any:
        """The attribute; a method is timed."""
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            result = found(*arguments, **named)
            self._spent[name] = self._spent.get(name, 0.0) + time.process_time() - began
            if self._results is not None:
                self._results(name, result)
            return result

        return timed


def run(name: str, epsilon: str, seed: str) -> dict[str, Any]:
    """One run of AIM on all pairs."""
    dataset = table_of(name)
    task, aim, spent = task_of(dataset, epsilon), algorithm("aim"), dict[str, float]()
    iterations: list[int] = []
    plain: list[Model] = []

    def watch(method: str, result: Any) -> None:
        if method in ("fit", "smoothed"):
            iterations.append(result.iterations)
        if method == "fit":
            plain[:] = [result]

    oracle = oracle_of(dataset, task, aim.cliques(task), noise=f"bench generate {name} {seed}")
    estimator = create_estimator("kernel", dataset.domain)
    metered = cast(Estimator, Metered(estimator, spent, watch))
    began = time.process_time()
    outcome = aim.run(task, cast(Oracle, Metered(oracle, spent)), metered)
    learnt = time.process_time()
    codes = outcome.model.sample(size_of(dataset.domain, outcome.measurements).rows, seed=0)
    ended = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parts = {
        "fits": spent["fit"],
        "prior": spent["smoothed"],
        "sizes": spent["model_bytes"],
        "oracle": spent["answers"] + spent["select"] + spent["measure"],
        "sampling": ended - learnt,
    }
    layout = task.workload.layout(dataset.domain)
    reached = loss(plain[0], outcome.measurements)
    longer = create_estimator("kernel", dataset.domain, tolerance=_LONG_TOLERANCE, iterations=_LONG_ITERATIONS)
    least = min(reached, loss(longer.fit(outcome.measurements, warm_start=plain[0]), outcome.measurements))
    return {
        "cpu_seconds": ended - began,
        "parts": parts | {"candidates": ended - began - sum(parts.values())},
        "rounds": outcome.rounds,
        "fits": len(iterations),
        "iterations": sum(iterations),
        "peak_bytes": peak,
        "model_bytes": estimator.model_bytes(one.clique for one in outcome.measurements),
        "loss": reached,
        "loss_gap": reached / least - 1,
        "error": workload_error(layout, dataset.codes[dataset.train], codes),
    }


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
