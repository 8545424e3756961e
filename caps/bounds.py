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

from collections.abc import Iterable

from caps.errors import DomainError

UNIT_BITS = 8
"""Scores are in units of 2^-8 of a person."""
COUNT_BITS = 32
MOST_COUNTED = (1 << COUNT_BITS) - 1
"""No cell of any marginal counts more."""
SCORE_BITS = 61
"""Scores are below 2^61 in size and noise below 2^62, so that their sum keeps its sign in Z_2^64."""
MOST_BIAS = 1 << 24 << UNIT_BITS
"""For each cell: no noise is wider than a standard deviation of 10^7."""
MOST_ESTIMATED = (MOST_COUNTED << UNIT_BITS) + MOST_BIAS
"""All cells of one candidate's estimate together: its persons, with room for noise in their number."""
LEAST_BITS = 16
"""A study in which a holder could not bring 65,535 persons is refused."""


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
