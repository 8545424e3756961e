"""COMPUTE ANSWERS, pi_COMP: the marginals of the joint table as shares over Z_2^64, however the table is divided.

Rows that one holder has in full are counted by that holder, which shares marginals. Rows that are spread over holders
arrive as one-hot columns, which are counted on shares (`counting`). What holders send is checked first (`validity`); a
contribution that fails is named and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from caps.data.domain import Clique, Layout
from caps.dp.bounds import COUNT_BITS, MOST_COUNTED, counted_bits, largest_sum
from caps.errors import DomainError, ShareError
from caps.shares.ring import Z16, Z32, Z64, Ring
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.cost import Size, Sizes, smallest
from services.mpc_server.engine.counting import coalesce, count, count_sizes
from services.mpc_server.engine.recipe import recipe_of
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, concatenate
from services.mpc_server.engine.validity import (
    Flags,
    check_columns,
    check_one_hot,
    check_totals,
    combinations_of_totals,
)
from services.mpc_server.engine.verbs import lift


@dataclass(frozen=True, slots=True, eq=False)
class HorizontalInput:
    """What a holder counted itself: the marginals of `cliques` (of the whole layout if None), flat, over its own rows.

    They are shared over Z_2^16 or Z_2^32 and taken modulo a power of two, so that every word is a possible count, and
    those of all holders add up to less than 2^32.
    """

    holder: str
    marginals: AShare
    cliques: tuple[Clique, ...] | None = None

    def layout(self, whole: Layout) -> Layout:
        """The layout of this contribution's cells."""
        return whole if self.cliques is None else Layout(whole.domain, self.cliques)


def check_marginals(
    ctx: Context, contributions: Sequence[HorizontalInput], layout: Layout
) -> tuple[list[Layout], Ring]:
    layouts = [contribution.layout(layout) for contribution in contributions]
    ring = contributions[0].marginals.ring
    for contribution, own in zip(contributions, layouts, strict=True):
        marginals = contribution.marginals
        ctx.own(marginals)
        if marginals.ring not in (Z16, Z32) or marginals.ring != ring:
            raise ShareError(f"marginals of {contribution.holder} must be in Z_2^16 or Z_2^32, and all in one ring")
        if marginals.shape != (own.cells,):
            raise ShareError(f"marginals of {contribution.holder} must be {own.cells} cells, not {marginals.shape}")
        layout.positions(own.cliques)  # refuses cliques that are not in the whole layout
    return layouts, ring


def own_bits(contributions: Sequence[HorizontalInput], rows: int = 0) -> int:
    """The most bits that holders' own counts may have, so that no sum with `rows` joined rows reaches 2^32."""
    return min(counted_bits(len(contributions), rows), contributions[0].marginals.ring.bits)


@protocol(
    "CaPS Protocol 2, lines 1-5",
    lambda of: (
        of(lift, {size.elements: size.marginal_cells, size.ring_bits: size.count_bits, size.target_bits: 64})
        + of(check_totals)
    ),
)
async def add_marginals(
    ctx: Context, contributions: Sequence[HorizontalInput], *, layout: Layout, bits: int
) -> tuple[AShare, Flags]:
    """[[the sum of the contributions]] in the order of `layout`, over Z_2^64, and which of them were accepted.

    Each contribution is lifted from Z_2^k, k = bits: whatever a holder sends, anything beyond 2^k - 1 is cut off.

    Deviation: the paper adds what holders share over Z_2^64. There a holder could share counts that wrap, and so break
    the bound on what one row can change.

    Pre-conditions: all contributions are in one ring; servers compared their copies of them on receipt.
    Leaks: which contributions are accepted (see check_totals).
    """
    if not contributions:
        raise ShareError("there are no contributions to add")
    layouts, ring = check_marginals(ctx, contributions, layout)
    if not 1 <= bits <= ring.bits or largest_sum(len(contributions), bits, 0) > MOST_COUNTED:
        raise DomainError(f"{len(contributions)} counts of {bits} bits could add up to 2^{COUNT_BITS} or more")
    combinations_of_totals(layouts, bits)
    stacked = concatenate([contribution.marginals for contribution in contributions])
    wide = await lift(ctx.step("lift"), stacked, ring=Z64, modulo=Ring(bits, ring.dtype))
    ends = np.cumsum([own.cells for own in layouts])
    parts = [wide[end - own.cells : end] for end, own in zip(ends, layouts, strict=True)]
    accepted = await check_totals(ctx.step("check"), parts, layouts=layouts, bits=bits)
    total = ctx.zero((layout.cells,), Z64)
    for index in np.flatnonzero(accepted):
        total = total + parts[index].scatter(layout.positions(layouts[index].cliques), (layout.cells,))
    return total, accepted


@dataclass(frozen=True, slots=True, eq=False)
class ColumnsInput:
    """One-hot columns of some attributes, in domain order, for the aligned rows of the joined table."""

    holder: str
    attributes: tuple[str, ...]
    columns: AShare


class Answers(NamedTuple):
    """The marginals of a layout, and for each input whether it is part of them."""

    marginals: AShare
    accepted: Flags


@protocol(
    "CaPS Protocol 2, pi_COMP",
    lambda of: (of(add_marginals) * smallest(size.marginal_inputs, 1)).beside(
        (of(check_one_hot) + of(coalesce) + of(count)) * smallest(size.column_inputs, 1)
    ),
)
async def compute_answers(
    ctx: Context,
    inputs: Sequence[HorizontalInput | ColumnsInput],
    *,
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
) -> Answers:
    """[[the marginals of the joint table]] in the order of `layout`, over Z_2^64, and which inputs were accepted.

    Each answer is the sum of what holders counted for its clique and of what is counted from the joined columns:

    - horizontal: every holder brings marginals of the whole layout; there are no columns;
    - vertical: holders bring columns of the same aligned rows; every clique is `counted` from them;
    - mixed: some rows are counted by their holders, others are spread over columns; answers are the sum of both;
    - the paper's vertical case, where a holder counts a clique that lies within its own columns: leave the clique out
      of `counted`, or its rows would count twice.

    By default `counted` is every clique whose attributes are all brought as columns. Where several holders bring an
    attribute as columns, the first in the order of `inputs` that has a value in a row decides. A refused input is left
    out: its rows count nowhere, or its attributes are missing unless another holder has them. The declared cost is that
    of a call in which nothing is refused. `bits` is how many a count of a holder's own has; by default, as many as keep
    every sum below 2^32.

    Pre-conditions: no row is brought twice for a clique; columns are aligned; servers compared their copies on receipt.
    Leaks: which inputs are accepted (see check_totals and check_one_hot).
    """
    horizontal = [i for i, one in enumerate(inputs) if isinstance(one, HorizontalInput)]
    vertical = [i for i, one in enumerate(inputs) if isinstance(one, ColumnsInput)]
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    columns = [one for one in inputs if isinstance(one, ColumnsInput)]
    brought = _check_brought(ctx, columns, layout)
    if counted is None:
        chosen = [clique for clique in layout.cliques if brought.issuperset(clique)]
    else:
        chosen = [layout.cliques[layout.index(clique)] for clique in counted]
    for clique in chosen:
        if not brought.issuperset(clique):
            raise DomainError(f"some attributes of {clique} are in no holder's columns")
    if columns and not chosen:
        raise DomainError("holders bring columns, but no clique is to be counted from them")
    if marginals:
        layouts, _ = check_marginals(ctx, marginals, layout)
        answered = {*chosen, *(clique for own in layouts for clique in own.cliques)}
    else:
        answered = set(chosen)
    if answered != set(layout.cliques):
        raise DomainError(f"nobody brings what {len(layout.cliques) - len(answered)} cliques of the layout need")

    accepted = np.zeros(len(inputs), np.bool_)
    branches = []
    if marginals:
        bits = bits or own_bits(marginals, columns[0].columns.shape[0] if columns else 0)
        branches.append(add_marginals(ctx.step("marginals"), marginals, layout=layout, bits=bits))
    if columns:
        branches.append(_count_joined(ctx.step("columns"), columns, layout, chosen))
    results = await together(*branches)
    for (_, flags), which in zip(results, [which for which in (horizontal, vertical) if which], strict=True):
        accepted[which] = flags
    total = results[0][0] if len(results) == 1 else results[0][0] + results[1][0]
    return Answers(total, accepted)


def _check_brought(ctx: Context, inputs: Sequence[ColumnsInput], layout: Layout) -> set[str]:
    """The attributes that come as columns. Raises, before anything is sent, if an input is malformed."""
    domain = layout.domain
    for one in inputs:
        ctx.own(one.columns)
        if domain.clique(one.attributes) != one.attributes:
            raise DomainError(f"attributes of {one.holder} must be in domain order")
        check_columns(one.columns, domain.project(one.attributes).width, inputs[0].columns.ring)
        if one.columns.shape[0] != inputs[0].columns.shape[0]:
            raise ShareError(f"{one.holder} and {inputs[0].holder} bring different numbers of rows")
    return {name for one in inputs for name in one.attributes}


async def _count_joined(
    ctx: Context, inputs: Sequence[ColumnsInput], layout: Layout, cliques: Sequence[Clique]
) -> tuple[AShare, Flags]:
    """Check the columns, join them by precedence, and count `cliques`; the other cells of the layout are zero."""
    domain = layout.domain
    used = domain.project({name for clique in cliques for name in clique})
    wanted = Layout(used, tuple(cliques))
    recipe_of(wanted)  # refuses, before anything is sent, what cannot be counted
    accepted = await check_one_hot(
        ctx.step("check"),
        [one.columns for one in inputs],
        blocks=[domain.project(one.attributes).sizes for one in inputs],
    )
    valid = [one for one, flag in zip(inputs, accepted, strict=True) if flag]
    rows, ring = inputs[0].columns.shape[0], inputs[0].columns.ring
    stacks: list[list[AShare]] = []
    last: tuple[ColumnsInput, slice] | None = None
    for name, width in zip(used.names, used.sizes, strict=True):
        found = [(one, domain.project(one.attributes).columns(name)) for one in valid if name in one.attributes]
        if last is not None and len(found) == 1 and found[0][0] is last[0] and found[0][1].start == last[1].stop:
            # Neighbours that nobody else brings stay one block: narrow blocks are slow to put side by side.
            found = [(last[0], slice(last[1].start, found[0][1].stop))]
            stacks.pop()
        last = found[0] if len(found) == 1 else None
        stacks.append([one.columns[:, where] for one, where in found] or [ctx.zero((rows, width), ring)])
    joined = await coalesce(ctx.step("join"), stacks)
    counts = await count(ctx.step("count"), *joined, layout=wanted)
    return counts.scatter(layout.positions(cliques), (layout.cells,)), accepted


def marginals_sizes(layouts: Sequence[Layout], bits: int) -> dict[Size, int]:
    """The sizes that the declared cost of `add_marginals` is a formula of: a layout for each contribution."""
    cells = sum(layout.cells for layout in layouts)
    return {
        size.marginal_inputs: len(layouts),
        size.marginal_cells: cells,
        size.count_bits: bits,
        size.combinations: combinations_of_totals(layouts, bits),
    }


NO_ANSWERS: Sizes = {
    size.rows: 0,
    size.word_bits: Z16.bits,
    size.cells: 0,
    size.paired_columns: 0,
    size.pair_cells: 0,
    size.crossed_cells: 0,
    size.crossed_entries: 0,
    size.product_columns: 0,
    size.pool_columns: 1,
    size.levels: 0,
    size.column_inputs: 0,
    size.lower_columns: 0,
    size.most_holders: 0,
    size.marginal_inputs: 0,
    size.marginal_cells: 0,
    size.count_bits: 16,
    size.combinations: 0,
}
"""The sizes of `compute_answers` if nobody brings anything: each way of contributing sets its own."""


def answers_sizes(
    inputs: Sequence[HorizontalInput | ColumnsInput],
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
) -> dict[Size, int]:
    """The sizes that the declared cost of `compute_answers` is a formula of."""
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    columns = [one for one in inputs if isinstance(one, ColumnsInput)]
    sizes = dict(NO_ANSWERS)
    if marginals:
        bits = bits or own_bits(marginals, columns[0].columns.shape[0] if columns else 0)
        sizes |= marginals_sizes([one.layout(layout) for one in marginals], bits)
    if columns:
        brought = Counter(name for one in columns for name in one.attributes)
        cliques = [q for q in layout.cliques if all(name in brought for name in q)] if counted is None else counted
        used = layout.domain.project({name for clique in cliques for name in clique})
        sizes |= {
            size.column_inputs: len(columns),
            size.lower_columns: sum((brought[n] - 1) * width for n, width in zip(used.names, used.sizes, strict=True)),
            size.most_holders: max(brought[name] for name in used.names),
        }
        found = columns[0].columns
        sizes |= count_sizes(Layout(used, tuple(cliques)), found.shape[0], found.ring.bits)
    return sizes
