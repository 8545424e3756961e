"""Real numbers as integers: x is represented by round(x * 2^frac) in Z_2^64 (Catrina and Saxena 2010)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caps.errors import DomainError
from caps.shares.ring import Z64, Words

FRAC = 20
"""The default number of fractional bits: products of two numbers below 2^21 in size then fit before truncation."""


def encode_fixed(values: npt.ArrayLike, *, frac: int = FRAC) -> Words:
    """The nearest multiples of 2^-frac, as ring elements. Numbers that do not fit are refused, not wrapped."""
    scaled = np.rint(np.asarray(values, np.float64) * 2.0**frac)
    if not np.all(np.abs(scaled) < 2.0**62):  # also catches NaN
        raise DomainError(f"fixed point with {frac} fractional bits needs numbers below 2^{62 - frac} in size")
    return Z64.encode(scaled.astype(np.int64))


def decode_fixed(words: Words, *, frac: int = FRAC) -> npt.NDArray[np.float64]:
    """The numbers that ring elements represent."""
    return Z64.signed(words).astype(np.float64) * 2.0**-frac
