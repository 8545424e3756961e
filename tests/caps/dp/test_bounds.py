"""No sum of a run can wrap: the bits of a holder's counts follow from the manifest."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from caps.data.domain import Attribute, Domain, Layout
from caps.dp.bounds import (
    COUNT_BITS,
    LEAST_BITS,
    MOST_COUNTED,
    SCORE_BITS,
    counted_bits,
    largest_score,
    largest_sum,
    most_counted,
)
from caps.dp.oracle import Selection
from caps.dp.privacy import NoisyMax
from caps.errors import DomainError
from tests.kit.study import MIXED, example_manifest


@pytest.mark.parametrize("holders", [1, 2, 3, 4, 5, 1000, 65_000])
@pytest.mark.parametrize("rows", [0, 1, 1 << 24])
def test_counts_of_all_holders_stay_below_the_bound_and_one_bit_more_would_not(holders: int, rows: int) -> None:
    bits = counted_bits(holders, rows)
    assert largest_sum(holders, bits, rows) <= MOST_COUNTED
    assert bits == COUNT_BITS or largest_sum(holders, bits + 1, rows) > MOST_COUNTED


@pytest.mark.parametrize(("weight", "cells"), [(1, 1 << 24), (1 << 20, 4), (40, 60_000), (1 << 12, 1 << 14)])
def test_large_marginals_and_weights_leave_fewer_bits(weight: int, cells: int) -> None:
    bits = counted_bits(3, 1000, [(weight, cells), (1, 2)])
    largest = largest_sum(3, bits, 1000)
    assert largest_score(weight, cells, largest) < 1 << SCORE_BITS
    assert bits == counted_bits(3, 1000) or largest_score(weight, cells, largest_sum(3, bits + 1, 1000)) >> SCORE_BITS


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_the_most_that_may_be_counted_is_the_last_whose_score_fits(weight: int, cells: int) -> None:
    most = most_counted(weight, cells)
    for count in (most, most + 1):
        assert count < 0 or (largest_score(weight, cells, count) >> SCORE_BITS == 0) == (count == most)


def test_too_many_holders_or_cells_are_refused_with_the_reason() -> None:
    with pytest.raises(DomainError, match=r"the counts of 70000 holders .* could overflow: use fewer holders"):
        counted_bits(70_000, 0)
    with pytest.raises(DomainError, match=re.escape("up to 16,777,216 cells and weights of up to 1,048,576")):
        counted_bits(2, 0, [(1 << 20, 1 << 24)])
    assert counted_bits(65_537, 0) == LEAST_BITS


def test_a_study_derives_its_bound_from_its_holders() -> None:
    assert example_manifest()[0].counted_bits == 31  # two holders of rows
    mixed = example_manifest(holders=MIXED, slots=100)[0]
    assert mixed.counted_bits == 31
    assert mixed.task.largest_count == 2**31 - 1 + 100
    several = [(f"h{i}", None) for i in range(9)]
    assert example_manifest(holders=several)[0].counted_bits == 28


def test_a_study_that_does_not_fit_names_the_member() -> None:
    wide = {"columns": [{"kind": "categorical", "name": n, "categories": [str(i) for i in range(4000)]} for n in "ab"]}
    queries = [{"attributes": ["a", "b"], "weight": 1 << 15}, {"attributes": ["a"], "weight": 1}]
    with pytest.raises(ValidationError, match="holders: the counts of 2 holders"):
        example_manifest(schema=wide, workload=queries, algorithm="mwem")


def test_estimates_that_would_wrap_when_added_up_are_refused() -> None:
    """2^24 cells of 2^39 units are 2^63, which 64 bits read as less than nothing."""
    domain = Domain((Attribute("a", 4096), Attribute("b", 4096)))
    layout = Layout(domain, (domain.names,))
    zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
    estimate = np.full(layout.cells, 1 << 39, np.int64)
    asked = Selection("s", layout.cliques, estimate, zero, one, NoisyMax.of_star(Fraction(1)))
    with pytest.raises(DomainError, match="add up to more people than there can be"):
        asked.check(layout, 1 << 16)


def test_a_contribution_larger_than_one_key_may_mask_is_refused() -> None:
    """2^24 slots of 6,000 columns, in three bytes each, are more than the 2^38 bytes that nu allows for."""
    names = [str(i) for i in range(6000)]
    schema = {
        "columns": [
            {"kind": "categorical", "name": "a", "categories": names},
            {"kind": "boolean", "name": "b", "false": "no", "true": "yes"},
        ]
    }
    holders = (("registry", ("a",)), ("lab", ("b",)))
    with pytest.raises(ValidationError, match="holders: a contribution has more than the 274877906944 bytes"):
        example_manifest(schema=schema, holders=holders, slots=1 << 24, algorithm="gaussian")
    example_manifest(schema=schema, holders=holders, slots=1 << 23, algorithm="gaussian")
