"""COMPUTE ANSWERS: every partition gives numpy's marginals at the declared cost, and bad contributions are named."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from caps.basics.schemes import REP3
from caps.data.domain import MISSING, Attribute, Domain, Layout
from caps.errors import DomainError, ShareError
from caps.shares.prss import Prss
from caps.shares.ring import Z16, Z22, Z24, Z32, Z64, Ring
from caps.shares.sharing import deal, reconstruct
from services.mpc_server.engine import counting, jobs, size, validity
from services.mpc_server.engine.compute import add_marginals, compute_answers
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.cost import Size
from services.mpc_server.engine.counting import GROUP_ROWS, count, count_sizes
from services.mpc_server.engine.kernels import gram_of_parts
from services.mpc_server.engine.paper.counting import count_paper, paper_sizes
from services.mpc_server.engine.recipe import recipe_of
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.engine.shares import AShare, Owner
from services.mpc_server.engine.validity import COMBINATIONS, check_one_hot, check_totals, combinations_of_totals
from services.mpc_server.engine.verbs import lift
from services.mpc_server.testing.world import STUDY, Failed, Outcome, PerParty, Recorder, World, uniform_words
from tests.kit.cases.compute import (
    coalesce_all,
    columns,
    described,
    first_value,
    horizontal,
    in_words,
    listed,
    sizes_of,
)

pytestmark = pytest.mark.property

answers = described(compute_answers)
checked = listed(check_one_hot)


def assert_cost(name: str, outcome: Outcome, sizes: dict[Size, int]) -> None:
    declared = REGISTRY[name].costs["rep3"]
    assert outcome.rounds == declared.rounds_for(sizes)
    assert outcome.sent == tuple(declared.sent_by(party, sizes) for party in range(3))


def nine_attributes(*degrees: int) -> Layout:
    """The paper's dimensions: nine attributes of five categories, 45 columns."""
    domain = Domain(tuple(Attribute(f"a{i}", 5, nullable=True) for i in range(9)))
    return Layout(domain, tuple(clique for p in degrees for clique in combinations(domain.names, p)))


def random_codes(seed: int, domain: Domain, rows: int, missing: float = 0.1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, domain.sizes, (rows, len(domain.sizes)))
    return np.where(generator.random(codes.shape) < missing, MISSING, codes)


@dataclass
class Partition:
    """A joint table, what holders bring of it, and what the answers must be."""

    layout: Layout
    ring: Ring = Z16
    """Of the words of columns."""
    inputs: list[Callable[[Any], Any]] = field(default_factory=list)
    arguments: list[np.ndarray] = field(default_factory=list)
    tables: list[np.ndarray] = field(default_factory=list)

    def bring_marginals(self, codes: np.ndarray, ring: Any) -> None:
        self.inputs.append(horizontal(f"H{len(self.inputs)}"))
        self.arguments.append(ring.encode(self.layout.marginals(codes)))
        self.tables.append(codes)

    def bring_columns(self, codes: np.ndarray, names: tuple[str, ...]) -> None:
        domain = self.layout.domain
        self.inputs.append(columns(f"H{len(self.inputs)}", names))
        positions = [domain.position(name) for name in names]
        one_hot = domain.project(names).one_hot(codes[:, positions])
        self.arguments.append(in_words(self.ring, one_hot, np.random.default_rng(len(self.inputs))))


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    kind = draw(st.sampled_from(["horizontal", "vertical", "mixed", "overlapping"]))
    nullable = [draw(st.booleans()) for _ in sizes]
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable[i]) for i, size in enumerate(sizes)))
    possible = [clique for p in (1, 2, 3) for clique in combinations(domain.names, p)]
    cliques = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=8, unique=True))
    drawn = Partition(Layout(domain, tuple(cliques)), draw(st.sampled_from([Z16, Z32])))

    def table(rows: int, *, holes: bool) -> np.ndarray:
        """Missing values where the schema allows them, or anywhere: columns may be padded with zero rows."""
        codes = random_codes(draw(st.integers(0, 2**32)), domain, rows, 0.0)
        empty = random_codes(draw(st.integers(0, 2**32)), domain, rows, 0.3) == MISSING
        return np.where(empty & (holes | np.array(nullable)), MISSING, codes)

    if kind in ("horizontal", "mixed"):
        ring = draw(st.sampled_from([Z16, Z32]))
        for _ in range(draw(st.integers(1, 3))):
            drawn.bring_marginals(table(draw(st.integers(0, 30)), holes=False), ring)
    if kind == "horizontal":
        return drawn
    rows = draw(st.integers(1, 30))
    if kind == "overlapping":
        holders = [table(rows, holes=True) for _ in range(draw(st.integers(2, 4)))]
        names = [draw(st.sets(st.sampled_from(domain.names), min_size=1)) for _ in holders]
        names[-1] |= set(domain.names).difference(*names[:-1])
    else:
        holders = [table(rows, holes=True)] * draw(st.integers(1, 3))
        owner = [draw(st.integers(0, len(holders) - 1)) for _ in domain.names]
        names = [{name for name, at in zip(domain.names, owner, strict=True) if at == i} for i in range(len(holders))]
    joined = np.full((rows, len(sizes)), MISSING)
    for codes, some in zip(holders, names, strict=True):
        if some:
            drawn.bring_columns(codes, domain.clique(some))
            has = np.array([name in some for name in domain.names])
            joined = first_value([joined, np.where(has, codes, MISSING)])
    drawn.tables.append(joined)
    return drawn


@settings(max_examples=100, deadline=None)
@given(partitions())
def test_every_partition_gives_the_marginals_of_the_joint_table(drawn: Partition) -> None:
    outcome = World(1).run(answers, *drawn.arguments, inputs=drawn.inputs, layout=drawn.layout)
    marginals, accepted = outcome.value
    assert np.array_equal(marginals, drawn.layout.marginals(np.concatenate(drawn.tables)))
    assert accepted.tolist() == [True] * len(drawn.inputs)
    assert_cost("compute_answers", outcome, sizes_of(drawn.inputs, drawn.arguments, drawn.layout))


def test_what_a_holder_counts_within_its_own_columns_is_left_out_of_the_columns() -> None:
    """The paper's vertical case: one-way marginals, and pairs of one holder, come from the holder."""
    domain = Domain(tuple(Attribute(f"a{i}", 3) for i in range(4)))
    layout = Layout(domain, domain.downward_closure(combinations(domain.names, 2)))
    codes = random_codes(1, domain, 40, 0.0)
    halves = [domain.names[:2], domain.names[2:]]
    own = [tuple(clique for clique in layout.cliques if set(clique) <= set(half)) for half in halves]
    rest = [clique for clique in layout.cliques if clique not in {*own[0], *own[1]}]
    inputs = [horizontal("H0", own[0]), horizontal("H1", own[1]), columns("H0", halves[0]), columns("H1", halves[1])]
    arguments = [Z16.encode(Layout(domain, cliques).marginals(codes)) for cliques in own]
    arguments += [domain.project(half).one_hot(codes[:, i : i + 2]) for half, i in zip(halves, (0, 2), strict=True)]
    outcome = World(1).run(answers, *arguments, inputs=inputs, layout=layout, counted=rest)
    assert np.array_equal(outcome.value[0], layout.marginals(codes))
    assert_cost("compute_answers", outcome, sizes_of(inputs, arguments, layout, rest))
    twice = World(1).run(answers, *arguments, inputs=inputs, layout=layout).value[0]
    assert np.array_equal(twice[layout.positions(own[0])], 2 * layout.marginals(codes)[layout.positions(own[0])])


def test_what_is_sent_does_not_depend_on_the_rows_and_is_small() -> None:
    layout = nine_attributes(1, 2)
    outcomes = []
    for rows in (614, 5000):
        codes = random_codes(rows, layout.domain, rows)
        outcomes.append(World(1).run(count, layout.domain.one_hot(codes), layout=layout))
        assert np.array_equal(outcomes[-1].value, layout.marginals(codes))
        assert_cost("count", outcomes[-1], count_sizes(layout, rows))
    assert outcomes[0].sent == outcomes[1].sent
    assert outcomes[0].rounds == outcomes[1].rounds == 9
    assert max(outcomes[0].sent) <= 100_000
    for rows in (1, GROUP_ROWS):
        sizes = count_sizes(layout, rows)
        assert max(REGISTRY["count"].costs["rep3"].sent_by(party, sizes) for party in range(3)) == max(outcomes[0].sent)


def test_the_papers_way_gives_the_same_and_sends_every_row() -> None:
    layout = nine_attributes(1, 2)
    codes = random_codes(3, layout.domain, 100)
    outcome = World(1).run(count_paper, Z64.encode(codes), layout=layout)
    assert np.array_equal(outcome.value, layout.marginals(codes))
    assert_cost("count_paper", outcome, paper_sizes(layout, 100))
    assert min(outcome.sent) > 100 * 900 * 8


@pytest.mark.parametrize("rows", [GROUP_ROWS, GROUP_ROWS + 1, 2 * GROUP_ROWS + 7])
def test_counts_do_not_wrap_where_a_group_of_rows_ends(rows: int) -> None:
    domain = Domain((Attribute("a", 1), Attribute("b", 2), Attribute("c", 1)))
    layout = Layout(domain, (("a",), ("a", "b"), ("a", "b", "c")))
    codes = np.zeros((rows, 3), int)
    codes[:5, 1] = 1
    outcome = World(1).run(count, domain.one_hot(codes), layout=layout)
    assert outcome.value.tolist() == [rows, rows - 5, 5, rows - 5, 5]
    assert_cost("count", outcome, count_sizes(layout, rows))


WIDE = Layout(
    Domain((Attribute("a", 1), Attribute("b", 2, nullable=True), Attribute("c", 1))),
    (("a",), ("b",), ("a", "b"), ("a", "b", "c")),
)


@pytest.mark.parametrize("layout", [WIDE, Layout(WIDE.domain, WIDE.cliques[:3])], ids=["triples", "pairs"])
def test_words_of_32_bits_count_further_and_what_is_sent_is_the_same_for_any_rows(layout: Layout) -> None:
    """A count of 70,000 is more than 16 bits hold; three times the rows send not a byte more but products of rows."""
    sent = []
    for rows in (70_000, 200_000):
        codes = random_codes(rows, layout.domain, rows, 0.2)
        codes[:, [0, 2]] = 0
        one_hot = in_words(Z32, layout.domain.one_hot(codes), np.random.default_rng(rows))
        outcome = World(1).run(count, one_hot, layout=layout)
        assert outcome.value[0] == rows
        assert np.array_equal(outcome.value, layout.marginals(codes))
        sizes = count_sizes(layout, rows, Z32.bits)
        assert_cost("count", outcome, sizes)
        sent.append([party - 4 * rows * sizes[size.product_columns] for party in outcome.sent])
    assert sent[0] == sent[1]


def test_columns_that_were_shared_in_24_bits_are_checked_and_counted() -> None:
    """As holders deal them and servers hold them: components of 24 bits, whose sum has what carries above."""
    domain = Domain((Attribute("a", 2), Attribute("b", 3, nullable=True)))
    layout = Layout(domain, domain.downward_closure([domain.names]))
    rows = 70_000
    codes = random_codes(1, domain, rows)
    codes[:, 0] = 0
    halves = [("a",), ("b",)]
    sums, shares = [], []
    for i, half in enumerate(halves):
        seeds = iter([bytes([i, 1]) * 16, bytes([i, 2]) * 16])
        one_hot = domain.project(half).one_hot(codes[:, [i]]).astype(np.uint32)
        dealt_ = deal(one_hot, entropy=lambda _, seeds=seeds: next(seeds), ring=Z24)
        shares.append([share.components() for share in dealt_])
        sums.append(reconstruct(shares[-1]))
    assert all((words >> np.uint32(24)).any() for words in sums)

    async def answered(ctx: Any, *parts: Any) -> Any:
        inputs = [
            columns(f"H{i}", half)(ctx.share(*part)) for i, (half, part) in enumerate(zip(halves, parts, strict=True))
        ]
        return await compute_answers(ctx, inputs, layout=layout)

    marginals, accepted = World(1).run(answered, *(PerParty(*parts) for parts in shares)).value
    assert accepted.tolist() == [True, True]
    assert np.array_equal(marginals, layout.marginals(codes))
    assert marginals[0] == rows


@pytest.mark.parametrize("layout", [WIDE, Layout(WIDE.domain, WIDE.cliques[:3])], ids=["triples", "pairs"])
def test_large_groups_are_added_too(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "WIDE_GROUP_ROWS", 30)
    codes = random_codes(1, layout.domain, 101)
    one_hot = in_words(Z32, layout.domain.one_hot(codes), np.random.default_rng(1))
    outcome = World(1).run(count, one_hot, layout=layout)
    assert np.array_equal(outcome.value, layout.marginals(codes))
    sizes = count_sizes(layout, 101, Z32.bits)
    assert_cost("count", outcome, sizes)
    assert counting.row_groups(101, Z32.bits) == 4


def test_no_group_is_larger_than_what_its_counts_hold() -> None:
    for ring in (Z16, Z32):
        counted = validity.WIDTHS[ring].counted
        assert counted.dtype == ring.dtype
        assert counting._group_rows(ring.bits) == (1 << counted.bits) - 1
    assert validity.WIDTHS[Z32] == (Z24, Z22)
    for rows, groups in ((65_536, 1), ((1 << 22) - 1, 1), (1 << 22, 2)):
        assert counting.row_groups(rows, Z32.bits) == groups


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_22_bits_are_lifted_exactly_whatever_stands_above_them(seed: int) -> None:
    edges = np.array([0, 1, 65_535, 65_536, (1 << 21) - 1, 1 << 21, (1 << 22) - 2, (1 << 22) - 1] * 20, np.uint32)
    above = uniform_words(seed, edges.shape, Z32) << np.uint32(22)
    outcome = World(seed).run(lift, edges + above, ring=Z64, modulo=Z22)
    assert np.array_equal(outcome.value, edges)
    assert_cost("lift", outcome, {size.elements: edges.size, size.ring_bits: 22, size.target_bits: 64})


def test_a_count_of_the_largest_group_is_exact() -> None:
    """4,194,303 equal rows, of which one is held."""
    ones = np.broadcast_to(np.array([[1]], np.uint32), ((1 << 22) - 1, 1))
    assert Z22.reduce(gram_of_parts([(ones,)], modulo=Z22)).tolist() == [[(1 << 22) - 1]]


def test_rows_are_worked_through_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and groups of a few rows, so that every loop runs several times and ends with a short one."""
    monkeypatch.setattr(counting, "BLOCK_ROWS", 8)
    monkeypatch.setattr(jobs, "BLOCK_ROWS", 8)
    monkeypatch.setattr(counting, "BLOCK_WORDS", 64)
    monkeypatch.setattr(counting, "GROUP_ROWS", 30)
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=True) for i, size in enumerate((2, 3, 4, 2))))
    layout = Layout(domain, domain.downward_closure([domain.names]))
    codes = random_codes(5, domain, 101)
    outcome = World(1).run(count, domain.one_hot(codes), layout=layout)
    assert np.array_equal(outcome.value, layout.marginals(codes))
    assert_cost("count", outcome, count_sizes(layout, 101))
    assert counting.row_blocks(101, count_sizes(layout, 101)[size.pool_columns], Z16.bits) == 3 * 4 + 2
    outcome = World(1).run(count_paper, Z64.encode(codes), layout=layout)
    assert np.array_equal(outcome.value, layout.marginals(codes))
    assert_cost("count_paper", outcome, paper_sizes(layout, 101))
    bad = domain.one_hot(codes)
    bad[-1, -1] += 2
    assert World(1).run(checked, domain.one_hot(codes), bad, blocks=[domain.sizes] * 2).value.tolist() == [True, False]


def test_cliques_share_products_and_the_cheap_attributes_are_multiplied() -> None:
    """Pairs that hit all triples of nine are the complement of a triangle-free graph: 36 - 20 at the least."""
    assert recipe_of(nine_attributes(3)).products == 16 * 25
    assert recipe_of(nine_attributes(1, 2)).products == 0
    domain = Domain(tuple(Attribute(name, size) for name, size in zip("abcd", (100, 2, 3, 2), strict=True)))
    assert recipe_of(Layout(domain, (("a", "b", "c"),))).products == 2 * 3
    assert recipe_of(Layout(domain, (("a", "b", "c", "d"),))).products == 2 * 2 + 2 * 2 * 3
    even = Domain(tuple(Attribute(name, 5) for name in "abcd"))
    assert recipe_of(Layout(even, (even.names,))).products == 25 + 25


def test_all_parties_make_the_same_recipe() -> None:
    """Nothing in it may depend on the order of a set, which differs from process to process."""
    program = (
        "import hashlib; from caps.data.domain import *; from services.mpc_server.engine.recipe import recipe_of\n"
        "d = Domain([Attribute(f'a{i}', 2 + i % 3) for i in range(6)])\n"
        "r = recipe_of(Layout(d, d.downward_closure([d.names[:4], d.names[2:]])))\n"
        "parts = [*(a for level in r.levels for a in level), r.paired, *r.pairs, r.order]\n"
        "parts += [a for c in r.crosses for a in (c.right, *c.cells)]\n"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in parts)).hexdigest(), [c.left for c in r.crosses])"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


BAD_BLOCKS = {
    "two": [0, 2, 0],
    "half of the ring": [0, 1 << 15, 0],
    "minus one": [0, 65_535, 0],
    "two ones": [1, 0, 1],
    "three ones": [1, 1, 1],
    "pair that cancels": [65_535, 1, 1],
    "pair of halves that cancels": [1 << 15, 1 << 15, 1],
    "one and a half": [1, 0, 1 << 15],
    "square that vanishes": [1 << 8, 0, 0],
}


@pytest.mark.parametrize("bad", BAD_BLOCKS.values(), ids=BAD_BLOCKS)
@pytest.mark.parametrize(("row", "attribute"), [(0, 0), (1499, 2)])
def test_each_kind_of_bad_entry_is_found_and_its_holder_named(bad: list[int], row: int, attribute: int) -> None:
    domain = Domain(tuple(Attribute(f"a{i}", 3) for i in range(3)))
    codes = random_codes(1, domain, 1500, 0.2)
    codes[700:800] = MISSING
    good = domain.one_hot(codes)
    wrong = good.copy()
    wrong[row, 3 * attribute : 3 * attribute + 3] = bad
    outcome = World(row).run(checked, good, wrong, np.zeros_like(good), good[:1], blocks=[domain.sizes] * 4)
    assert outcome.value.tolist() == [True, False, True, True]
    assert_cost("check_one_hot", outcome, {size.column_inputs: 4, size.word_bits: 16})


WIDE_BAD_BLOCKS = {
    "two": [0, 2, 0],
    "half of 16 bits": [0, 1 << 15, 0],
    "half of 22 bits": [0, 1 << 21, 0],
    "22 bits": [0, 1 << 22, 0],
    "half of 24 bits": [0, 1 << 23, 0],
    "one and 22 bits": [(1 << 22) + 1, 0, 0],
    "minus one": [0, (1 << 24) - 1, 0],
    "two ones": [1, 0, 1],
    "three ones": [1, 1, 1],
    "pair that cancels": [(1 << 24) - 1, 1, 1],
    "pair of halves that cancels": [1 << 23, 1 << 23, 1],
    "square that vanishes": [1 << 12, 0, 0],
}


@pytest.mark.parametrize("bad", WIDE_BAD_BLOCKS.values(), ids=WIDE_BAD_BLOCKS)
def test_each_kind_of_bad_entry_is_found_in_large_words(bad: list[int]) -> None:
    domain = Domain(tuple(Attribute(f"a{i}", 3) for i in range(3)))
    generator = np.random.default_rng(1)
    good = domain.one_hot(random_codes(1, domain, 1500, 0.2)).astype(np.uint32)
    wrong = good.copy()
    wrong[1499, 3:6] = bad
    arguments = [in_words(Z32, words, generator) for words in (good, wrong, np.zeros_like(good), good[:1])]
    outcome = World(1).run(checked, *arguments, blocks=[domain.sizes] * 4)
    assert outcome.value.tolist() == [True, False, True, True]
    assert_cost("check_one_hot", outcome, {size.column_inputs: 4, size.word_bits: 32})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is opened from now on, in order, by every party."""
    found = []
    reveal = validity.reveal

    async def watched(ctx: Any, x: AShare) -> Any:
        words = await reveal(ctx, x)
        found.append(words)
        return words

    monkeypatch.setattr(validity, "reveal", watched)
    return found


def test_nothing_of_the_bits_above_what_was_shared_is_opened(opened: list[Any]) -> None:
    """They depend on the shares: only multiples of 2^8 are opened, and of good columns only zeros."""
    wrong = COLUMNS.copy()
    wrong[3, :2] = 1
    arguments = [in_words(Z32, words, np.random.default_rng(1)) for words in (COLUMNS, wrong)]
    assert World(1).run(checked, *arguments, blocks=[DOMAIN.sizes] * 2).value.tolist() == [True, False]
    found = [words for words in opened if words.dtype == np.uint32]
    assert len(found) == 3
    assert not any(words[0].any() for words in found)
    assert not any((words & 0xFF).any() for words in found)


def test_a_contribution_that_is_wrong_in_a_matching_way_is_found() -> None:
    """Errors that cancel over rows and columns: a check by totals would be blind to them."""
    domain = Domain((Attribute("a", 2), Attribute("b", 2)))
    wrong = domain.one_hot(random_codes(1, domain, 50, 0.0))
    wrong[10] = (2, 65_535, 65_535, 2)
    wrong[11] = (65_535, 2, 2, 65_535)
    assert not World(1).run(checked, wrong, blocks=[domain.sizes]).value[0]


def one_combination_finds(columns_: np.ndarray, sizes: tuple[int, ...], seeds: int) -> float:
    """How often one random combination is not zero, over all combinations of rows and columns for each seed."""
    found = 0
    for seed in range(seeds):
        coins = uniform_words(seed, (4,), Z64).tobytes()
        outcome = World(1).run(validity._deviations, columns_, sizes=sizes, seed=coins, label=b"/0")
        found += int(np.count_nonzero(outcome.value))
    return found / (seeds * COMBINATIONS**2)


def dealt(words: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = [uniform_words(1, words.shape, Z16), uniform_words(2, words.shape, Z16)]
    parts.append(words - parts[0] - parts[1])
    return [(parts[party], parts[(party + 1) % 3]) for party in range(3)]


def test_one_combination_finds_the_least_error_in_a_quarter_of_cases() -> None:
    """A single entry of V that is not zero is seen if both its coins fall; errors in many rows, in half of cases."""
    domain = Domain((Attribute("a", 3), Attribute("b", 2)))
    good = domain.one_hot(random_codes(1, domain, 40))
    assert one_combination_finds(good, domain.sizes, 20) == 0
    two_ones = good.copy()
    two_ones[7, :3] = (1, 0, 1)  # entries are fine, one sum is not
    assert one_combination_finds(two_ones, domain.sizes, 100) == pytest.approx(1 / 4, abs=0.02)
    half = np.where(good == 1, 1 << 15, 0).astype(np.uint16)
    assert one_combination_finds(half, domain.sizes, 100) == pytest.approx(1 / 2, abs=0.02)
    assert 2 * 2.0**-COMBINATIONS < 2.0**-validity.SOUNDNESS_BITS


def test_one_coin_of_a_row_or_column_is_as_good_as_another() -> None:
    """Every position is covered: the coins of each row and of each column are fair and differ."""
    seed = uniform_words(3, (4,), Z64).tobytes()
    coins = validity.coins(seed, b"/0/rows/0", 4000, COMBINATIONS)
    assert coins.shape == (4000, COMBINATIONS)
    assert set(np.unique(coins)) == {0, 1}
    assert np.abs(coins.mean(axis=0) - 0.5).max() < 0.05
    assert np.abs(np.corrcoef(coins[:, :16].T) - np.eye(16)).max() < 0.08
    assert not np.array_equal(coins, validity.coins(seed, b"/1/rows/0", 4000, COMBINATIONS))


def test_coins_are_not_known_before_they_are_tossed() -> None:
    """They change with the key of any component, and no party holds all."""
    tossed = {World(1, keys=keys).run(validity.toss).value.tobytes() for keys in range(5)}
    assert len(tossed) == 5
    for component in range(REP3.components):
        world = World(1)
        usual = world.session
        world.session = lambda party, component=component, usual=usual: {  # type: ignore[method-assign]
            one: bytes(32) if one == component else secret for one, secret in usual(party).items()
        }
        tossed.add(world.run(validity.toss).value.tobytes())
    assert len(tossed) == 8


def fixed_toss(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Coins that everybody knows beforehand."""
    words = uniform_words(77, (4,), Z64)

    async def toss(ctx: Any) -> Any:
        return words

    monkeypatch.setattr(validity, "toss", toss)
    return words.tobytes()


def test_totals_that_foresee_the_coins_pass_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With r known beforehand, differences (r_2, -r_1) have the sum zero: so the sum is taken with the coins tossed."""
    layout = Layout(Domain(tuple(Attribute(name, 1) for name in "abc")), (("a",), ("b",), ("c",)))
    kwargs = {"layouts": [layout], "bits": 16}
    with monkeypatch.context() as patched:
        seed = fixed_toss(patched)
        r = validity.expand(seed, validity.COINS + b"/totals/0", (2, 1), Z64).reshape(-1)
        foreseen = np.concatenate([np.zeros(1, Z64.dtype), r[1:], -r[:1]])
        assert World(1).run(listed(check_totals), foreseen, **kwargs).value.tolist() == [True]
    assert World(1).run(listed(check_totals), foreseen, **kwargs).value.tolist() == [False]


def test_columns_are_combined_with_the_coins_tossed(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    summand = validity._deviations

    def watched(ctx: Any, x: AShare, sizes: Any, seed: bytes, label: bytes) -> Any:
        used.append((seed, label))
        return summand(ctx, x, sizes, seed, label)

    monkeypatch.setattr(validity, "_deviations", watched)
    seed = fixed_toss(monkeypatch)
    assert World(1).run(checked, COLUMNS, COLUMNS, blocks=[(7,), DOMAIN.sizes]).value.tolist() == [False, True]
    assert set(used) == {(seed, b"/0"), (seed, b"/1")}


@pytest.mark.parametrize("name", ["columns", "totals"])
def test_what_a_check_sends_is_masked_afresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same shares and coins under other keys make other messages: what is combined is hidden by fresh masks."""
    fixed_toss(monkeypatch)
    transcripts = []
    for keys in (1, 2):
        recorder = Recorder()
        world = World(9, keys=keys, interceptor=recorder)
        if name == "columns":
            assert world.run(checked, *[COLUMNS] * 9, blocks=[DOMAIN.sizes] * 9).value.all()
        else:
            shares = [MARGINALS.astype(np.uint64)] * 300
            world.run(listed(check_totals), *shares, layouts=[PAIRS] * 300, bits=16)
        transcripts.append(np.frombuffer(b"".join(bytes(m.payload) for m in recorder.messages), np.uint8))
    assert transcripts[0].size > 10_000
    assert np.mean(transcripts[0] == transcripts[1]) < 2 / 256


def peak_of_counting(rows: int) -> int:
    layout = nine_attributes(3)
    one_hot = layout.domain.one_hot(random_codes(1, layout.domain, rows))
    tracemalloc.start()
    World(1).run(count, one_hot, layout=layout)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_products_of_columns_work_in_blocks_of_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 products to a row and party: four times the rows need little more than the columns themselves."""
    monkeypatch.setattr(counting, "BLOCK_WORDS", 1 << 18)
    assert peak_of_counting(8192) < 1.5 * peak_of_counting(2048)


def test_the_check_works_in_blocks_of_bounded_memory() -> None:
    rows, width = 20_000, 100
    owner = Owner(0, STUDY, REP3)
    share = AShare(owner, uniform_words(1, (rows, width), Z16), uniform_words(2, (rows, width), Z16))
    keys = {component: bytes([component]) * 32 for component in REP3.held[0]}
    protocol = validity._deviations(Context(owner, Prss(keys), Prss(keys)), share, (10,) * 10, bytes(32), b"/0")
    tracemalloc.start()
    protocol.send(None)  # up to its message: all of its local work
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    protocol.close()
    assert peak < rows * width * 2 * 2


def test_columns_of_several_holders_are_never_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain(tuple(Attribute(f"a{i}", 3) for i in range(6)))
    layout = Layout(domain, domain.downward_closure([("a0", "a5"), ("a2", "a3")]))
    codes = random_codes(1, domain, 1000)
    joined: list[tuple[int, int]] = []
    concatenate = counting.concatenate

    def watched(shares: Any, axis: int = 0) -> Any:
        joined.append((axis, shares[0].shape[0]))
        return concatenate(shares, axis)

    monkeypatch.setattr(counting, "concatenate", watched)
    monkeypatch.setattr(counting, "GROUP_ROWS", 300)
    halves = (domain.names[:3], domain.names[3:])
    arguments = [domain.project(half).one_hot(codes[:, [domain.position(name) for name in half]]) for half in halves]
    inputs = [columns("A", halves[0]), columns("B", halves[1])]
    marginals, accepted = World(1).run(answers, *arguments, inputs=inputs, layout=layout).value
    assert accepted.all()
    assert np.array_equal(marginals, layout.marginals(codes))
    assert not [rows for axis, rows in joined if axis == 1]
    joined.clear()
    monkeypatch.setattr(counting, "BLOCK_ROWS", 200)
    monkeypatch.setattr(counting, "BLOCK_WORDS", 1)
    layout = Layout(domain, (*layout.cliques, ("a0", "a3", "a5")))
    marginals, _ = World(1).run(answers, *arguments, inputs=inputs, layout=layout).value
    assert np.array_equal(marginals, layout.marginals(codes))
    assert {rows for axis, rows in joined if axis == 1} == {200, 100}


def test_a_refused_contribution_of_columns_counts_as_missing_and_the_others_survive() -> None:
    domain = Domain(tuple(Attribute(f"a{i}", 3, nullable=True) for i in range(3)))
    layout = Layout(domain, domain.downward_closure([domain.names]))
    first, second = random_codes(1, domain, 30), random_codes(2, domain, 30)
    own = random_codes(3, domain, 20)
    bad = domain.project(("a0", "a1")).one_hot(first[:, :2])
    bad[3, 0] = 7
    inputs = [columns("B", ("a0", "a1")), horizontal("H"), columns("C", ("a1", "a2"))]
    arguments = [bad, Z32.encode(layout.marginals(own)), domain.project(("a1", "a2")).one_hot(second[:, 1:])]
    marginals, accepted = World(1).run(answers, *arguments, inputs=inputs, layout=layout).value
    assert accepted.tolist() == [False, True, True]
    second[:, 0] = MISSING
    assert np.array_equal(marginals, layout.marginals(np.concatenate([own, second])))


@pytest.mark.parametrize("ring", [Z16, Z32], ids=repr)
def test_a_refused_contribution_of_marginals_is_left_out(ring: Any) -> None:
    domain = Domain((Attribute("a", 2), Attribute("b", 3), Attribute("c", 2, nullable=True)))
    layout = Layout(domain, domain.downward_closure([domain.names]))
    tables = [random_codes(seed, domain, 40, 0.0) for seed in range(4)]
    tables[0][:7, 2] = MISSING  # no reason to refuse: c may be missing
    arguments = [ring.encode(layout.marginals(codes)) for codes in tables]
    arguments[1][layout.part(("b",))] += 1
    arguments[2][layout.part(("a", "b")).start] -= 1  # wraps to the largest count if it was 0
    arguments[3] = ring.encode(np.full(layout.cells, 0)).copy()
    arguments[3][layout.part(("a",)).start] = 1 << (min(ring.bits, 30) - 1)  # four holders' counts have 30 bits
    inputs = [horizontal(f"H{i}") for i in range(4)]
    marginals, accepted = World(1).run(answers, *arguments, inputs=inputs, layout=layout).value
    assert accepted.tolist() == [True, False, False, False]
    assert np.array_equal(marginals, layout.marginals(tables[0]))


@pytest.mark.parametrize("bits", [16, 32])
def test_totals_that_differ_by_the_worst_power_of_two_are_found(bits: int) -> None:
    """The difference that most combinations miss: all of the bits the declared bound allows for."""
    domain = Domain((Attribute("a", 64), Attribute("b", 1)))
    layout = Layout(domain, (("a",), ("b",)))
    worst = Z64.encode(np.array([*[1 << (bits - 1)] * 64, 0]))
    assert 65 - bits - 6 >= 1
    shares = [worst] * 20
    totals = listed(check_totals)
    for seed in range(5):
        flags = World(seed).run(totals, *shares, layouts=[layout] * 20, bits=bits).value
        assert not flags.any()


@pytest.mark.parametrize(("bits", "cells", "sums"), [(16, 512, 1), (16, 1024, 2), (32, 5, 2), (32, 65_535, 3)])
def test_as_many_sums_are_opened_as_two_to_the_minus_forty_takes(bits: int, cells: int, sums: int) -> None:
    layout = Layout(Domain((Attribute("a", cells),)), (("a",),))
    assert combinations_of_totals([layout], bits) == sums
    largest = cells * ((1 << bits) - 1)
    worst = largest.bit_length() - 1  # the highest power of two that divides a number up to the largest
    assert sums * (64 - worst) >= 40
    assert (sums - 1) * (64 - worst) < 40


def test_of_a_refused_contribution_only_a_power_of_two_is_seen(opened: list[Any]) -> None:
    deviations = np.full((64, 64), 4 * 5, np.uint16)
    deviations[0] = 0
    flags = World(1).run(validity._all_zero, deviations).value
    assert flags.tolist() == [True] + [False] * 63
    words = opened[0][1:].reshape(-1)
    assert not opened[0][0].any()
    assert np.all(words % 8 == 4)
    assert stats.chisquare(np.bincount(words >> 3 & 255, minlength=256)).pvalue > 1e-6


DOMAIN = Domain((Attribute("a", 2), Attribute("b", 3), Attribute("c", 2)))
PAIRS = Layout(DOMAIN, tuple(combinations(DOMAIN.names, 2)))
COLUMNS = DOMAIN.one_hot(random_codes(1, DOMAIN, 10))
MARGINALS = Z16.encode(PAIRS.marginals(random_codes(1, DOMAIN, 10)))
NINE = Domain(tuple(Attribute(f"a{i}", 1) for i in range(9)))
REFUSED: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception]]] = {
    "columns too few": (count, (COLUMNS[:, :6],), {"layout": PAIRS}, ShareError),
    "columns of another ring": (count, (COLUMNS.astype(np.uint64),), {"layout": PAIRS}, ShareError),
    "columns of a smaller ring": (count, (COLUMNS.astype(np.uint8),), {"layout": PAIRS}, ShareError),
    "columns of two rings": (
        count, (COLUMNS[:, :2], COLUMNS[:, 2:].astype(np.uint32)), {"layout": PAIRS}, ShareError
    ),
    "blocks of two rings to merge": (
        coalesce_all, (COLUMNS, COLUMNS.astype(np.uint32)), {"holders": [2]}, ShareError
    ),
    "attributes of two rings to merge": (
        coalesce_all, (COLUMNS, COLUMNS, *[COLUMNS.astype(np.uint32)] * 2), {"holders": [2, 2]}, ShareError
    ),
    "blocks of a large ring to merge": (coalesce_all, (COLUMNS.astype(np.uint64),) * 2, {"holders": [2]}, ShareError),
    "inputs of two rings": (
        answers,
        (COLUMNS, COLUMNS.astype(np.uint32)),
        {"inputs": [columns("H", DOMAIN.names), columns("I", DOMAIN.names)], "layout": PAIRS},
        ShareError,
    ),
    "columns as a vector": (count, (COLUMNS[0],), {"layout": PAIRS}, ShareError),
    "columns without rows": (count, (COLUMNS[:0],), {"layout": PAIRS}, ShareError),
    "codes too few": (count_paper, (np.zeros((5, 2), np.uint64),), {"layout": PAIRS}, ShareError),
    "codes of another ring": (count_paper, (np.zeros((5, 3), np.uint16),), {"layout": PAIRS}, ShareError),
    "nothing to check": (checked, (), {"blocks": []}, ShareError),
    "blocks of another width": (checked, (COLUMNS,), {"blocks": [(2, 3)]}, ShareError),
    "blocks of another contribution": (checked, (COLUMNS, COLUMNS), {"blocks": [(7,)]}, ShareError),
    "an empty block": (checked, (COLUMNS,), {"blocks": [(7, 0)]}, DomainError),
    "a check of two rings": (
        checked, (COLUMNS, COLUMNS.astype(np.uint32)), {"blocks": [DOMAIN.sizes] * 2}, ShareError
    ),
    "a check in another ring": (checked, (COLUMNS.astype(np.uint64),), {"blocks": [(7,)]}, ShareError),
    "no input": (answers, (), {"inputs": [], "layout": PAIRS}, DomainError),
    "marginals too short": (
        answers, (MARGINALS[1:],), {"inputs": [horizontal("H")], "layout": PAIRS}, ShareError
    ),
    "marginals of a large ring": (
        answers, (MARGINALS.astype(np.uint64),), {"inputs": [horizontal("H")], "layout": PAIRS}, ShareError
    ),
    "marginals of two rings": (
        answers,
        (MARGINALS, MARGINALS.astype(np.uint32)),
        {"inputs": [horizontal("H"), horizontal("I")], "layout": PAIRS},
        ShareError,
    ),
    "marginals nobody asked for": (
        answers,
        (np.zeros(2, np.uint16), COLUMNS),
        {"inputs": [horizontal("H", (("a",),)), columns("I", DOMAIN.names)], "layout": PAIRS},
        DomainError,
    ),
    "marginals of another layout": (
        described(add_marginals),
        (np.zeros(2, np.uint16),),
        {"inputs": [horizontal("H", (("a",),))], "layout": PAIRS, "bits": 16},
        DomainError,
    ),
    "no marginals": (described(add_marginals), (), {"inputs": [], "layout": PAIRS, "bits": 16}, ShareError),
    "marginals that could add up to 2^32": (
        described(add_marginals),
        (MARGINALS.astype(np.uint32), MARGINALS.astype(np.uint32)),
        {"inputs": [horizontal("H"), horizontal("I")], "layout": PAIRS, "bits": 32},
        DomainError,
    ),
    "an unknown attribute": (
        answers, (COLUMNS,), {"inputs": [columns("H", ("a", "b", "d"))], "layout": PAIRS}, DomainError
    ),
    "attributes in another order": (
        answers, (COLUMNS,), {"inputs": [columns("H", ("b", "a", "c"))], "layout": PAIRS}, DomainError
    ),
    "columns of fewer attributes": (
        answers, (COLUMNS,), {"inputs": [columns("H", ("a", "b"))], "layout": PAIRS}, ShareError
    ),
    "an attribute nobody brings": (
        answers, (COLUMNS[:, :5],), {"inputs": [columns("H", ("a", "b"))], "layout": PAIRS}, DomainError
    ),
    "rows that are not aligned": (
        answers,
        (COLUMNS, COLUMNS[:9]),
        {"inputs": [columns("H", DOMAIN.names), columns("I", DOMAIN.names)], "layout": PAIRS},
        ShareError,
    ),
    "a clique counted without its columns": (
        answers,
        (MARGINALS, COLUMNS[:, :5]),
        {"inputs": [horizontal("H"), columns("I", ("a", "b"))], "layout": PAIRS, "counted": [("a", "c")]},
        DomainError,
    ),
    "a marginal of nine attributes": (
        answers,
        (np.ones((3, 9), np.uint16),),
        {"inputs": [columns("H", NINE.names)], "layout": Layout(NINE, (NINE.names,))},
        DomainError,
    ),
    "columns that nothing is counted from": (
        answers,
        (MARGINALS, COLUMNS),
        {"inputs": [horizontal("H"), columns("I", DOMAIN.names)], "layout": PAIRS, "counted": []},
        DomainError,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_sent(name: str) -> None:
    protocol, arguments, kwargs, error = REFUSED[name]
    recorder = Recorder()
    with pytest.raises(Failed) as caught:
        World(1, interceptor=recorder).run(protocol, *arguments, **kwargs)
    assert [type(raised) for raised in caught.value.errors] == [error] * 3
    assert recorder.messages == []
