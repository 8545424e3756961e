"""Which columns of a study are missing, by who takes part: one rule for the coordinator and the servers."""

from __future__ import annotations

import pytest

from tests.kit.study import COLUMNS, MIXED, ROWS, example_manifest

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
