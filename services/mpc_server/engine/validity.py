"""Whether what holders send is valid, by checks on shares that reveal nothing else about it.

An entry of 2^15 or a count that wraps would give one row the weight of thousands, which the noise would not hide. So
contributions are checked before they are used, with coins tossed once they are fixed; one that fails is named and left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.domain import Layout
from caps.dp.bounds import ONE_HOT_COMBINATIONS
from caps.errors import DomainError, ShareError
from caps.shares.prss import expand
from caps.shares.ring import Z16, Z22, Z24, Z32, Z64, Ring, Words
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Branch, Context, together
from services.mpc_server.engine.cost import Cost, Expr, log2
from services.mpc_server.engine.jobs import COINS, BlockSums, RowCoins, coins
from services.mpc_server.engine.registry import Prices, protocol
from services.mpc_server.engine.shares import AShare, Indices, concatenate
from services.mpc_server.engine.verbs import bit_deviations, multiply, reveal

Flags: TypeAlias = npt.NDArray[np.bool_]
SOUNDNESS_BITS = 40
"""A contribution that is not valid passes its check with probability at most 2^-40."""
COMBINATIONS = ONE_HOT_COMBINATIONS
"""Combinations of rows, and of columns, in `check_one_hot`: 2 * 2^-48 < 2^-40, and 48 coins are whole bytes."""
MOST_COLUMNS = 65_535
"""The most columns of a block: a sum of this many zeros and ones does not wrap in Z_2^16."""


class Width(NamedTuple):
    """How to read the words of columns: the ring they were shared in, and the one they are counted in."""

    shared: Ring
    counted: Ring


WIDTHS = {Z16: Width(Z16, Z16), Z32: Width(Z24, Z22)}
"""By the ring that servers compute in."""


def check_columns(share: AShare, width: int, ring: Ring) -> None:
    if ring not in WIDTHS or share.ring != ring:
        raise ShareError(f"{share!r} must be in Z_2^16 or in words of 32 bits, like all columns of the table")
    if len(share.shape) != 2 or share.shape[1] != width or not share.shape[0]:
        raise ShareError(f"{share!r} must be a matrix of {width} columns with at least one row")


@protocol("PRSS words, opened", lambda of: of(reveal, {size.elements: 4, size.ring_bits: 64}))
async def toss(ctx: Context) -> Words:
    """Four public random words, which no party could know before this round: a seed of 32 bytes.

    Pre-conditions: whatever the coins are to judge was fixed before, under keys of this session.
    Leaks: the seed, which depends on nothing.
    """
    return await reveal(ctx, ctx.fresh(b"coins", (4,), Z64))


async def _all_zero(ctx: Context, deviations: AShare) -> Flags:
    """For each row of a shared matrix, whether all its elements are zero. Two rounds.

    Each element is multiplied by a random odd number that nobody knows, and opened. So a zero stays zero, and any other
    element shows only the power of two that divides it.
    """
    mask = ctx.fresh(b"mask", deviations.shape, deviations.ring) * 2 + 1
    opened = await reveal(ctx.step("open"), await multiply(ctx.step("mask"), deviations, mask))
    return np.asarray(~opened.any(axis=1))


def _zeros_opened(of: Prices, elements: Expr, bits: Expr | int) -> Cost:
    """Of `_all_zero`."""
    sizes = {size.elements: elements, size.ring_bits: bits}
    return of(multiply, sizes) + of(reveal, sizes)


@protocol(
    "random linear combinations, as in Prio (Corrigan-Gibbs and Boneh 2017)",
    lambda of: of(toss) + _zeros_opened(of, size.marginal_inputs * size.combinations, 64),
)
async def check_totals(ctx: Context, contributions: Sequence[AShare], *, layouts: Sequence[Layout], bits: int) -> Flags:
    """Which contributions of marginals are consistent: each table has one number of rows, so one total.

    The marginals whose attributes cannot be missing are compared. With totals T_0, T_1, ... of a contribution, public
    random words r and i = 1, 2, ..., the sum of r_i (T_i - T_0) is zero if all are equal. Otherwise some difference is
    d != 0 with |d| < 2^b, b = bits + log2(cells of the largest marginal), so 2^b does not divide it and r_i d is
    uniform on at least 2^(65-b) values: the sum is zero with probability at most 2^-(65-b). As many sums are opened
    as make that 2^-40.

    Pre-conditions: elements are integers of `bits` bits lifted to Z_2^64, in the order of each contribution's layout.
    Leaks: which contributions are accepted; of those nothing else. Of a refused one, the power of two that divides
        each sum.
    """
    j = combinations_of_totals(layouts, bits)
    if not contributions or len(contributions) != len(layouts):
        raise ShareError(f"{len(contributions)} contributions need as many layouts, not {len(layouts)}")
    for share, layout in zip(contributions, layouts, strict=True):
        ctx.own(share)
        if share.shape != (layout.cells,) or share.ring != Z64:
            raise ShareError(f"{share!r} must have the {layout.cells} cells of its layout, lifted to Z_2^64")
    seed = (await toss(ctx.step("toss"))).tobytes()
    sums = []
    for number, (share, layout) in enumerate(zip(contributions, layouts, strict=True)):
        full = _full_cliques(layout)
        starts = np.array(layout.offsets)
        totals = share.map(partial(np.add.reduceat, indices=starts))[full]
        weights = expand(seed, b"%b/totals/%d" % (COINS, number), (max(len(full) - 1, 0), j), Z64)
        sums.append((totals[1:] - totals[:1]).weigh(weights).reshape(1, j))
    return await _all_zero(ctx, concatenate(sums))


def _full_cliques(layout: Layout) -> Indices:
    """The marginals in which every row counts: those without a nullable attribute."""
    nullable = {attribute.name for attribute in layout.domain.attributes if attribute.nullable}
    return np.array([i for i, clique in enumerate(layout.cliques) if nullable.isdisjoint(clique)], np.intp)


def combinations_of_totals(layouts: Sequence[Layout], bits: int) -> int:
    """How many sums `check_totals` opens per contribution."""
    room = 65 - bits - log2(max(size for layout in layouts for size in layout.sizes))
    if room < 1:
        raise DomainError(f"totals of counts of {bits} bits do not fit in Z_2^64")
    return -(-SOUNDNESS_BITS // room)


_COMBINED = size.column_inputs * COMBINATIONS**2


@protocol(
    "squares as in Prio (2017), combined as by Freivalds 1977",
    lambda of: (
        of(toss)
        + of(bit_deviations, {size.elements: _COMBINED, size.ring_bits: size.word_bits})
        + _zeros_opened(of, _COMBINED, size.word_bits)
    ),
)
async def check_one_hot(ctx: Context, contributions: Sequence[AShare], *, blocks: Sequence[Sequence[int]]) -> Flags:
    """Which contributions consist of one-hot or zero blocks; `blocks` gives the sizes of each one's blocks, in order.

    An entry x must satisfy x(x-1) = 0, and so must the sum over each block of a row, in the ring Z_2^s that columns
    were shared in, s = 16 or 24. This is enough: x(x-1) = 0 only for 0 and 1, since of two consecutive numbers one is
    odd and the other must be 0; entries of 0 and 1 in at most 65,535 columns have a sum that does not wrap; and what is
    0 or 1 modulo 2^24 is so modulo 2^22. Let V have one row per row of the table and in it x(x-1) of all entries and
    block sums. Opened is R V C modulo 2^s, with 48 rows of public random bits R and 48 columns C, tossed after the
    contributions were fixed. If some column v of V is not zero then r v is zero with probability at most 1/2 for each
    row r of R, for a non-zero entry of v is added or not; so R V is zero with probability at most 2^-48. If it is not
    zero then R V C is with probability at most 2^-48 again, by the same argument on its rows.

    Words of 32 bits hold elements of Z_2^24, and their high bits are of the shares, not of x. So they are shifted out
    before anything is sent: 2^8 R V C modulo 2^32 is R V C modulo 2^24.

    Squares are sums of products, so the combinations alone are reshared. Rows are combined first: their number is what
    costs time, and 48 combinations of them are all that is left to combine by columns.

    Pre-conditions: contributions are matrices in one ring.
    Leaks: which contributions are accepted; of those nothing else. Of a refused one, the power of two that divides
        each combination.
    """
    if not contributions or len(contributions) != len(blocks):
        raise ShareError(f"{len(contributions)} contributions need as many lists of blocks, not {len(blocks)}")
    for share, sizes in zip(contributions, blocks, strict=True):
        ctx.own(share)
        check_columns(share, sum(sizes), contributions[0].ring)
        if min(sizes) < 1 or max(sizes) > MOST_COLUMNS:
            raise DomainError(f"a block must have 1 to {MOST_COLUMNS} columns")
    seed = (await toss(ctx.step("toss"))).tobytes()
    combined = await together(
        *(
            _deviations(ctx.step("combinations").step(number), share, sizes, seed, b"/%d" % number)
            for number, (share, sizes) in enumerate(zip(contributions, blocks, strict=True))
        )
    )
    return await _all_zero(ctx, concatenate([one.reshape(1, -1) for one in combined]))


def _deviations(ctx: Context, x: AShare, sizes: Sequence[int], seed: bytes, label: bytes) -> Branch[AShare]:
    """[[R V C]]. Neither V nor the coins of rows are ever held whole."""
    spread = BlockSums(tuple(sizes))
    return bit_deviations(
        ctx,
        x,
        spread=spread,
        columns=spread.columns,
        row_coins=RowCoins(seed, label, COMBINATIONS),
        column_coins=coins(seed, label + b"/columns", spread.columns, COMBINATIONS),
        modulo=WIDTHS[x.ring].shared,
    )
