"""Codes that are kept in a file, and keys that are read in blocks, are what they are in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data import kept
from caps.data.domain import Attribute, Domain
from caps.data.joinkey import JoinKey, KeyReader, KeyRefused
from caps.data.kept import Keeper, give_back, selected


@pytest.mark.parametrize("size", [3, 127, 128, 40_000])
@pytest.mark.parametrize("room", [0, 60, 1 << 20])
def test_codes_come_back_from_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, room: int
) -> None:
    monkeypatch.setattr(kept, "IN_MEMORY", room)
    domain = Domain((Attribute("a", size), Attribute("b", 2)))
    codes = np.random.default_rng(1).integers(-1, domain.sizes, (100, 2))
    codes[0] = [size - 1, -1]
    with Keeper(domain, tmp_path) as keeper:
        for part in np.array_split(codes, 7):
            keeper.add(part)
        found = keeper.codes()
    assert list(tmp_path.iterdir()) == []
    assert isinstance(found, np.memmap) == (room < found.nbytes)
    assert found.itemsize == (1 if size < 128 else 2 if size < 32_768 else 4)
    for _ in range(2):
        assert np.array_equal(found, codes)
        give_back(found)
    order = np.array([5, 3, 99])
    assert np.array_equal(selected(found, order, domain, tmp_path), codes[order])
    assert selected(found, np.arange(100), domain, tmp_path) is found


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(["a", "b", "c", "", "\ufdd1"]), min_size=1, max_size=12),
    st.sampled_from(["refuse", "first", "last"]),
    st.sampled_from(["refuse", "drop", "alone"]),
    st.sampled_from(["refuse", "drop", "alone"]),
    st.integers(1, 12),
)
def test_keys_in_blocks_are_the_keys_of_the_table(
    values: list[str], duplicates: str, missing: str, unparsable: str, step: int
) -> None:
    rules = {"duplicates": duplicates, "missing": missing, "unparsable": unparsable}
    key = JoinKey.from_json({"columns": [{"name": "id", "kind": "text"}], **rules})
    reader = KeyReader(key, "f" * 64)
    for start in range(0, len(values), step):
        reader.add({"id": pl.Series(values[start : start + step], dtype=pl.String)})
    table = {"id": pl.Series(values, dtype=pl.String)}
    if key.examine(table).refused:
        with pytest.raises(KeyRefused) as refused:
            reader.finish()
        assert refused.value.report == key.examine(table)
        return
    keys, report = key.normalise(table)
    rows, ids, found = reader.finish()
    assert found == report
    assert np.array_equal(rows, keys.rows)
    whole = ~keys.encoded.is_null().to_numpy()
    assert np.array_equal(ids[whole], keys.ids("f" * 64, key.digest)[whole])
