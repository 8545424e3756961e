"""Exact rationals, rounded only in a stated direction.

Privacy budgets are `fractions.Fraction`. Two things would make them grow without bound, square roots and sums of
different denominators; both are rounded here, always so that privacy loss is over-counted:

- charges go up, and budgets down, to the grid of multiples of 2**-128. A sum of grid values is exact and stays small;
- scales (sigma^2, the Laplace scale) go up, and epsilons of selections down, to 64 significant bits.

`exp` and `ln` come from `decimal`, whose results are correctly rounded by specification and so the same on every
machine; one more unit in the last place on the safe side makes them bounds. Floats are refused, because a float has
already been rounded in an unknown direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction
from math import isqrt

from caps.basics import canonical
from caps.errors import DomainError

GRID_BITS = 128
SIGNIFICANT_BITS = 64
LARGEST_EXPONENT = 1000
_DIGITS = 80
_RATIO = re.compile(r"(0|-?[1-9][0-9]*)/([1-9][0-9]*)", re.ASCII)
RATIO_PATTERN = f"^{_RATIO.pattern}$"
"""For schemas: what `decode_ratio` reads looks so, and is in lowest terms."""
_LONGEST_RATIO = 1024


def _context(rounding: str) -> Context:
    traps = [InvalidOperation, DivisionByZero, Overflow]
    return Context(prec=_DIGITS, rounding=rounding, Emin=-9999, Emax=9999, traps=traps)


_UP, _DOWN = _context(ROUND_CEILING), _context(ROUND_FLOOR)


def exact(value: int | Fraction) -> Fraction:
    """`value` as a Fraction. Raises DomainError for floats, booleans and anything else inexact."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction):
        raise DomainError(f"a budget must be exact: int or Fraction, not {type(value).__name__}")
    return Fraction(value)


def positive(name: str, value: int | Fraction) -> Fraction:
    """`value` as a Fraction, which must exceed zero."""
    number = exact(value)
    if number <= 0:
        raise DomainError(f"{name} must be positive")
    return number


def grid_up(x: Fraction) -> Fraction:
    """The least multiple of 2**-128 that is at least x."""
    return -grid_down(-x)


def grid_down(x: Fraction) -> Fraction:
    """The greatest multiple of 2**-128 that is at most x."""
    return Fraction((x.numerator << GRID_BITS) // x.denominator, 1 << GRID_BITS)


def significant_up(x: Fraction) -> Fraction:
    """The least dyadic rational of 64 significant bits that is at least x > 0; above it by less than x * 2**-62."""
    unit = _unit(x)
    return -(-x // unit) * unit


def significant_down(x: Fraction) -> Fraction:
    """The greatest dyadic rational of 64 significant bits that is at most x > 0; below it by less than x * 2**-62."""
    unit = _unit(x)
    return x // unit * unit


def _unit(x: Fraction) -> Fraction:
    return Fraction(2) ** (x.numerator.bit_length() - x.denominator.bit_length() + 1 - SIGNIFICANT_BITS)


def sqrt_down(x: Fraction) -> Fraction:
    """A rational at most sqrt(x), x > 0, and short of it by less than sqrt(x) * 2**-64."""
    shift = SIGNIFICANT_BITS + max(0, x.denominator.bit_length() - x.numerator.bit_length() + 1) // 2 + 1
    return Fraction(isqrt((x.numerator << 2 * shift) // x.denominator), 1 << shift)


def exp_up(x: Fraction) -> Fraction:
    """A bound above e**x, within a factor 1 + 10**-77."""
    if x > LARGEST_EXPONENT:
        raise DomainError(f"e to a power above {LARGEST_EXPONENT} is not a privacy parameter")
    return Fraction(_UP.next_plus(_UP.exp(_decimal(x, _UP))))


def ln_up(x: Fraction) -> Fraction:
    """A bound above ln(x), x > 0."""
    return Fraction(_UP.next_plus(_UP.ln(_decimal(x, _UP))))


def ln_down(x: Fraction) -> Fraction:
    """A bound below ln(x), x > 0."""
    return Fraction(_DOWN.next_minus(_DOWN.ln(_decimal(x, _DOWN))))


def _decimal(x: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(x.numerator), Decimal(x.denominator))


def encode_ratio(x: Fraction) -> str:
    """The one spelling of a rational on the wire: lowest terms, "p/q"."""
    text = f"{x.numerator}/{x.denominator}"
    if len(text) > _LONGEST_RATIO:
        raise DomainError(f"a rational has {len(text)} characters; round it first")
    return text


def decode_ratio(text: object) -> Fraction:
    """The inverse of `encode_ratio`. Raises DomainError for any other spelling."""
    match = _RATIO.fullmatch(text) if isinstance(text, str) and len(text) <= _LONGEST_RATIO else None
    if match is None:
        raise DomainError("not a rational: expected 'p/q' in lowest terms")
    ratio = Fraction(int(match[1]), int(match[2]))
    if encode_ratio(ratio) != text:
        raise DomainError("a rational is not in lowest terms")
    return ratio


def read_object(value: object, names: Iterable[str]) -> dict[str, object]:
    """`value` as an object of exactly these members. Raises DomainError otherwise."""
    if not isinstance(value, dict) or value.keys() != set(names):
        raise DomainError(f"expected an object with the members {', '.join(sorted(names))}")
    return value


def read_list(value: object) -> list[object]:
    """`value`, which must be a list."""
    if not isinstance(value, list):
        raise DomainError("expected a list")
    return value


def read_text(value: object) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str):
        raise DomainError("expected a string")
    return value


def read_count(value: object) -> int:
    """`value`, which must be an integer that JSON can carry."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > canonical.MAX_INTEGER:
        raise DomainError("expected an integer below 2**53")
    return value


def read_flag(value: object) -> bool:
    """`value`, which must be a boolean."""
    if not isinstance(value, bool):
        raise DomainError("expected a boolean")
    return value
