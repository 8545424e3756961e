"""What a process takes of its machine, as Linux tells: memory, descriptors, threads, processor time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Vitals:
    """Of one process at one moment. memory and peak: bytes. cpu: seconds that it computed so far."""

    memory: int
    peak: int
    descriptors: int
    threads: int
    cpu: float


def vitals(pid: int) -> Vitals:
    """Of a process that lives."""
    folder = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    memory, peak = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    # Behind the name in parentheses, which may contain anything: the 14th and 15th fields of the line.
    used = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    cpu = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
    return Vitals(memory, peak, len(list((folder / "fd").iterdir())), int(status["Threads"]), cpu)
