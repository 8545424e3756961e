"""Counts with intervals: what is measured, what is only bounded, what rows say, and what is asked wrongly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from itertools import product
from math import log, sqrt
from typing import Any

import numpy as np
import pytest

from caps.audit.measurements import labels
from caps.client.estimates import Estimate, Release, read_rows
from caps.dp.privacy import Gaussian, Laplace
from caps.errors import DomainError
from caps.study import Manifest
from caps.wire.releases import Measurements, NoisyMarginal
from tests.kit.study import example_manifest

COLUMNS: list[dict[str, Any]] = [
    {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 30, 60, 120]},
    {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes"},
    {"name": "region", "kind": "categorical", "categories": ["north", "south"], "missing_values": ["?"]},
    {"name": "bmi", "kind": "numeric", "bin_edges": [10, 25, 60], "side": "left", "missing": "null"},
]
MANIFEST: Manifest = example_manifest(schema={"columns": COLUMNS})[0]
Z95 = 1.959963984540054


def measured(
    sigma: float, *attributes: str, values: Sequence[int], noise: str = Gaussian.kind, of: Manifest = MANIFEST
) -> NoisyMarginal:
    shape = of.domain.shape(attributes)
    categories = tuple(tuple(labels(of.schema_, name)) for name in attributes)
    return NoisyMarginal(
        step=1,
        attributes=attributes,
        shape=shape,
        categories=categories,
        values=tuple(values),
        noise=noise,
        sigma=sigma,
        half_width_95=1.0,
    )


def release(*marginals: NoisyMarginal, of: Manifest = MANIFEST, **rows: Any) -> Release:
    found = Measurements(study=of.study_id, run="0" * 32, measurements=marginals)
    return Release(of, found, **rows)


def one(found: Sequence[Estimate]) -> Estimate:
    (only,) = found
    return only


AGE = measured(4.0, "age", values=(100, 200, 300))
SMOKER = measured(4.0, "smoker", values=(450, 150))
BOTH = measured(6.0, "age", "smoker", values=(60, 40, 120, 80, 280, 20))


def test_a_measured_cell_is_its_count_and_its_noise() -> None:
    found = one(release(AGE).estimate({"age": (30, 60)}))
    assert (found.count, found.basis, found.tables) == (200, "measured", (("age",),))
    assert (found.low, found.high) == pytest.approx((200 - Z95 * 4, 200 + Z95 * 4))


def test_a_sum_of_cells_has_the_noise_of_all() -> None:
    found = one(release(AGE).estimate({"age": (None, 60)}))
    assert found.count == 300
    assert found.high - found.count == pytest.approx(Z95 * 4 * sqrt(2))
    whole = one(release(AGE).estimate())
    assert (whole.count, whole.high - whole.count) == pytest.approx((600, Z95 * 4 * sqrt(3)))


def test_tables_that_tell_the_same_are_weighted_by_their_variances() -> None:
    found = one(release(AGE, BOTH).estimate({"age": (30, 60)}))
    first, second = 4.0**2, 2 * 6.0**2  # the second has two cells of it
    assert found.count == pytest.approx((200 / first + 200 / second) / (1 / first + 1 / second))
    assert found.high - found.count == pytest.approx(Z95 / sqrt(1 / first + 1 / second))
    assert found.tables == (("age",), ("age", "smoker"))


def test_laplace_noise_has_heavier_tails() -> None:
    found = one(release(measured(4.0, "smoker", values=(450, 150), noise=Laplace.kind)).estimate({"smoker": "yes"}))
    assert found.high - found.count == pytest.approx(4 * log(20) / sqrt(2))


def test_levels_widen() -> None:
    widths = [one(release(AGE).estimate({"age": (0, 30)}, level=level)).high for level in (0.8, 0.95, 0.999)]
    assert widths == sorted(widths)
    for wrong in (0.5, 1.0, 95.0, float("nan")):
        with pytest.raises(DomainError, match="level"):
            release(AGE).estimate(level=wrong)


def test_counts_are_not_negative() -> None:
    found = one(release(measured(4.0, "age", values=(-9, 2, 3))).estimate({"age": (0, 30)}))
    assert (found.count, found.low, found.high) == (0.0, 0.0, 0.0)


def test_groups_are_every_combination_with_its_names() -> None:
    found = release(BOTH).estimate(group_by=["age", "smoker"])
    assert [tuple(each.group.values()) for each in found] == list(
        product(("[0, 30)", "[30, 60)", "[60, 120)"), ("no", "yes"))
    )
    assert [round(each.count, 6) for each in found] == [60, 40, 120, 80, 280, 20]
    assert [round(each.count, 6) for each in release(BOTH).estimate({"smoker": True}, "age")] == [40, 80, 20]


def test_what_no_table_has_is_bounded_by_those_who_meet_some_conditions() -> None:
    found = one(release(AGE, SMOKER).estimate({"age": (30, 60), "smoker": "no"}))
    assert found.basis == "bounded"
    assert set(found.tables) == {("age",), ("smoker",)}
    # at most those of the age; at least 200 + 450 - 600, of which 600 is what both tables say together
    assert 200 < found.high < 200 + 3 * 4
    assert 0 < found.low < 50
    assert 50 - found.low == pytest.approx(Z95 * (4 + 4 + 4 * sqrt(3 * 2 / (3 + 2))))
    disjoint = one(release(AGE, SMOKER).estimate({"age": (0, 30), "smoker": "yes"}))
    assert disjoint.low == 0.0


def test_bounds_use_what_conditions_share() -> None:
    region = measured(1.0, "smoker", "region", values=(300, 100, 50, 100, 40, 10))
    found = one(
        release(measured(1.0, *BOTH.attributes, values=BOTH.values), region).estimate(
            {"age": (30, 60), "smoker": "yes", "region": "north"}
        )
    )
    # among 140 or 150 smokers (the two tables differ), 80 are of the age and 100 are northern: 30 or more are both
    assert 20 < found.low < 40
    assert 80 < found.high < 84


def test_where_nothing_is_known_of_a_column_only_the_rest_bounds() -> None:
    found = one(release(AGE).estimate({"age": (30, 60), "smoker": "no"}))
    assert (found.low, found.basis) == (0.0, "bounded")
    assert 200 < found.high < 210
    alone = one(release(AGE).estimate({"smoker": "no"}))
    assert (alone.basis, alone.low, alone.high, alone.tables) == ("rows", None, None, ())


def test_tables_in_which_persons_are_missing_do_not_count_for_others() -> None:
    """Whoever has no bmi is in no cell of a table with bmi: such a table counts too few of anything else."""
    table = measured(2.0, "smoker", "bmi", values=(100, 100, 50, 50))
    assert one(release(table).estimate({"smoker": "no"})).basis == "rows"
    assert one(release(table).estimate({"bmi": (10, 25)})).count == pytest.approx(150)
    assert one(release(table, SMOKER).estimate({"smoker": "no"})).tables == (("smoker",),)


def joined(*columns: tuple[str, ...]) -> Manifest:
    """A study of persons of whom each holder has some, with its own columns."""
    holders = [(f"holder-{number}", names) for number, names in enumerate(columns)]
    join = {"key": {"columns": [{"kind": "text", "name": "id"}]}, "mode": "union"}
    schema = {"columns": [one | {"missing": "refuse", "missing_values": []} for one in COLUMNS]}
    return example_manifest(schema=schema, holders=holders, join=join, capacity=2000)[0]


def test_columns_of_one_holder_are_missing_together() -> None:
    """A table within a holder's columns has everybody whom the holder has; one across holders has fewer."""
    manifest = joined(("age", "smoker"), ("region", "bmi"))
    within = measured(2.0, "age", "smoker", values=(60, 40, 120, 80, 280, 20), of=manifest)
    across = measured(2.0, "smoker", "region", values=(100, 200, 50, 50), of=manifest)
    other = measured(2.0, "region", values=(300, 400), of=manifest)
    found = release(within, across, other, of=manifest)
    smokers = one(found.estimate({"smoker": "yes"}))
    assert (smokers.count, smokers.tables) == (pytest.approx(140), (("age", "smoker"),))
    assert one(found.estimate({"smoker": "yes", "region": "north"})).count == pytest.approx(50)
    everybody = one(found.estimate())
    assert everybody.basis == "measured"
    assert everybody.count == pytest.approx(600 + 700 - 400)
    assert everybody.high - everybody.count == pytest.approx(Z95 * 2 * sqrt(6 + 2 + 4))


def test_everybody_is_bounded_where_overlaps_are_not_measured() -> None:
    manifest = joined(("age",), ("smoker",), ("region", "bmi"))
    tables = [
        measured(1.0, "age", values=(100, 200, 300), of=manifest),
        measured(1.0, "smoker", values=(450, 50), of=manifest),
        measured(1.0, "region", values=(100, 100), of=manifest),
    ]
    found = one(release(*tables, of=manifest).estimate())
    assert found.basis == "bounded"
    assert 590 < found.low < 600
    assert 1300 < found.high < 1315
    fewer = one(release(*tables[:2], of=manifest).estimate())
    assert (fewer.basis, fewer.high) == ("bounded", None)


ROWS = np.array([[0, 1, 0, 0], [1, 0, 1, -1], [1, 1, 2, 1], [2, 1, 0, 0]])


def test_rows_are_counted_as_persons_and_decide_between_bounds() -> None:
    found = one(release(AGE, SMOKER, rows=ROWS, persons=600.0).estimate({"age": (30, 60), "smoker": "yes"}))
    assert (found.rows, found.count) == (150.0, 150.0)
    clipped = one(release(AGE, SMOKER, rows=ROWS, persons=6000.0).estimate({"age": (30, 60), "smoker": "yes"}))
    assert clipped.rows == 1500.0
    assert clipped.count == clipped.high
    only = one(Release(MANIFEST, None, ROWS, persons=8.0).estimate({"region": ["north", "south"]}))
    assert (only.count, only.low, only.high, only.basis) == (6.0, None, None, "rows")


@pytest.mark.parametrize(
    ("where", "group_by", "said"),
    [
        ({"nobody": "x"}, (), "there is no column nobody; the release has age, smoker, region, bmi"),
        ({}, "nobody", "there is no column nobody"),
        ({"smoker": "maybe"}, (), "smoker: there is no such value; it has no, yes"),
        ({"region": []}, (), "at least one value"),
        ({"age": 30}, (), "counted in bins"),
        ({"age": (31, 60)}, (), "31 is not an edge of its bins, which are counted whole: 0, 30, 60, 120"),
        ({"age": (60, 30)}, (), "the range is empty"),
        ({"age": (0, 30, 60)}, (), "two ends"),
        ({"smoker": "yes"}, "smoker", "either a condition or a group"),
        ({}, ("age", "age"), "named twice"),
        ({"smoker": None}, (), "missing values are not counted"),
        ({"bmi": None}, (), "missing values are not counted"),
    ],
)
def test_mistakes_are_named(where: Any, group_by: Any, said: str) -> None:
    with pytest.raises(DomainError) as refused:
        release(AGE, BOTH).estimate(where, group_by)
    assert said in str(refused.value)


def test_missing_values_that_are_a_category_are_counted() -> None:
    table = measured(1.0, "region", values=(5, 6, 7))
    assert one(release(table).estimate({"region": None})).count == 7
    assert one(release(table).estimate({"region": "missing"})).count == 7


def test_a_cell_can_be_named_by_its_label() -> None:
    assert one(release(AGE).estimate({"age": ["[0, 30)", "[60, 120)"]})).count == 400


def test_rows_are_read_as_the_schema_writes_them() -> None:
    frame = MANIFEST.schema_.frame(ROWS, uniform=lambda count: np.linspace(0, 0.99, count))
    lines = frame.write_ndjson().splitlines()
    assert np.array_equal(read_rows(MANIFEST, lines), ROWS)
    assert len(read_rows(MANIFEST, [])) == 0
    for wrong in ({"age": 1}, {"age": 1, "smoker": "maybe", "region": "north", "bmi": 1}, [1]):
        with pytest.raises(DomainError, match="row 1 is not one of this study's schema"):
            read_rows(MANIFEST, [json.dumps(wrong)])


DAYS: Manifest = example_manifest(
    schema={
        "columns": [
            {"name": "seen", "kind": "date", "first": "2020-01-01", "last": "2020-12-31", "by": "quarter"},
            {"name": "left", "kind": "date", "bin_edges": ["2020-01-01", "2020-03-01", "2021-01-01"], "publish": "bin"},
            *COLUMNS[1:3],
        ]
    }
)[0]


def test_days_are_counted_by_their_bins_or_between_days() -> None:
    seen = measured(4.0, "seen", values=(1, 20, 300, 4000), of=DAYS)
    asked = release(seen, of=DAYS)
    for where, count in (
        ("2020-Q2", 20),
        (["2020-Q1", "2020-Q3"], 301),
        ((date(2020, 4, 1), date(2020, 9, 30)), 320),
        (("2020-07-01", None), 4300),
        ((None, "2020-06-30"), 21),
    ):
        assert one(asked.estimate({"seen": where})).count == count
    assert [each.group["seen"] for each in asked.estimate(group_by="seen")] == [f"2020-Q{n}" for n in (1, 2, 3, 4)]
    for wrong in (("2020-04-02", None), (None, "2020-10-01"), ("2020-07-01", "2020-03-31"), ("spring", None), "2020"):
        with pytest.raises(DomainError, match="seen"):
            asked.estimate({"seen": wrong})


def test_days_of_rows_are_read_as_they_are_published() -> None:
    rows = [
        {"seen": "2020-06-30", "left": "2020-01-01/2020-02-29", "smoker": False, "region": "north"},
        {"seen": "2020-07-01", "left": "2020-03-01/2020-12-31", "smoker": True, "region": None},
    ]
    found = read_rows(DAYS, [json.dumps(row) for row in rows])
    assert found.tolist() == [[1, 0, 0, 0], [2, 1, 1, 2]]
    with pytest.raises(DomainError, match="row 1"):
        read_rows(DAYS, [json.dumps(rows[0] | {"seen": "30.06.2020"})])
