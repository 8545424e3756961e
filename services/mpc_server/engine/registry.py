"""Every protocol of the engine with its source and its declared cost. A test measures each declaration.

Costs are formulas over the sizes of a call, so that they can be printed in docs/protocols.md, checked against a run,
and used to plan one. `n` is the number of elements; other letters are explained by the protocol that uses them.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from caps.shares.ring import plane_words

P = ParamSpec("P")
T = TypeVar("T")


def log2(value: int) -> int:
    """The least r with 2^r >= value: the depth of a binary tree with `value` leaves."""
    return max(value - 1, 0).bit_length()


def plane(count: int) -> int:
    """Bytes of one bit plane: `count` bits in whole 64-bit words."""
    return 8 * plane_words(count)


FUNCTIONS: dict[str, Callable[..., int]] = {"log2": log2, "plane": plane, "max": max, "min": min}
"""What a cost formula may call. Modules whose cost has structure of its own add to it."""

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(formula: str, **sizes: int) -> int:
    """The value of a cost formula: integers, sizes, + - * //, and FUNCTIONS. Nothing else is allowed in one."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
                return FUNCTIONS[name](*map(value, args))
        raise ValueError(f"{ast.unparse(node)!r} is not allowed in the cost formula {formula!r}")

    return value(ast.parse(formula, mode="eval").body)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a protocol promises."""

    name: str
    module: str
    source: str
    rounds: str
    sent: str
    summary: str
    pre_conditions: str
    leaks: str

    def rounds_for(self, **sizes: int) -> int:
        """Rounds of a call of these sizes."""
        return evaluate(self.rounds, **sizes)

    def sent_by(self, party: int, **sizes: int) -> int:
        """Payload bytes that a party sends in a call of these sizes."""
        return evaluate(self.sent, first=int(party == 0), **sizes)


REGISTRY: dict[str, Declaration] = {}


def protocol(
    source: str, *, rounds: str, sent: str
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Declare a protocol: where it is from, its rounds, and the payload bytes that each server sends.

    S1 opens conversions, so it sends more: `first` is 1 for S1 and 0 for the others. The docstring must say
    `Pre-conditions:` and `Leaks:`.
    """

    def declare(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        name = function.__name__
        doc = inspect.getdoc(function) or ""
        if name in REGISTRY:
            raise ValueError(f"two protocols are called {name}")
        REGISTRY[name] = Declaration(
            name=name,
            module=function.__module__.rpartition(".")[2],
            source=source,
            rounds=rounds,
            sent=sent,
            summary=doc.partition("\n\n")[0].replace("\n", " "),
            pre_conditions=_section(name, doc, "Pre-conditions:"),
            leaks=_section(name, doc, "Leaks:"),
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
