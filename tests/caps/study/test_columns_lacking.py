"""Which columns of a study are missing, by who takes part: one rule for the coordinator and the servers."""

from __future__ import annotations

import pytest

from tests.kit.study import COLUMNS, MIXED, ROWS, example_manifest, joined_manifest

ALL = ["age", "smoker", "region", "diagnosis"]


@pytest.mark.parametrize(
    ("holders", "taking", "lacking"),
    [
        (ROWS, [], []),
        (ROWS, [ROWS[0][0]], []),
        (COLUMNS, ["registry", "lab"], []),
        (COLUMNS, ["registry"], ["region", "diagnosis"]),
        (COLUMNS, ["lab"], ["age", "smoker"]),
        (COLUMNS, [], ALL),
        (MIXED, ["clinic-a"], ALL),
        (MIXED, ["clinic-a", "lab"], ["age", "smoker"]),
        (MIXED, ["clinic-a", "registry", "lab"], []),
    ],
)
def test_columns_that_nobody_brings(holders, taking, lacking) -> None:
    manifest, _ = example_manifest(holders=holders)
    assert manifest.columns_lacking(taking) == lacking


SPLIT = (("age", "smoker"), ("region", "diagnosis"))


@pytest.mark.parametrize(("holders", "together"), [(ROWS, ()), (COLUMNS, SPLIT), (MIXED, SPLIT)])
def test_columns_that_a_person_lacks_together(holders, together) -> None:
    assert example_manifest(holders=holders)[0].absent_together == together


def test_columns_that_all_bring_are_never_lacking() -> None:
    """A person in a joint table is in the table of some holder."""
    holders = (("north", ("age", "smoker", "region")), ("south", ("age", "smoker", "diagnosis")))
    assert joined_manifest(holders=holders).absent_together == (("region",), ("diagnosis",))


def test_an_inner_join_has_everybody_in_every_table() -> None:
    assert joined_manifest(join={"mode": "inner"}).absent_together == ()
    assert joined_manifest(join={"mode": "union"}).absent_together == SPLIT


def test_many_groups_are_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number of sets would be the memory of the fit."""
    monkeypatch.setattr("caps.study.manifest.MOST_GROUPS", 1)
    manifest, _ = example_manifest(holders=COLUMNS)
    assert (manifest.absent_together, manifest.lacking) == ((), frozenset())
