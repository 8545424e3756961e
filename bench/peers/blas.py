"""What plaintext costs: products of float64 matrices by one BLAS thread.

A replicated Gram matrix needs at least two products of its size at each party, so each figure is of two. `A.T @ A` is
recognised by NumPy as symmetric and costs half of a general product; `gemm` is `A.T @ B`, which is not.
The number of threads is read by BLAS when it is loaded: run this in a process of its own, with THREADS in its
environment.
"""

import json
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.peers.tasks import TASKS, inputs

THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "VECLIB_MAXIMUM_THREADS": "1"}
REPETITIONS = 5


def main() -> None:
    results: dict[str, Any] = {}
    for task in TASKS:
        if task.kind == "gram":
            a = inputs(task)[0].astype(np.float64)
            results[task.name] = {**_timed(a, a), "gemm": _timed(a, a.copy()), "products": 2, "threads": 1}
    print(json.dumps(results))


def _timed(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> dict[str, float]:
    _ = a.T @ b
    walls, processors = [], []
    for _ in range(REPETITIONS):
        wall, processor = time.monotonic(), time.process_time()
        _ = a.T @ b, a.T @ b
        walls.append(time.monotonic() - wall)
        processors.append(time.process_time() - processor)
    return {
        "seconds": statistics.median(walls),
        "seconds_best": min(walls),
        "cpu_seconds": statistics.median(processors),
    }


if __name__ == "__main__":
    main()
