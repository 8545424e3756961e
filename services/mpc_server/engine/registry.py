"""Every protocol of the engine with its source and, for each scheme, its declared cost. A test measures each of them.

Costs are expressions over the sizes of a call (`engine.cost`): they are printed in docs/protocols.md, checked against a
run, and used to plan one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from services.mpc_server.engine.cost import Cost

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a protocol promises; `costs` has the name of a scheme for each of them."""

    name: str
    module: str
    source: str
    summary: str
    pre_conditions: str
    leaks: str
    costs: Mapping[str, Cost]

    def described(self) -> dict[str, Any]:
        """All of it as text."""
        return {
            "name": self.name,
            "module": self.module,
            "source": self.source,
            "summary": self.summary,
            "pre_conditions": self.pre_conditions,
            "leaks": self.leaks,
            "costs": {name: [str(cost.rounds), str(cost.sent)] for name, cost in self.costs.items()},
        }


REGISTRY: dict[str, Declaration] = {}


def protocol(
    source: str, **costs: Cost
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Declare a protocol: where it is from and, by the name of the scheme, what it costs.

    The docstring must say `Pre-conditions:` and `Leaks:`.
    """

    def declare(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        name = function.__name__
        doc = inspect.getdoc(function) or ""
        if name in REGISTRY:
            raise ValueError(f"two protocols are called {name}")
        REGISTRY[name] = Declaration(
            name=name,
            module=function.__module__.partition(".engine.")[2],
            source=source,
            summary=doc.partition("\n\n")[0].replace("\n", " "),
            pre_conditions=_section(name, doc, "Pre-conditions:"),
            leaks=_section(name, doc, "Leaks:"),
            costs=costs,
        )
        return function

    return declare


def _section(name: str, doc: str, heading: str) -> str:
    start = doc.find(heading)
    if start < 0:
        raise ValueError(f"the docstring of protocol {name} has no {heading!r}")
    lines = doc[start + len(heading) :].split("\n")
    text = [lines[0].strip()]
    for line in lines[1:]:
        if not line.startswith(" "):
            break
        text.append(line.strip())
    return " ".join(part for part in text if part)
