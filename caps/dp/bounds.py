"""Bounds on the numbers in a run, whatever anybody sends. No sum may wrap: a wrapped sum could reveal a person.

A score is the sum, over the cells of a candidate, of |2^8 count - estimate|, less a bias, times a weight. Its
sensitivity bound holds only while counts stay below 2^32, where their sign is taken, and scores below 2^61, where noise
is added. Counts come from holders, who may lie; estimates and biases from the coordinator, who may request anything. So

- a holder's own counts are taken modulo 2^k, with k so small that those of all holders, and one for each joined row,
  add up to less than 2^32, and that no score can reach 2^61;
- an estimate is a table of at most 2^32 persons, with noise in their number, and a bias is at most what the widest
  noise would cause.

All bounds follow from the manifest and are checked when a study is agreed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from caps.errors import DomainError

UNIT_BITS = 8
"""Scores are in units of 2^-8 of a person."""
COUNT_BITS = 32
MOST_COUNTED = (1 << COUNT_BITS) - 1
"""The largest count in a cell of any marginal."""
SCORE_BITS, NOISE_BITS = 61, 62
"""Scores are below 2^61 in size and noise below 2^62, so that their sum keeps its sign in Z_2^64."""
MOST_BIAS = 1 << 24 << UNIT_BITS
"""The largest bias per cell: no noise has a standard deviation above 10^7."""
MOST_ESTIMATED = (MOST_COUNTED << UNIT_BITS) + MOST_BIAS
"""The largest sum over the cells of a candidate's estimate: its persons, with room for noise in their number."""
MOST_STREAM = 1 << 38
"""The most bytes expanded from one key: 2^34 AES blocks differ from a random function with advantage 2^-61."""
ONE_HOT_COMBINATIONS = 48
"""Random combinations of rows, and of columns, all of which columns that are not one-hot would have to pass."""
ID_COMBINATIONS = 64
"""Random combinations, all of which a repeated identifier would have to pass."""
MOST_SESSIONS = 64
"""The most sessions of a study that may end in the middle of a computation, in schemes that check servers.

A server that deviates and ends the session before it is judged is not named, and has new coins in the next one.
"""
DEVIATION_SOUNDNESS = MOST_SESSIONS * Fraction(1, 1 << 46)
"""A bound on the probability that a server deviates in a study and no check fails, in schemes that check servers.

The weakest check passes a deviation with a probability below 2^-46 (docs/privacy.md, section 11). A run ends with the
first check that fails, so what counts in a session is its first deviation: one that was not seen there has succeeded
already, and one that was seen is followed by no other.
"""
LEAST_BITS = 16
"""A study in which a holder could not bring 65,535 persons is refused."""


def columns_soundness(holders: int) -> Fraction:
    """A bound on the probability that any of these holders' columns pass their check without being one-hot."""
    return Fraction(2 * holders, 1 << ONE_HOT_COMBINATIONS)


def join_soundness(rows: Sequence[int]) -> Fraction:
    """A bound on the probability that a join goes wrong, given the rows of its tables including dummies.

    It goes wrong if a table repeats an identifier undetected; if random identifiers, or hashes, agree by chance (128
    bits, over all rows); or if they agree in the bits by which a table is sorted (96 bits, within a table), so that it
    is refused.
    """
    seen = Fraction(len(rows), 1 << ID_COMBINATIONS)
    return seen + Fraction(sum(rows) ** 2, 1 << 129) + Fraction(sum(count**2 for count in rows), 1 << 97)


def largest_score(weight: int, cells: int, largest_count: int = MOST_COUNTED) -> int:
    """A bound on the absolute score of a candidate with this weight and number of cells."""
    return abs(weight) * (cells * ((largest_count << UNIT_BITS) + MOST_BIAS) + MOST_ESTIMATED)


def most_counted(weight: int, cells: int) -> int:
    """The largest count for which `largest_score` stays below 2^61; it is negative if none does. Weight is not 0."""
    room = ((1 << SCORE_BITS) - 1) // abs(weight) - MOST_ESTIMATED
    return (room // cells - MOST_BIAS) >> UNIT_BITS


def largest_sum(holders: int, bits: int, rows: int) -> int:
    """The largest count in a cell, from holders that count themselves, in this many bits each, and joined rows."""
    return holders * ((1 << bits) - 1) + rows


def counted_bits(holders: int, rows: int, candidates: Iterable[tuple[int, int]] = ()) -> int:
    """The most bits k that a holder's own counts can have. Raises DomainError if these are too few.

    holders: how many count themselves. rows: the most joined rows. candidates: weight and cells of each.
    """
    listed = list(candidates)
    most = min([MOST_COUNTED, *(most_counted(weight, cells) for weight, cells in listed)])
    for bits in range(COUNT_BITS, LEAST_BITS - 1, -1):
        if largest_sum(holders, bits, rows) <= most:
            return bits
    raise DomainError(
        f"the counts of {holders} holders and {rows:,} joined rows, over marginals of up to "
        f"{max((cells for _, cells in listed), default=0):,} cells and weights of up to "
        f"{max((abs(weight) for weight, _ in listed), default=0):,}, could overflow: use fewer holders, coarser "
        "columns, smaller queries or smaller weights"
    )
