"""Noise of an exactly known law that no party knows: draws from public alias tables on XOR shares.

All random bits come from PRSS, so they cost nothing. They are labelled by the step that draws them: `index` and
`digits` of an alias draw, `sign` of a Gaussian, `low` of a Gumbel sample. Given the bits of the same labels,
caps.dp.noise.clear returns the same numbers.

In the costs, width is the number of bits of a table's codes. Draws are made in chunks, one after another, to
bound the memory of a one-hot index: 60,000 draws from 4,096 buckets, or a million from 64, are still one chunk.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from caps.dp.noise import tables
from caps.dp.noise.plans import GaussianPlan, GeometricPlan, GumbelPlan, LaplacePlan
from caps.dp.noise.tables import COIN, DIGITS, AliasTable
from caps.errors import DomainError
from caps.shares.ring import Z64, Ring
from services.mpc_server.engine import size
from services.mpc_server.engine.boolean import (
    Positions,
    chosen,
    one_hot,
    plane_dot,
    positions,
    prefix_and,
)
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Cost, Expr, formula, log2, plane
from services.mpc_server.engine.registry import Prices, protocol
from services.mpc_server.engine.shares import AShare, BShare, Shape, stack_planes
from services.mpc_server.engine.verbs import conjunction, from_bits

CHUNK_WORDS = 1 << 22
"""Words of bit planes per component that a chunk of draws may take: 32 MB."""
draw_ands = formula(tables.draw_ands)
_SMALL, _MIDDLE, _LARGE = COIN
_SUMS = DIGITS // _SMALL + DIGITS // (_SMALL * _MIDDLE) + 1
"""Of the ANDs of a draw, how many are sums of several: the coin's bits in small blocks, in middle ones, and its own."""
_SUMMED = DIGITS + (_MIDDLE - 1) * DIGITS // (_SMALL * _MIDDLE) + _LARGE - 1
"""How many ANDs these sum up."""


def _drawn(of: Prices, ands: Expr, tables: Expr | int, elements: Expr) -> Expr | int:
    """Bytes of draws from some tables for each element, given all their ANDs."""
    return of.ands(ands - tables * _SUMS, elements) + of.bilinear(
        tables * _SUMS * plane(elements), tables * _SUMMED * plane(elements)
    )


@formula
def draw_rounds(count: int, index_bits: int) -> int:
    """Rounds of `alias_draw`: a one-hot index beside two prefixes, two blocks of the coin, the coin, and the code."""
    small, middle, large = COIN
    start = max(log2(index_bits), log2(small) + log2(middle))
    return max(1, -(-count // chunk_size(index_bits))) * (start + max(2, log2(large - 1)) + 2)


@protocol(
    "Walker 1977, on shares; the coin is the threshold's digit at the first zero of fair digits",
    lambda of: Cost(
        rounds=draw_rounds(size.elements, size.index_bits),
        sent=_drawn(of, draw_ands(size.index_bits, size.width), 1, size.elements),
    ),
)
async def alias_draw(ctx: Context, *, table: AliasTable, shape: Shape) -> BShare:
    """[[codes drawn from a public table]], of w bits each; the law of the table is exact.

    Deviation: the prefix over the 80 digits is not completed. The coin's bit is found in blocks of 4, in 4 such blocks,
    and in 5 of those, by an inner product each: 130 ANDs and 7 rounds, where a Brent-Kung prefix takes 152 and 12.

    Pre-conditions: the table is equal at all parties.
    Leaks: nothing.
    """
    index = ctx.step("index").noise_bits(table.index_bits, shape)
    digits = ctx.step("digits").noise_bits(DIGITS, shape)
    size, step = index.size, chunk_size(table.index_bits)
    parts = []
    for start in range(0, max(size, 1), step):
        words, count = slice(start // 64, (start + step) // 64), (min(step, size - start),)
        chunk = (bits.map(lambda planes, words=words: planes[:, words], count) for bits in (index, digits))
        parts.append(await _draw(ctx.step(start), table, *chunk))
    return parts[0].combine(lambda *chunks: np.concatenate(chunks, 1), *parts[1:], shape=shape)


async def _draw(ctx: Context, table: AliasTable, index: BShare, digits: BShare) -> BShare:
    small, middle, large = COIN
    last = np.arange(DIGITS // small) % middle == middle - 1

    async def runs(ctx: Context) -> tuple[BShare, BShare]:
        """Whether all digits of a small block are 1 so far; and whether all small blocks of a middle one are full."""
        within = await prefix_and(ctx.step("small"), digits, block=small)
        return within, await prefix_and(ctx.step("middle"), within.planes(slice(small - 1, None, small)), block=middle)

    async def in_middle_blocks(ctx: Context) -> BShare:
        """The threshold's bit at the first 0 of every middle block, or 0 if it has none."""
        # In a block, the sum of t_j (A_{j-1} + A_j) is t_1 plus that of A_j u_j, where u_j = t_j + t_{j+1}; t_1 is the
        # sum of all u_j.
        each = _block_sums(changes, small) ^ await plane_dot(ctx.step("small"), within, changes, block=small)
        return await _first_kept(ctx.step("middle"), each, full.planes(np.flatnonzero(~last)), middle)

    bucket, (within, full) = await together(one_hot(ctx.step("bucket"), index), runs(ctx.step("runs")))
    changes, difference, alias = _selected(bucket, table)
    each, until = await together(
        in_middle_blocks(ctx.step("blocks")),
        prefix_and(ctx.step("until"), full.planes(np.flatnonzero(last)[:-1]), block=large - 1),
    )
    keep = await _first_kept(ctx.step("coin"), each, until, large)
    return alias ^ await conjunction(ctx.step("code"), keep.planes(np.zeros(table.width, np.intp)), difference)


def _selected(bucket: BShare, table: AliasTable) -> tuple[BShare, BShare, BShare]:
    """Of the bucket: where its threshold's digits change within small blocks, code XOR alias, and alias. Local."""
    found, split = chosen(bucket, _positions(table)), DIGITS + table.width
    return found.planes(slice(0, DIGITS)), found.planes(slice(DIGITS, split)), found.planes(slice(split, None))


@lru_cache(maxsize=8)
def _positions(table: AliasTable) -> Positions:
    """What `_selected` looks up in a table, kept for many draws. It takes up to 9 MB, so only those in use are kept."""
    blocks = table.thresholds.reshape(DIGITS // COIN[0], COIN[0], -1)
    following = np.concatenate([blocks[:, 1:], np.zeros_like(blocks[:, :1])], axis=1)
    codes, aliases = (
        (words >> np.arange(table.width, dtype=np.uint64)[:, None] & np.uint64(1)).astype(np.uint8)
        for words in (table.codes, table.aliases)
    )
    return positions(np.concatenate([(blocks ^ following).reshape(DIGITS, -1), codes ^ aliases, aliases]))


def _block_sums(x: BShare, block: int) -> BShare:
    """The parity of every block of consecutive bits. Local."""
    return x.map(lambda planes: np.bitwise_xor.reduce(planes.reshape(-1, block, planes.shape[1]), axis=1))


async def _first_kept(ctx: Context, each: BShare, full: BShare, block: int) -> BShare:
    """Per block, the sum of its bits as far as all earlier ones are full: `full` has a bit for all but the last."""
    later = np.flatnonzero(np.arange(each.width) % block)
    return each.planes(slice(0, None, block)) ^ await plane_dot(ctx, full, each.planes(later), block=block - 1)


def chunk_size(index_bits: int) -> int:
    """Draws per chunk, a multiple of 64."""
    return 64 * max(1, CHUNK_WORDS // ((1 << index_bits) + 2 * DIGITS))


@protocol(
    "discrete Gaussian of Canonne, Kamath and Steinke 2020; wide ones by integer convolution",
    lambda of: (
        of(alias_draw, {size.elements: size.terms * size.elements})
        + of(from_bits, {size.elements: size.terms * size.elements}).beside(
            of(from_bits, {size.elements: size.terms * size.elements, size.width: 1})
        )
    ),
)
async def discrete_gaussian(ctx: Context, *, plan: GaussianPlan, shape: Shape, ring: Ring = Z64) -> AShare:
    """[[x with probability proportional to exp(-x^2 / (2 sigma2))]], over all integers, within plan.distance.

    The terms are the plan's coefficients. A magnitude and a random sign make -0 = 0, so nothing is rejected:
    x = sum of 2^i (m_i ^ s), minus 2^w - 1 where s is set.

    Pre-conditions: the plan is equal at all parties and its bound is below 2^(k-1).
    Leaks: nothing.
    """
    _fits(plan.bound, ring)
    every = (len(plan.coefficients), *shape)
    magnitude = await alias_draw(ctx.step("magnitude"), table=plan.table, shape=every)
    sign = ctx.step("sign").noise_bits(1, every)
    flipped = magnitude ^ sign.planes(np.zeros(magnitude.width, np.intp))
    number, below = await together(
        from_bits(ctx.step("number"), flipped, ring=ring), from_bits(ctx.step("below"), sign, ring=ring)
    )
    weights = ring.encode(np.array(plan.coefficients)).reshape(-1, *[1] * len(shape))
    signed: AShare = number - below * ((1 << magnitude.width) - 1)
    return (signed * weights).sum(0)


@formula
def digits_ands(width: int, digits: int) -> int:
    """ANDs per element of `geometric`: its digits share the bits as evenly as they can."""
    return sum(draw_ands((width + i) // digits, (width + i) // digits) for i in range(digits))


@protocol(
    "independent digits of a geometric variable",
    lambda of: Cost(
        rounds=draw_rounds(size.elements, size.index_bits),
        sent=_drawn(of, digits_ands(size.width, size.digits), size.digits, size.elements),
    ),
)
async def geometric(ctx: Context, *, plan: GeometricPlan, shape: Shape) -> BShare:
    """[[g with probability proportional to exp(-g / scale)]], g = 0, 1, .., in w bits, within plan.distance.

    Of the plan's digits the widest has index_bits bits. This is the noise of permute-and-flip (Ding et al. 2021).

    Pre-conditions: the plan is equal at all parties.
    Leaks: nothing.
    """
    digits = (alias_draw(ctx.step(i), table=table, shape=shape) for i, table in enumerate(plan.tables))
    return stack_planes(await together(*digits))


@protocol(
    "difference of geometric variables; Inusah and Kozubowski 2006",
    lambda of: of(geometric, {size.elements: 2 * size.elements}) + of(from_bits, {size.elements: 2 * size.elements}),
)
async def discrete_laplace(ctx: Context, *, plan: LaplacePlan, shape: Shape, ring: Ring = Z64) -> AShare:
    """[[x with probability proportional to exp(-|x| / scale)]], over all integers, within plan.distance.

    Pre-conditions: the plan is equal at all parties and its bound is below 2^(k-1).
    Leaks: nothing.
    """
    _fits(plan.bound, ring)
    pair = await from_bits(ctx.step("ring"), await geometric(ctx, plan=plan.geometric, shape=(2, *shape)), ring=ring)
    return pair[0] - pair[1]


@protocol(
    "Gumbel noise in dyadic cells, for report noisy max",
    lambda of: of(alias_draw) + of(conjunction, {size.width: size.free_bits}),
)
async def gumbel(ctx: Context, *, plan: GumbelPlan, shape: Shape) -> BShare:
    """[[integers that follow beta * Gumbel]] in two's complement of plan.width bits, as GumbelPlan says.

    The free bits are those that are masked; width is that of the table's codes. `sign_extended` makes the numbers as
    wide as the scores they are added to.

    Pre-conditions: the plan is equal at all parties.
    Leaks: nothing.
    """
    cell = await alias_draw(ctx.step("cell"), table=plan.table, shape=shape)
    low = ctx.step("low").noise_bits(plan.least + plan.free, shape)
    places = plan.width - plan.least
    start, mask = cell.planes(slice(0, places)), cell.planes(slice(places, None))
    free = await conjunction(ctx.step("free"), mask, low.planes(slice(plan.least, None)))
    return stack_planes(
        [
            low.planes(slice(0, plan.least)),
            start.planes(slice(0, plan.free)) ^ free,
            start.planes(slice(plan.free, None)),
        ]
    )


def sign_extended(x: BShare, width: int) -> BShare:
    """Numbers in two's complement, with more bits. Local."""
    if width < x.width:
        raise DomainError(f"{x!r} does not fit in {width} bits")
    return x.planes(np.minimum(np.arange(width), x.width - 1))


def _fits(bound: int, ring: Ring) -> None:
    if bound >= 1 << (ring.bits - 1):
        raise DomainError(f"noise of up to {bound} does not fit in {ring!r}")
