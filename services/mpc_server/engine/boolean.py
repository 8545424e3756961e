"""Protocols on XOR shares, bit-sliced: every plane of every element in one message.

Adders and comparisons combine (generate, propagate) pairs: a block of bits generates a carry, or passes one on. Two
neighbouring blocks make one with g = g_hi ^ p_hi g_lo and p = p_hi p_lo, so k bits take log2(k) rounds. Where a block
passes a carry on, what it generates need not be known: g = p_hi ? g_lo : g_hi is one AND as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from caps.errors import ShareError
from caps.shares.ring import PLANE, Words, pack_bits, unpack_bits
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Cost, formula, log2, plane
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import BShare, Indices, stack_planes
from services.mpc_server.engine.verbs import BitForm, bilinear_bits, conjunction

Positions = Sequence[Indices]

PAIRS_PER_LEVEL = 1 << 16
"""A tournament compares this many pairs at once before it prefers another level to a larger message."""
CACHED_WORDS = 1 << 15
"""Words of bit planes that are worked on at once, so that they stay in cache."""


@protocol("binary tree of ANDs", lambda of: Cost(rounds=log2(size.width), sent=of.ands(size.width - 1)))
async def all_of(ctx: Context, x: BShare) -> BShare:
    """[[1 if all w bits are set else 0]] per element.

    Pre-conditions: w >= 1.
    Leaks: nothing.
    """
    level = 0
    while x.width > 1:
        half = x.width // 2
        joined = await conjunction(ctx.step(level), x.planes(slice(0, half)), x.planes(slice(half, 2 * half)))
        x = stack_planes([joined, x.planes(slice(2 * half, None))])
        level += 1
    return x


@formula
def carry_ands(width: int) -> int:
    """ANDs per element of `carry`."""
    total = 0
    while width > 1:
        half = width // 2
        total += 2 * half - 1
        width -= half
    return total


@protocol(
    "carry tree: Brent and Kung 1982, its last output only",
    lambda of: Cost(rounds=log2(size.width), sent=of.ands(carry_ands(size.width))),
)
async def carry(ctx: Context, generate: BShare, propagate: BShare) -> BShare:
    """[[the carry out of w bits]] from the propagate bit of each and, for those that do not, the generate bit.

    Pre-conditions: w >= 1; the generate bit of the lowest one is right also if it propagates, for nothing comes in.
    Leaks: nothing.
    """
    g, p = generate, propagate
    level = 0
    while g.width > 1:
        half = g.width // 2
        low, high = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        # The lowest block is never propagated into, so its propagate bit is not needed.
        products = await conjunction(
            ctx.step(level),
            stack_planes([p.planes(high), p.planes(high).planes(slice(1, None))]),
            stack_planes([g.planes(low) ^ g.planes(high), p.planes(low).planes(slice(1, None))]),
        )
        rest = slice(2 * half, None)
        g, p = (
            stack_planes([g.planes(high) ^ products.planes(slice(0, half)), g.planes(rest)]),
            stack_planes([p.planes(slice(0, 1)), products.planes(slice(half, None)), p.planes(rest)]),
        )
        level += 1
    return g


@formula
def adder_ands(width: int) -> int:
    """ANDs per element of `add_bits`."""
    prefix = sum(len(updated) + len(passing) for updated, _, passing in _prefix_levels(width - 1))
    return width - 1 + prefix


@protocol(
    "Sklansky 1960 parallel-prefix adder",
    lambda of: Cost(rounds=1 + log2(size.width - 1), sent=of.ands(adder_ands(size.width))),
)
async def add_bits(ctx: Context, x: BShare, y: BShare) -> BShare:
    """[[x + y mod 2^w]] of w-bit elements.

    Pre-conditions: x and y have one shape and one width, w >= 2.
    Leaks: nothing.
    """
    p = x ^ y
    width = x.width - 1
    low = slice(0, width)
    g = await conjunction(ctx.step("generate"), x.planes(low), y.planes(low))
    block_p = p.planes(low)
    for level, (updated, pivots, passing) in enumerate(_prefix_levels(width)):
        products = await conjunction(
            ctx.step(level),
            stack_planes([block_p.planes(updated), block_p.planes(updated[passing])]),
            stack_planes([g.planes(pivots), block_p.planes(pivots[passing])]),
        )
        g = g.replace_planes(updated, g.planes(updated) ^ products.planes(slice(0, len(updated))))
        block_p = block_p.replace_planes(updated[passing], products.planes(slice(len(updated), None)))
    carries = g
    return stack_planes([p.planes(slice(0, 1)), p.planes(slice(1, None)) ^ carries])


def _prefix_levels(width: int) -> list[tuple[Indices, Indices, Indices]]:
    """Per level of Sklansky's network: which prefixes are extended, from where, and which still pass carries on."""
    levels = []
    index = np.arange(width)
    for level in range(log2(width)):
        span = 1 << level
        updated = index[(index & span) != 0]
        pivots = (updated >> level << level) - 1
        levels.append((updated, pivots, np.flatnonzero(updated >= 2 * span)))
    return levels


@protocol(
    "carry of the subtraction; Kogge and Stone 1973 recurrence",
    lambda of: of(carry, {size.width: size.width + 1}),
)
async def bits_less_than(ctx: Context, x: BShare, y: BShare) -> BShare:
    """[[1 if x < y else 0]] of unsigned w-bit elements.

    The highest bit in which they differ decides, and the result is that bit of y. A zero below all bits covers equal
    elements.

    Pre-conditions: x and y have one shape and one width.
    Leaks: nothing.
    """
    ctx.own(x, y)
    if x.shape != y.shape or x.width != y.width:
        raise ShareError(f"{x!r} and {y!r} differ in shape or width")
    below = x.planes(slice(0, 1)) ^ x.planes(slice(0, 1))
    return await carry(ctx, stack_planes([below, y]), stack_planes([below, ~(x ^ y)]))


@protocol(
    "inner product over Z_2; Araki et al. 2016",
    lambda of: of(bilinear_bits, {size.and_planes: size.width, size.and_elements: size.elements * size.columns}),
)
async def pick(ctx: Context, flags: BShare, values: BShare) -> BShare:
    """[[XOR over the last axis of flag AND value]]: where one flag of a row is set, that row's value at it.

    n counts the rows, columns the length of a row, w the bits of a value.

    Pre-conditions: flags are single bits in the shape of values.
    Leaks: nothing.
    """
    ctx.own(flags, values)
    if flags.width != 1 or flags.shape != values.shape:
        raise ShareError(f"{flags!r} cannot pick from {values!r}")
    every = np.zeros(values.width, np.intp)

    def summed(planes: Words) -> Words:
        bits = unpack_bits(planes, values.size).reshape(values.width, *values.shape)
        return pack_bits(np.bitwise_xor.reduce(bits, axis=-1).reshape(values.width, -1))

    form = BitForm(left=lambda planes: planes[every], right=_same, summed=summed)
    return await bilinear_bits(ctx, flags, values, form=form, shape=values.shape[:-1])


@formula
def tournament_rounds(count: int, width: int) -> int:
    """Rounds of `tournament`."""
    return sum(log2(width + 1) + log2(size - 1) + 1 for size in tournament_groups(count))


@formula
def tournament_ands(count: int, width: int) -> int:
    """Bytes of the ANDs that compare entrants and find winners in `tournament`."""
    total = 0
    for members in tournament_groups(count):
        groups = -(-count // members)
        total += carry_ands(width + 1) * plane(groups * (members * (members - 1) // 2))
        total += (members - 2) * plane(groups * members)
        count = groups
    return total


@formula
def tournament_winners(count: int, width: int) -> int:
    """Bytes of the winners of all levels of `tournament`."""
    total, index_bits = 0, log2(count)
    for members in tournament_groups(count):
        count = -(-count // members)
        total += (width + index_bits) * plane(count)
    return total


@formula
def tournament_entrants(count: int, width: int) -> int:
    """Bytes of the entrants of all levels of `tournament`, short groups filled up."""
    total, index_bits = 0, log2(count)
    for members in tournament_groups(count):
        count = -(-count // members)
        total += (width + index_bits) * plane(count * members)
    return total


@protocol(
    "CaPS App. A, pi_MAX, as a tournament of all-pairs groups",
    lambda of: Cost(
        rounds=tournament_rounds(size.elements, size.width),
        sent=of.product(tournament_ands(size.elements, size.width))
        + of.bilinear(tournament_winners(size.elements, size.width), tournament_entrants(size.elements, size.width)),
    ),
)
async def tournament(ctx: Context, values: BShare) -> tuple[BShare, BShare]:
    """[[max]] and [[argmax]] of n unsigned w-bit values; the lowest index wins a tie.

    Small inputs meet in one all-pairs group: log2(n) + log2(w) rounds and a bit. Large ones are split into groups as
    big as PAIRS_PER_LEVEL allows, whose winners meet again.

    Deviation: the paper halves the list, which takes log2(n) comparisons in sequence.

    Pre-conditions: values is a vector with at least one element.
    Leaks: nothing.
    """
    ctx.own(values)
    if len(values.shape) != 1 or not values.size:
        raise ShareError(f"a tournament needs a vector with at least one element, not {values!r}")
    width, count = values.width, values.size
    index_bits = log2(count)
    numbers = (np.arange(count)[None, :] >> np.arange(index_bits)[:, None] & 1).astype(np.uint8)
    entrants = stack_planes([values, ctx.zero_bits(index_bits, values.shape).flip(numbers)])
    for level, members in enumerate(tournament_groups(count)):
        entrants = await _winners(ctx.step(level), entrants, members, width)
    winner = entrants.reshape()
    return winner.planes(slice(0, width)), winner.planes(slice(width, None))


async def _winners(ctx: Context, entrants: BShare, size: int, width: int) -> BShare:
    """One level: the best of every group of `size` consecutive entrants, whose values are the `width` lowest planes."""
    count = entrants.size
    groups = -(-count // size)
    # A short last group is filled up with copies of its first member, which lose the tie against it.
    seats = np.arange(groups * size).reshape(groups, size)
    seats[seats >= count] = (groups - 1) * size
    left, right = np.triu_indices(size, 1)
    values = entrants.planes(slice(0, width))
    rises = await bits_less_than(ctx.step("compare"), values.take(seats[:, left]), values.take(seats[:, right]))

    pair_of = np.zeros((size, size), np.intp)
    pair_of[left, right] = pair_of[right, left] = np.arange(len(left))
    rivals = np.array([[j for j in range(size) if j != i] for i in range(size)], np.intp)
    me = np.arange(size)[:, None]
    pairs = np.arange(groups)[:, None, None] * len(left) + pair_of[me, rivals][None]
    outcomes = rises.take(pairs)  # (groups, size, size - 1)
    wins_if_zero = np.broadcast_to(rivals > me, outcomes.shape).reshape(1, -1).astype(np.uint8)
    beaten = _last_axis_to_planes(outcomes.flip(wins_if_zero))
    flags = await all_of(ctx.step("win"), beaten)
    return await pick(ctx.step("pick"), flags, entrants.take(seats))


def _last_axis_to_planes(x: BShare) -> BShare:
    """Single bits of shape (..., m) as m-bit elements of shape (...)."""
    *shape, width = x.shape

    def turned(planes: Words) -> Words:
        return pack_bits(np.ascontiguousarray(unpack_bits(planes[0], x.size).reshape(-1, width).T))

    return x.map(turned, tuple(shape))


def tournament_groups(count: int) -> list[int]:
    """Group size of each level: as large as PAIRS_PER_LEVEL allows."""
    sizes = []
    while count > 1:
        size = min(count, max(2, 2 * PAIRS_PER_LEVEL // count))
        sizes.append(size)
        count = -(-count // size)
    return sizes


@formula
def prefix_ands(block: int) -> int:
    """ANDs per element and block of `prefix_and`."""
    return sum(len(updated) for updated, _, _ in _prefix_levels(block))


@protocol(
    "Sklansky 1960 prefix network, in blocks",
    lambda of: Cost(rounds=log2(size.block), sent=of.ands(size.width // size.block * prefix_ands(size.block))),
)
async def prefix_and(ctx: Context, x: BShare, *, block: int) -> BShare:
    """[[the AND of each bit with all lower ones of its block]], for blocks of b consecutive bits out of w.

    Pre-conditions: b divides w.
    Leaks: nothing.
    """
    ctx.own(x)
    if x.width % block:
        raise ShareError(f"{x!r} does not consist of blocks of {block} bits")
    first = np.arange(0, x.width, block)[:, None]
    for level, (updated, pivots, _) in enumerate(_prefix_levels(block)):
        changed = (first + updated).reshape(-1)
        products = await conjunction(ctx.step(level), x.planes(changed), x.planes((first + pivots).reshape(-1)))
        x = x.replace_planes(changed, products)
    return x


@protocol(
    "inner product over Z_2; Araki et al. 2016",
    lambda of: of(
        bilinear_bits,
        {
            size.width: size.width // size.block,
            size.and_planes: size.width,
            size.and_elements: size.elements,
        },
    ),
)
async def plane_dot(ctx: Context, x: BShare, y: BShare, *, block: int) -> BShare:
    """[[the parity of x AND y]] over each block of b consecutive bits out of w; as `pick`, along the planes.

    Pre-conditions: x and y have one shape and one width, which b divides.
    Leaks: nothing.
    """
    ctx.own(x, y)
    if x.shape != y.shape or x.width != y.width or x.width % block:
        raise ShareError(f"{x!r} and {y!r} do not consist of the same blocks of {block} bits")
    blocks = x.width // block

    def parities(planes: Words) -> Words:
        return np.asarray(np.bitwise_xor.reduce(planes.reshape(blocks, block, -1), axis=1))

    return await bilinear_bits(ctx, x, y, form=BitForm(left=_same, right=_same, summed=parities), shape=x.shape)


def _same(planes: Words) -> Words:
    return planes


@formula
def one_hot_ands(width: int) -> int:
    """ANDs per element of `one_hot`."""
    return (1 << width) - width - 1


@protocol(
    "outer products of halves, last row and column by linearity",
    lambda of: Cost(rounds=log2(size.width), sent=of.ands(one_hot_ands(size.width))),
)
async def one_hot(ctx: Context, x: BShare) -> BShare:
    """[[2^w bits, of which bit x is set]], for x a number of w bits.

    Pre-conditions: w >= 1.
    Leaks: nothing.
    """
    ctx.own(x)
    parts = [stack_planes([~bit, bit]) for bit in (x.planes(slice(i, i + 1)) for i in range(x.width))]
    level = 0
    while len(parts) > 1:
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        # Plane (i, j) of a product is high_i AND low_j; that of the last i, or j, is what the others leave.
        grids = [np.indices((high.width - 1, low.width - 1)).reshape(2, -1) for low, high in pairs]
        products = await conjunction(
            ctx.step(level),
            stack_planes([high.planes(rows) for (_, high), (rows, _) in zip(pairs, grids, strict=True)]),
            stack_planes([low.planes(columns) for (low, _), (_, columns) in zip(pairs, grids, strict=True)]),
        )
        ends = np.cumsum([0, *(grid.shape[1] for grid in grids)])
        inner = [products.planes(slice(*ends[i : i + 2])) for i in range(len(pairs))]
        joined = [part.combine(_completed, low, high) for part, (low, high) in zip(inner, pairs, strict=True)]
        parts = joined + parts[2 * len(pairs) :]
        level += 1
    return parts[0]


def _completed(inner: Words, low: Words, high: Words) -> Words:
    """All planes high_i AND low_j from those where neither is last: each high_i is the sum of its row."""
    full = np.empty((len(high), len(low), inner.shape[1]), PLANE)
    full[:-1, :-1] = inner.reshape(len(high) - 1, len(low) - 1, -1)
    np.bitwise_xor(high[:-1], np.bitwise_xor.reduce(full[:-1, :-1], axis=1), out=full[:-1, -1])
    np.bitwise_xor(low, np.bitwise_xor.reduce(full[:-1], axis=0), out=full[-1])
    return full.reshape(-1, inner.shape[1])


def positions(table: npt.NDArray[np.uint8]) -> Positions:
    """A public table of bits as `chosen` reads it: for each row, where it has a 1."""
    return [np.flatnonzero(row) for row in table]


def chosen(flags: BShare, rows: Positions) -> BShare:
    """The public bits table[:, e] at the position e where the one-hot `flags` are set; 0 if none is. Local.

    rows: the `positions` of the table. Words are taken in blocks, so that the planes of one stay in cache while all
    rows of the table are summed.
    """
    step = max(1, CACHED_WORDS // flags.width)

    def selected(part: Words) -> Words:
        out = np.empty((len(rows), part.shape[1]), PLANE)
        for start in range(0, part.shape[1], step):
            block = np.ascontiguousarray(part[:, start : start + step])
            for bit, row in enumerate(rows):
                np.bitwise_xor.reduce(block[row], axis=0, out=out[bit, start : start + step])
        return out

    return flags.map(selected)
