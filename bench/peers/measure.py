"""Measures each peer. Every function returns a dict keyed by measurement and never raises for a peer's failure.

An entry is `{"seconds", "seconds_best", "cpu_seconds", "bytes", "rounds", "repetitions", ...}`, or
`{"skipped": reason}` where the peer cannot be installed, or `{"failed": reason}` where it broke.

`seconds` is the median wall time from the first party's start to the last party's end; `cpu_seconds` the median of all
parties' processor time together; `bytes` what all parties send, as the peer counts it (payloads, without TLS); `rounds`
the messages that the busiest party sends to another, hence at least the rounds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.peers.blas import THREADS
from bench.peers.certificates import Credentials
from bench.peers.environment import ROOT, PeersUnavailable, peers_python
from bench.peers.parties import Parties, PartyFailed
from bench.peers.tasks import RING_TASKS, TASKS, Task

REPETITIONS = 5
SPU_SECONDS = 300.0
MPYC_SECONDS = 240.0
PING_PONG_SECONDS = 120.0
PING_PONG_ROUNDS = 2_000
MPYC_REPETITIONS = 3
MPYC_ROWS: Mapping[str, int] = {
    "mul_1e6": 100_000,
    "less_than_1e5": 1_000,
    "equal_1e5": 1_000,
    "gram_50000x45": 5_000,
    "gram_50000x200": 500,
}
"""How many rows MPyC is given where the whole task would take minutes."""


def measure_spu(tasks: Iterable[Task] = TASKS, *, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """SPU, ABY3 over Z_2^64, mutual TLS.

    SPU leaves a comparison's result shared by exclusive or; the entry `to_ring` of comparisons is the same task with
    the result converted to shares over the ring.
    """
    tasks = tuple(tasks)
    results: dict[str, Any] = {}
    ring_tasks = {task.name: task for task in RING_TASKS}
    try:
        with spu_parties() as parties:
            for task in tasks:
                results[task.name] = {**parties.measure(task, repetitions=repetitions), "transport": "mutual TLS"}
                if task.name in ring_tasks:
                    to_ring = parties.measure(ring_tasks[task.name], repetitions=repetitions)
                    results[task.name]["to_ring"] = to_ring
    except PeersUnavailable as error:
        return _fill(results, tasks, {"skipped": str(error)})
    except PartyFailed as error:
        return _fill(results, tasks, {"failed": str(error)})
    return results


def measure_mpyc(tasks: Iterable[Task] = TASKS, *, repetitions: int = MPYC_REPETITIONS) -> dict[str, Any]:
    """MPyC with NumPy, gmpy2 and uvloop, mutual TLS.

    Where it was given fewer rows, `measured_rows` says how many, and `seconds_scaled`, `cpu_seconds_scaled` and
    `bytes_scaled` are what the whole task would take if it grew linearly.
    """
    tasks = tuple(tasks)
    results: dict[str, Any] = {}
    try:
        with mpyc_parties() as parties:
            for task in tasks:
                rows = MPYC_ROWS.get(task.name, task.rows)
                entry = parties.measure(task.resized(rows), repetitions=repetitions)
                results[task.name] = {**entry, "transport": "mutual TLS", **_scaled(entry, task, rows)}
    except PeersUnavailable as error:
        return _fill(results, tasks, {"skipped": str(error)})
    except PartyFailed as error:
        return _fill(results, tasks, {"failed": str(error)})
    return results


def measure_pingpong(*, rounds: int = PING_PONG_ROUNDS, repetitions: int = REPETITIONS) -> dict[str, Any]:
    """`ping_pong` and `ring`: asyncio's own cost of a round over mutual TLS 1.3.

    `seconds` and `cpu_seconds` are per round (a round trip, for `ping_pong`); `seconds_per_message` one way.
    """
    results: dict[str, Any] = {}
    for task, count in ((Task("ping_pong", "ping_pong", rounds), 2), (Task("ring", "ring", rounds), 3)):
        command = [sys.executable, "-m", "bench.peers.pingpong"]
        try:
            with Parties(
                command, _tls_configuration, environment={}, seconds=PING_PONG_SECONDS, count=count
            ) as parties:
                batch = parties.measure(task, repetitions=repetitions)
        except PartyFailed as error:
            results[task.name] = {"failed": str(error)}
            continue
        per_round = {key: batch[key] / rounds for key in ("seconds", "seconds_best", "cpu_seconds")}
        one_way = per_round["seconds"] / (2 if task.kind == "ping_pong" else 1)
        results[task.name] = {
            **per_round,
            "seconds_per_message": one_way,
            "rounds": rounds,
            "repetitions": repetitions,
            "transport": "mutual TLS 1.3",
        }
    return results


def measure_blas() -> dict[str, Any]:
    """Two float64 products `A.T @ A` of each Gram shape by one BLAS thread, in one process, in the clear."""
    grams = tuple(task for task in TASKS if task.kind == "gram")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench.peers.blas"],
            cwd=ROOT,
            env={**os.environ, **THREADS},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return _fill({}, grams, {"failed": type(error).__name__})
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def spu_parties(*, seconds: float = SPU_SECONDS) -> Parties:
    """Three SPU processes to enter as a context, for a caller that measures them in turn with something else."""
    command = [peers_python(), "-m", "bench.peers.spu_tasks"]
    return Parties(command, _tls_configuration, environment={"OMP_THREAD_LIMIT": "1"}, seconds=seconds)


def mpyc_parties(*, seconds: float = MPYC_SECONDS) -> Parties:
    """Three MPyC processes, likewise. Both raise PeersUnavailable, and PartyFailed when entered."""
    command = [peers_python(), "-m", "bench.peers.mpyc_tasks"]
    return Parties(command, _tls_configuration, environment={}, seconds=seconds)


def _tls_configuration(rank: int, ports: list[int], credentials: Credentials, folder: Path) -> dict[str, Any]:
    return {
        "rank": rank,
        "ports": ports,
        "tls": True,
        "certificate": str(credentials.certificate),
        "key": str(credentials.key),
        "ca": str(credentials.ca),
        "directory": str(folder),
    }


def _scaled(entry: Mapping[str, Any], task: Task, rows: int) -> dict[str, Any]:
    if rows == task.rows:
        return {}
    factor = task.rows / rows
    return {
        "measured_rows": rows,
        "rows": task.rows,
        "seconds_scaled": entry["seconds"] * factor,
        "cpu_seconds_scaled": entry["cpu_seconds"] * factor,
        # A Gram matrix is communicated once it is summed over the rows, so its bytes do not grow with them.
        "bytes_scaled": entry["bytes"] if task.kind == "gram" else round(entry["bytes"] * factor),
    }


def _fill(results: dict[str, Any], tasks: Iterable[Task], entry: dict[str, str]) -> dict[str, Any]:
    for task in tasks:
        results.setdefault(task.name, entry)
    return results
