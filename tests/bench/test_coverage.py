"""Intervals contain the truth as often as they say, over the noise of whole runs in the clear."""

from __future__ import annotations

import pytest

from bench.coverage import STUDIES, covered

pytestmark = pytest.mark.statistical

RUNS = 8


@pytest.mark.parametrize("study", ["mst, epsilon 1", "mwem, pure epsilon 1 (Laplace)"])
def test_nominal_intervals_cover(study: str) -> None:
    """Of 95 %, at least 90 % must be seen: answers of a run share noise, so a few runs vary by some per cent."""
    found = covered(STUDIES[study], RUNS)
    measured = [one for basis, one in found.items() if basis.startswith("measured")]
    bounded = [one for basis, one in found.items() if basis.startswith("bounded")]
    answers = sum(one["answers"] for one in measured)
    assert answers > 60 * RUNS
    assert sum(one["answers"] * one["covered"] for one in measured) / answers >= 0.9
    assert min(one["covered"] for one in bounded) >= 0.95


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("study", STUDIES)
def test_nominal_intervals_cover_in_many_runs(study: str) -> None:
    found = covered(STUDIES[study], 40)
    for basis, one in found.items():
        assert one["covered"] >= 0.925, basis
        if basis.startswith("measured"):  # nor are they much wider than the noise demands
            assert one["covered"] <= 0.985, basis
