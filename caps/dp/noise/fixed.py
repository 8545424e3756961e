"""Fixed-point numbers, which are integers in units of 2^-240, and their exp(-t).

Integer arithmetic gives the same bits on every machine, unlike floating point and its libraries, and Python's is
several times faster than `decimal` at this width.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import ceil, factorial
from typing import TypeAlias

PRECISION = 240
"""Fraction bits. Eight digits of a Python integer, and 74 bits more than the errors that tables are charged for."""

ONE = 1 << PRECISION

EXP_ERROR = 32
"""exp_minus is off by fewer units: 4 for the entries of its tables, 4 for its products, less than 4 for the rest."""

_GUARD = 16
_FIELD = 11
_MASK = (1 << _FIELD) - 1
_S1, _S2, _S3, _S4 = (PRECISION - 2 - _FIELD * i for i in range(4))
_REST = (1 << _S4) - 1
_CUTOFF = 167 << PRECISION  # exp(-167) is below 2^-240
_HALF = ONE >> 1
_SHORT = 150
_LONGER = PRECISION - _SHORT
_C3, _C4, _C5, _C6 = ((1 << _SHORT) // factorial(k) for k in range(3, 7))

Tables: TypeAlias = tuple[list[int], list[int], list[int], list[int]]


def exp_doublings(exponent: Fraction, count: int) -> list[int]:
    """exp(exponent 2^i) for i = 0, 1, .., count - 1: each off by at most one unit, or by that times itself if above 1.

    Each value is the square of the one before. This at most doubles the error and adds a rounding, which the guard bits
    absorb.
    """
    guard = count + 16
    # Digits for 240 bits and the guard, for the integer part, and for the rounding of the exponent.
    with localcontext(Context(prec=100 + count + max(0, ceil(exponent)))):
        value = int((Decimal(exponent.numerator) / exponent.denominator).exp() * (ONE << guard))
    values = []
    for _ in range(count):
        values.append(value >> guard)
        value = value * value >> PRECISION + guard
    return values


@lru_cache(maxsize=1)
def exp_tables() -> Tables:
    """exp(-i 2^-2), exp(-i 2^-13), exp(-i 2^-24), exp(-i 2^-35): every entry within one unit.

    Powers of the first entry, one after the other: 2048 roundings or fewer, which the guard bits absorb.
    """
    width = PRECISION + _GUARD
    tables = []
    for shift, entries in ((_S1, (_CUTOFF >> _S1) + 1), (_S2, _MASK + 1), (_S3, _MASK + 1), (_S4, _MASK + 1)):
        with localcontext(Context(prec=100)):
            ratio = int((-(Decimal(2) ** (shift - PRECISION))).exp() * (1 << width))
        powers = [1 << width]
        for _ in range(entries - 1):
            powers.append(powers[-1] * ratio >> width)
        tables.append([power >> _GUARD for power in powers])
    first, second, third, fourth = tables
    return first, second, third, fourth


def exp_minus(t: int, tables: Tables) -> int:
    """exp(-t) for t >= 0, off by less than EXP_ERROR units. `tables` is exp_tables(), which a loop looks up once.

    t is cut into multiples of 2^-2, 2^-13, 2^-24 and 2^-35 and a rest r; seven terms of exp(-r) are enough because
    r^7 / 7! < 2^-257. A factor of r^3 < 2^-105 needs only 150 bits.
    """
    if t >= _CUTOFF:
        return 0
    r = t & _REST
    s = r >> _LONGER
    cubic = _C3 - (s * (_C4 - (s * (_C5 - (s * _C6 >> _SHORT)) >> _SHORT)) >> _SHORT)
    y = ONE - r + (r * (r * (_HALF - (r * cubic >> _SHORT)) >> PRECISION) >> PRECISION)
    if t > _REST:
        first, second, third, fourth = tables
        y = y * fourth[t >> _S4 & _MASK] >> PRECISION
        if t >> _S3:
            y = y * third[t >> _S3 & _MASK] >> PRECISION
            if t >> _S2:
                y = y * second[t >> _S2 & _MASK] >> PRECISION
                y = y * first[t >> _S1] >> PRECISION
    return y
