"""One run of the suite: a table, a mechanism, an epsilon and a seed become synthetic rows, times and scores.

`python -m bench.utility_tasks TABLE MECHANISM EPSILON SEED` is one in a process of its own, and prints it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from bench import central
from bench.datasets import Dataset, load
from bench.peers import baselines, packages, published
from bench.peers.draws import Draws
from bench.quality import all_scores
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Codes, Domain
from caps.dp.privacy import calibrate
from caps.errors import CapsError
from services.coordinator.generate import create_estimator

ALGORITHMS = ("aim", "mwem", "mst")
"""Ours that have an original."""
OURS = (*ALGORITHMS, "swift")
FLOOR = tuple(baselines.MECHANISMS)
FAMILIES = {
    "ours": OURS,
    "original": tuple(f"original-{name}" for name in ALGORITHMS),
    "floor": FLOOR,
    "mbi": tuple(f"mbi-{name}" for name in ALGORITHMS),
    "packages": packages.MECHANISMS,
}
"""ours: as shipped, by the clear twin. original: as published, on our kernel. mbi: as published, on `mbi` 2."""
SLOW = ("mbi", "packages")
"""Families that run in processes of their own, with a limit of time. The packages draw from no seed of ours."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
}


class Case(NamedTuple):
    """What distinguishes one run from all others."""

    table: str
    mechanism: str
    epsilon: str
    seed: int


def family(mechanism: str) -> str:
    """The family of a mechanism."""
    return next(name for name, members in FAMILIES.items() if mechanism in members)


def run(case: Case, limit: float) -> dict[str, Any]:
    """A run's record: scores, rows, rounds and times; or why it failed, for example within `limit` seconds."""
    try:
        found = _apart(case, limit) if family(case.mechanism) == "mbi" else perform(case, limit)
        return {**case._asdict(), **found}
    except (CapsError, packages.Failed) as failure:
        return {**case._asdict(), "failed": str(failure)}


def perform(case: Case, limit: float) -> dict[str, Any]:
    """The run itself, in this process; but for other packages, which have `limit` seconds."""
    dataset = _dataset(case.table)
    began, processor = time.perf_counter(), _cpu()
    codes, rounds, own = _synthesise(case, dataset, limit)
    times = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu() - processor, **own}
    return {"rows": len(codes), "rounds": rounds, **times, **all_scores(dataset, codes)}


def _synthesise(case: Case, dataset: Dataset, limit: float) -> tuple[Codes, int | None, dict[str, float]]:
    kind, seed = family(case.mechanism), f"{case.mechanism} {case.seed}"
    if kind == "ours":
        codes, found = central.perform(dataset, case.mechanism, case.epsilon, seed=case.seed, noise=seed)
        return codes, found["rounds"], {}
    rho = float(calibrate(Fraction(case.epsilon), Fraction(central.DELTA)))
    if kind == "packages":
        codes, times = packages.perform(
            case.mechanism,
            dataset.domain,
            dataset.codes[dataset.train],
            epsilon=case.epsilon,
            delta=central.DELTA,
            rho=rho,
            limit=limit,
            environment=ONE_THREAD,
        )
        return codes, None, times
    draws = Draws(dataset.domain, dataset.codes[dataset.train], Uniform(seed))
    if kind == "floor":
        made = baselines.MECHANISMS[case.mechanism](draws, rho)
    else:
        estimator = "mbi" if kind == "mbi" else "kernel"
        loop = published.MECHANISMS[case.mechanism.partition("-")[2]]
        made = loop(draws, rho, lambda domain: create_estimator(estimator, domain))
    return made.codes, made.rounds, {}


def _apart(case: Case, limit: float) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "bench.utility_tasks", *(str(part) for part in case)]
    try:
        done = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise packages.Failed(f"no end within {limit:g} s") from None
    if done.returncode != 0:
        raise packages.Failed(packages.last_line(done))
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@cache
def _dataset(name: str) -> Dataset:
    return load(name)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def warm_up() -> None:
    """Have what is compiled compiled, so that no run is charged for it."""
    domain = Domain(tuple(Attribute(name, 2) for name in "abc"))
    codes = np.indices((2, 2, 2)).reshape(3, -1).T.repeat(20, axis=0)
    every = np.arange(len(codes))
    for mechanism in OURS:
        central.perform(Dataset("", domain, codes, every, every, None), mechanism, "1")


if __name__ == "__main__":
    table, mechanism, epsilon, seed = sys.argv[1:]
    print(json.dumps(perform(Case(table, mechanism, epsilon, int(seed)), limit=float("inf"))))
