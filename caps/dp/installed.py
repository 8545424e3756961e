"""What other packages bring, found by entry points: `caps.mechanisms` for programs, `caps.loops` for their loops.

An entry point's name is the algorithm's, and its value the module that registers it. A module is imported when its name
is first asked for. What CaPS itself brings is known before that, so no package can take its place.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from caps.errors import CapsError, DomainError

PROGRAMS, LOOPS = "caps.mechanisms", "caps.loops"


@cache
def installed(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """All entry points of a group, by name. Looked up once: packages do not change while a service runs."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for one in entry_points(group=group):
        if one not in (others := found.get(one.name, ())):
            found[one.name] = (*others, one)
    return found


def bring(group: str, name: str) -> bool:
    """Import the module that registers this name; False if no package brings it. Raises DomainError."""
    entries = installed(group).get(name, ())
    if not entries:
        return False
    if len(entries) > 1:
        raise DomainError(f"{len(entries)} packages bring an algorithm {name}: {', '.join(map(package, entries))}")
    try:
        import_module(entries[0].module)
    except CapsError as error:
        raise DomainError(f"the algorithm {name} of {package(entries[0])} is refused: {error}") from None
    except Exception as error:
        kind = type(error).__name__
        raise DomainError(f"the algorithm {name} of {package(entries[0])} cannot be loaded: {kind}") from error
    return True


def package(entry: EntryPoint) -> str:
    """The package that brings an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module
