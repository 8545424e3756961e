"""Private record alignment: which rows of different tables belong to one person, without a common order or identifier.

No table may repeat an identifier, which is checked. Tables are shuffled, identifiers are encrypted under a key that
nobody knows, and the ciphertexts are opened and compared in the clear (Mohassel, Rindal and Rosulek 2020). Equal tags
are one person. A server sees how many people each set of tables has in common, and nothing that leads to a holder's row
or to an identifier. These numbers carry noise: for every set of two or more tables the servers plant dummies, which are
rows without values. How many of them are in all tables of the set is a number drawn on shares.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np

from caps.data.domain import Clique
from caps.data.linkage import ID_BYTES, ORDERED
from caps.dp.bounds import ID_COMBINATIONS
from caps.errors import DomainError, ShareError
from caps.shares.prss import expand
from caps.shares.ring import PLANE, Z8, Z16, Z64, Words, pack_bits, plane_words, unpack_bits
from services.mpc_server.engine import size
from services.mpc_server.engine.aes import BLOCK_BITS, CACHED_BLOCKS, RoundKeys, encrypt
from services.mpc_server.engine.boolean import (
    bits_less_than,
    carry_ands,
    one_hot,
)
from services.mpc_server.engine.context import Context, together
from services.mpc_server.engine.conversion import to_bits
from services.mpc_server.engine.cost import Cost, formula, log2, plane, smallest
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Indices, RowShare, concatenate_rows, rows_of
from services.mpc_server.engine.validity import Flags, toss
from services.mpc_server.engine.verbs import conjunction, reveal_bits, shuffle

MAX_TABLES = 62
"""The most tables that can be matched: a set of tables is a number of 62 bits."""
_TAG_BITS = 64
"""A tag of 128 bits is opened as two words."""
_ID_COINS = b"caps/v1/join/ids"
_COMPARED = 8 * (ORDERED.stop - ORDERED.start)


@dataclass(frozen=True, slots=True, eq=False)
class Dummies:
    """Noise for the numbers that a join shows: for each set of two or more tables, noise + reach dummies.

    noise: [[a value for each set]], in the order of `sets_of`. The probability that it lies outside -reach .. reach is
    part of the distance of its law.
    """

    noise: AShare
    reach: int


def sets_of(tables: int) -> list[tuple[int, ...]]:
    """The sets of two or more tables."""
    return [chosen for size in range(2, tables + 1) for chosen in combinations(range(tables), size)]


Planted: TypeAlias = dict[tuple[int, ...], dict[int, RowShare]]
"""For each set of tables, and each table in it, the dummies."""


@protocol(
    "comparisons of neighbours, then random combinations of what must be zero",
    lambda of: (
        of(toss).beside(
            Cost(
                rounds=smallest(size.ordered_bytes, 1) * log2(_COMPARED + 1),
                sent=of.product(carry_ands(_COMPARED + 1) * size.ordered_bytes),
            )
        )
        + of(reveal_bits, {size.width: 1, size.elements: ID_COMBINATIONS * size.tables})
    ),
)
async def check_ids(ctx: Context, tables: Sequence[RowShare]) -> Flags:
    """Which tables have identifiers that increase from row to row, so that none occurs twice.

    For each row except the last, a bit says whether it is not below the next one. The XOR of a random half of these
    bits is zero if all of them are, and otherwise with probability 1/2. 64 such sums are opened, with freshly tossed
    coins, so a table that repeats an identifier passes with probability 2^-64.

    Pre-conditions: rows begin with identifiers of 16 bytes; tables were fixed before, under keys of this session.
    Leaks: which tables are accepted, and nothing else about those. Of a refused one, combinations of where it is out of
        order.
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
    """All elements of a vector except the last, and their successors: the same planes, shifted by one place."""
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
    """Bits needed for a number of dummies, from none to all."""
    return dummies.bit_length()


@protocol(
    "shuffle DP by dummies, their number drawn on shares",
    lambda of: (
        of(to_bits, {size.ring_bits: 16, size.elements: size.sets})
        + of(one_hot, {size.width: dummy_bits(size.dummies), size.elements: size.sets})
        + of(conjunction, {size.width: BLOCK_BITS * size.copies, size.elements: size.dummies})
    ),
)
async def plant_dummies(ctx: Context, noise: AShare, *, tables: int, reach: int) -> Planted:
    """[[identifiers of dummies]]: 2 reach of them for every set, in each of its tables.

    Dummy i of a set has the same random identifier in all tables of the set if i < noise + reach. Otherwise it has a
    different random identifier in each of them, and matches nothing, like padding. So the number of rows of a table is
    public, but not how many of them make the set look larger.

    Pre-conditions: noise has an element for each set, and is fresh; 1 <= reach < 2^15.
    Leaks: nothing.
    """
    sets, count = sets_of(tables), 2 * reach
    ctx.own(noise)
    if noise.shape != (len(sets),) or not sets or not 1 <= reach < 1 << 15:
        raise ShareError(
            f"{noise!r} must have one element for each of {len(sets)} sets, and reach {reach} be from 1 to 2^15 - 1"
        )
    bits = await to_bits(ctx.step("bits"), noise.narrow(Z16) + reach)
    number = await one_hot(ctx.step("number"), bits.planes(slice(0, dummy_bits(count))))

    # Dummy i is used if the number is greater: the XOR of the flags above i, a plane for each set after turning.
    def above(planes: Words) -> Words:
        flags = np.bitwise_xor.accumulate(planes[:0:-1], axis=0)[::-1][:count]
        return pack_bits(unpack_bits(flags, len(sets)).T)

    unused = ~number.map(above, (count,))
    common = ctx.step("common").fresh_bits(BLOCK_BITS * len(sets), (count,))
    others = [(place, table) for place, chosen in enumerate(sets) for table in chosen[1:]]
    own = ctx.step("own").fresh_bits(BLOCK_BITS * len(others), (count,))
    spread = np.repeat([place for place, _ in others], BLOCK_BITS)
    apart = await conjunction(ctx.step("apart"), unused.planes(spread), own)
    planted = {chosen: {chosen[0]: rows_of(_block(common, place))} for place, chosen in enumerate(sets)}
    for position, (place, table) in enumerate(others):
        planted[sets[place]][table] = rows_of(_block(common, place) ^ _block(apart, position))
    return planted


def _block(x: BShare, number: int) -> BShare:
    return x.planes(slice(number * BLOCK_BITS, (number + 1) * BLOCK_BITS))


class Tagged(NamedTuple):
    """Tables in an order that nobody knows, and the tag of every row: two words."""

    tables: list[RowShare]
    tags: list[Words]


@formula
def tag_blocks(rows: int) -> int:
    """Blocks of rows that `tag_rows` encrypts one after the other."""
    return -(-rows // CACHED_BLOCKS)


@protocol(
    "Mohassel, Rindal and Rosulek 2020, with AES for LowMC",
    lambda of: (
        of(
            shuffle,
            {size.rows: size.table_rows, size.row_bytes: size.table_widths, size.tables: size.accepted_tables},
        )
        + Cost(rounds=(of(encrypt).rounds + 1) * tag_blocks(size.table_rows))
        + Cost(
            sent=of(encrypt, {size.elements: size.table_rows}).sent
            + of.opening(BLOCK_BITS * plane(size.table_rows), BLOCK_BITS // _TAG_BITS * tag_blocks(size.table_rows))
        )
    ),
)
async def tag_rows(ctx: Context, tables: Sequence[RowShare], keys: RoundKeys) -> Tagged:
    """Shuffled [[tables]] and, in the clear, the AES-128 encryption of each row's identifier under a secret key.

    Deviation: AES in place of LowMC (docs/adr/0007); each table is shuffled first, so that tags lead to no row.

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
    """For each joint row and table, the number of its row in that table, or -1. Public.

    Joint rows with the same set of tables lie together; `patterns` lists these sets with their numbers of rows.
    """

    sources: Indices
    patterns: tuple[tuple[tuple[int, ...], int], ...]


def match(
    tags: Sequence[Words], attributes: Sequence[Clique], cliques: Sequence[Clique], needed: Collection[str] = ()
) -> Matching:
    """Joint rows from the opened tags: people who have all `needed` attributes and can count in one of the cliques.

    Pre-conditions: no tag occurs twice in a table.
    """
    if len(tags) > MAX_TABLES:
        raise DomainError(f"cannot join {len(tags)} tables; at most {MAX_TABLES} can be joined")
    every = np.concatenate(tags)
    table = np.repeat(np.arange(len(tags)), [len(part) for part in tags])
    row = np.concatenate([np.arange(len(part)) for part in tags])
    low, high = np.ascontiguousarray(every.T)
    order = np.argsort(low)
    same, differ = low[order[1:]] == low[order[:-1]], high[order[1:]] != high[order[:-1]]
    if (same & differ).any():  # two people with the same first word: may happen in a join of 10^8 rows, not of 10^6
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
    """Whether somebody with these attributes has all that are needed, and all of at least one clique."""
    has = {name for names in attributes for name in names}
    return has.issuperset(needed) and any(has.issuperset(clique) for clique in cliques)


def supposed(
    numbers: Mapping[tuple[int, ...], int],
    attributes: Sequence[Clique],
    cliques: Sequence[Clique],
    needed: Collection[str] = (),
) -> Matching:
    """What `match` would find, apart from who is where, given the number of people in each set of tables."""
    kept = {
        members: size
        for members, size in numbers.items()
        if size and counts_somewhere([attributes[i] for i in members], cliques, needed)
    }
    ordered = sorted(kept, key=lambda members: sum(1 << table for table in members))
    return Matching(np.empty((0, len(attributes)), np.intp), tuple((members, kept[members]) for members in ordered))
