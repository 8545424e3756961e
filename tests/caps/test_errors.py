"""The tree of exceptions that caps/errors.py draws is the real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import caps
import services
from caps import errors
from caps.errors import CapsError

BRANCH = re.compile(
    r"^ {4}(?P<indent>[| ]*)\+-- (?P<name>\w+) +\S.*?(?: \((?P<module>[a-z_.]+\.[a-z_.]+)\))?$", re.MULTILINE
)


def modules() -> Iterator[str]:
    """Every module of the product, except those that run something when imported."""
    for root in (caps, services):
        for found in walk_packages(root.__path__, f"{root.__name__}."):
            if not found.name.endswith(".__main__") and ".migrations.versions" not in found.name:
                yield found.name


def drawn() -> set[tuple[str, str, str]]:
    """(parent, name, module) of each branch of the drawing."""
    path, found = ["CapsError"], set()
    for match in BRANCH.finditer(errors.__doc__ or ""):
        depth = len(match["indent"]) // 4 + 1
        path = [*path[:depth], match["name"]]
        found.add((path[-2], match["name"], match["module"] or errors.__name__))
    return found


def real() -> set[tuple[str, str, str]]:
    """The same of every subclass of CapsError that the product defines."""
    for name in modules():
        import_module(name)
    found, open_ = set(), [CapsError]
    while open_:
        parent = open_.pop()
        for child in parent.__subclasses__():
            if child.__module__.split(".")[0] in ("caps", "services"):
                found.add((parent.__name__, child.__name__, child.__module__))
                open_.append(child)
    return found


def test_the_drawing_is_the_whole_tree() -> None:
    assert drawn() == real()
    assert len(drawn()) > 30  # the pattern finds the branches
