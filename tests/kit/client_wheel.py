"""`caps-client` as analysts install it: its wheel, in an environment with what it declares and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "clients" / "python"


def build_wheel(folder: Path) -> Path:
    """The wheel, built from this tree without a network."""
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(line, cwd=SOURCE, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("caps_client-*.whl")
    return wheel


def requirements(wheel: Path, *extras: str) -> list[str]:
    """The names of the distributions that a wheel declares, with these extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return _needed(
        [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")], extras
    )


def _needed(lines: list[str], extras: tuple[str, ...] = ()) -> list[str]:
    asked = [Requirement(line) for line in lines]
    return [
        one.name
        for one in asked
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def _closure(names: list[str]) -> Iterator[Distribution]:
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found[name] = distribution(name)
            waiting += _needed(list(found[name].requires or []))
    yield from found.values()


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """The Python of a new environment with the wheel, and links to the installed copies of what it declares."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    python = folder / "bin" / "python"
    line = [
        find_uv_bin(),
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--no-deps",
        "--python",
        str(python),
        str(wheel),
    ]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    for one in _closure(requirements(wheel, *extras)):
        tops = {Path(file.parts[0]) for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(one.locate_file(top))).resolve())
    return python


def run_in(
    python: Path, code: str, *arguments: str, folder: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in the environment, isolated from this tree."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        [str(python), "-I", "-c", code, *arguments],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
