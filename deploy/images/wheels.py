"""What each image installs, taken from requirements.lock: the closure of what it imports, with hashes.

    python -m deploy.images.wheels           write deploy/images/requirements/*.txt
    python -m deploy.images.wheels --check   fail if they are not what the lock says

`common.txt` is in every image: the dependencies in pyproject.toml without those that not all services need. The others
are in files of their own: `compiler.txt` is in the images of a coordinator and of an MPC server; a holder's has no
compiler. `engines.txt` is the extra `sql`, in the image of a holder whose tables are in databases. It runs in the
project's .venv, whose metadata say which distribution needs which.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TARGET = Path(__file__).parent / "requirements"
COMMON = "common"
APART: dict[str, frozenset[str]] = {"compiler": frozenset({"numba"})}
"""Direct dependencies that some services do not have, by file."""
EXTRAS = {"engines": "sql"}
"""Extras of pyproject.toml that some images have, by file."""
_PYTHONS = ("3.11", "3.12", "3.13")
"""A dependency of any of these is kept: the base image chooses the interpreter."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def locked(text: str) -> dict[str, list[str]]:
    """The entries of a lock file by name, with their hashes: one for each version that some interpreter gets."""
    entries: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if not entry.startswith("#"):
            entries.setdefault(canonicalize_name(_named(entry)), []).append(entry)
    return entries


def closure(roots: Iterable[str]) -> set[str]:
    """The names of these requirements and of all that they need on Linux."""
    found: set[str] = set()
    pending = [(requirement, "") for requirement in map(Requirement, roots)]
    while pending:
        requirement, extra = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in found or not _applies(requirement, extra):
            continue
        found.add(name)
        extras = ["", *requirement.extras]
        pending += [(Requirement(needed), one) for needed in requires(name) or () for one in extras]
    return found


def documents() -> dict[str, str]:
    """The lists, by name."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    direct: list[str] = project["dependencies"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    entries = locked((ROOT / "requirements.lock").read_text())
    apart = frozenset().union(*APART.values())
    common = closure(one for one in direct if canonicalize_name(Requirement(one).name) not in apart)
    names = {COMMON: common} | {file: closure(own) - common for file, own in APART.items()}
    names |= {file: closure(optional[extra]) - common for file, extra in EXTRAS.items()}
    return {
        file: "".join(f"{entry}\n" for name in sorted(wanted) for entry in entries[name])
        for file, wanted in names.items()
    }


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    stale = []
    TARGET.mkdir(exist_ok=True)
    for name, text in documents().items():
        path = TARGET / f"{name}.txt"
        if not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in arguments:
                path.write_text(text)
    if stale and "--check" in arguments:
        print(f"not what requirements.lock says: {', '.join(map(str, stale))}; `make lock` renews them")
        return 1
    return 0


def _applies(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    environments = (
        {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux", "extra": extra}
        for python in _PYTHONS
    )
    return marker is None or any(marker.evaluate(environment) for environment in environments)


def _named(entry: str) -> str:
    match = _NAME.match(entry)
    if match is None:
        raise ValueError(f"not an entry of a lock file: {entry[:40]!r}")
    return match[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
