"""How large the numbers of a run can get, whatever anybody sends: no sum may wrap, for a wrapped one tells a person.

A score is the sum, over the cells of a candidate, of |2^8 count - estimate|, less a bias, times a weight. Its
sensitivity holds only while counts stay below 2^32, where their sign is taken, and scores below 2^61, where noise is
added. Counts come from holders, who may lie; estimates and biases from the coordinator, who may ask for anything. So

- a holder's own counts are taken modulo 2^k, with k so small that those of all holders, and one for each joined row,
  add up to less than 2^32, and that no score can reach 2^61;
- an estimate is a table of at most 2^32 persons, with noise in their number, and a bias is no more than the widest
  noise would make it.

All of it follows from the manifest and is checked when a study is agreed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from caps.errors import DomainError

UNIT_BITS = 8
"""Scores are in units of 2^-8 of a person."""
COUNT_BITS = 32
MOST_COUNTED = (1 << COUNT_BITS) - 1
"""No cell of any marginal counts more."""
SCORE_BITS, NOISE_BITS = 61, 62
"""Scores are below 2^61 in size and noise below 2^62, so that their sum keeps its sign in Z_2^64."""
MOST_BIAS = 1 << 24 << UNIT_BITS
"""For each cell: no noise is wider than a standard deviation of 10^7."""
MOST_ESTIMATED = (MOST_COUNTED << UNIT_BITS) + MOST_BIAS
"""All cells of one candidate's estimate together: its persons, with room for noise in their number."""
MOST_STREAM = 1 << 38
"""Bytes that one key expands to: 2^34 blocks of AES can be told from a random function with advantage 2^-61."""
ONE_HOT_COMBINATIONS = 48
"""Random combinations of rows, and of columns, in which a column that is not one-hot has to vanish."""
ID_COMBINATIONS = 64
"""Random combinations in which an identifier that occurs twice has to vanish."""
LEAST_BITS = 16
"""A study in which a holder could not bring 65,535 persons is refused."""


def columns_soundness(holders: int) -> Fraction:
    """The probability, at most, that columns of one of so many holders pass their check and are not one-hot."""
    return Fraction(2 * holders, 1 << ONE_HOT_COMBINATIONS)


def join_soundness(rows: Sequence[int]) -> Fraction:
    """The probability, at most, that a join goes wrong, given the rows of its tables, dummies included.

    That a table repeats an identifier unseen; that random identifiers, or hashes, agree by chance (128 bits, of all
    rows); that they do so in the bits by which a table is in order (96 bits, within a table), and it is refused.
    """
    seen = Fraction(len(rows), 1 << ID_COMBINATIONS)
    return seen + Fraction(sum(rows) ** 2, 1 << 129) + Fraction(sum(count**2 for count in rows), 1 << 97)


def largest_score(weight: int, cells: int, largest_count: int = MOST_COUNTED) -> int:
    """No score of a candidate of this weight and so many cells is larger in size."""
    return abs(weight) * (cells * ((largest_count << UNIT_BITS) + MOST_BIAS) + MOST_ESTIMATED)


def scores_fit(candidates: Iterable[tuple[int, int]], largest_count: int) -> bool:
    """Whether scores of candidates, given by weight and cells, stay below 2^61."""
    return all(largest_score(weight, cells, largest_count) >> SCORE_BITS == 0 for weight, cells in candidates)


def largest_sum(holders: int, bits: int, rows: int) -> int:
    """What a cell can count: holders that count themselves, in so many bits, and joined rows."""
    return holders * ((1 << bits) - 1) + rows


def counted_bits(holders: int, rows: int, candidates: Iterable[tuple[int, int]] = ()) -> int:
    """The most bits k that a holder's own counts can have. Raises DomainError if they are too few.

    holders: how many count themselves. rows: joined ones, at most. candidates: weight and cells of each.
    """
    listed = list(candidates)
    for bits in range(COUNT_BITS, LEAST_BITS - 1, -1):
        largest = largest_sum(holders, bits, rows)
        if largest <= MOST_COUNTED and scores_fit(listed, largest):
            return bits
    raise DomainError(
        f"the counts of {holders} holders and {rows:,} joined rows, over marginals of up to "
        f"{max((cells for _, cells in listed), default=0):,} cells and weights of up to "
        f"{max((abs(weight) for weight, _ in listed), default=0):,}, could overflow: there must be fewer holders, "
        "coarser columns, smaller queries or smaller weights"
    )
