"""The floor: uniform rows, and columns that shrink to uniform ones where noise explains them."""

import numpy as np
import pytest

from bench.peers import baselines
from bench.peers.draws import Draws
from caps.basics.uniform import Uniform
from caps.data.domain import Attribute, Domain

DOMAIN = Domain((Attribute("a", 4), Attribute("b", 2)))
CODES = np.stack([np.repeat([0, 0, 1, 3], 250), np.tile([0, 1], 500)], axis=1)


def perform(name, rho):
    return baselines.MECHANISMS[name](Draws(DOMAIN, CODES, Uniform(0)), rho).codes


def test_uniform_rows_know_nothing_but_their_number():
    codes = perform("uniform", 1e6)
    assert len(codes) == 1000
    assert np.bincount(codes[:, 0]).tolist() == [250] * 4
    assert len(perform("uniform", 0.001)) != 1000
    assert len(perform("uniform", 1e-9)) >= 1


def test_columns_are_known_and_nothing_else():
    codes = perform("columns", 1e6)
    assert np.bincount(codes[:, 0], minlength=4).tolist() == [500, 250, 0, 250]
    together = np.histogram2d(codes[:, 0], codes[:, 1], bins=[4, 2])[0]
    assert abs(together[0, 0] - 250) < 60  # independent


def test_a_column_that_noise_explains_is_uniform_and_a_clear_one_stays():
    values = np.array([30.0, 10.0, 20.0, 40.0])
    assert baselines.shrunk(values, 1000.0, 100.0) == pytest.approx([25.0] * 4)
    assert baselines.shrunk(values, 0.01, 100.0) == pytest.approx(values, abs=0.01)
    half = baselines.shrunk(values, np.sqrt(500 / 3 / 2), 100.0)  # half of the 500 is noise
    assert half == pytest.approx(25 + (values - 25) / 2)


def test_no_count_is_negative_and_the_total_is_kept():
    counts = baselines.shrunk(np.array([-40.0, 90.0, 60.0]), 1.0, 110.0)
    assert counts.min() == 0
    assert counts.sum() == pytest.approx(110)
