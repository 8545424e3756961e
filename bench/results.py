"""Results as files: what was measured, from which code, on which machine, when, and by which command."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench import sources

FOLDER = Path(__file__).resolve().parent / "results"


def folder() -> Path:
    """CAPS_BENCH_RESULTS, or `bench/results`."""
    return Path(os.environ.get("CAPS_BENCH_RESULTS", FOLDER))


def machine() -> dict[str, Any]:
    """What a reader must know to judge a time; nothing that tells whose machine it is."""
    return {
        "processor": _first_line("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def _first_line(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


BY_SCHEME = {"protocols": "schemes", "join": "schemes_join", "runtime": "schemes_runtime"}
"""What `--schemes` measures under every scheme, and the module that does, whose name it is saved under."""
BY_RUN = "utility"
"""The subject whose runs each have the digest of their code."""
GROWING = (BY_RUN, "federated", "scaling")
"""Subjects whose results several commands may add to, as long as the code stays the same."""


def save(subject: str, report: Mapping[str, Any], *, arguments: Sequence[str]) -> Path:
    """Write a subject's report, at once or not at all. `arguments`: of the command that measured it.

    May be called again as the report grows.
    """
    path = folder() / f"{subject}.json"
    before = current(subject) if subject in GROWING else None
    commands = [*(before["commands"] if before else []), f"python -m bench {shlex.join(arguments)}"]
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "subject": subject,
        "commands": list(dict.fromkeys(commands)),
        "code": None if subject == BY_RUN else _digest(subject),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "report": report,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(_text(document) + "\n")
    partial.replace(path)
    return path


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one line for each run, if there are runs: thousands of them are read as differences."""
    report = document["report"]
    if not report.get("runs"):
        return json.dumps(document, indent=1)
    lines = ",\n".join(f"   {json.dumps(run)}" for run in report["runs"])
    text = json.dumps({**document, "report": {**report, "runs": []}}, indent=1)
    return text.replace('"runs": []', f'"runs": [\n{lines}\n  ]')


@cache
def _digest(subject: str) -> str:
    return sources.digest_of(subject)


@cache
def _commit() -> str:
    return sources.commit()


def begin(subject: str) -> None:
    """Remember the code that is measured, before anybody edits it."""
    _commit()
    if subject in sources.SUBJECTS:
        _digest(subject)


def current(subject: str) -> dict[str, Any] | None:
    """What was saved, if it is of the code of this tree."""
    found = load(subject)
    return found if found and (subject == BY_RUN or found.get("code") == _digest(subject)) else None


def load(subject: str) -> dict[str, Any] | None:
    """What was saved, with machine, date and commands; None if nothing was."""
    path = folder() / f"{subject}.json"
    if not path.is_file():
        return None
    document: dict[str, Any] = json.loads(path.read_text())
    return document
