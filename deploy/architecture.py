"""Writes the map of packages in docs/architecture.md: `python -m deploy.architecture [--check] FILE`.

The map is computed from the imports of the code, so it cannot be wrong for long. A cycle between packages is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOTS = ("caps", "services")
DIVIDED = ("services.mpc_server", "services.coordinator")
"""Services large enough to be shown part by part: their subpackages, and the rest under their own name."""
SEAMS = (
    "services.mpc_server.channel",
    "services.mpc_server.build",
    "services.mpc_server.process",
    "services.coordinator.estimation",
)
"""Modules of a service that its parts meet in: shown on their own."""
APART = ("migrations", "testing")
"""Subpackages that say nothing about the architecture: schemas of the past, and what tests use."""
WITHIN = ("pages",)
"""Subpackages that are shown with the rest of their service: pages and routes call the same functions."""
BEGIN, END = "<!-- packages: written by `make docs` -->", "<!-- end of packages -->"


@dataclass(frozen=True, order=True)
class Package:
    """A part of the product: its name, its modules, and the parts it imports and is imported by."""

    name: str
    modules: int
    imports: tuple[str, ...]
    imported_by: tuple[str, ...]


def packages() -> list[Package]:
    """All parts, those that import nothing first. Raises CycleError if parts import each other in a circle."""
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    part_of = {module: _part(module) for module in graph.modules}
    known = sorted({part for part in part_of.values() if part})
    imports: dict[str, set[str]] = {part: set() for part in known}
    for module, part in part_of.items():
        if part:
            imports[part] |= {part_of[other] for other in graph.find_modules_directly_imported_by(module)} - {part, ""}
    ordered = list(TopologicalSorter({part: sorted(others) for part, others in imports.items()}).static_order())
    return [
        Package(
            part,
            sum(found == part for found in part_of.values()),
            tuple(sorted(imports[part])),
            tuple(other for other in known if part in imports[other]),
        )
        for part in ordered
    ]


def render(found: Iterable[Package]) -> str:
    """The map as a diagram and a table, in Markdown."""
    listed = list(found)
    return "\n".join([BEGIN, "", "```mermaid", *_diagram(listed), "```", "", *_table(listed), "", END])


def _part(module: str) -> str:
    """The part that a module belongs to; empty for what is left out."""
    names = module.split(".")
    if any(name in APART for name in names) or module in (*ROOTS, *DIVIDED):
        return ""
    if module in SEAMS:
        return module
    shown = ".".join(names[:2]) in DIVIDED and names[2] not in WITHIN and _path(".".join(names[:3])).is_dir()
    depth = 3 if shown else 2
    return ".".join(names[:depth])


def _path(module: str) -> Path:
    return Path(*module.split("."))


def _diagram(found: list[Package]) -> Iterator[str]:
    """Arrows from who imports to what is imported, without those that follow from others."""
    reach = _reach({package.name: package.imports for package in found})
    yield "graph TD"
    for package in sorted(found, reverse=True):
        for other in package.imports:
            if not any(other in reach[between] for between in package.imports if between != other):
                yield f"    {package.name} --> {other}"


def _reach(imports: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """All that a part imports, directly or not. Parts come after those that they import."""
    reach: dict[str, set[str]] = {}
    for name, others in imports.items():
        reach[name] = set(others).union(*(reach[other] for other in others))
    return reach


def _table(found: list[Package]) -> Iterator[str]:
    yield "| package | modules | fan-out | imports | fan-in |"
    yield "|---|---:|---:|---|---:|"
    for package in reversed(found):
        names = ", ".join(name.removeprefix("caps.") for name in package.imports)
        yield (
            f"| `{package.name}` | {package.modules} | {len(package.imports)} | {names} | {len(package.imported_by)} |"
        )


def main(arguments: list[str]) -> int:
    """Write the map into the page, or with --check say whether it is up to date."""
    check = "--check" in arguments
    (path,) = (Path(argument) for argument in arguments if argument != "--check")
    try:
        found = packages()
    except CycleError as error:
        sys.stderr.write(f"packages import each other in a circle: {' -> '.join(error.args[1])}\n")
        return 1
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    written = before + render(found) + rest.partition(END)[2]
    if not check:
        path.write_text(written, encoding="utf-8")
    elif written != page:
        sys.stderr.write(f"{path} is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
