"""Cases of the shuffle, of AES on shares and of the join, with references that know nothing of either."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from caps.data.domain import MISSING, Domain, Layout
from caps.data.linkage import ID_BYTES, RowFormat
from caps.shares.ring import Z32, Z64
from services.mpc_server.engine import aes, alignment, join, size, verbs
from services.mpc_server.engine.alignment import Matching, ordered_blocks
from services.mpc_server.engine.boolean import one_hot_ands
from services.mpc_server.engine.compute import HorizontalInput
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import plane
from services.mpc_server.engine.join import JoinInput, Mode
from services.mpc_server.engine.shares import BShare, RowShare, stack_planes
from services.mpc_server.testing.world import Bits, Rows
from tests.kit.cases.base import Call, Source, case
from tests.kit.cases.compute import case, drawn_codes, drawn_layout


def dealt(rows: np.ndarray) -> Rows:
    """Rows of bytes as a holder deals them: each party's components."""
    return Rows(rows)


def received(ctx: Context, components: Any) -> RowShare:
    return ctx.rows(*components)


def in_words(rows: RowShare) -> tuple[BShare, ...]:
    """Rows in a form that a world opens: 8 bytes to a word."""
    return tuple(rows.bits(slice(None), slice(start, start + 8)) for start in range(0, rows.shape[1], 8))


def in_bytes(words: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.stack(words, axis=1).astype("<u8").view(np.uint8)[:, :width]


def _gf_times(x: int, y: int) -> int:
    product = 0
    for i in range(8):
        product ^= (x << i) * (y >> i & 1)
    for i in range(14, 7, -1):
        product ^= (0x11B << (i - 8)) * (product >> i & 1)
    return product


def _s_box(x: int) -> int:
    inverse = next((y for y in range(256) if _gf_times(x, y) == 1), 0)
    doubled = inverse << 8 | inverse
    return 0x63 ^ inverse ^ (doubled >> 4 ^ doubled >> 5 ^ doubled >> 6 ^ doubled >> 7) & 0xFF


S_BOX = np.array([_s_box(x) for x in range(256)], np.uint8)


def round_keys(key: bytes) -> list[bytes]:
    """FIPS 197, figure 11, word by word."""
    words = [key[i : i + 4] for i in range(0, 16, 4)]
    constant = 1
    for i in range(4, 44):
        word = words[-1]
        if i % 4 == 0:
            word = bytes(int(S_BOX[byte]) for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _gf_times(constant, 2)
        words.append(bytes(x ^ y for x, y in zip(word, words[-4], strict=True)))
    return [b"".join(words[i : i + 4]) for i in range(0, 44, 4)]


def encrypted(key: bytes, blocks: np.ndarray) -> np.ndarray:
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return np.frombuffer(cipher.update(blocks.tobytes()), np.uint8).reshape(-1, 16)


def octets(data: bytes) -> Bits:
    return Bits(np.frombuffer(data, np.uint8).astype(np.uint64), 8)


def halves(blocks: np.ndarray) -> tuple[Bits, Bits]:
    words = np.ascontiguousarray(blocks).view("<u8")
    return Bits(words[:, 0].copy(), 64), Bits(words[:, 1].copy(), 64)


def drawn_bytes(s: Source, count: int) -> bytes:
    return s.words(Z64, (count,), 8).astype(np.uint8).tobytes()


@case(aes.sub_bytes)
def _(s: Source) -> Call:
    x = s.bits(8, s.shape())
    return Call((x,), {size.elements: x.words.size}, S_BOX[x.words])


async def expanded(ctx: Context, key: BShare) -> Any:
    return (await aes.expand_key(ctx, key)).keys


@case(aes.expand_key, expanded)
def _(s: Source) -> Call:
    key = drawn_bytes(s, 16)
    expect = tuple(np.frombuffer(one, np.uint8) for one in round_keys(key))
    return Call((octets(key),), {}, expect)


async def encrypt_halves(ctx: Context, low: BShare, high: BShare, *keys: BShare) -> Any:
    x = await aes.encrypt(ctx, stack_planes([low, high]), aes.RoundKeys(keys))
    return x.planes(slice(0, 64)), x.planes(slice(64, 128))


@case(aes.encrypt, encrypt_halves)
def _(s: Source) -> Call:
    key, count = drawn_bytes(s, 16), s.count(1, 150)
    blocks = np.frombuffer(drawn_bytes(s, 16 * count), np.uint8).reshape(count, 16)
    expect = tuple(encrypted(key, blocks).view("<u8").T)
    return Call((*halves(blocks), *map(octets, round_keys(key))), {size.elements: count}, expect)


async def shuffled(ctx: Context, components: Any) -> Any:
    return in_words(await verbs.shuffle(ctx, received(ctx, components)))


def sorted_rows(rows: np.ndarray) -> list[bytes]:
    return sorted(map(bytes, rows))


@case(verbs.shuffle, shuffled)
def _(s: Source) -> Call:
    count, width = s.count(1, 80), s.count(1, 20)
    rows = np.frombuffer(drawn_bytes(s, count * width), np.uint8).reshape(count, width)

    def check(words: Any) -> None:
        assert sorted_rows(in_bytes(words, width)) == sorted_rows(rows)

    sizes = {size.rows: count, size.row_bytes: width, size.table_bytes: rows.size, size.tables: 1}
    return Call((dealt(rows),), sizes, check=check)


async def tagged(ctx: Context, *tables: Any) -> Any:
    """The opened tags of each table and the table itself, shuffled."""
    keys = aes.RoundKeys(tuple(aes.random_key(ctx.step(f"key{i}")) for i in range(11)))  # any will do, at no cost
    out, tags = await alignment.tag_rows(ctx, [received(ctx, table) for table in tables], keys)
    return tuple((np.asarray(one), in_words(rows)) for one, rows in zip(tags, out, strict=True))


@case(alignment.tag_rows, tagged)
def _(s: Source) -> Call:
    tables = []
    for _ in range(s.count(1, 3)):
        count, width = s.count(1, 40), s.count(0, 5)
        rows = np.zeros((count, ID_BYTES + width), np.uint8)
        rows[:, 0] = s.sizes.integers(
            0, 30, count
        )  # so that some identifiers occur more than once, as often whatever the fill
        rows[:, 1:] = np.frombuffer(drawn_bytes(s, 1), np.uint8)
        tables.append(rows)

    def check(result: Any) -> None:
        name_of: dict[bytes, bytes] = {}
        for (tags, words), rows in zip(result, tables, strict=True):
            out = in_bytes(words, rows.shape[1])
            assert sorted_rows(out) == sorted_rows(rows)
            for tag, row in zip(tags, out, strict=True):
                assert name_of.setdefault(bytes(row[:ID_BYTES]), tag.tobytes()) == tag.tobytes()
        assert len(set(name_of.values())) == len(name_of)

    sizes = {
        size.table_rows: sum(map(len, tables)),
        size.table_bytes: sum(rows.size for rows in tables),
        size.table_widths: sum(rows.shape[1] for rows in tables),
        size.accepted_tables: len(tables),
    }
    return Call(tuple(map(dealt, tables)), sizes, check=check)


async def ids_checked(ctx: Context, *tables: Any) -> Any:
    return await alignment.check_ids(ctx, [received(ctx, table) for table in tables])


@case(alignment.check_ids, ids_checked)
def _(s: Source) -> Call:
    """Tables in order, and some that repeat an identifier or are out of order at one place."""
    tables, wrong = [], []
    for _ in range(s.count(1, 4)):
        count = s.count(1, 200)
        ids = np.frombuffer(drawn_bytes(s, count * ID_BYTES), np.uint8).reshape(count, ID_BYTES).copy()
        ids[:, 4:6] = np.arange(count)[:, None].astype("<u2").view(np.uint8)  # distinct, whatever is filled in
        ids = ids[np.lexsort(ids[:, 4:].T)]
        wrong.append(count > 1 and s.sizes.random() < 0.4)
        if wrong[-1]:
            place = int(s.sizes.integers(count - 1))
            ids[place + 1] = ids[place] if s.sizes.random() < 0.7 else 0
        tables.append(np.pad(ids, ((0, 0), (0, s.count(0, 3)))))
    sizes = {
        size.tables: len(tables),
        size.ordered_blocks: max(ordered_blocks(len(table)) for table in tables),
        size.ordered_bytes: sum(plane(len(table) - 1) for table in tables),
    }
    return Call(tuple(map(dealt, tables)), sizes, ~np.array(wrong))


async def planted(ctx: Context, noise: Any, *, tables: int, reach: int) -> Any:
    found = await alignment.plant_dummies(ctx, noise, tables=tables, reach=reach)
    return tuple(tuple(in_words(found[chosen][table]) for table in chosen) for chosen in alignment.sets_of(tables))


@case(alignment.plant_dummies, planted)
def _(s: Source) -> Call:
    tables, reach = s.count(2, 4), s.count(1, 40)
    sets = alignment.sets_of(tables)
    noise = s.values.integers(-reach, reach + 1, len(sets))

    def check(value: Any) -> None:
        """Every set has as many common identifiers as its number says, and the others are in one table each."""
        owners: dict[bytes, list[int]] = {}
        for chosen, dummies in zip(sets, value, strict=True):
            for table, words in zip(chosen, dummies, strict=True):
                rows = in_bytes(words, ID_BYTES)
                assert len(rows) == 2 * reach
                for row in rows:
                    owners.setdefault(bytes(row), []).append(table)
        found = Counter(tuple(owned) for owned in owners.values())
        assert {chosen: found[chosen] for chosen in sets} == dict(zip(sets, (noise + reach).tolist(), strict=True))
        assert set(found) <= {*sets, *((table,) for table in range(tables))}

    sizes = {size.sets: len(sets), size.dummies: 2 * reach, size.copies: sum(len(chosen) - 1 for chosen in sets)}
    return Call((Z64.encode(noise),), sizes, check=check, kwargs={"tables": tables, "reach": reach})


async def columns_of(ctx: Context, *codes: BShare, sizes: Sequence[int]) -> Any:
    return await join.one_hot_columns(ctx, codes, sizes=sizes)


@case(join.one_hot_columns, columns_of)
def _(s: Source) -> Call:
    rows, sizes = s.count(1, 150), [s.count(1, 9) for _ in range(s.count(1, 4))]
    widths = [size.bit_length() for size in sizes]
    codes = [s.bits(width, (rows,)) for width in widths]
    expect = [code.words[:, None] == np.arange(1, 1 + size) for code, size in zip(codes, sizes, strict=True)]
    declared = {
        size.rows: rows,
        size.columns: sum(sizes),
        size.code_bits: max(widths),
        size.ands: sum(map(one_hot_ands, widths)),
    }
    return Call(tuple(codes), declared, np.concatenate(expect, axis=1).astype(np.uint16), {"sizes": sizes})


@dataclass
class Table:
    """What one holder brings to a join: identifiers of persons, and codes of its attributes."""

    attributes: tuple[str, ...]
    ids: list[bytes]
    codes: np.ndarray

    def rows(self, domain: Domain) -> np.ndarray:
        ids = np.frombuffer(b"".join(self.ids), np.uint8).reshape(-1, ID_BYTES)
        return RowFormat(domain.project(self.attributes)).pack(ids, self.codes)

    @property
    def refused(self) -> bool:
        return max(Counter(self.ids).values()) > 1


def joined_in_the_clear(domain: Domain, tables: Sequence[Table], mode: Mode) -> np.ndarray:
    """The joint table by dictionaries, one person at a time."""
    needed = {name for table in tables for name in table.attributes}
    values: dict[bytes, dict[str, int]] = {}
    for table in tables:
        if table.refused:
            continue
        for one, codes in zip(table.ids, table.codes.tolist(), strict=True):
            person = values.setdefault(one, {})
            for name, code in zip(table.attributes, codes, strict=True):
                if person.get(name, MISSING) == MISSING:
                    person[name] = code
    people = [person for person in values.values() if mode is Mode.UNION or needed <= person.keys()]
    joint = [[person.get(name, MISSING) for name in domain.names] for person in people]
    return np.array(joint, np.int64).reshape(-1, len(domain.names))


def matching_of(
    tables: Sequence[Table], cliques: Any, mode: Mode, planted: Sequence[int] = (), dummies: int = 0
) -> Matching:
    """What the servers will see, with identifiers in place of tags.

    planted: how many of each set's dummies are common to its tables; the others match nothing. Sets with a refused
    table have none.
    """
    valid = [table for table in tables if not table.refused]
    ids = {i: list(table.ids) for i, table in enumerate(tables) if not table.refused}
    for number, (chosen, count) in enumerate(zip(alignment.sets_of(len(tables)), planted, strict=False)):
        for table in chosen if ids.keys() >= set(chosen) else ():
            ids[table] += [person_id(i, b"planted %d" % number) for i in range(count)]
            ids[table] += [person_id(i, b"alone %d in %d" % (number, table)) for i in range(count, dummies)]
    words = [np.frombuffer(b"".join(part), "<u8").reshape(-1, 2) for part in ids.values()]
    needed = {name for table in tables for name in table.attributes} if mode is Mode.INNER else ()
    if not valid:
        return Matching(np.empty((0, 0), np.intp), ())
    return alignment.match(words, [table.attributes for table in valid], cliques, needed)


def times_in_tables(tags: Sequence[np.ndarray]) -> Counter[tuple[int, ...]]:
    """What opened tags show: how many of them occur how often in which tables."""
    times: dict[bytes, list[int]] = {}
    for table, part in enumerate(tags):
        for tag in part:
            times.setdefault(tag.tobytes(), [0] * len(tags))[table] += 1
    return Counter(tuple(one) for one in times.values())


def extents_of(tables: Sequence[Table]) -> list[join.TableExtent]:
    return [join.TableExtent(len(table.ids), table.attributes, not table.refused) for table in tables]


def person_id(number: int, salt: bytes = b"") -> bytes:
    return hashlib.sha256(b"%d/" % number + salt).digest()[:ID_BYTES]


def drawn_tables(s: Source, domain: Domain, *, duplicates: bool = True) -> list[Table]:
    """Who is where, and which tables repeat somebody, is drawn with the sizes; identifiers and codes are values."""
    population, salt = s.count(1, 40), drawn_bytes(s, 8)
    tables = []
    for number in range(s.count(1, 4)):
        has = s.sizes.random(len(domain.names)) < 0.6
        has[s.sizes.integers(len(has))] = True
        attributes = tuple(np.array(domain.names)[has])
        people = s.sizes.permutation(population)[: s.count(1, population)].tolist()
        padding = [1000 * (number + 1) + i for i in range(s.count(0, 5))]
        codes = drawn_codes(s, domain.project(attributes), len(people) + len(padding))
        codes[len(people) :] = MISSING
        if duplicates and s.sizes.random() < 0.15:
            people[0] = people[-1]
        order = s.values.permutation(len(codes))
        ids = [person_id(person, salt) for person in people + padding]
        tables.append(Table(attributes, [ids[i] for i in order], codes[order]))
    return tables


def drawn_mode(s: Source) -> Mode:
    return list(Mode)[s.count(0, 1)]


def table_input(holder: str, attributes: tuple[str, ...]) -> Callable[[Context, Any], JoinInput]:
    return lambda ctx, components: JoinInput(holder, attributes, received(ctx, components))


def marginals_input(holder: str) -> Callable[[Context, Any], HorizontalInput]:
    return lambda _, share: HorizontalInput(holder, share)


def with_inputs(protocol: Callable[..., Any]) -> Callable[..., Any]:
    async def call(ctx: Context, *shares: Any, inputs: Sequence[Callable[[Context, Any], Any]], **kwargs: Any) -> Any:
        made = [make(ctx, share) for make, share in zip(inputs, shares, strict=True)]
        return tuple(await protocol(ctx, made, **kwargs))

    return call


def restricted(layout: Layout, tables: Sequence[Table]) -> Layout | None:
    """What of the layout the tables can answer."""
    brought = {name for table in tables for name in table.attributes}
    cliques = tuple(clique for clique in layout.cliques if brought.issuperset(clique))
    return Layout(layout.domain, cliques) if cliques else None


def answerable(s: Source) -> tuple[Layout, list[Table]]:
    while True:
        layout = drawn_layout(s)
        tables = drawn_tables(s, layout.domain)
        answered = restricted(layout, tables)
        if answered is not None:
            return answered, tables


@case(join.join_answers, with_inputs(join.join_answers))
def _(s: Source) -> Call:
    layout, tables = answerable(s)
    mode, domain = drawn_mode(s), layout.domain
    inputs = [table_input(f"H{i}", table.attributes) for i, table in enumerate(tables)]
    sizes = join.join_sizes(extents_of(tables), matching_of(tables, layout.cliques, mode), layout)
    accepted = np.array([not table.refused for table in tables])
    expect = (layout.marginals(joined_in_the_clear(domain, tables, mode)), accepted)
    arguments = tuple(dealt(table.rows(domain)) for table in tables)
    return Call(arguments, sizes, expect, {"inputs": inputs, "layout": layout, "mode": mode})


class Extent:
    """What of a share its cost depends on."""

    def __init__(self, length: int = 0) -> None:
        self.ring = Z32
        self._length = length

    def __len__(self) -> int:
        return self._length


@case(join.compute_joined_answers, with_inputs(join.compute_joined_answers))
def _(s: Source) -> Call:
    """Some rows at one holder each, which counts them; the others spread over tables, or no tables at all."""
    layout, tables = answerable(s)
    mode, domain = drawn_mode(s), layout.domain
    own = [drawn_codes(s, domain, s.count(0, 20)) for _ in range(s.count(0, 2))]
    if own and s.sizes.random() < 0.2:
        tables = []
    made: list[Any] = [HorizontalInput(f"H{i}", Extent()) for i in range(len(own))]  # type: ignore[arg-type]
    made += [JoinInput("T", table.attributes, Extent(len(table.ids))) for table in tables]  # type: ignore[arg-type]
    matching = matching_of(tables, layout.cliques, mode) if tables else None
    sizes = join.joined_sizes(made, matching, layout, accepted=[not table.refused for table in tables])
    inputs = [marginals_input(f"H{i}") for i in range(len(own))]
    inputs += [table_input(f"T{i}", table.attributes) for i, table in enumerate(tables)]
    arguments = (
        *(Z32.encode(layout.marginals(codes)) for codes in own),
        *(dealt(table.rows(domain)) for table in tables),
    )
    joint = joined_in_the_clear(domain, tables, mode)
    accepted = np.array([True] * len(own) + [not table.refused for table in tables])
    expect = (layout.marginals(np.concatenate([*own, joint])), accepted)
    return Call(arguments, sizes, expect, {"inputs": inputs, "layout": layout, "mode": mode})
