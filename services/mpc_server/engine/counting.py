"""Marginals from one-hot columns: what crosses the network is as large as the answers, whatever the number of rows.

An attribute with s categories is a block of s columns of 0 and 1, at most one of them 1; a missing value and a padding
row are zeros. One-hot columns make counting a matrix product, and a product of shared matrices sends its result, not
its rows. Only marginals of three or more attributes need products of columns first, and these are sent.

Columns are words of Z_2^16, or of 32 bits for tables of more than 65,535 rows: what was shared in Z_2^24 is computed on
modulo 2^32, which is also right modulo 2^24. Counts are then taken modulo 2^22.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caps.data.domain import Layout
from caps.errors import ShareError
from caps.shares.ring import RINGS, Z16, Z64, Ring
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Cost, Expr, Size, formula, log2, smallest
from services.mpc_server.engine.kernels import BLOCK_ROWS
from services.mpc_server.engine.recipe import Recipe, recipe_of
from services.mpc_server.engine.registry import Prices, protocol
from services.mpc_server.engine.shares import AShare, Indices, concatenate
from services.mpc_server.engine.validity import WIDTHS, check_columns
from services.mpc_server.engine.verbs import cross_cells, gram_cells, lift, multiply

GROUP_ROWS = 65_535
"""Rows that are counted together in Z_2^16, so that no count can wrap."""
WIDE_GROUP_ROWS = (1 << 22) - 1
"""The same for words of 32 bits, whose counts are taken modulo 2^22."""
BLOCK_WORDS = 1 << 22
"""Elements of one block of rows to be multiplied: 8 MiB per component and buffer in Z_2^16."""


@protocol(
    "CaPS App. B, common data: pi_JOIN with a fixed precedence",
    lambda of: Cost(
        rounds=log2(size.most_holders), sent=of.product(size.rows * size.lower_columns * size.word_bits // 8)
    ),
)
async def coalesce(ctx: Context, stacks: Sequence[Sequence[AShare]]) -> tuple[AShare, ...]:
    """For each attribute, the block of the first holder that has a value in a row; zeros if none has.

    `stacks[a]` holds the blocks of attribute a in order of precedence. Two are merged as
    first + (1 - presence) * second, the presence being the sum of a row of the first. That is associative, so any
    number of holders is merged in a tree, all attributes in one message; lower columns are those of all blocks but the
    first.

    Deviation: the paper joins common data without saying whose value counts when holders differ.

    Pre-conditions: blocks are one-hot or zero, of the same aligned rows, in one ring.
    Leaks: nothing.
    """
    waiting = [list(stack) if len(stack) < 2 else [block.map(np.asarray) for block in stack] for stack in stacks]
    for stack in waiting:
        if not stack:
            raise ShareError("an attribute has no block to merge")
        ctx.own(*stack)
        for block in stack:
            check_columns(block, stack[0].shape[-1], waiting[0][0].ring)
            if block.shape != waiting[0][0].shape[:1] + stack[0].shape[1:]:
                raise ShareError(f"{block!r} and {waiting[0][0]!r} must have the same rows")
    level = 0
    while any(len(stack) > 1 for stack in waiting):
        pairs = [(stack[i], stack[i + 1]) for stack in waiting for i in range(0, len(stack) - 1, 2)]
        widths = [second.shape[1] for _, second in pairs]
        absent = concatenate([(1 - first.sum(axis=1)).reshape(-1, 1) for first, _ in pairs], axis=1)
        seconds = concatenate([second for _, second in pairs], axis=1)
        spread = np.repeat(np.arange(len(pairs)), widths)
        filled = await multiply(ctx.step(level), absent[:, spread], seconds)
        ends = np.cumsum(widths)
        merged = iter(
            first + filled[:, end - width : end] for (first, _), width, end in zip(pairs, widths, ends, strict=True)
        )
        waiting = [
            [*(next(merged) for _ in range(len(stack) // 2)), *stack[len(stack) - len(stack) % 2 :]]
            for stack in waiting
        ]
        level += 1
    return tuple(stack[0] for stack in waiting)


def row_slices(rows: int, columns: int) -> list[slice]:
    """Blocks of at most BLOCK_WORDS elements, but never of only a few rows."""
    step = max(BLOCK_ROWS, BLOCK_WORDS // columns)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


@formula
def group_bits(bits: int) -> int:
    """Bits of a group's count, for columns in words of `bits` bits."""
    return WIDTHS[RINGS[bits]].counted.bits


def _group_rows(bits: int) -> int:
    """Rows that `count` counts together, for columns in words of `bits` bits."""
    return GROUP_ROWS if bits == Z16.bits else WIDE_GROUP_ROWS


@formula
def row_groups(rows: int, bits: int) -> int:
    """Groups of rows that `count` lifts separately."""
    return -(-rows // _group_rows(bits))


@formula
def row_blocks(rows: int, columns: int, bits: int) -> int:
    """Blocks of rows that `count` multiplies one after the other."""
    full, rest = divmod(rows, _group_rows(bits))
    return full * len(row_slices(_group_rows(bits), columns)) + len(row_slices(rest, columns))


_BLOCKS = row_blocks(size.rows, size.pool_columns, size.word_bits)
_GROUPS = row_groups(size.rows, size.word_bits)


def cells_counted(of: Prices, rows: Expr, bits: Expr | int, groups: Expr, blocks: Expr) -> Cost:
    """The cost of all cells of two or more attributes, for groups of rows that come one after another, in blocks."""
    pairs = of(gram_cells, {size.columns: size.paired_columns, size.elements: size.pair_cells, size.ring_bits: bits})
    crossed = of(
        cross_cells,
        {
            size.rows: 1,
            size.columns: size.crossed_entries,
            size.elements: size.crossed_cells,
            size.ring_bits: bits,
        },
    )
    levels = Cost(size.levels) + crossed * smallest(size.levels, 1)
    columns = Cost(sent=of.product(rows * size.product_columns * bits // 8))
    return columns + (levels * blocks).beside(pairs * smallest(size.pair_cells, 1) * groups)


@protocol(
    "CaPS Protocols 2 and 11, as products of one-hot columns (docs/adr/0003)",
    lambda of: (
        cells_counted(of, size.rows, size.word_bits, _GROUPS, _BLOCKS)
        + of(
            lift,
            {
                size.elements: _GROUPS * size.cells,
                size.ring_bits: group_bits(size.word_bits),
                size.target_bits: 64,
            },
        )
    ),
)
async def count(ctx: Context, *columns: AShare, layout: Layout) -> AShare:
    """[[all marginals]] of a layout over Z_2^64, from the one-hot columns of its whole domain, which may come in parts.

    Marginals of one attribute are sums of columns; of two, entries of the Gram matrix; of more, products of two sets of
    columns, at least one of which are products themselves. Only these last have rows to send: n q words, in blocks of
    rows. Everything else is summed locally, and only cells that the layout asks for are sent and lifted. Rows are
    counted in groups, so that no group's count wraps, and groups are added after lifting: in Z_2^16 they have 65,535
    rows; in words of 32 bits 4,194,303, as counts are then taken modulo 2^22, where a product in doubles is exact.

    Deviation: the paper compares every row with every cell. The counts are the same.

    Pre-conditions: blocks of every row are one-hot or zero (check_one_hot); at most 8 attributes to a marginal.
    Leaks: nothing.
    """
    ctx.own(*columns)
    for part in columns:
        check_columns(part, part.shape[-1], columns[0].ring)
    if len({part.shape[0] for part in columns}) != 1 or sum(part.shape[1] for part in columns) != layout.domain.width:
        raise ShareError(f"{list(columns)!r} are not the {layout.domain.width} columns of the layout's domain")
    recipe = recipe_of(layout)
    ring, counted = columns[0].ring, WIDTHS[columns[0].ring].counted
    step = _group_rows(ring.bits)
    groups = []
    for start in range(0, columns[0].shape[0], step):
        group = [part[start : start + step] for part in columns]
        sums = concatenate([part.sum(axis=0) for part in group])[recipe.singles]
        made = await _products(ctx.step(f"rows{start}"), group, recipe, counted)
        groups.append(concatenate([sums, *made]).reshape(1, -1))
    cells = concatenate(groups)
    return (await lift(ctx.step("lift"), cells[:, recipe.order], ring=Z64, modulo=counted)).sum(axis=0)


async def _products(ctx: Context, parts: Sequence[AShare], recipe: Recipe, counted: Ring) -> list[AShare]:
    """The cells that are products of matrices, for one group of rows.

    Columns are put side by side in blocks of rows, if at all: there is never a second copy of the whole table.
    """
    branches = []
    if len(recipe.paired):
        chosen = _chosen(parts, recipe.paired)
        branches.append(gram_cells(ctx.step("pairs"), *chosen, cells=recipe.pairs, modulo=counted))
    if recipe.levels:
        branches.append(_crossed(ctx.step("blocks"), parts, recipe, counted))
    return await together(*branches)


async def _crossed(ctx: Context, parts: Sequence[AShare], recipe: Recipe, counted: Ring) -> AShare:
    """The cells of marginals of three or more attributes: block by block, the product columns and then the cells."""
    total: AShare | None = None
    for number, rows in enumerate(row_slices(parts[0].shape[0], recipe.width + recipe.products)):
        step = ctx.step(number)
        blocks = [part[rows].map(np.asarray) for part in parts]
        pool = blocks[0] if len(blocks) == 1 else concatenate(blocks, axis=1)
        for level, (left, right) in enumerate(recipe.levels):
            pool = concatenate([pool, await multiply(step.step(level), pool[:, left], pool[:, right])], axis=1)
        found = await together(
            *(
                cross_cells(
                    step.step(f"cross{place}"),
                    pool[:, cross.left],
                    pool[:, cross.right],
                    cells=cross.cells,
                    modulo=counted,
                )
                for place, cross in enumerate(recipe.crosses)
            )
        )
        cells = concatenate(found)
        total = cells if total is None else total + cells
    assert total is not None
    return total


def _chosen(parts: Sequence[AShare], columns: Indices) -> list[AShare]:
    """Some columns, ascending, of a table that comes in parts; again as parts, without copying."""
    chosen, start = [], 0
    for part in parts:
        stop = start + part.shape[1]
        own = columns[(columns >= start) & (columns < stop)] - start
        runs = np.split(own, np.flatnonzero(np.diff(own) > 1) + 1) if len(own) else []
        chosen += [part[:, run[0] : run[-1] + 1] for run in runs]
        start = stop
    return chosen


def count_sizes(layout: Layout, rows: int, bits: int = Z16.bits) -> dict[Size, int]:
    """The sizes that the declared cost of `count` is a formula of, for columns in words of `bits`."""
    recipe = recipe_of(layout)
    return {
        size.rows: rows,
        size.word_bits: bits,
        size.cells: layout.cells,
        size.paired_columns: len(recipe.paired),
        size.pair_cells: len(recipe.pairs[0]),
        size.crossed_cells: sum(len(cross.cells[0]) for cross in recipe.crosses),
        size.crossed_entries: sum((cross.left.stop - cross.left.start) * len(cross.right) for cross in recipe.crosses),
        size.product_columns: recipe.products,
        size.pool_columns: recipe.width + recipe.products,
        size.levels: len(recipe.levels),
    }
