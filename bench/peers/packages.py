"""Mechanisms of other packages, `opendp` and `smartnoise-synth`: each in an environment and a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.peers.environment import PeersUnavailable, python_of
from caps.data.domain import Codes, Domain

MECHANISMS = ("opendp-aim", "opendp-mst", "smartnoise-aim", "smartnoise-mst", "smartnoise-mwem")
TASK = Path(__file__).with_name("packages_tasks.py")


class Failed(Exception):
    """A peer has no result; the message says why."""


def perform(
    mechanism: str,
    domain: Domain,
    codes: Codes,
    *,
    epsilon: str,
    delta: str,
    rho: float,
    limit: float,
    environment: Mapping[str, str],
) -> tuple[Codes, dict[str, float]]:
    """Synthetic rows, and the seconds that they took without what is imported. Raises Failed."""
    package, _, algorithm = mechanism.partition("-")
    try:
        python = python_of(package)
    except PeersUnavailable as why:
        raise Failed(str(why)) from why
    with tempfile.TemporaryDirectory(prefix="caps-peer-") as folder:
        given, made = Path(folder, "given.npz"), Path(folder, "made.npz")
        np.savez(given, codes=codes, sizes=np.array(domain.sizes))
        task = {"package": package, "algorithm": algorithm, "epsilon": epsilon, "delta": delta, "rho": rho}
        command = [python, "-W", "ignore", str(TASK), json.dumps(task), str(given), str(made)]
        try:
            done = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {limit:g} s") from None
        if done.returncode != 0:
            raise Failed(last_line(done))
        with np.load(made, allow_pickle=False) as found:
            seconds, cpu = found["times"].tolist()
            return domain.check_codes(found["codes"]), {"seconds": seconds, "cpu_seconds": cpu}


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a process that failed said last."""
    said = [line.strip() for line in done.stderr.splitlines() if any(letter.isalnum() for letter in line)]
    return said[-1] if said else f"status {done.returncode}"
