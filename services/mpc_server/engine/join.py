"""Private record alignment: COMPUTE ANSWERS from tables of different holders whose rows are in no common order.

A holder shares rows (caps.data.linkage): a hashed identifier and a short code for each of its attributes. The servers
check that no table repeats an identifier, shuffle every table, encrypt the identifiers under a key that nobody knows,
open the ciphertexts and compare them in the clear (after Mohassel, Rindal and Rosulek 2020). Equal tags are the same
person; what a server sees is how many persons each set of tables has in common, and nothing that leads to a row of a
holder or to an identifier. These numbers carry noise: for every set of two tables and more the servers plant dummies,
rows without values, so many of them in all tables of the set as a number says that they drew on shares. Codes are
expanded to one-hot columns only then, for rows that count, at the place of their person; so tables travel in their
small form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from caps.data.domain import Clique, Domain, Layout
from caps.data.linkage import ID_BYTES, ORDERED, RowFormat
from caps.dp.bounds import ID_COMBINATIONS
from caps.errors import DomainError, ShareError
from caps.shares.prss import expand
from caps.shares.ring import PLANE, Z8, Z16, Z64, Words, pack_bits, plane_words, unpack_bits
from services.mpc_server.engine import size
from services.mpc_server.engine.aes import BLOCK_BITS, CACHED_BLOCKS, RoundKeys, encrypt, expand_key, random_key
from services.mpc_server.engine.boolean import (
    adder_ands,
    bits_less_than,
    carry_ands,
    one_hot,
    one_hot_ands,
    random_planes,
)
from services.mpc_server.engine.compute import (
    ADD_ROUNDS,
    ADD_SENT,
    NO_ANSWERS,
    Answers,
    HorizontalInput,
    add_marginals,
    check_marginals,
    marginals_sizes,
    own_bits,
)
from services.mpc_server.engine.context import Branch, Context, together
from services.mpc_server.engine.conversion import to_bits
from services.mpc_server.engine.cost import FIRST, Cost, Size, formula, largest, log2, plane, smallest
from services.mpc_server.engine.counting import GROUP_ROWS, coalesce, count, count_sizes, lifted_bytes, row_blocks
from services.mpc_server.engine.recipe import recipe_of
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Indices, RowShare, concatenate_rows, rows_of, stack_planes
from services.mpc_server.engine.validity import Flags, toss
from services.mpc_server.engine.verbs import conjunction, from_bits, reveal_bits, shuffle

MAX_TABLES = 62
"""Tables that can be matched: a set of tables is a number of 62 bits."""
GROUP_WORDS = 1 << 22
"""Elements of the joined columns that are expanded and counted at once: 8 MiB per component in Z_2^16."""
_TAG_BITS = 64
"""A tag of 128 bits is opened as two words."""
_ID_COINS = b"caps/v1/join/ids"
_COMPARED = 8 * (ORDERED.stop - ORDERED.start)
_IDS_SENT = 64 + ID_COMBINATIONS // 8 * size.tables + carry_ands(_COMPARED + 1) * size.ordered_bytes


class Mode(Enum):
    """Which persons are rows of the joint table."""

    UNION = "union"
    """Everybody: attributes that no table of the person brings are missing."""
    INNER = "inner"
    """Who is in at least one table for every attribute that any of the tables brings; a value may still be missing."""


@dataclass(frozen=True, slots=True, eq=False)
class JoinInput:
    """Rows in the form of `caps.data.linkage` over some attributes, in domain order; an identifier at most once."""

    holder: str
    attributes: tuple[str, ...]
    rows: RowShare


@dataclass(frozen=True, slots=True, eq=False)
class Dummies:
    """Noise for the numbers that a join shows: for each set of two tables and more, noise + reach dummies.

    noise: [[a value for each set]], in the order of `sets_of`; no law that is used here leaves -reach .. reach but with
    a probability that its distance includes.
    """

    noise: AShare
    reach: int


def sets_of(tables: int) -> list[tuple[int, ...]]:
    """The sets of two tables and more."""
    return [chosen for size in range(2, tables + 1) for chosen in combinations(range(tables), size)]


Planted: TypeAlias = dict[tuple[int, ...], dict[int, RowShare]]
"""For each set of tables, and each table of it, its dummies."""


@protocol(
    "comparisons of neighbours, then random combinations of what must be zero",
    rep3=Cost(rounds=1 + largest(1, smallest(size.ordered_bytes, 1) * log2(_COMPARED + 1)), sent=_IDS_SENT),
)
async def check_ids(ctx: Context, tables: Sequence[RowShare]) -> Flags:
    """Which tables have identifiers that increase from row to row, so that none occurs twice.

    For each row but the last there is a bit that says it is not below the next one. The XOR of a random half of these
    bits is zero if all are, and otherwise with probability 1/2: 64 of these are opened, with coins tossed for it, so a
    table that repeats an identifier passes with probability 2^-64.

    Pre-conditions: rows begin with identifiers of 16 bytes; tables were fixed before, under keys of this session.
    Leaks: which tables are accepted; of those nothing else. Of a refused one, combinations of where it is out of order.
    """
    for table in tables:
        ctx.own(table)
        if not len(table) or table.shape[1] < ID_BYTES:
            raise ShareError(f"{table!r} has no rows with identifiers")
    compared = [
        bits_less_than(ctx.step(number), *_neighbours(table.bits(slice(None), ORDERED)))
        for number, table in enumerate(tables)
        if len(table) > 1
    ]
    seed, *below = await together(toss(ctx.step("toss")), *compared)
    flags = iter(below)
    first, *others = (
        _combined(~next(flags), seed.tobytes(), b"/%d" % number)
        if len(table) > 1
        else ctx.zero_bits(1, (ID_COMBINATIONS,))
        for number, table in enumerate(tables)
    )
    combined = first.combine(
        lambda *parts: np.concatenate(parts, axis=1), *others, shape=(ID_COMBINATIONS * len(tables),)
    )
    opened = await reveal_bits(ctx.step("open"), combined, ring=Z8)
    return np.asarray(~opened.reshape(len(tables), ID_COMBINATIONS).any(axis=1))


def _neighbours(x: BShare) -> tuple[BShare, BShare]:
    """All elements of a vector but the last, and those that follow them: the same planes, one place on."""
    count = x.size - 1
    words = plane_words(count)

    def following(part: Words) -> Words:
        after = part >> np.uint64(1)
        after[:, :-1] |= part[:, 1:] << np.uint64(63)
        return after[:, :words]

    return x.map(lambda planes: planes[:, :words], (count,)), x.map(following, (count,))


def _combined(wrong: BShare, seed: bytes, label: bytes) -> BShare:
    """The XOR of ID_COMBINATIONS random halves of the bits of one plane."""
    coins = expand(seed, _ID_COINS + label, (ID_COMBINATIONS, plane_words(wrong.size)), Z64)

    def combined(planes: Words) -> Words:
        sums = np.bitwise_xor.reduce(coins & planes[0], axis=1)
        return pack_bits((np.bitwise_count(sums) & 1).reshape(1, -1))

    return wrong.map(combined, (ID_COMBINATIONS,))


@formula
def dummy_bits(dummies: int) -> int:
    """Bits of a number of dummies, from none to all."""
    return dummies.bit_length()


_PLANT_SENT = (FIRST * 16 + adder_ands(16) + one_hot_ands(dummy_bits(size.dummies))) * plane(
    size.sets
) + BLOCK_BITS * size.copies * plane(size.dummies)


@protocol(
    "shuffle DP by dummies, their number drawn on shares",
    rep3=Cost(rounds=3 + log2(16 - 1) + log2(dummy_bits(size.dummies)), sent=_PLANT_SENT),
)
async def plant_dummies(ctx: Context, noise: AShare, *, tables: int, reach: int) -> Planted:
    """[[identifiers of dummies]]: 2 reach of them for every set, in each of its tables.

    Dummy i of a set has one random identifier in all tables of the set if i < noise + reach, and in each of them a
    random one of its own otherwise; then it matches nothing, as padding does. So how many rows a table has is public,
    and how many of them make the set look larger is not.

    Pre-conditions: noise has an element for each set, and is fresh; 1 <= reach < 2^15.
    Leaks: nothing.
    """
    sets, count = sets_of(tables), 2 * reach
    ctx.own(noise)
    if noise.shape != (len(sets),) or not sets or not 1 <= reach < 1 << 15:
        raise ShareError(f"{noise!r} is not a number for each of {len(sets)} sets, or {reach} is out of range")
    bits = await to_bits(ctx.step("bits"), noise.narrow(Z16) + reach)
    number = await one_hot(ctx.step("number"), bits.planes(slice(0, dummy_bits(count))))

    # Dummy i is used if the number is greater: the XOR of the flags above i, a plane for each set after turning.
    def above(planes: Words) -> Words:
        flags = np.bitwise_xor.accumulate(planes[:0:-1], axis=0)[::-1][:count]
        return pack_bits(unpack_bits(flags, len(sets)).T)

    unused = ~number.map(above, (count,))
    common = random_planes(ctx.step("common"), width=BLOCK_BITS * len(sets), shape=(count,))
    others = [(place, table) for place, chosen in enumerate(sets) for table in chosen[1:]]
    own = random_planes(ctx.step("own"), width=BLOCK_BITS * len(others), shape=(count,))
    spread = np.repeat([place for place, _ in others], BLOCK_BITS)
    apart = await conjunction(ctx.step("apart"), unused.planes(spread), own)
    planted = {chosen: {chosen[0]: rows_of(_block(common, place))} for place, chosen in enumerate(sets)}
    for position, (place, table) in enumerate(others):
        planted[sets[place]][table] = rows_of(_block(common, place) ^ _block(apart, position))
    return planted


def _block(x: BShare, number: int) -> BShare:
    return x.planes(slice(number * BLOCK_BITS, (number + 1) * BLOCK_BITS))


class Tagged(NamedTuple):
    """Tables in an order nobody knows, and the tag of every row: two words."""

    tables: list[RowShare]
    tags: list[Words]


@formula
def tag_blocks(rows: int) -> int:
    """Blocks of rows that `tag_rows` encrypts one after the other."""
    return -(-rows // CACHED_BLOCKS)


@protocol(
    "Mohassel, Rindal and Rosulek 2020, with AES for LowMC",
    rep3=Cost(
        rounds=2 + 41 * tag_blocks(size.table_rows),
        sent=(1 + FIRST) * size.table_bytes + 3008 * plane(size.table_rows) + 32 * tag_blocks(size.table_rows),
    ),
)
async def tag_rows(ctx: Context, tables: Sequence[RowShare], keys: RoundKeys) -> Tagged:
    """Shuffled [[tables]] and, in the clear, the AES-128 encryption of each row's identifier under a secret key.

    Deviation: AES in place of LowMC (docs/adr/0007); each table is shuffled before, so that tags lead to no row.

    Pre-conditions: rows begin with identifiers of 16 bytes; keys are those of a `random_key` that serves this run only,
        or tags of different runs could be compared.
    Leaks: the number of rows of each table, and how many identifiers occur how often in which of the tables; the order
        of tags and their values are random.
    """
    for table in tables:
        ctx.own(table)
        if not len(table) or table.shape[1] < ID_BYTES:
            raise ShareError(f"{table!r} has no rows with identifiers")
    shuffled = await together(*(shuffle(ctx.step(f"shuffle{number}"), table) for number, table in enumerate(tables)))
    ids = concatenate_rows([table.octets(slice(0, ID_BYTES)) for table in shuffled])
    tags = np.empty((len(ids), BLOCK_BITS // _TAG_BITS), PLANE)
    for start in range(0, len(ids), CACHED_BLOCKS):
        rows, step = slice(start, start + CACHED_BLOCKS), ctx.step(start)
        hidden = await encrypt(step.step("encrypt"), ids.bits(rows, slice(None)), keys)
        words = await together(
            *(
                reveal_bits(step.step(f"open{part}"), _unpadded(hidden.planes(slice(part, part + _TAG_BITS))), ring=Z64)
                for part in range(0, BLOCK_BITS, _TAG_BITS)
            )
        )
        tags[rows] = np.stack(words, axis=1)
    return Tagged(shuffled, np.split(tags, np.cumsum([len(table) for table in tables])[:-1]))


def _unpadded(x: BShare) -> BShare:
    """The same with zeros for the elements that fill up the last word: their tags are nobody's, and not opened."""
    if not x.size % 64:
        return x
    mask = np.full(plane_words(x.size), np.uint64(0xFFFF_FFFF_FFFF_FFFF))
    mask[-1] = np.uint64((1 << x.size % 64) - 1)
    return x.mask(mask)


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """Who is who: for each joint row and table the number of its row there, or -1. Public.

    Joint rows with the same set of tables lie together; `patterns` lists these sets with their numbers of rows.
    """

    sources: Indices
    patterns: tuple[tuple[tuple[int, ...], int], ...]


def match(
    tags: Sequence[Words], attributes: Sequence[Clique], cliques: Sequence[Clique], needed: Collection[str] = ()
) -> Matching:
    """Joint rows from the opened tags: those who have all `needed` attributes and can count in one of the cliques.

    Pre-conditions: no tag occurs twice in a table.
    """
    if len(tags) > MAX_TABLES:
        raise DomainError(f"at most {MAX_TABLES} tables can be joined, not {len(tags)}")
    every = np.concatenate(tags)
    table = np.repeat(np.arange(len(tags)), [len(part) for part in tags])
    row = np.concatenate([np.arange(len(part)) for part in tags])
    low, high = np.ascontiguousarray(every.T)
    order = np.argsort(low)
    same, differ = low[order[1:]] == low[order[:-1]], high[order[1:]] != high[order[:-1]]
    if (same & differ).any():  # two persons with one first word: by chance in a join of 10^8 rows, not of 10^6
        order = np.lexsort((high, low))
        same, differ = low[order[1:]] == low[order[:-1]], high[order[1:]] != high[order[:-1]]
    person = np.zeros(len(order), np.intp)
    person[order[1:]] = np.cumsum(~same | differ)
    sources = np.full((int(person.max()) + 1, len(tags)), -1, np.intp)
    sources[person, table] = row
    if np.count_nonzero(sources >= 0) != len(row):
        raise ShareError("an identifier occurs twice in a table")

    present = (sources >= 0) @ (1 << np.arange(len(tags)))
    sources = sources[np.argsort(present, kind="stable")]
    patterns, kept, start = [], [], 0
    for code, persons in zip(*np.unique(present, return_counts=True), strict=True):
        members = tuple(i for i in range(len(tags)) if int(code) >> i & 1)
        if counts_somewhere([attributes[i] for i in members], cliques, needed):
            patterns.append((members, int(persons)))
            kept.append(sources[start : start + persons])
        start += persons
    return Matching(np.concatenate([sources[:0], *kept]), tuple(patterns))


def counts_somewhere(attributes: Sequence[Clique], cliques: Sequence[Clique], needed: Collection[str]) -> bool:
    """Whether who has these attributes has all that are needed, and all of one of the cliques."""
    has = {name for names in attributes for name in names}
    return has.issuperset(needed) and any(has.issuperset(clique) for clique in cliques)


def supposed(
    numbers: Mapping[tuple[int, ...], int],
    attributes: Sequence[Clique],
    cliques: Sequence[Clique],
    needed: Collection[str] = (),
) -> Matching:
    """What `match` would find, apart from who is where, if sets of tables had so many persons each."""
    kept = {
        members: size
        for members, size in numbers.items()
        if size and counts_somewhere([attributes[i] for i in members], cliques, needed)
    }
    ordered = sorted(kept, key=lambda members: sum(1 << table for table in members))
    return Matching(np.empty((0, len(attributes)), np.intp), tuple((members, kept[members]) for members in ordered))


@protocol(
    "one-hot circuit, then bit injection: valid by construction",
    rep3=Cost(
        rounds=2 + log2(size.code_bits), sent=size.ands * plane(size.rows) + 16 * size.columns * plane(size.rows)
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
    """Joint rows that are counted together, in runs of one set of tables each."""

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
    """Joint rows that are counted together, for a number of columns: no more than Z_2^16 can count."""
    return min(GROUP_ROWS, max(64, GROUP_WORDS // width // 64 * 64))


class _Table:
    """What of a table is expanded: the attributes that count."""

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


_JOIN_ROUNDS = (
    40
    + 2 * smallest(size.table_rows, 1)
    + 41 * tag_blocks(size.table_rows)
    + size.expand_rounds
    + size.levels * size.row_blocks
    + size.groups * (smallest(size.product_cells, 1) + 8)
)
_JOIN_SENT = (
    1440
    + _IDS_SENT
    + smallest(size.copies, 1) * _PLANT_SENT
    + (1 + FIRST) * size.table_bytes
    + 3008 * plane(size.table_rows)
    + 32 * tag_blocks(size.table_rows)
    + size.and_bytes
    + 16 * size.plane_bytes
    + 2 * size.merged
    + 2 * size.joint_rows * size.product_columns
    + 2 * size.groups * size.product_cells
    + size.groups * lifted_bytes(size.cells, 16)
)


@protocol(
    "CaPS App. B, pi_JOIN and Protocol 2, on rows without a common order",
    rep3=Cost(rounds=_JOIN_ROUNDS, sent=_JOIN_SENT),
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

    Rows of the same identifier are one person. Where several tables bring an attribute of a person, the first in the
    order of `tables` that has a value decides. `counted` are the cliques that are counted, by default all of the
    layout; the others' cells are zero. A table whose identifiers are not in order is refused: its rows take no part, as
    if it were empty. `dummies` has a number for each set of two tables and more.

    Pre-conditions: servers compared their copies of the tables on receipt; see tag_rows for the session.
    Leaks: which tables are refused; the number of rows of each table; for each set of two tables and more, how many
        identifiers exactly these have, plus its number of dummies. How many only one has follows from these. Padding
        rows are identifiers of their own. Without dummies the numbers are exact, and a holder that colludes with a
        server and brings one person learns whether others have that person.
    """
    cliques = layout.cliques if counted is None else [layout.cliques[layout.index(clique)] for clique in counted]
    used, wanted, kinds = _plan(ctx, tables, layout, cliques)
    # The cipher's key takes 40 rounds; checks and dummies are ready long before, and no tag is opened until all are.
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
        rows = [_with_dummies(tables[place].rows, [one[place] for one in common if place in one]) for place in places]
        shuffled, tags = await tag_rows(ctx.step("tags"), rows, keys)
        needed = {name for one in tables for name in one.attributes} if mode is Mode.INNER else ()
        matching = match(tags, [one.attributes for one in valid], cliques, needed)
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
    """The table with dummies behind its rows: identifiers, and no values."""
    return concatenate_rows([table, *(ids.widened(table.shape[1]) for ids in dummies)])


def _plan(
    ctx: Context, tables: Sequence[JoinInput], layout: Layout, cliques: Sequence[Clique]
) -> tuple[Domain, Layout, list[_Table]]:
    """What is counted and what of each table is expanded. Raises before anything is sent if an input is not fit."""
    if not tables or not cliques:
        raise DomainError("a join needs tables, and cliques to count")
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
            raise DomainError(f"no holder brings every attribute of {clique}")
    used = domain.project({name for clique in cliques for name in clique})
    wanted = Layout(used, tuple(cliques))
    recipe_of(wanted)
    return used, wanted, [_Table(domain, one.attributes, used) for one in tables]


async def _joined_columns(
    ctx: Context,
    tables: Sequence[RowShare],
    sources: Indices,
    runs: Sequence[tuple[tuple[int, ...], int]],
    kinds: Sequence[_Table],
    used: Domain,
) -> AShare:
    """[[one-hot columns of the joint rows]] of one group: tables expanded, placed, and merged where several speak."""
    members = sorted({table for some, _ in runs for table in some if kinds[table].names})

    def expanded(table: int) -> Branch[AShare]:
        rows = sources[sources[:, table] >= 0, table]
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
    return ctx.zero((used.width, len(sources)), Z16).map(np.transpose).put(pieces)  # by columns, for they come whole


class TableExtent(NamedTuple):
    """What of a table the cost of a join depends on."""

    rows: int
    attributes: Clique
    accepted: bool = True


_OF_TABLES = (
    size.tables,
    size.table_rows,
    size.table_bytes,
    size.ordered_bytes,
    size.sets,
    size.dummies,
    size.copies,
    size.joint_rows,
)
_OF_GROUPS = (
    size.groups,
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

    reach: of the dummies, 0 if there are none.
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
        size.ordered_bytes: sum(plane(extent.rows - 1) for extent in extents),
        size.sets: len(sets),
        size.dummies: 2 * reach,
        size.copies: sum(len(chosen) - 1 for chosen in sets),
        size.joint_rows: sum(found for _, found in matching.patterns),
    }
    sizes |= dict.fromkeys(_OF_GROUPS, 0)
    for group in _groups(matching.patterns, group_rows(used.width)):
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
        widest = max(width for kind, _ in expanded for width in kind.widths)
        sizes[size.expand_rounds] += 2 + log2(widest) + log2(deepest)
        sizes[size.row_blocks] += row_blocks(group.rows.stop - group.rows.start, sizes[size.pool_columns], Z16.bits)
        sizes[size.and_bytes] += sum(plane(count_) * sum(map(one_hot_ands, kind.widths)) for kind, count_ in expanded)
        sizes[size.plane_bytes] += sum(plane(count_) * sum(kind.sizes) for kind, count_ in expanded)
    return sizes


@protocol(
    "CaPS Protocol 2, pi_COMP, on rows without a common order",
    rep3=Cost(
        rounds=largest(
            smallest(size.marginal_inputs, 1) * (ADD_ROUNDS), smallest(size.column_inputs, 1) * (_JOIN_ROUNDS)
        ),
        sent=smallest(size.marginal_inputs, 1) * (ADD_SENT) + smallest(size.column_inputs, 1) * (_JOIN_SENT),
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

    As `compute_answers`, where tables to be joined stand in place of aligned columns: answers are the sum of what
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
