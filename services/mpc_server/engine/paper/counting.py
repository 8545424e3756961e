"""pi_COMP as the paper has it: every row compared with every cell."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from caps.data.domain import Layout
from caps.errors import ShareError
from caps.shares.ring import Z64
from services.mpc_server.engine import size
from services.mpc_server.engine.comparison import equal
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import FIRST, Cost, Size, formula, plane
from services.mpc_server.engine.counting import row_slices
from services.mpc_server.engine.recipe import codes_of
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, Indices, concatenate
from services.mpc_server.engine.verbs import multiply


@formula
def paper_blocks(rows: int, columns: int) -> int:
    """Blocks of rows that `count_paper` works through one after the other."""
    return len(row_slices(rows, columns))


@formula
def block_planes(rows: int, width: int, columns: int) -> int:
    """Bytes of a bit plane of `rows` x `width` elements, each of its blocks in whole words."""
    return sum(plane((block.stop - block.start) * width) for block in row_slices(rows, columns))


@protocol(
    "CaPS Protocols 2 and 11",
    rep3=Cost(
        rounds=paper_blocks(size.rows, size.pool_columns) * (8 + size.degree),
        sent=8 * size.rows * size.tests
        + (63 + FIRST * 64) * block_planes(size.rows, size.tests, size.pool_columns)
        + 8 * size.rows * size.product_columns,
    ),
)
async def count_paper(ctx: Context, codes: AShare, *, layout: Layout) -> AShare:
    """[[all marginals]] of a layout from integer codes, one column per attribute, by comparing rows with cells.

    Every code is tested for equality with every category, every cell of every row is the product of its tests. The
    baseline of benchmarks: what is sent grows with the rows. Tests and product columns are counted per row; the
    pool is tests and cells.

    Deviation: a column meets each category once, not once per cell; rows and queries are batched, in blocks of rows.

    Pre-conditions: codes are n x (attributes of the domain) over Z_2^64; a missing value is any word that is
        not a category.
    Leaks: nothing.
    """
    ctx.own(codes)
    domain = layout.domain
    if len(codes.shape) != 2 or codes.shape[1] != len(domain.attributes) or not codes.shape[0] or codes.ring != Z64:
        raise ShareError(f"{codes!r} must be {len(domain.attributes)} columns of codes over Z_2^64")
    attribute = np.repeat(np.arange(len(domain.sizes)), domain.sizes)
    category = Z64.encode(np.arange(domain.width) - np.array(domain.offsets)[attribute])
    factors, order = _factors(layout)
    total = ctx.zero((layout.cells,), Z64)
    for number, rows in enumerate(row_slices(codes.shape[0], domain.width + layout.cells)):
        step = ctx.step(f"block{number}")
        values = codes[rows][:, attribute]
        tests = await equal(step.step("test"), values, ctx.public(np.broadcast_to(category, values.shape)))
        cells = tests[:, factors[0]]
        for degree, columns in enumerate(factors[1:], 1):
            active = len(columns)
            made = await multiply(step.step(degree), cells[:, :active], tests[:, columns])
            cells = concatenate([made, cells[:, active:]], axis=1)
        total = total + cells.sum(axis=0)
    return total[order]


@lru_cache(maxsize=64)
def _factors(layout: Layout) -> tuple[tuple[Indices, ...], Indices]:
    """The column tested as the i-th factor of each cell, cells of large cliques first, and where each cell then is."""
    domain = layout.domain
    parts = [tuple(domain.position(name) for name in clique) for clique in layout.cliques]
    ranked = sorted(range(len(parts)), key=lambda index: -len(parts[index]))
    factors: list[Indices] = []
    for degree in range(max(map(len, parts))):
        chosen = [parts[index] for index in ranked if len(parts[index]) > degree]
        factors.append(
            np.concatenate([domain.offsets[part[degree]] + codes_of(domain, part)[part[degree]] for part in chosen])
        )
    order = np.empty(layout.cells, np.intp)
    order[layout.positions(layout.cliques[index] for index in ranked)] = np.arange(layout.cells)
    return tuple(factors), order


def paper_sizes(layout: Layout, rows: int) -> dict[Size, int]:
    """The sizes that the declared cost of `count_paper` is a formula of."""
    factors, _ = _factors(layout)
    width = layout.domain.width
    products = sum(len(columns) for columns in factors[1:])
    return {
        size.rows: rows,
        size.tests: width,
        size.product_columns: products,
        size.degree: len(factors),
        size.pool_columns: width + layout.cells,
    }
