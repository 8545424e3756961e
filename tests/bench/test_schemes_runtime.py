"""Studies under different schemes are compared for the same work."""

from __future__ import annotations

from typing import Any

import pytest

from bench.schemes_runtime import at_equal_work, compared


def run(rounds: int, *, slower: float = 1.0) -> dict[str, Any]:
    """A study with two measurements before the first round: 3 s besides, 0.5 s a selection, 0.2 s a measurement."""
    measured = rounds + 2
    parts = {
        "compute": 1.0,
        "select": 0.5 * rounds * slower,
        "measure": 0.2 * measured * slower,
        "generate": 0.1 * (rounds + measured),
        "waiting": 0.05 * (rounds + measured),
    }
    return {
        "seconds": 3.0 + sum(parts.values()) - parts["compute"],
        "parts": parts,
        "steps": 1 + rounds + measured,
        "rounds": rounds,
    }


def test_a_run_with_just_as_many_steps_takes_its_own_seconds() -> None:
    assert at_equal_work(run(8), 8, 10) == run(8)["seconds"]


@pytest.mark.parametrize("rounds", [1, 6, 10, 40])
def test_a_run_with_other_rounds_is_brought_to_the_same_work(rounds: int) -> None:
    assert at_equal_work(run(rounds), 8, 10) == pytest.approx(run(8)["seconds"])


def test_a_run_without_rounds_keeps_what_does_not_depend_on_them() -> None:
    none = run(0)
    assert at_equal_work(none, 0, 2) == none["seconds"]
    assert at_equal_work(none, 8, 2) > none["seconds"]  # fits and waiting of eight steps more


def test_schemes_that_differ_by_rounds_alone_are_as_fast() -> None:
    found = compared({"rep3": [run(8), run(7), run(9)], "rep3-active": [run(12)] * 3, "rep4": [run(5)] * 3})
    assert [one["seconds_ratio"] for one in found.values()] == pytest.approx([1.0, 1.0, 1.0])
    assert found["rep3"]["every_rounds"] == [8, 7, 9]
    assert found["rep4"]["seconds"] == run(5)["seconds"]


def test_a_scheme_whose_steps_take_longer_is_slower_by_that() -> None:
    found = compared({"rep3": [run(8)], "rep3-active": [run(8, slower=2)], "rep4": [run(4, slower=3)]})
    assert found["rep3-active"]["seconds_ratio"] == pytest.approx(run(8, slower=2)["seconds"] / run(8)["seconds"])
    assert found["rep4"]["seconds_ratio"] == pytest.approx(run(8, slower=3)["seconds"] / run(8)["seconds"])
