"""Every protocol of the engine with its source and, for each scheme, its declared cost. A test measures each of them.

A protocol is written once, on verbs; a verb is implemented by every scheme. Both are declared here.

Costs are expressions over the sizes of a call (`engine.cost`): they are printed in docs/protocols.md, checked against a
run, and used to plan one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from caps.basics.schemes import Scheme
from caps.errors import DomainError
from services.mpc_server.engine import size
from services.mpc_server.engine.cost import Cost, Expr, Price, Size, plane

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a protocol promises. Its source and its cost may differ from scheme to scheme."""

    name: str
    module: str
    sources: Mapping[str, str]
    summary: str
    pre_conditions: str
    leaks: str
    costs: Mapping[str, Cost]

    def described(self) -> dict[str, Any]:
        """The whole declaration as text."""
        return {
            "name": self.name,
            "module": self.module,
            "summary": self.summary,
            "pre_conditions": self.pre_conditions,
            "leaks": self.leaks,
            "schemes": {
                name: {"source": self.sources[name], "rounds": str(cost.rounds), "sent": str(cost.sent)}
                for name, cost in self.costs.items()
            },
        }


REGISTRY: dict[str, Declaration] = {}
_PRICES: dict[str, Price] = {}


def price(scheme: str, charged: Price) -> None:
    """Say what a scheme takes. It is from then on among the schemes that protocols have a cost under."""
    _PRICES[scheme] = charged


class Prices:
    """Costs under one scheme, for composing others."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._price = _PRICES[scheme]

    def __call__(self, protocol: Any, sizes: Mapping[Size, Expr | int] | None = None) -> Cost:
        """The declared cost of a protocol or verb, for sizes that are expressions of the caller's."""
        return REGISTRY[protocol.__name__].costs[self._scheme].given(sizes or {})

    def product(self, octets: Expr | int) -> Expr | int:
        """Bytes sent for products that take so many bytes."""
        return octets * self._price.product

    def ands(self, planes: Expr | int, elements: Expr | int = size.elements) -> Expr | int:
        """Bytes sent for so many ANDs of each element."""
        return self.product(planes * plane(elements))

    def bilinear(self, result: Expr | int, ands: Expr | int) -> Expr | int:
        """Bytes sent for sums of ANDs, given the bytes of planes of the result and of the ANDs."""
        return self.product(result if self._price.sums else ands)

    def opening(self, octets: Expr | int, times: Expr | int = 1) -> Expr | int:
        """Bytes sent to open so many bytes, in so many openings."""
        return octets * self._price.opened + times * self._price.digest


class _OfSchemes(Mapping[str, T]):
    """Something for each scheme there is, made when it is first asked for: schemes declare their verbs later."""

    def __init__(self, made: Callable[[str], T]) -> None:
        self._made = made
        self._known: dict[str, T] = {}

    def __getitem__(self, scheme: str) -> T:
        if scheme not in _PRICES:
            raise KeyError(scheme)
        if scheme not in self._known:
            self._known[scheme] = self._made(scheme)
        return self._known[scheme]

    def __iter__(self) -> Iterator[str]:
        return iter(_PRICES)

    def __len__(self) -> int:
        return len(_PRICES)


def protocol(
    source: str, compose: Callable[[Prices], Cost] | None = None, /, **costs: Cost
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Declare a protocol: its source, and its cost as a function of what the scheme charges for its parts.

    Protocols that are there for comparison only may give a cost by the name of the scheme instead. The docstring must
    say `Pre-conditions:` and `Leaks:`.
    """

    def declare(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if compose is not None:
            _declare(function, _OfSchemes(lambda _: source), _OfSchemes(lambda scheme: compose(Prices(scheme))))
        else:
            _declare(function, dict.fromkeys(costs, source), costs)
        return function

    return declare


class _OfScheme(Protocol):
    """What a verb can be called on: contexts, shares and their owners."""

    @property
    def scheme(self) -> Scheme: ...


class Verb(Generic[P, T]):
    """One of the few functions that each scheme implements for itself. The first argument says which scheme is meant.

    The function that declares the verb says what every implementation must do; its body is never run. Verbs that
    talk have a cost, which an implementation declares with its source; local ones have none.
    """

    def __init__(self, function: Callable[P, T], *, opening: bool = False) -> None:
        self._opening = opening
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self._implementations: dict[str, Callable[P, T]] = {}

    def __call__(self, *arguments: P.args, **choices: P.kwargs) -> T:
        scheme = cast(_OfScheme, arguments[0]).scheme.name
        implementation = self._implementations.get(scheme)
        if implementation is None:
            raise DomainError(f"the scheme {scheme} does not implement {self.__name__}")
        if self._opening:
            return cast(T, _validated(arguments[0], partial(implementation, *arguments, **choices)))
        return implementation(*arguments, **choices)

    @property
    def schemes(self) -> frozenset[str]:
        """The schemes that implement this verb."""
        return frozenset(self._implementations)

    def of(self, scheme: str, source: str = "", cost: Cost | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Implement the verb for a scheme; with source and cost, if it talks."""

        def implement(function: Callable[P, T]) -> Callable[P, T]:
            if scheme in self._implementations:
                raise ValueError(f"{scheme} implements {self.__name__} twice")
            self._implementations[scheme] = function
            if cost is not None:
                known = REGISTRY.get(self.__name__)
                sources, costs = (known.sources, known.costs) if known else ({}, {})
                REGISTRY.pop(self.__name__, None)
                _declare(self, {**sources, scheme: source}, {**costs, scheme: cost})
            return function

        return implement


async def _validated(ctx: Any, open_: Callable[[], Any]) -> Any:
    await ctx.guard.validate()
    return await open_()


def verb(function: Callable[P, T]) -> Verb[P, T]:
    """Declare a function that each scheme implements for itself."""
    return Verb(function)


def opening(function: Callable[P, T]) -> Verb[P, T]:
    """Declare a verb that opens shares: whatever the scheme, what they depend on is validated first."""
    return Verb(function, opening=True)


def _declare(function: Any, sources: Mapping[str, str], costs: Mapping[str, Cost]) -> None:
    name, doc = function.__name__, inspect.cleandoc(function.__doc__ or "")
    if name in REGISTRY:
        raise ValueError(f"two protocols are called {name}")
    REGISTRY[name] = Declaration(
        name=name,
        module=function.__module__.partition(".engine.")[2],
        sources=sources,
        summary=doc.partition("\n\n")[0].replace("\n", " "),
        pre_conditions=_section(name, doc, "Pre-conditions:"),
        leaks=_section(name, doc, "Leaks:"),
        costs=costs,
    )


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
