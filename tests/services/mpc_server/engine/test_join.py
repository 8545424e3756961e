"""Private record alignment: the marginals of a clear join, and nothing to be seen but how many persons are where."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from caps.basics.schemes import REP3
from caps.data.domain import MISSING, Attribute, Domain, Layout
from caps.data.linkage import ID_BYTES, RowFormat
from caps.errors import DomainError, ShareError
from caps.shares.ring import Z32, Z64
from services.mpc_server.engine import alignment, counting, join
from services.mpc_server.engine.aes import RoundKeys, random_key
from services.mpc_server.engine.alignment import Dummies, match
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.join import Mode, compute_joined_answers, join_answers
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.engine.shares import Owner, RowShare
from services.mpc_server.testing.world import STUDY, Failed, Outcome, Recorder, World
from tests.kit.cases.base import Source, sources
from tests.kit.cases.join import (
    Table,
    answerable,
    dealt,
    extents_of,
    in_bytes,
    joined_in_the_clear,
    marginals_input,
    matching_of,
    person_id,
    restricted,
    shuffled,
    table_input,
    tagged,
    with_inputs,
)

pytestmark = pytest.mark.property

answers = with_inputs(join_answers)
mixed_answers = with_inputs(compute_joined_answers)
modes = pytest.mark.parametrize("mode", Mode)


REACH = 9


async def answers_with_dummies(ctx: Context, noise: Any, *shares: Any, **kwargs: Any) -> Any:
    return await answers(ctx, *shares, dummies=Dummies(noise, REACH), **kwargs)


def run_join(
    layout: Layout, tables: list[Table], mode: Mode, world: World | None = None, noise: np.ndarray | None = None
) -> Outcome:
    inputs = [table_input(f"H{i}", table.attributes) for i, table in enumerate(tables)]
    rows = [dealt(table.rows(layout.domain)) for table in tables]
    world, kwargs = world or World(1), {"inputs": inputs, "layout": layout, "mode": mode}
    if noise is None:
        return world.run(answers, *rows, **kwargs)
    return world.run(answers_with_dummies, Z64.encode(noise), *rows, **kwargs)


def assert_as_in_the_clear(layout: Layout, tables: list[Table], mode: Mode) -> None:
    """With dummies and without, at the cost declared."""
    noise = np.random.default_rng(len(tables[0].ids)).integers(-REACH, REACH + 1, len(alignment.sets_of(len(tables))))
    assert_joined(layout, tables, mode, None)
    assert_joined(layout, tables, mode, noise)


def assert_joined(layout: Layout, tables: list[Table], mode: Mode, noise: np.ndarray | None) -> None:
    outcome = run_join(layout, tables, mode, noise=noise)
    marginals, accepted = outcome.value
    assert np.array_equal(marginals, layout.marginals(joined_in_the_clear(layout.domain, tables, mode)))
    assert accepted.tolist() == [not table.refused for table in tables]
    reach, planted = (0, []) if noise is None else (REACH, (noise + REACH).tolist())
    matching = matching_of(tables, layout.cliques, mode, planted, 2 * reach)
    sizes = join.join_sizes(extents_of(tables), matching, layout, reach=reach)
    declared = REGISTRY["join_answers"].costs["rep3"]
    assert outcome.rounds == declared.rounds_for(sizes)
    assert outcome.sent == tuple(declared.sent_by(party, sizes) for party in range(3))


@modes
@settings(max_examples=20, deadline=None)
@given(drawn=sources())
def test_drawn_tables_give_the_marginals_of_a_clear_join(mode: Mode, drawn: Source) -> None:
    """Up to four holders, any attributes, orders shuffled, partial overlaps, padding, and repeated persons."""
    layout, tables = answerable(drawn)
    assert_as_in_the_clear(layout, tables, mode)


def table_of(domain: Domain, names: str, people: list[int], seed: int, missing: float = 0.2) -> Table:
    """Codes of single-letter attributes for some persons, in no order."""
    generator = np.random.default_rng(seed)
    own = domain.project(tuple(names))
    codes = generator.integers(0, own.sizes, (len(people), len(names)))
    codes = np.where(generator.random(codes.shape) < missing, MISSING, codes)
    order = generator.permutation(len(people))
    return Table(tuple(names), [person_id(people[i]) for i in order], codes[order])


SIX = Domain(tuple(Attribute(name, size) for name, size in zip("abcdef", (2, 3, 1, 4, 7, 8), strict=True)))
PAIRS = Layout(SIX, SIX.downward_closure(combinations(SIX.names, 2)))
TRIPLES = Layout(SIX, tuple(combinations(SIX.names, 3)))


@modes
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_two_split_the_rows_and_a_third_adds_columns_for_some_of_both(mode: Mode, order: tuple[int, ...]) -> None:
    """A and B share columns; a few persons are at both, with different values, and the first in order decides."""
    tables = [
        table_of(SIX, "abcd", list(range(40)), 1),
        table_of(SIX, "abcd", list(range(36, 75)), 2),
        table_of(SIX, "ef", [*range(20, 60), *range(90, 100)], 3),
    ]
    assert_as_in_the_clear(PAIRS, [tables[i] for i in order], mode)


@modes
def test_four_holders_one_attribute_at_three_and_products_of_three_columns(mode: Mode) -> None:
    tables = [
        table_of(SIX, "abc", list(range(50)), 1, 0.5),
        table_of(SIX, "cde", list(range(10, 70)), 2, 0.5),
        table_of(SIX, "ae", list(range(30, 90)), 3, 0.5),
        table_of(SIX, "aef", list(range(0, 90, 2)), 4, 0.5),
    ]
    assert_as_in_the_clear(TRIPLES, tables, mode)


@modes
def test_nobody_in_common(mode: Mode) -> None:
    tables = [table_of(SIX, "abc", list(range(20)), 1), table_of(SIX, "def", list(range(20, 50)), 2)]
    assert_as_in_the_clear(PAIRS, tables, mode)
    if mode is Mode.INNER:
        assert not run_join(PAIRS, tables, mode).value[0].any()


def test_inner_keeps_who_is_there_for_every_attribute_even_with_missing_values() -> None:
    domain = Domain((Attribute("a", 2), Attribute("b", 2)))
    layout = Layout(domain, (("a",), ("b",)))
    first = Table(("a",), [person_id(1), person_id(2)], np.array([[0], [1]]))
    second = Table(("b",), [person_id(2), person_id(3)], np.array([[MISSING], [1]]))
    assert run_join(layout, [first, second], Mode.INNER).value[0].tolist() == [0, 1, 0, 0]
    assert run_join(layout, [first, second], Mode.UNION).value[0].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("repeated", [0, 62, 63, 64, 127, 128, 147])
def test_a_repetition_is_found_within_and_between_the_blocks_that_are_compared(
    repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alignment, "ORDERED_ROWS", 64)
    tables = [table_of(SIX, "ab", list(range(149)), 1), table_of(SIX, "c", list(range(64)), 2)]
    rows = [table.rows(SIX) for table in tables]
    rows[0][repeated + 1, :ID_BYTES] = rows[0][repeated, :ID_BYTES]
    inputs = [table_input(f"H{i}", table.attributes) for i, table in enumerate(tables)]
    layout = Layout(SIX, (("a",), ("c",)))
    outcome = World(1).run(answers, *map(dealt, rows), inputs=inputs, layout=layout, mode=Mode.UNION)
    assert outcome.value[1].tolist() == [False, True]


def test_a_table_that_repeats_a_person_is_refused_and_the_others_go_on() -> None:
    tables = [
        table_of(SIX, "abc", [*range(20), 3], 1),
        table_of(SIX, "abd", list(range(30)), 2),
        table_of(SIX, "ef", list(range(10, 40)), 3),
    ]
    layout = restricted(PAIRS, tables)
    assert layout is not None
    assert_as_in_the_clear(layout, tables, Mode.UNION)
    marginals, accepted = run_join(layout, tables, Mode.UNION).value
    assert accepted.tolist() == [False, True, True]
    assert not marginals[layout.part(("c",))].any()
    assert not run_join(layout, tables, Mode.INNER).value[0].any(), "nobody is left who has c"


def test_padding_and_forged_codes_count_nowhere() -> None:
    """A holder may send any bits: what is no category is a missing value."""
    domain = Domain((Attribute("a", 5),))
    layout = Layout(domain, (("a",),))
    rows = Table(("a",), [person_id(i) for i in range(8)], np.full((8, 1), MISSING)).rows(domain)
    rows[:, ID_BYTES] = np.arange(8)
    inputs = [table_input("H", ("a",))]
    outcome = World(1).run(answers, dealt(rows), inputs=inputs, layout=layout, mode=Mode.UNION)
    assert outcome.value[0].tolist() == [1, 1, 1, 1, 1]


@modes
def test_rows_in_several_blocks_and_groups(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "CACHED_BLOCKS", 64)
    monkeypatch.setattr(alignment, "BLOCKS_AT_ONCE", 3)
    monkeypatch.setattr(alignment, "ORDERED_ROWS", 64)
    monkeypatch.setattr(join, "GROUP_WORDS", 1)
    monkeypatch.setattr(counting, "GROUP_ROWS", 40)
    tables = [
        table_of(SIX, "abcd", list(range(150)), 1),
        table_of(SIX, "cde", list(range(100, 230)), 2),
        table_of(SIX, "f", list(range(0, 230, 2)), 3),
    ]
    assert alignment.tag_blocks(395) == 7
    assert alignment.tag_batches(395) == 3
    assert alignment.ordered_blocks(150) == 3
    assert_as_in_the_clear(PAIRS, tables, mode)
    assert_as_in_the_clear(TRIPLES, tables, mode)


def test_rows_that_holders_counted_are_added() -> None:
    own = np.random.default_rng(5).integers(0, SIX.sizes, (30, 6))
    tables = [table_of(SIX, "abc", list(range(40)), 1), table_of(SIX, "def", list(range(20, 60)), 2)]
    inputs = [table_input("A", tables[0].attributes), marginals_input("B"), table_input("C", tables[1].attributes)]
    arguments = [dealt(tables[0].rows(SIX)), Z32.encode(PAIRS.marginals(own)), dealt(tables[1].rows(SIX))]
    outcome = World(1).run(mixed_answers, *arguments, inputs=inputs, layout=PAIRS, mode=Mode.INNER)
    joint = joined_in_the_clear(SIX, tables, Mode.INNER)
    assert np.array_equal(outcome.value[0], PAIRS.marginals(np.concatenate([own, joint])))
    assert outcome.value[1].tolist() == [True, True, True]


def test_tags_that_share_their_first_word_are_told_apart() -> None:
    tags = [np.array([[7, 1], [7, 2], [3, 3]], np.uint64), np.array([[7, 3], [7, 1], [7, 2]], np.uint64)]
    found = match(tags, [("a",), ("b",)], [("a",), ("b",)])
    assert sorted(map(tuple, found.sources.tolist())) == [(-1, 0), (0, 1), (1, 2), (2, -1)]
    assert dict(found.patterns) == {(0,): 1, (1,): 1, (0, 1): 2}


def test_rows_that_can_count_nowhere_are_not_expanded() -> None:
    tables = [table_of(SIX, "abc", list(range(20)), 1), table_of(SIX, "def", list(range(15, 50)), 2)]
    found = matching_of(tables, [("a", "f")], Mode.UNION)
    assert found.patterns == (((0, 1), 5),)


# What is seen


def two_datasets() -> list[list[Table]]:
    """Different persons, values, orders and matches; the same sizes and the same numbers in common."""
    first = [table_of(SIX, "abcd", list(range(64)), 1), table_of(SIX, "def", list(range(40, 104)), 2)]
    second = [
        table_of(SIX, "abcd", list(range(1000, 1064)), 3, 0.9),
        table_of(SIX, "def", list(range(960, 1024))[::-1], 4, 0.0),
    ]
    assert Counter(size for _, size in matching_of(first, PAIRS.cliques, Mode.UNION).patterns) == Counter([24, 40, 40])
    assert Counter(size for _, size in matching_of(second, PAIRS.cliques, Mode.UNION).patterns) == Counter([24, 40, 40])
    return [first, second]


def test_with_the_same_leakage_views_have_the_same_shape_and_all_words_are_uniform() -> None:
    """Also the opened tags: what is received of them is a component, and it is random as the tags are."""
    shapes = []
    for tables in two_datasets():
        recorder = Recorder()
        run_join(PAIRS, tables, Mode.UNION, World(3, interceptor=recorder))
        shapes.append([(m.source, m.dest, m.round, m.tag, len(m.payload)) for m in recorder.messages])
        for party in range(3):
            seen = np.frombuffer(b"".join(m.payload for m in recorder.messages if m.dest == party), np.uint8)
            assert seen.size > 50_000
            assert stats.chisquare(np.bincount(seen, minlength=256)).pvalue > 1e-6
            assert stats.chisquare(np.bincount(seen[1:] ^ seen[:-1], minlength=256)).pvalue > 1e-6
    assert shapes[0] == shapes[1]


def test_no_identifier_is_in_any_message_or_tag() -> None:
    recorder = Recorder()
    (tables, _) = two_datasets()
    ids = {one for table in tables for one in table.ids}
    result = World(3, interceptor=recorder).run(tagged, *(dealt(table.rows(SIX)) for table in tables)).value
    for message in recorder.messages:
        assert not any(one in bytes(message.payload) for one in ids)
    tags = {tag.tobytes() for part, _ in result for tag in part}
    assert len(tags) == len(ids)
    assert tags.isdisjoint(ids)


def test_the_same_persons_have_other_tags_in_another_session_in_another_order() -> None:
    (tables, _) = two_datasets()
    rows = [dealt(table.rows(SIX)) for table in tables]
    (first, _), (second, _) = (World(3, keys=keys).run(tagged, *rows).value for keys in (1, 2))
    assert {tag.tobytes() for tag in first[0]}.isdisjoint(tag.tobytes() for tag in second[0])
    orders = [in_bytes(part[1], len(tables[0].rows(SIX)[0])) for part in (first, second)]
    assert sorted(map(bytes, orders[0])) == sorted(map(bytes, orders[1]))
    assert not np.array_equal(*orders)


def test_opened_tags_are_uniform_bytes_and_padding_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[np.ndarray] = []
    original = alignment.reveal_bits

    async def watched(ctx: Context, x: Any, **kwargs: Any) -> Any:
        if x.size % 64:
            last = np.stack([part[:, -1] for part in x.components]) >> np.uint64(x.size % 64)
            assert not last.any()
        words = await original(ctx, x, **kwargs)
        opened.append(words)
        return words

    monkeypatch.setattr(alignment, "reveal_bits", watched)
    World(4).run(tagged, dealt(table_of(SIX, "abcd", list(range(1000)), 1).rows(SIX)))
    octets = np.concatenate(opened).view(np.uint8)
    assert octets.size == 3 * 1000 * ID_BYTES
    assert stats.chisquare(np.bincount(octets[: octets.size // 3], minlength=256)).pvalue > 1e-6


class OneSecretVaried(World):
    """Worlds in which the secrets of components that a party lacks are others each time, and those it holds stay."""

    def __init__(self, party: int, number: int) -> None:
        super().__init__(5)
        self._known = super().session(party)
        self._other = World(5, keys=10_000 + number)

    def session(self, party: int) -> dict[int, bytes]:
        return self._other.session(party) | {
            component: secret for component, secret in self._known.items() if component in self.scheme.held[party]
        }


@pytest.mark.parametrize("party", [0, 1, 2])
def test_to_each_party_alone_the_order_is_uniform(party: int) -> None:
    """With all that a party knows held fixed, each of the six orders of three rows is as frequent."""
    rows = np.arange(1, 4, dtype=np.uint8)[:, None]
    orders = Counter(
        bytes(in_bytes(OneSecretVaried(party, number).run(shuffled, dealt(rows)).value, 1)) for number in range(180)
    )
    assert stats.chisquare([orders.get(bytes(order), 0) for order in permutations((1, 2, 3))]).pvalue > 1e-6


# What is refused


def refused(kind: type[Exception], *rows: np.ndarray, inputs: Any, layout: Layout = PAIRS, **kwargs: Any) -> str:
    recorder = Recorder()
    protocol = kwargs.pop("protocol", answers)
    world, arguments = World(1, interceptor=recorder), map(dealt, rows)
    with pytest.raises(Failed) as caught:
        world.run(protocol, *arguments, inputs=inputs, layout=layout, mode=Mode.UNION, **kwargs)
    assert all(isinstance(error, kind) for error in caught.value.errors)
    assert not recorder.messages, "refused before anything is sent"
    return str(caught.value)


def test_unfit_inputs_are_refused_before_anything_is_sent() -> None:
    good = table_of(SIX, "abcdef", list(range(5)), 1).rows(SIX)
    assert "rows of" in refused(ShareError, good[:, :-1], inputs=[table_input("H", SIX.names)])
    assert "rows of" in refused(ShareError, good[:0], inputs=[table_input("H", SIX.names)])
    assert "domain order" in refused(DomainError, good, inputs=[table_input("H", SIX.names[::-1])])
    some = table_of(SIX, "abc", list(range(5)), 1).rows(SIX)
    assert "in no holder's table" in refused(DomainError, some, inputs=[table_input("H", tuple("abc"))])
    refused(DomainError, some, inputs=[table_input("H", tuple("abc"))], protocol=mixed_answers)
    refused(DomainError, inputs=[])


def test_rows_of_another_study_are_refused() -> None:
    rows = np.zeros((3, ID_BYTES), np.uint8)

    async def foreign(ctx: Context) -> Any:
        keys = RoundKeys((random_key(ctx),) * 11)
        return await alignment.tag_rows(ctx, [RowShare(Owner(ctx.party, b"other", REP3), rows, rows)], keys)

    with pytest.raises(Failed):
        World(1).run(foreign)


def test_rows_are_inert_and_say_nothing() -> None:
    rows = RowShare(Owner(0, STUDY, REP3), np.full((2, 20), 77, np.uint8), np.zeros((2, 20), np.uint8))
    assert "77" not in repr(rows)
    with pytest.raises(ShareError):
        bool(rows)
    with pytest.raises(ValueError, match="read-only"):
        rows.components[0][0, 0] = 1
    with pytest.raises(ShareError):
        RowShare(rows.owner, rows.components[0], rows.components[1][:1])
    with pytest.raises(ShareError):
        RowShare(rows.owner, *(part.astype(np.uint16) for part in rows.components))


def test_too_many_tables_are_refused() -> None:
    tags = [np.zeros((1, 2), np.uint64)] * (alignment.MAX_TABLES + 1)
    with pytest.raises(DomainError):
        match(tags, [("a",)] * len(tags), [("a",)])


def test_a_row_is_packed_as_specified() -> None:
    """Sizes 1, 2, 3, 7: codes of 1, 2, 2 and 3 bits, from the lowest bit of the first byte; 0 is missing."""
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=True) for i, size in enumerate((1, 2, 3, 7, 255))))
    packing = RowFormat(domain)
    assert packing.widths == (1, 2, 2, 3, 8)
    ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
    rows = packing.pack(ids, [[0, 1, 2, 6, 254], [MISSING, 0, MISSING, 3, MISSING]])
    assert rows.shape == (2, packing.row_bytes)
    assert np.array_equal(rows[:, :16], ids)
    assert rows[:, 16:].tolist() == [[0b111_11_10_1, 255], [0b100_00_01_0, 0]]
    with pytest.raises(DomainError):
        packing.pack(ids[:1], [[0] * 5, [0] * 5])
    with pytest.raises(DomainError):
        packing.pack(ids, [[2] * 5, [0] * 5])
