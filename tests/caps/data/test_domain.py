"""Domains, layouts and workloads: what they refuse, and where they put things."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import MAX_ATTRIBUTES, MAX_SIZE, MISSING, Attribute, Domain, Layout, Workload
from caps.errors import DomainError

AGE, SEX, SMOKES = Attribute("age", 3), Attribute("sex", 2), Attribute("smokes", 2, nullable=True)
DOMAIN = Domain((AGE, SEX, SMOKES))


def test_columns_and_cells_follow_the_order_of_the_domain() -> None:
    assert DOMAIN.names == ("age", "sex", "smokes")
    assert DOMAIN.sizes == (3, 2, 2)
    assert DOMAIN.offsets == (0, 3, 5)
    assert DOMAIN.width == 7
    assert DOMAIN.columns("sex") == slice(3, 5)
    assert DOMAIN.clique(["smokes", "age"]) == ("age", "smokes")
    assert DOMAIN.shape(("smokes", "age")) == (3, 2)
    assert DOMAIN.cells(("age", "sex", "smokes")) == 12
    assert DOMAIN.project(["smokes", "age"]) == Domain((AGE, SMOKES))


def test_a_layout_puts_marginals_one_after_the_other() -> None:
    layout = Layout(DOMAIN, (("smokes", "age"), ("sex",)))
    assert layout.cliques == (("age", "smokes"), ("sex",))
    assert layout.sizes == (6, 2)
    assert layout.offsets == (0, 6)
    assert layout.cells == 8
    assert layout.part(("smokes", "age")) == slice(0, 6)
    assert layout.positions([("sex",), ("age", "smokes")]).tolist() == [6, 7, 0, 1, 2, 3, 4, 5]


def test_marginals_of_a_table_written_out() -> None:
    codes = [[0, 1, 0], [2, 0, 1], [2, 1, MISSING], [2, 0, 1], [MISSING] * 3]
    layout = Layout(DOMAIN, (("sex",), ("age", "smokes"), ("age", "sex", "smokes")))
    counts = layout.marginals(codes)
    assert counts[layout.part(("sex",))].tolist() == [2, 2]
    assert counts[layout.part(("age", "smokes"))].tolist() == [1, 0, 0, 0, 0, 2]
    cube = counts[layout.part(DOMAIN.names)].reshape(3, 2, 2)
    assert cube[0, 1, 0] == 1
    assert cube[2, 0, 1] == 2
    assert cube.sum() == 3


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, np.ndarray]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    domain = Domain(tuple(Attribute(f"a{i}", size, nullable=True) for i, size in enumerate(sizes)))
    cliques = draw(st.lists(st.sets(st.sampled_from(domain.names), min_size=1), min_size=1, max_size=5))
    layout = Layout(domain, tuple({domain.clique(clique): None for clique in cliques}))
    row = st.tuples(*(st.integers(MISSING, size - 1) for size in sizes))
    rows = draw(st.lists(row, max_size=20))
    return layout, np.array(rows, int).reshape(-1, len(sizes))


@settings(deadline=None)
@given(tables())
def test_marginals_are_what_counting_one_by_one_gives(drawn: tuple[Layout, np.ndarray]) -> None:
    layout, codes = drawn
    expected = []
    for clique in layout.cliques:
        positions = [layout.domain.position(name) for name in clique]
        seen = Counter(tuple(row[positions].tolist()) for row in codes)
        expected += [seen[cell] for cell in product(*(range(size) for size in layout.domain.shape(clique)))]
    assert layout.marginals(codes).tolist() == expected


@settings(deadline=None)
@given(tables())
def test_one_hot_columns_hold_the_codes(drawn: tuple[Layout, np.ndarray]) -> None:
    layout, codes = drawn
    domain = layout.domain
    hot = domain.one_hot(codes)
    assert hot.dtype == np.uint16
    for position, name in enumerate(domain.names):
        block = hot[:, domain.columns(name)]
        assert np.array_equal(block.sum(axis=1), codes[:, position] != MISSING)
        assert np.array_equal(np.where(block.any(axis=1), block.argmax(axis=1), MISSING), codes[:, position])


def test_the_downward_closure_is_every_subset_once_smallest_first() -> None:
    closed = DOMAIN.downward_closure([("smokes", "age"), ("age", "sex")])
    assert closed == (("age",), ("sex",), ("smokes",), ("age", "sex"), ("age", "smokes"))
    assert len(DOMAIN.downward_closure([DOMAIN.names])) == 7
    assert DOMAIN.downward_closure([]) == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attribute("", 2),
        lambda: Attribute("a\nb", 2),
        lambda: Attribute("x" * 129, 2),
        lambda: Attribute(7, 2),  # type: ignore[arg-type]
        lambda: Attribute("a", 0),
        lambda: Attribute("a", -1),
        lambda: Attribute("a", MAX_SIZE + 1),
        lambda: Attribute("a", True),
        lambda: Attribute("a", 2.0),  # type: ignore[arg-type]
        lambda: Attribute("a", 2, 1),  # type: ignore[arg-type]
        lambda: Domain(()),
        lambda: Domain((AGE, AGE)),
        lambda: Domain((AGE, Attribute("age", 9))),
        lambda: Domain(("age",)),  # type: ignore[arg-type]
        lambda: Domain(tuple(Attribute(f"a{i}", 2) for i in range(MAX_ATTRIBUTES + 1))),
        lambda: DOMAIN.clique(()),
        lambda: DOMAIN.clique("age"),
        lambda: DOMAIN.clique(("age", 3)),  # type: ignore[arg-type]
        lambda: DOMAIN.clique(("age", "weight")),
        lambda: DOMAIN.clique(("age", "sex", "age")),
        lambda: DOMAIN.columns("weight"),
        lambda: Layout(DOMAIN, ()),
        lambda: Layout(DOMAIN, (("age", "sex"), ("sex", "age"))),
        lambda: Layout(DOMAIN, (("weight",),)),
        lambda: Layout(Domain((Attribute("a", 60_000), Attribute("b", 60_000))), (("a", "b"),)),
        lambda: Layout(DOMAIN, (("age",),)).part(("sex",)),
        lambda: Layout(DOMAIN, (("age",),)).marginals([[0, 0]]),
        lambda: Layout(DOMAIN, (("age",),)).marginals([[0.0, 0.0, 0.0]]),
        lambda: Layout(DOMAIN, (("sex",),)).marginals([[3, 0, 0]]),
        lambda: DOMAIN.one_hot([[0, -2, 0]]),
        lambda: Workload((), ()),
        lambda: Workload((("age",),), (1, 1)),
        lambda: Workload((("age",), ()), (1, 1)),
        lambda: Workload((("age", "sex"), ("sex", "age")), (1, 1)),
        lambda: Workload((("age", "age"),), (1,)),
        lambda: Workload((("age",),), (0,)),
        lambda: Workload((("age",),), (1.5,)),  # type: ignore[arg-type]
        lambda: Workload((("age",),), (1 << 31,)),
        lambda: Workload((("age", "weight"),), (1,)).over(DOMAIN),
    ],
)
def test_what_makes_no_sense_is_refused(make) -> None:
    with pytest.raises(DomainError):
        make()


def test_an_error_never_shows_a_code() -> None:
    with pytest.raises(DomainError) as caught:
        Layout(DOMAIN, (("age",),)).marginals([[0, 0, 0], [0, 4711, 0]])
    assert "sex" in str(caught.value)
    assert "4711" not in str(caught.value)


def test_digests_are_of_the_meaning_and_of_nothing_else() -> None:
    one = Layout(DOMAIN, (("age", "sex"), ("smokes",)))
    same = Layout(Domain([AGE, SEX, SMOKES]), [["sex", "age"], ["smokes"]])  # type: ignore[arg-type, list-item]
    assert one == same
    assert hash(one) == hash(same)
    assert one.digest() == same.digest()
    others = [
        Layout(DOMAIN, (("smokes",), ("age", "sex"))),
        Layout(DOMAIN, (("age", "sex"),)),
        Layout(Domain((AGE, SEX, Attribute("smokes", 2))), one.cliques),
        Layout(Domain((Attribute("age", 4), SEX, SMOKES)), one.cliques),
    ]
    workload = Workload((("sex", "age"),), (2,)).over(DOMAIN)
    assert workload == Workload((("age", "sex"),), (2,))
    digests = {one.digest(), DOMAIN.digest(), workload.digest(), *(other.digest() for other in others)}
    digests.add(Workload((("age", "sex"),), (3,)).digest())
    assert len(digests) == 8
    assert all(len(digest) == 32 for digest in digests)


def test_the_digest_is_fixed_for_all_versions_that_call_themselves_v1() -> None:
    assert Layout(DOMAIN, (("age", "sex"),)).digest().hex() == (
        "c51a5541c637d041785d62bbf4bfd3310934d38e4472b762c76b96803b1eb186"
    )


def test_a_workload_gives_its_layout() -> None:
    workload = Workload((("smokes", "age"), ("sex",)), (3, 1))
    assert workload.layout(DOMAIN) == Layout(DOMAIN, (("age", "smokes"), ("sex",)))
