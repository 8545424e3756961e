"""The workload error, on tables small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from caps.data.domain import Attribute, Domain, Layout
from caps.data.quality import marginals_error, workload_error

DOMAIN = Domain((Attribute("a", 2, nullable=True), Attribute("b", 2)))
LAYOUT = Layout(DOMAIN, (("a",), ("b",)))


def test_it_is_half_the_mean_distance_of_shares() -> None:
    real = np.array([[0, 0], [0, 0], [0, 1], [1, 1]])
    assert workload_error(LAYOUT, real, real) == 0
    assert workload_error(LAYOUT, real, np.array([[1, 0]])) == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_a_row_with_a_missing_value_is_not_in_its_marginals() -> None:
    assert workload_error(LAYOUT, np.array([[0, 0], [-1, 1]]), np.array([[0, 0], [0, 1]])) == 0


def test_marginals_without_a_row_are_as_far_as_half_a_table() -> None:
    assert workload_error(LAYOUT, np.array([[0, 0]]), np.empty((0, 2), np.int64)) == 0.5


def test_marginals_of_a_model_need_not_be_whole() -> None:
    real = LAYOUT.marginals(np.array([[0, 0], [1, 1]]))
    assert marginals_error(LAYOUT, real, np.array([0.9, 2.7, 1.8, 1.8])) == pytest.approx((1 / 4 + 0) / 2)
