"""COMPUTE ANSWERS from tables of different holders whose rows are in no common order.

A holder shares rows (caps.data.linkage): a hashed identifier and a short code for each of its attributes. The servers
find out which rows belong to the same person (`alignment`). Only then are the codes of rows that count expanded to
one-hot columns, placed in the joint row of their person, and counted; so tables travel in their compact form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from caps.data.domain import Clique, Domain, Layout
from caps.data.linkage import ID_BYTES, RowFormat
from caps.errors import DomainError, ShareError
from caps.shares.ring import Z16, Z64, plane_words
from services.mpc_server.engine import size
from services.mpc_server.engine.aes import expand_key, random_key
from services.mpc_server.engine.alignment import (
    Dummies,
    Matching,
    Planted,
    Sources,
    check_ids,
    match,
    ordered_blocks,
    plant_dummies,
    sets_of,
    tag_rows,
)
from services.mpc_server.engine.boolean import (
    one_hot,
    one_hot_ands,
)
from services.mpc_server.engine.compute import (
    NO_ANSWERS,
    Answers,
    HorizontalInput,
    add_marginals,
    check_marginals,
    marginals_sizes,
    own_bits,
)
from services.mpc_server.engine.context import Branch, Context, together
from services.mpc_server.engine.cost import Cost, Expr, Size, log2, plane, smallest
from services.mpc_server.engine.counting import (
    GROUP_ROWS,
    cells_counted,
    coalesce,
    count,
    count_sizes,
    row_blocks,
    row_groups,
)
from services.mpc_server.engine.recipe import recipe_of
from services.mpc_server.engine.registry import Prices, protocol
from services.mpc_server.engine.shares import AShare, BShare, RowShare, concatenate_rows, stack_planes
from services.mpc_server.engine.verbs import from_bits, lift

GROUP_WORDS = 1 << 24
"""Elements of the joined columns that are expanded, and whose counts are lifted, at once: 32 MiB per component in
Z_2^16. Each such group takes some fifteen rounds."""


class Mode(Enum):
    """Which people are rows of the joint table."""

    UNION = "union"
    """Everybody. Attributes that none of a person's tables brings are missing."""
    INNER = "inner"
    """People who are in at least one table for every attribute that any table brings; a value may still be missing."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinInput:
    """Rows in the form of `caps.data.linkage` over some attributes, in domain order; an identifier at most once."""

    holder: str
    attributes: tuple[str, ...]
    rows: RowShare


@protocol(
    "one-hot circuit, then bit injection: valid by construction",
    lambda of: (
        Cost(rounds=log2(size.code_bits), sent=of.ands(size.ands, size.rows))
        + of(from_bits, {size.width: 1, size.elements: 8 * size.columns * plane(size.rows), size.ring_bits: 16})
    ),
)
async def one_hot_columns(ctx: Context, codes: Sequence[BShare], *, sizes: Sequence[int]) -> AShare:
    """[[n x w one-hot columns]] over Z_2^16 from the codes of n rows: code c > 0 sets column c - 1 of its attribute.

    Pre-conditions: codes are vectors of the same length. Code 0 and codes beyond an attribute's size make zeros.
    Leaks: nothing.
    """
    flags = await together(*(one_hot(ctx.step(number), code) for number, code in enumerate(codes)))
    wanted = [slice(1, 1 + size) for size in sizes]
    rows, width = codes[0].size, sum(sizes)
    # Planes end in whole words, so one after another they are one vector of bits, rows filled up to whole words.
    planes = stack_planes([part.planes(columns) for part, columns in zip(flags, wanted, strict=True)])
    filled = 64 * plane_words(rows)
    bits = planes.map(lambda words: words.reshape(1, -1), (width * filled,))
    found = await from_bits(ctx.step("ring"), bits, ring=Z16)
    return found.map(lambda words: words.reshape(width, filled)[:, :rows].T)


class _Group(NamedTuple):
    """Joint rows that are expanded together, in runs of one set of tables each."""

    rows: slice
    runs: list[tuple[tuple[int, ...], int]]


def _groups(patterns: Sequence[tuple[tuple[int, ...], int]], most: int) -> Iterator[_Group]:
    ends = np.cumsum([0, *(size for _, size in patterns)])
    for start in range(0, int(ends[-1]), most):
        stop = min(start + most, int(ends[-1]))
        shares = [
            (members, int(min(stop, end) - max(start, begin)))
            for (members, _), (begin, end) in zip(patterns, pairwise(ends), strict=True)
        ]
        yield _Group(slice(start, stop), [(members, size) for members, size in shares if size > 0])


def group_rows(width: int) -> int:
    """Joint rows that are expanded together, for a number of columns: if more than are counted together, so many times
    these, for each group that is counted sends its counts."""
    rows = max(64, GROUP_WORDS // width // 64 * 64)
    return rows // GROUP_ROWS * GROUP_ROWS or rows


class _Table:
    """The part of a table that is expanded: the attributes that count."""

    def __init__(self, domain: Domain, attributes: Clique, used: Domain) -> None:
        layout = RowFormat(domain.project(attributes))
        self.row_bytes = layout.row_bytes
        self.names = tuple(name for name in attributes if name in used.names)
        places = [attributes.index(name) for name in self.names]
        self.codes = [slice(layout.offsets[i], layout.offsets[i] + layout.widths[i]) for i in places]
        self.widths = [layout.widths[i] for i in places]
        self.sizes = [layout.domain.sizes[i] for i in places]
        ends = np.cumsum([0, *self.sizes])
        self.columns = {name: slice(*ends[i : i + 2]) for i, name in enumerate(self.names)}


def _joined(of: Prices) -> Cost:
    """Of `join_answers`: the cipher's key beside checks and dummies, tags, and then group by group."""
    some = smallest(size.table_rows, 1)

    def lifted(counts: Expr) -> Cost:
        return of(lift, {size.elements: size.cells * counts, size.ring_bits: 16, size.target_bits: 64})

    in_ring = of(from_bits, {size.width: 1, size.elements: 8 * size.plane_bytes, size.ring_bits: 16})
    return (
        of(expand_key).beside(of(check_ids)).beside(of(plant_dummies) * smallest(size.copies, 1))
        + of(tag_rows) * some
        + Cost(rounds=size.expand_rounds + in_ring.rounds * size.groups)
        + Cost(sent=of.product(size.and_bytes + 2 * size.merged) + in_ring.sent)
        + cells_counted(of, size.joint_rows, 16, size.counted_groups, size.row_blocks)
        + lifted(size.lifted_groups) * size.full_groups
        + lifted(size.last_groups) * smallest(size.last_groups, 1)
    )


@protocol(
    "CaPS App. B, pi_JOIN and Protocol 2, on rows without a common order",
    _joined,
)
async def join_answers(
    ctx: Context,
    tables: Sequence[JoinInput],
    *,
    layout: Layout,
    mode: Mode,
    counted: Sequence[Clique] | None = None,
    dummies: Dummies | None = None,
) -> Answers:
    """[[the marginals of the joined table]] in the order of `layout`, over Z_2^64, and which tables were accepted.

    Rows with the same identifier are one person. Where several tables bring an attribute of a person, the first in the
    order of `tables` that has a value decides. `counted` are the cliques that are counted, by default all of the
    layout; the others' cells are zero. A table whose identifiers are not in order is refused and treated as
    empty. `dummies` has a number for each set of two or more tables.

    Pre-conditions: servers compared their copies of the tables on receipt; see tag_rows for the session.
    Leaks: which tables are refused; the number of rows of each table; for each set of two or more tables, how many
        identifiers exactly these have, plus its number of dummies. How many only one has follows from these. Padding
        rows count as identifiers of their own. Without dummies the numbers are exact, and a holder that colludes with a
        server and brings one person learns whether others have that person.
    """
    cliques = layout.cliques if counted is None else [layout.cliques[layout.index(clique)] for clique in counted]
    used, wanted, kinds = _plan(ctx, tables, layout, cliques)
    # The cipher's key takes 40 rounds. Checks and dummies are done long before, and no tag is opened until all are.
    keys, accepted, planted = await together(
        expand_key(ctx.step("schedule"), random_key(ctx.step("key"))),
        check_ids(ctx.step("ids"), [one.rows for one in tables]),
        _planted(ctx.step("dummies"), len(tables), dummies),
    )
    places = [place for place, flag in enumerate(accepted) if flag]
    valid, kinds = [tables[place] for place in places], [kinds[place] for place in places]
    total = ctx.zero((wanted.cells,), Z64)
    if valid:
        common = [dummies_of for chosen, dummies_of in planted.items() if set(chosen).issubset(places)]
        # Nobody but tag_rows has these copies, so that they are gone once they are shuffled.
        shuffled, tags = await tag_rows(
            ctx.step("tags"),
            [_with_dummies(tables[place].rows, [one[place] for one in common if place in one]) for place in places],
            keys,
        )
        needed = {name for one in tables for name in one.attributes} if mode is Mode.INNER else ()
        matching = match(tags, [one.attributes for one in valid], cliques, needed)
        del tags
        for group in _groups(matching.patterns, group_rows(used.width)):
            step = ctx.step(f"rows{group.rows.start}")
            joined = await _joined_columns(step, shuffled, matching.sources[group.rows], group.runs, kinds, used)
            total = total + await count(step.step("count"), joined, layout=wanted)
    return Answers(total.scatter(layout.positions(cliques), (layout.cells,)), accepted)


async def _planted(ctx: Context, tables: int, dummies: Dummies | None) -> Planted:
    if dummies is None or tables < 2:
        return {}
    return await plant_dummies(ctx, dummies.noise, tables=tables, reach=dummies.reach)


def _with_dummies(table: RowShare, dummies: Sequence[RowShare]) -> RowShare:
    """The table with dummies after its rows: identifiers without values."""
    if not dummies:
        return table
    return concatenate_rows([table, *(ids.widened(table.shape[1]) for ids in dummies)])


def _plan(
    ctx: Context, tables: Sequence[JoinInput], layout: Layout, cliques: Sequence[Clique]
) -> tuple[Domain, Layout, list[_Table]]:
    """What is counted, and which part of each table is expanded. Raises, before anything is sent, for a bad input."""
    if not tables or not cliques:
        raise DomainError("a join needs at least one table and one clique to count")
    domain = layout.domain
    for one in tables:
        ctx.own(one.rows)
        if domain.clique(one.attributes) != one.attributes:
            raise DomainError(f"attributes of {one.holder} must be in domain order")
        expected = RowFormat(domain.project(one.attributes)).row_bytes
        if one.rows.shape[1] != expected or not len(one.rows):
            raise ShareError(f"{one.holder} must bring rows of {expected} bytes, not {one.rows.shape}")
    brought = {name for one in tables for name in one.attributes}
    for clique in cliques:
        if not brought.issuperset(clique):
            raise DomainError(f"some attributes of {clique} are in no holder's table")
    used = domain.project({name for clique in cliques for name in clique})
    wanted = Layout(used, tuple(cliques))
    recipe_of(wanted)
    return used, wanted, [_Table(domain, one.attributes, used) for one in tables]


async def _joined_columns(
    ctx: Context,
    tables: Sequence[RowShare],
    sources: Sources,
    runs: Sequence[tuple[tuple[int, ...], int]],
    kinds: Sequence[_Table],
    used: Domain,
) -> AShare:
    """[[one-hot columns of the joint rows]] of one group: tables expanded, placed, and merged where they overlap."""
    members = sorted({table for some, _ in runs for table in some if kinds[table].names})

    def expanded(table: int) -> Branch[AShare]:
        rows = sources[sources[:, table] >= 0, table].astype(np.intp)
        bits = tables[table].bits(rows, slice(ID_BYTES, None))
        codes = [bits.planes(part) for part in kinds[table].codes]
        return one_hot_columns(ctx.step(f"expand{table}"), codes, sizes=kinds[table].sizes)

    blocks = dict(zip(members, await together(*map(expanded, members)), strict=True))
    pieces: list[tuple[tuple[slice, slice], AShare]] = []
    taken = dict.fromkeys(members, 0)
    start, merges, places = 0, [], []
    for number, (some, length) in enumerate(runs):
        rows = slice(start, start + length)
        stacks, targets = [], []
        for name in used.names:
            stack = [
                blocks[table][taken[table] : taken[table] + length, kinds[table].columns[name]]
                for table in some
                if name in kinds[table].columns
            ]
            columns = used.columns(name)
            if len(stack) == 1:
                pieces.append(((rows, columns), stack[0]))
            elif stack:
                stacks.append(stack)
                targets.append((rows, columns))
        if stacks:
            merges.append(coalesce(ctx.step(f"merge{number}"), stacks))
            places.append(targets)
        for table in some:
            if table in taken:
                taken[table] += length
        start += length
    for targets, merged in zip(places, await together(*merges), strict=True):
        pieces += zip(targets, merged, strict=True)
    return (
        ctx.zero((used.width, len(sources)), Z16).map(np.transpose).put(pieces)
    )  # by columns, because they come whole


class TableExtent(NamedTuple):
    """The properties of a table on which the cost of a join depends."""

    rows: int
    attributes: Clique
    accepted: bool = True


_OF_TABLES = (
    size.tables,
    size.table_rows,
    size.table_bytes,
    size.accepted_tables,
    size.table_widths,
    size.ordered_blocks,
    size.ordered_bytes,
    size.sets,
    size.dummies,
    size.copies,
    size.joint_rows,
)
_OF_GROUPS = (
    size.groups,
    size.counted_groups,
    size.full_groups,
    size.lifted_groups,
    size.last_groups,
    size.expand_rounds,
    size.row_blocks,
    size.and_bytes,
    size.plane_bytes,
    size.merged,
)


def join_sizes(
    extents: Sequence[TableExtent],
    matching: Matching,
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    reach: int = 0,
) -> dict[Size, int]:
    """The sizes that the declared cost of `join_answers` is a formula of; `matching` is that of accepted tables.

    reach: that of the dummies, 0 if there are none.
    """
    cliques = layout.cliques if counted is None else tuple(counted)
    used = layout.domain.project({name for clique in cliques for name in clique})
    valid = [extent for extent in extents if extent.accepted]
    kinds = [_Table(layout.domain, extent.attributes, used) for extent in valid]
    sets = sets_of(len(extents)) if reach else []
    added = 2 * reach * sum(0 in chosen for chosen in sets_of(len(valid)))  # as many to any other as to the first
    rows_of_each = [extent.rows + added for extent in valid]
    sizes = count_sizes(Layout(used, tuple(cliques)), 0)
    sizes |= {
        size.tables: len(extents),
        size.table_rows: sum(rows_of_each),
        size.table_bytes: sum(rows * kind.row_bytes for rows, kind in zip(rows_of_each, kinds, strict=True)),
        size.accepted_tables: len(valid),
        size.table_widths: sum(kind.row_bytes for kind in kinds),
        size.ordered_blocks: max(ordered_blocks(extent.rows) for extent in extents),
        size.ordered_bytes: sum(plane(extent.rows - 1) for extent in extents),
        size.sets: len(sets),
        size.dummies: 2 * reach,
        size.copies: sum(len(chosen) - 1 for chosen in sets),
        size.joint_rows: sum(found for _, found in matching.patterns),
    }
    sizes |= dict.fromkeys(_OF_GROUPS, 0)
    most = group_rows(used.width)
    sizes[size.full_groups], rest = divmod(sizes[size.joint_rows], most)
    sizes[size.lifted_groups], sizes[size.last_groups] = row_groups(most, Z16.bits), row_groups(rest, Z16.bits)
    for group in _groups(matching.patterns, most):
        rows = dict.fromkeys(range(len(kinds)), 0)
        deepest = 1
        for some, found in group.runs:
            for table in some:
                rows[table] += found
            for name, width in zip(used.names, used.sizes, strict=True):
                holders = sum(name in kinds[table].names for table in some)
                deepest = max(deepest, holders)
                sizes[size.merged] += max(holders - 1, 0) * found * width
        expanded = [(kinds[table], count_) for table, count_ in rows.items() if count_ and kinds[table].names]
        sizes[size.groups] += 1
        sizes[size.counted_groups] += row_groups(group.rows.stop - group.rows.start, Z16.bits)
        widest = max(width for kind, _ in expanded for width in kind.widths)
        sizes[size.expand_rounds] += log2(widest) + log2(deepest)
        sizes[size.row_blocks] += row_blocks(group.rows.stop - group.rows.start, sizes[size.pool_columns], Z16.bits)
        sizes[size.and_bytes] += sum(plane(count_) * sum(map(one_hot_ands, kind.widths)) for kind, count_ in expanded)
        sizes[size.plane_bytes] += sum(plane(count_) * sum(kind.sizes) for kind, count_ in expanded)
    return sizes


@protocol(
    "CaPS Protocol 2, pi_COMP, on rows without a common order",
    lambda of: (of(add_marginals) * smallest(size.marginal_inputs, 1)).beside(
        of(join_answers) * smallest(size.column_inputs, 1)
    ),
)
async def compute_joined_answers(
    ctx: Context,
    inputs: Sequence[HorizontalInput | JoinInput],
    *,
    layout: Layout,
    mode: Mode,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
    dummies: Dummies | None = None,
) -> Answers:
    """[[the marginals of the joint table]] in the order of `layout`, over Z_2^64, and which inputs were accepted.

    Like `compute_answers`, with tables to be joined in place of aligned columns: answers are the sum of what
    holders counted and of what is counted from the joined rows. By default `counted` is every clique whose attributes
    are all brought by tables.

    Pre-conditions: no person is both in a table and among the rows that a holder counted for a clique; see
        join_answers.
    Leaks: which inputs are accepted (see check_totals), and what join_answers leaks.
    """
    horizontal = [i for i, one in enumerate(inputs) if isinstance(one, HorizontalInput)]
    joined = [i for i, one in enumerate(inputs) if isinstance(one, JoinInput)]
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    tables = [one for one in inputs if isinstance(one, JoinInput)]
    brought = {name for one in tables for name in one.attributes}
    if counted is None:
        chosen = [clique for clique in layout.cliques if brought.issuperset(clique)]
    else:
        chosen = [layout.cliques[layout.index(clique)] for clique in counted]
    answered = set(chosen)
    if marginals:
        layouts, _ = check_marginals(ctx, marginals, layout)
        answered.update(clique for own in layouts for clique in own.cliques)
    if answered != set(layout.cliques):
        raise DomainError(f"nobody brings what {len(layout.cliques) - len(answered)} cliques of the layout need")

    branches = []
    if marginals:
        bits = bits or own_bits(marginals, sum(len(one.rows) for one in tables))
        branches.append(add_marginals(ctx.step("marginals"), marginals, layout=layout, bits=bits))
    if tables:
        _plan(ctx, tables, layout, chosen)
        branches.append(
            join_answers(ctx.step("join"), tables, layout=layout, mode=mode, counted=chosen, dummies=dummies)
        )
    results = await together(*branches)
    accepted = np.zeros(len(inputs), np.bool_)
    for (_, flags), which in zip(results, [which for which in (horizontal, joined) if which], strict=True):
        accepted[which] = flags
    total = results[0][0] if len(results) == 1 else results[0][0] + results[1][0]
    return Answers(total, accepted)


def joined_sizes(
    inputs: Sequence[HorizontalInput | JoinInput],
    matching: Matching | None,
    layout: Layout,
    counted: Sequence[Clique] | None = None,
    bits: int | None = None,
    reach: int = 0,
    accepted: Sequence[bool] | None = None,
) -> dict[Size, int]:
    """The sizes that the declared cost of `compute_joined_answers` is a formula of, given its tables' matching."""
    marginals = [one for one in inputs if isinstance(one, HorizontalInput)]
    tables = [one for one in inputs if isinstance(one, JoinInput)]
    sizes = dict(NO_ANSWERS) | dict.fromkeys((*_OF_TABLES, *_OF_GROUPS), 0)
    if marginals:
        bits = bits or own_bits(marginals, sum(len(one.rows) for one in tables))
        sizes |= marginals_sizes([one.layout(layout) for one in marginals], bits)
    if matching is not None:
        brought = {name for one in tables for name in one.attributes}
        chosen = [clique for clique in layout.cliques if brought.issuperset(clique)] if counted is None else counted
        flags = [True] * len(tables) if accepted is None else accepted
        extents = [TableExtent(len(one.rows), one.attributes, flag) for one, flag in zip(tables, flags, strict=True)]
        sizes |= join_sizes(extents, matching, layout, chosen, reach)
        sizes[size.column_inputs] = len(tables)
    return sizes
