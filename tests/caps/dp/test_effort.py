"""The law of fits, its inverse, and what each algorithm's fits take at most by it."""

from __future__ import annotations

from fractions import Fraction

import pytest

from caps.data.domain import Attribute, Domain, Workload
from caps.dp.effort import PRIOR_FITS, fit_seconds, model_bytes_within
from caps.dp.privacy import UNBOUNDED
from caps.dp.programs import Task, all_pairs, program


def task_of(columns: int, size: int, **workload: Workload) -> Task:
    domain = Domain(tuple(Attribute(f"c{i:02}", size) for i in range(columns)))
    return Task(domain, workload.get("workload", all_pairs(domain)), UNBOUNDED, rho=Fraction(1, 2))


@pytest.mark.parametrize("measured", [0, 3000, 100_000])
@pytest.mark.parametrize("seconds", [0.5, 4.0, 60.0])
def test_the_largest_model_within_a_time_takes_that_time(seconds: float, measured: int) -> None:
    cells = model_bytes_within(seconds, measured) // 8
    assert fit_seconds(cells, measured) <= seconds < fit_seconds(cells + 2, measured)


def test_what_takes_longer_without_any_model_leaves_no_room() -> None:
    assert model_bytes_within(0.001, 0) == model_bytes_within(1.0, 10**6) == 0


def test_the_plan_of_a_large_table_is_the_time_that_its_fits_may_take() -> None:
    for columns in (20, 40, 60):
        found = program("aim").fits(task_of(columns, 8))
        assert found is not None
        assert found.seconds == columns
        assert found.models == 16 * columns + 2
    given = program("aim", {"fit_seconds": 500}).fits(task_of(20, 8))
    small = program("aim", {"fit_seconds": 500, "max_model_bytes": 1 << 20}).fits(task_of(20, 8))
    assert given is not None
    assert small is not None
    assert (given.seconds, given.model_bytes) == (500, 80 << 20)
    assert small.model_bytes == 1 << 20
    assert small.seconds < 60  # that many bytes take no more time


@pytest.mark.parametrize("name", ["aim", "mst", "mwem", "swift"])
def test_a_small_table_takes_no_longer_than_its_largest_model(name: str) -> None:
    found = program(name).fits(task_of(4, 3))
    assert found is not None
    assert found.model_bytes <= 8 * 3**4
    each = fit_seconds(3**4, 3**4)
    assert found.seconds <= (found.models + PRIOR_FITS) * each < 2


def test_a_fixed_workload_promises_nothing() -> None:
    assert program("gaussian").fits(task_of(5, 10)) is None  # its tree would have to be found, in more than linear time


def test_a_tree_of_pairs_is_largest_around_the_largest_column() -> None:
    domain = Domain((Attribute("a", 2), Attribute("b", 50), Attribute("c", 3)))
    found = program("mst").fits(Task(domain, all_pairs(domain), UNBOUNDED, rho=Fraction(1, 2)))
    assert found is not None
    assert found.model_bytes == 8 * (2 * 50 + 50 * 3)
