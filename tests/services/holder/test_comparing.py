"""Bins of numbers as a data owner reads them."""

from __future__ import annotations

import pytest

from caps.data.schema import Schema
from services.holder.comparing import cells_of


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"integer": True}, ["up to 17", "18", "19 and more"]),
        ({"integer": True, "outside": "refuse"}, ["0 to 17", "18", "19 to 1,999"]),
        ({}, ["below 18", "18 to below 19", "19 and more"]),
        ({"side": "left"}, ["up to 18", "above 18 to 19", "above 19"]),
        ({"integer": True, "missing": "category"}, ["up to 17", "18", "19 and more", "missing"]),
    ],
)
def test_bins_are_told_in_words(column: dict[str, object], words: list[str]) -> None:
    schema = Schema.from_json({"columns": [{"name": "n", "kind": "numeric", "bin_edges": [0, 18, 19, 2000], **column}]})
    assert cells_of(schema, schema.columns[0]) == words
