"""Assembles parts of images in the builder stage. It only needs Python.

python3 assemble.py trim LIBRARY MODULE...          remove from what pip installed all that no service reads
python3 assemble.py install TARGET SERVICE SOURCE   the shared library, one service, and the metadata of both
"""

from __future__ import annotations

import compileall
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

EPOCH = 1_577_836_800
"""The time of every file: layers are reproducible, and compiled code, which stores its source's time, stays valid."""
_TESTS = frozenset({"tests", "test", "testing", "__pycache__"})
_KEPT = frozenset({"numpy/testing", "numba/testing", "starlette/testing"})  # imported by the package itself
_SUFFIXES = (".pyc", ".pyi", ".pxd", ".pyx", ".h", ".hpp", ".c", ".a")


def install(service: str, source: Path, target: Path) -> None:
    """The shared library, the one service, and the metadata that `caps.__version__` and entry points read."""
    shutil.copytree(source / "caps", target / "caps")
    (target / "services").mkdir()
    shutil.copy(source / "services" / "__init__.py", target / "services")
    shutil.copytree(source / "services" / service, target / "services" / service)
    with (source / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    metadata = target / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        own = [f"{name} = {target}\n" for name, target in entries.items() if f"services.{service}" in target]
        lines += [f"[{group}]\n", *own] if own else []
    (metadata / "entry_points.txt").write_text("".join(lines))


def trim(library: Path) -> None:
    """Remove what no service reads: tests, headers, stubs, caches, scripts; symbols, where binutils are at hand."""
    for folder in sorted(library.rglob("*"), reverse=True):
        name = folder.relative_to(library).as_posix()
        if folder.is_dir() and folder.name in _TESTS and name not in _KEPT:
            shutil.rmtree(folder)
    for file in library.rglob("*"):
        if file.is_file() and file.name.endswith(_SUFFIXES):
            file.unlink()
    if strip := shutil.which("strip"):
        # Libraries beside a package, in *.libs, were patched when the wheel was made: they are left alone.
        libraries = [str(one) for one in library.rglob("*.so") if ".libs/" not in str(one)]
        subprocess.run([strip, "--strip-unneeded", *libraries], check=True)
    shutil.rmtree(library / "bin", ignore_errors=True)
    for dialect in ("mssql", "mysql", "oracle"):
        shutil.rmtree(library / "sqlalchemy" / "dialects" / dialect, ignore_errors=True)


def settle(target: Path) -> None:
    """Give every file the same time, make all readable, and writable to root only."""
    for path in (target, *target.rglob("*")):
        os.utime(path, (EPOCH, EPOCH))
        path.chmod(0o755 if path.is_dir() else 0o644)


def main(verb: str, *arguments: str) -> None:
    """Run one of the two commands. Only bytecode of imported modules is kept, for start-up: all of it would be a tenth
    more.
    """
    target = Path(arguments[0])
    if verb == "trim":
        trim(target)
        settle(target)
        sys.path.insert(0, str(target))
        for module in arguments[1:]:
            importlib.import_module(module)
    else:
        install(arguments[1], Path(arguments[2]), target)
        settle(target)
        compileall.compile_dir(target, quiet=2)
    settle(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
