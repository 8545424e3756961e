"""Which sources a result follows from, and their digest: a figure of other code than this tree's is not published.

A digest covers what Python executes: comments, docstrings and empty lines do not count.
"""

from __future__ import annotations

import ast
import hashlib
import io
import shutil
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ESTIMATOR = ("caps/data", "services/coordinator/estimation.py", "services/coordinator/generate")
_FITTED = (
    *_ESTIMATOR,
    *(f"!services/coordinator/generate/{name}.py" for name in ("columns", "pairs", "pooling", "signal")),
)
"""What a fit without a prior executes: a test makes the modules that are left out fail."""
_MECHANISMS = ("caps/basics/uniform.py", "caps/dp", "services/coordinator/algorithms", *_ESTIMATOR)
_JUDGED = ("bench/datasets.py", "bench/quality.py", "bench/utility_tasks.py")
_PUBLISHED = ("bench/peers/draws.py", "bench/peers/published.py", "caps/basics/uniform.py", "caps/dp/privacy/zcdp.py")
_SERVER = "services/mpc_server"
_PARTIES = (
    "bench/timing.py",
    "caps/data",
    "!caps/data/junction.py",
    "!caps/dp/privacy/schedule.py",
    *(f"caps/dp/{name}" for name in ("bounds.py", "oracle.py", "noise", "privacy")),
    "caps/shares",
    *(f"{_SERVER}/{name}" for name in ("engine", "local.py", "process.py", "storage", "transport", "workers")),
)
_PAGES = tuple(f"!{place}/pages" for place in ("caps/service", "services/coordinator", "services/holder", _SERVER))
_RUNNING = ("caps", "services", "!caps/cli", *_PAGES)
_SERVICES = (*_RUNNING, "deploy/federation.py", "bench/central.py", "bench/studies.py", "bench/datasets.py")
_SHARED = ("caps/shares", "services/mpc_server/engine", "services/holder/counting.py", "services/holder/sharing.py")

UTILITY = {
    "ours": (*_MECHANISMS, *_JUDGED, "bench/central.py"),
    "original": (*_FITTED, *_JUDGED, *_PUBLISHED),
    "floor": ("caps/data", *_JUDGED, *_PUBLISHED, "bench/peers/baselines.py"),
    "mbi": (*_FITTED, *_JUDGED, *_PUBLISHED),
    "packages": (*_JUDGED, "bench/peers/packages.py", "bench/peers/packages_tasks.py"),
}
"""Of the suite's mechanisms, by family: each run has the digest of its own."""
SUBJECTS = {
    "federated": (*_MECHANISMS, *_SHARED, "bench/central.py", "bench/datasets.py", "bench/quality.py"),
    "runtime": (*_SERVICES, "bench/runtime.py"),
    "protocols": (*_PARTIES, "bench/protocols.py", "bench/protocols_tasks.py"),
    "schemes": (*_PARTIES, "bench/schemes.py", "bench/schemes_tasks.py"),
    "schemes_runtime": (*_SERVICES, "bench/schemes_runtime.py"),
    "schemes_join": (*_PARTIES, "bench/schemes_join.py", "bench/join_tasks.py"),
    "scaling": (
        *_PARTIES,
        f"{_SERVER}/runs/material.py",
        "bench/scaling.py",
        "bench/scaling_tasks.py",
        "bench/protocols_tasks.py",
    ),
    "contribute": (*_SERVICES, "bench/contribute.py"),
    "load": (*_SERVICES, "bench/load.py"),
    "pages": ("caps", "services", "bench/pages.py"),
    "network": (*_SERVICES, "bench/network.py"),
    "apart": (*_SERVICES, "bench/apart.py", "bench/network.py"),
    "noise": (
        *_MECHANISMS,
        *(place for place in _PARTIES if not place.startswith("!")),
        "bench/noise.py",
        "bench/noise_tasks.py",
        "bench/central.py",
    ),
    "join": (*_PARTIES, "services/holder", "bench/join.py", "bench/join_tasks.py", "bench/oprf_join.py"),
    "judge": ("caps", "bench/judge.py"),
    "generate": (
        *_MECHANISMS,
        "bench/central.py",
        "bench/datasets.py",
        *(f"bench/generate{part}.py" for part in ("", "_rounds", "_runs", "_tasks")),
    ),
    "engine": (*_PARTIES, "bench/engine.py", "bench/engine_tasks.py", "bench/peers"),
}
"""Of every other result, by the name it is saved under. Folders stand for all modules in them; `!` leaves them out."""


def digest_of(subject: str) -> str:
    """The digest of a subject's sources in this tree."""
    return digest(SUBJECTS[subject])


@cache
def digest(paths: tuple[str, ...], root: Path = ROOT) -> str:
    """16 hexadecimal digits of SHA-256 over the modules' names and what they execute."""
    found = hashlib.sha256()
    taken, left = (
        {module for path in paths if path.startswith("!") == out for module in _modules(root / path.removeprefix("!"))}
        for out in (False, True)
    )
    for module in sorted(taken - left):
        code = executed(module.read_text()).encode()
        found.update(f"{module.relative_to(root).as_posix()} {len(code)}\n".encode() + code)
    return found.hexdigest()[:16]


def _modules(path: Path) -> Iterable[Path]:
    if path.is_dir():
        return path.rglob("*.py")
    if not path.is_file():
        raise FileNotFoundError(f"a result is said to follow from {path}, which is not there")
    return (path,)


@cache
def executed(source: str) -> str:
    """A module without its comments, docstrings and empty lines. The same for every version of Python."""
    lines = source.splitlines()
    for line, start, end in sorted(_idle(source), reverse=True):
        text = lines[line - 1].encode()
        lines[line - 1] = (text[:start] + (b"" if end is None else text[end:])).decode()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _idle(source: str) -> Iterator[tuple[int, int, int | None]]:
    """Parts of lines that are never executed: line, first byte, and the byte after the last; None for all the rest."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], len(token.line[: token.start[1]].encode()), None
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(last), end_col_offset=int(end)):
                for line in range(node.lineno, last + 1):
                    start = node.col_offset if line == node.lineno else 0
                    yield line, start, end if line == last else None


def commit() -> str:
    """Which commit the tree is at, marked if the sources differ from it; empty without git."""
    git = shutil.which("git")
    if git is None:
        return ""
    head, changed = (
        subprocess.run([git, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--", "*.py"))
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
