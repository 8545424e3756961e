"""The plan in both directions: from an epsilon to the error it brings, and from a wished error to the epsilon."""

from __future__ import annotations

import pytest

from caps.errors import DomainError
from caps.study.planning import EPSILONS, epsilon_for, plan_study, with_epsilon
from tests.kit.study import example_manifest


@pytest.mark.parametrize("algorithm", ["aim", "mst"])
@pytest.mark.parametrize("wished", [0.3, 0.05, 0.01])
def test_the_epsilon_of_a_wished_error_is_the_least_that_brings_it(algorithm: str, wished: float) -> None:
    manifest, _ = example_manifest(algorithm={"name": algorithm})
    found = epsilon_for(manifest, wished, 2000)
    assert found is not None
    there = EPSILONS.index(found.epsilon)
    forward = [plan_study(with_epsilon(manifest, EPSILONS[at])).average_error(2000) for at in (there - 1, there)]
    assert forward[1] == found.error <= wished < forward[0]


def test_epsilons_have_two_digits_and_grow() -> None:
    assert list(map(float, EPSILONS)) == sorted(set(map(float, EPSILONS)))
    assert (EPSILONS[0], EPSILONS[-1], len(EPSILONS)) == ("0.001", "99", 450)


def test_what_no_epsilon_brings_is_said_so() -> None:
    manifest, _ = example_manifest()
    assert epsilon_for(manifest, 0.001, 2000) is None  # from epsilon 30 on, delta is not enough
    assert epsilon_for(manifest, 1e-9, 2) is None
    for error, persons in ((0.0, 10), (1.0, 10), (float("nan"), 10), (0.1, 0)):
        with pytest.raises(DomainError):
            epsilon_for(manifest, error, persons)
