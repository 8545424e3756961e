"""How long a person waits for `caps --help` and for every command's `--help`: whole processes, one after another.

The goal is 300 ms on a machine that has nothing else to do; seconds of CPU say the same on one that has.
`tests/caps/cli/test_startup.py` keeps heavy modules out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import typer.main

from caps.cli import app
from caps.cli.reference import walk

GOAL = 0.3


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """By command line, the median seconds: on the clock, and of CPU."""
    commands = [("caps",), *(path for path, _ in walk(typer.main.get_command(app), ("caps",)))]
    found = {" ".join(path): _seconds(("-m", "caps.cli", *path[1:], "--help"), repeats) for path in commands}
    return {"python alone": _seconds(("-c", "pass"), repeats), **found}


def _seconds(arguments: Sequence[str], repeats: int) -> dict[str, float]:
    runs = [_once(arguments) for _ in range(repeats)]
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _once(arguments: Sequence[str]) -> dict[str, float]:
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, [sys.executable, *arguments], os.environ, file_actions=silent)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime}


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'milliseconds':<30}{'clock':>8}{'CPU':>8}"]
    lines += [
        f"{name:<30}{1000 * one['seconds']:>8.0f}{1000 * one['cpu_seconds']:>8.0f}" for name, one in report.items()
    ]
    for name, words in (("seconds", "on the clock"), ("cpu_seconds", "of CPU")):
        slow = sum(one[name] > GOAL for one in report.values())
        lines.append(f"{slow} of {len(report)} take more than {1000 * GOAL:g} ms {words}")
    return "\n".join(lines)
