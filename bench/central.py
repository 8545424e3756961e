"""Central differential privacy: the same algorithms on the same rows in one place, by the clear twin.

`python -m bench.central ESTIMATOR DATASET ALGORITHM EPSILON` runs one in a process of its own and prints its times.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.datasets import Dataset, load
from caps.basics.uniform import Uniform
from caps.data.domain import Layout
from caps.data.quality import workload_error
from caps.dp.clear import ClearOracle
from caps.dp.noise.clear import FreshBits
from caps.dp.oracle import Batch, Comparison, Integers, Measurement, Oracle, Selection
from caps.dp.privacy import UNBOUNDED, Filter, calibrate
from services.coordinator.algorithms import Task, algorithm, all_pairs
from services.coordinator.generate import create_estimator, size_of

DELTA = "1e-9"


@dataclass
class Watched:
    """An oracle whose time is counted."""

    oracle: Oracle
    spent: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("compute", "compare", "select", "measure"), 0.0)
    )

    @property
    def layout(self) -> Layout:
        """As Oracle.layout."""
        return self.oracle.layout

    def answers(self) -> None:
        """As Oracle.answers."""
        began = time.perf_counter()
        self.oracle.answers()
        self.spent["compute"] += time.perf_counter() - began

    def select(self, selection: Selection) -> int:
        """As Oracle.select."""
        began = time.perf_counter()
        chosen = self.oracle.select(selection)
        self.spent["select"] += time.perf_counter() - began
        return chosen

    def compare(self, comparison: Comparison) -> Integers:
        """As Oracle.compare."""
        began = time.perf_counter()
        errors = self.oracle.compare(comparison)
        self.spent["compare"] += time.perf_counter() - began
        return errors

    def measure(self, measurement: Measurement) -> Integers:
        """As Oracle.measure."""
        began = time.perf_counter()
        values = self.oracle.measure(measurement)
        self.spent["measure"] += time.perf_counter() - began
        return values

    def measure_batch(self, batch: Batch) -> Integers:
        """As Oracle.measure_batch."""
        began = time.perf_counter()
        values = self.oracle.measure_batch(batch)
        self.spent["measure"] += time.perf_counter() - began
        return values


def task_of(dataset: Dataset, epsilon: str) -> Task:
    """All pairs of attributes at epsilon."""
    rho = calibrate(Fraction(epsilon), Fraction(DELTA))
    return Task(dataset.domain, all_pairs(dataset.domain), UNBOUNDED, rho=rho)


def oracle_of(
    dataset: Dataset, task: Task, cliques: Any, kind: type[ClearOracle] = ClearOracle, noise: str | None = None
) -> ClearOracle:
    """The rows for training, behind the clear twin; its noise is fresh, or that of a seed."""
    layout, bits = Layout(dataset.domain, cliques), FreshBits()
    if noise is not None:
        uniform = Uniform(noise)
        bits = FreshBits(lambda count: uniform.words(-(-count // 8)).tobytes()[:count])
    return kind(dataset.codes[dataset.train], layout, UNBOUNDED, Filter(task.zcdp, UNBOUNDED), bits)


def perform(
    dataset: Dataset,
    name: str,
    epsilon: str,
    *,
    seed: int = 0,
    estimator: str = "kernel",
    kind: type[ClearOracle] = ClearOracle,
    noise: str | None = None,
) -> tuple[npt.NDArray[np.int64], dict[str, Any]]:
    """One central run: synthetic codes, and the seconds of every part. `noise`: its seed, else it is fresh."""
    task, chosen = task_of(dataset, epsilon), algorithm(name)
    oracle = Watched(oracle_of(dataset, task, chosen.cliques(task), kind, noise))
    fitted = create_estimator(estimator, dataset.domain)
    began, processor = time.perf_counter(), _cpu()
    outcome = chosen.run(task, oracle, fitted)
    ended = time.perf_counter()
    codes = outcome.model.sample(size_of(dataset.domain, outcome.measurements).rows, seed=seed)
    seconds = time.perf_counter() - began
    parts = oracle.spent | {"generate": ended - began - sum(oracle.spent.values()), "publish": seconds + began - ended}
    return codes, {
        "seconds": seconds,
        "cpu_seconds": _cpu() - processor,
        "parts": parts,
        "rounds": outcome.rounds,
    }


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str]) -> int:
    """One run and its workload error, as JSON."""
    estimator, name, chosen, epsilon = arguments
    dataset = load(name)
    codes, entry = perform(dataset, chosen, epsilon, estimator=estimator)
    layout = all_pairs(dataset.domain).layout(dataset.domain)
    entry["error"] = workload_error(layout, dataset.codes[dataset.train], codes)
    print(json.dumps(entry))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
