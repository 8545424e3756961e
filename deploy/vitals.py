"""What a process holds of its machine, as Linux tells: memory, descriptors, threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Vitals:
    """Of one process at one moment; memory in bytes."""

    memory: int
    peak: int
    descriptors: int
    threads: int


def vitals(pid: int) -> Vitals:
    """Of a process that lives."""
    folder = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    memory, peak = (int(status[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return Vitals(memory, peak, len(list((folder / "fd").iterdir())), int(status["Threads"]))
