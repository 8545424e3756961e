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
import numpy.typing as npt

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
from services.mpc_server.engine.cost import Cost, formula, log2, plane
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.shares import AShare, BShare, Indices, RowShare, concatenate_rows, rows_of
from services.mpc_server.engine.validity import Flags, toss
from services.mpc_server.engine.verbs import conjunction, reveal_bits, shuffle

MAX_TABLES = 62
"""The most tables that can be matched: a set of tables is a number of 62 bits."""
_WORD_BITS = 64
_TAG_WORDS = BLOCK_BITS // _WORD_BITS
"""A tag of 128 bits is opened as two words."""
ORDERED_ROWS = 1 << 19
"""Rows of a table whose identifiers are compared at once: each takes some 200 bytes meanwhile. A multiple of 64."""
BLOCKS_AT_ONCE = 8
"""Blocks of rows that share the rounds of their encryption. Between servers far apart rounds are what takes time, and
more blocks take more memory."""
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
                rounds=size.ordered_blocks * log2(_COMPARED + 1),
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
    compared = [_increasing(ctx.step(number), table) for number, table in enumerate(tables) if len(table) > 1]
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


def ordered_blocks(rows: int) -> int:
    """Blocks of rows of a table that `check_ids` compares one after another."""
    return -(-(rows - 1) // ORDERED_ROWS)


async def _increasing(ctx: Context, table: RowShare) -> BShare:
    """[[whether a row's identifier is below that of the next one]], for each row except the last."""
    starts = range(0, len(table) - 1, ORDERED_ROWS)
    flags = []
    for start in starts:
        bits = table.bits(slice(start, start + ORDERED_ROWS + 1), ORDERED)
        flags.append(await bits_less_than(ctx.step(start), *_neighbours(bits)))
    # All but the last fill whole words.
    first, *others = flags
    return first.combine(lambda *parts: np.concatenate(parts, axis=1), *others, shape=(len(table) - 1,))


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
def tag_batches(rows: int) -> int:
    """Batches of rows that `tag_rows` encrypts one after the other."""
    return -(-rows // (BLOCKS_AT_ONCE * CACHED_BLOCKS))


@formula
def tag_blocks(rows: int) -> int:
    """Blocks of rows that `tag_rows` encrypts and opens by themselves."""
    return -(-rows // CACHED_BLOCKS)


@protocol(
    "Mohassel, Rindal and Rosulek 2020, with AES for LowMC",
    lambda of: (
        of(
            shuffle,
            {size.rows: size.table_rows, size.row_bytes: size.table_widths, size.tables: size.accepted_tables},
        )
        + Cost(rounds=(of(encrypt).rounds + 1) * tag_batches(size.table_rows))
        + Cost(
            sent=of(encrypt, {size.elements: size.table_rows}).sent
            + of.opening(BLOCK_BITS * plane(size.table_rows), _TAG_WORDS * tag_blocks(size.table_rows))
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
    del tables  # so that rows that were given to this protocol alone are no longer in memory
    ends = np.cumsum([len(table) for table in shuffled])
    tags = np.empty((int(ends[-1]), _TAG_WORDS), PLANE)
    batch = BLOCKS_AT_ONCE * CACHED_BLOCKS
    for first in range(0, len(tags), batch):
        starts = range(first, min(first + batch, len(tags)), CACHED_BLOCKS)
        blocks = [slice(start, start + CACHED_BLOCKS) for start in starts]
        hidden = await together(
            *(encrypt(ctx.step(rows.start).step("encrypt"), _ids(shuffled, rows), keys) for rows in blocks)
        )
        opened = await together(
            *(
                reveal_bits(ctx.step(rows.start).step(f"open{part}"), _word(block, part), ring=Z64)
                for rows, block in zip(blocks, hidden, strict=True)
                for part in range(_TAG_WORDS)
            )
        )
        for number, rows in enumerate(blocks):
            tags[rows] = np.stack(opened[_TAG_WORDS * number : _TAG_WORDS * (number + 1)], axis=1)
    return Tagged(shuffled, np.split(tags, ends[:-1]))


def _ids(tables: Sequence[RowShare], rows: slice) -> BShare:
    """The identifiers of some rows of all tables, one after another."""
    parts, start = [], 0
    for table in tables:
        here = slice(max(rows.start - start, 0), max(rows.stop - start, 0))
        if here.start < len(table) and here.stop:
            parts.append(table.part(here, slice(0, ID_BYTES)))
        start += len(table)
    return concatenate_rows(parts).bits(slice(None), slice(None))


def _word(block: BShare, number: int) -> BShare:
    """A word of each tag, with zeros for those that fill up the last word of a plane: nobody's, and not opened."""
    x = block.planes(slice(number * _WORD_BITS, (number + 1) * _WORD_BITS))
    if not x.size % 64:
        return x
    mask = np.full(plane_words(x.size), np.uint64(0xFFFF_FFFF_FFFF_FFFF))
    mask[-1] = np.uint64((1 << x.size % 64) - 1)
    return x.mask(mask)


_ROWS = np.int32
"""Numbers of rows and of persons. There is one for each row, so half the memory of a machine's index counts."""
Sources: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Matching:
    """For each joint row and table, the number of its row in that table, or -1. Public.

    Joint rows with the same set of tables lie together; `patterns` lists these sets with their numbers of rows.
    """

    sources: Sources
    patterns: tuple[tuple[tuple[int, ...], int], ...]


def match(
    tags: Sequence[Words], attributes: Sequence[Clique], cliques: Sequence[Clique], needed: Collection[str] = ()
) -> Matching:
    """Joint rows from the opened tags: people who have all `needed` attributes and can count in one of the cliques.

    Pre-conditions: no tag occurs twice in a table.
    """
    if len(tags) > MAX_TABLES:
        raise DomainError(f"cannot join {len(tags)} tables; at most {MAX_TABLES} can be joined")
    starts = np.cumsum([0, *map(len, tags)])
    if starts[-1] > np.iinfo(_ROWS).max:
        raise DomainError(f"cannot join {starts[-1]} rows; at most {np.iinfo(_ROWS).max} can be joined")
    order = np.argsort(_words(tags, 0))
    same, differ = _repeated(tags, order)
    if (same & differ).any():  # two people with the same first word: may happen in a join of 10^8 rows, not of 10^6
        order = np.lexsort((_words(tags, 1), _words(tags, 0)))
        same, differ = _repeated(tags, order)
    person = np.zeros(len(order), _ROWS)
    np.cumsum(~same | differ, out=person[1:])
    table = (np.searchsorted(starts, order, side="right") - 1).astype(np.uint8)
    sources = np.full((int(person[-1]) + 1, len(tags)), -1, _ROWS)
    sources[person, table] = order - starts[table]
    found = len(order)
    del order, same, differ, person, table
    if np.count_nonzero(sources >= 0) != found:
        raise ShareError("an identifier occurs twice in a table")

    present = np.zeros(len(sources), np.min_scalar_type((1 << len(tags)) - 1))
    for number, rows in enumerate(sources.T):
        present |= np.left_shift(rows >= 0, number, dtype=present.dtype)
    lying = np.argsort(present, kind="stable")
    patterns, kept, start = [], [lying[:0]], 0
    for code, persons in zip(*np.unique(present, return_counts=True), strict=True):
        members = tuple(i for i in range(len(tags)) if int(code) >> i & 1)
        if counts_somewhere([attributes[i] for i in members], cliques, needed):
            patterns.append((members, int(persons)))
            kept.append(lying[start : start + persons])
        start += persons
    return Matching(sources[np.concatenate(kept)], tuple(patterns))


def _words(tags: Sequence[Words], number: int) -> Words:
    """The first or the second word of all tags."""
    return np.concatenate([part[:, number] for part in tags])


def _repeated(tags: Sequence[Words], order: Indices) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For each tag but the first, in this order: whether the first word is that before it, and the second is not."""
    low = _words(tags, 0)[order]
    same = low[1:] == low[:-1]
    del low
    high = _words(tags, 1)[order]
    return same, high[1:] != high[:-1]


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
    return Matching(np.empty((0, len(attributes)), _ROWS), tuple((members, kept[members]) for members in ordered))
