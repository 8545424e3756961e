"""What a protocol costs, as expressions over named sizes: they print as formulas, and give numbers for given sizes.

An expression is made of integers, sizes (`engine.size`), + - * // and functions of integers that are marked `formula`.
So a misspelt size is a type error, and docs/protocols.md prints the very expression that a test measures.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from operator import index
from typing import TypeAlias, final, overload

from caps.errors import DomainError
from caps.shares.ring import plane_words


class Expr(ABC):
    """A number that depends on the sizes of a call and, if servers differ, on the server."""

    __slots__ = ()

    @abstractmethod
    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        """The number for these sizes, at this party."""

    @abstractmethod
    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        """The same with some sizes replaced by expressions."""

    @abstractmethod
    def __str__(self) -> str: ...

    @property
    def binds(self) -> int:
        """How tightly the printed form binds: 2 for a single term, 1 for a product, 0 for a sum."""
        return 2

    def __add__(self, other: Expr | int) -> Expr:
        return _operation("+", self, _expr(other))

    def __radd__(self, other: int) -> Expr:
        return _operation("+", _expr(other), self)

    def __sub__(self, other: Expr | int) -> Expr:
        return _operation("-", self, _expr(other))

    def __rsub__(self, other: int) -> Expr:
        return _operation("-", _expr(other), self)

    def __mul__(self, other: Expr | int) -> Expr:
        return _operation("*", self, _expr(other))

    def __rmul__(self, other: int) -> Expr:
        return _operation("*", _expr(other), self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _operation("//", self, _expr(other))


@final
@dataclass(frozen=True, slots=True)
class Size(Expr):
    """A size of a call: the name that formulas give it, and what it counts."""

    name: str
    meaning: str

    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        if self not in sizes:
            raise DomainError(f"the cost depends on {self.name}, which is not among {[size.name for size in sizes]}")
        return sizes[self]

    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        return sizes.get(self, self)

    def __str__(self) -> str:
        return self.name


Sizes: TypeAlias = Mapping[Size, int]
"""The sizes of one call."""


@final
@dataclass(frozen=True, slots=True)
class OfParty(Expr):
    """A number that differs from server to server."""

    name: str
    at: Callable[[int], int]

    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        if party is None:
            raise DomainError(f"{self.name} differs from server to server; say for which one")
        return self.at(party)

    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        return self

    def __str__(self) -> str:
        return self.name


@final
@dataclass(frozen=True, slots=True)
class _Constant(Expr):
    number: int

    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        return self.number

    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        return self

    def __str__(self) -> str:
        return str(self.number)


_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
}


@final
@dataclass(frozen=True, slots=True)
class _Operation(Expr):
    sign: str
    left: Expr
    right: Expr

    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        return _OPERATORS[self.sign](self.left.evaluate(sizes, party), self.right.evaluate(sizes, party))

    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        return _operation(self.sign, self.left.given(sizes), self.right.given(sizes))

    @property
    def binds(self) -> int:
        return int(self.sign in ("*", "//"))

    def __str__(self) -> str:
        left = str(self.left) if self.left.binds >= self.binds else f"({self.left})"
        # Only + may leave a right operand of its own kind bare: a - (b + c) and a * (b // c) mean what they say.
        bare = self.right.binds > self.binds or (self.sign == "+" and self.right.binds == 0)
        right = str(self.right) if bare else f"({self.right})"
        return f"{left}{self.sign}{right}" if self.binds else f"{left} {self.sign} {right}"


def _operation(sign: str, left: Expr, right: Expr) -> Expr:
    """The operation, or what it is as far as constants tell: composed costs would be hard to read otherwise."""
    match sign, left, right:
        case _, _Constant(number=one), _Constant(number=other):
            return _Constant(_OPERATORS[sign](one, other))
        case ("+", _Constant(number=0), other) | ("*", _Constant(number=1), other):
            return other
        case ("+" | "-", one, _Constant(number=0)) | ("*" | "//", one, _Constant(number=1)):
            return one
        case ("*", _Constant(number=0), _) | ("*", _, _Constant(number=0)):
            return _Constant(0)
    return _Operation(sign, left, right)


@final
@dataclass(frozen=True, slots=True)
class _Application(Expr):
    name: str
    function: Callable[..., int]
    arguments: tuple[Expr, ...]

    def evaluate(self, sizes: Sizes, party: int | None) -> int:
        return self.function(*(argument.evaluate(sizes, party) for argument in self.arguments))

    def given(self, sizes: Mapping[Size, Expr]) -> Expr:
        arguments = tuple(argument.given(sizes) for argument in self.arguments)
        numbers = [argument.number for argument in arguments if isinstance(argument, _Constant)]
        if len(numbers) == len(arguments):
            return _Constant(self.function(*numbers))
        return _Application(self.name, self.function, arguments)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@final
class formula:  # noqa: N801 - a decorator
    """A function of integers that expressions may use: for integers it returns an integer, else an expression."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __call__(self, *arguments: int) -> int: ...

    @overload
    def __call__(self, one: Expr, /, *others: Expr | int) -> Expr: ...

    @overload
    def __call__(self, one: int, other: Expr, /, *others: Expr | int) -> Expr: ...

    @overload
    def __call__(self, one: int, two: int, three: Expr, /, *others: Expr | int) -> Expr: ...

    def __call__(self, *arguments: Expr | int) -> Expr | int:
        if all(isinstance(argument, int) for argument in arguments):
            return self._function(*arguments)
        if self._function not in (max, min):
            signature(self._function).bind(*arguments)
        return _Application(self.__name__, self._function, tuple(map(_expr, arguments)))


def _expr(value: Expr | int) -> Expr:
    if isinstance(value, Expr):
        return value
    return _Constant(index(value))


largest, smallest = formula(max), formula(min)


@formula
def log2(value: int) -> int:
    """The least r with 2^r >= value: the depth of a binary tree with `value` leaves."""
    return max(value - 1, 0).bit_length()


@formula
def plane(count: int) -> int:
    """Bytes of one bit plane: `count` bits in whole 64-bit words."""
    return 8 * plane_words(count)


FIRST = OfParty("first", lambda party: int(party == 0))
"""1 for S1 and 0 for the others: where one server opens a conversion, it is S1."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Rounds of a protocol, and the payload bytes that each server sends, under one scheme.

    Checks of what was sent (`engine.guard`) are not part of it: their cost follows from how much there is to check.
    """

    rounds: Expr | int = 0
    sent: Expr | int = 0

    def rounds_for(self, sizes: Sizes) -> int:
        """Rounds of a call of these sizes."""
        return _expr(self.rounds).evaluate(sizes, None)

    def sent_by(self, party: int, sizes: Sizes) -> int:
        """Payload bytes that a party sends in a call of these sizes."""
        return _expr(self.sent).evaluate(sizes, party)

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(_expr(self.rounds) + other.rounds, _expr(self.sent) + other.sent)

    def __mul__(self, times: Expr | int) -> Cost:
        """So many times, one after another."""
        return Cost(_expr(self.rounds) * times, _expr(self.sent) * times)

    def beside(self, other: Cost) -> Cost:
        """Both in shared rounds."""
        return Cost(largest(_expr(self.rounds), other.rounds), _expr(self.sent) + other.sent)

    def given(self, sizes: Mapping[Size, Expr | int]) -> Cost:
        """The cost of a call whose sizes are these expressions."""
        exact = {size: _expr(value) for size, value in sizes.items()}
        return Cost(_expr(self.rounds).given(exact), _expr(self.sent).given(exact))


@dataclass(frozen=True, slots=True)
class Price:
    """What a scheme takes for what protocols do most, per byte of payload: the bytes that a server sends.

    product: for each byte of products that are reshared. sums: whether a sum of ANDs is sent as one bit. opened: for
    each byte that is opened; digest: beside that, for each opening.
    """

    product: Expr | int
    sums: bool
    opened: Expr | int
    digest: Expr | int
