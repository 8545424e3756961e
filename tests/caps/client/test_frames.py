"""Which library rows become frames of, and that texts stay texts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

from caps.client import frames
from caps.client.client import format_of
from caps.errors import DomainError

FRAME = pl.DataFrame({"zip": ["01", "2020-01-01", None], "age": [1, 2, 3], "smoker": [True, False, None]})


def test_both_libraries_read_what_is_published(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "rows.parquet")
    FRAME.write_ndjson(tmp_path / "rows.ndjson")
    for name, library in frames.LIBRARIES.items():
        found = library.read(tmp_path / f"rows.{library.format}")
        assert type(found).__module__.startswith(name)
        assert list(found["zip"])[:2] == ["01", "2020-01-01"]
        assert list(found["age"]) == [1, 2, 3]
        assert list(found["smoker"])[:2] == [True, False]


def test_the_first_that_is_installed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert frames.chosen() is frames.LIBRARIES["polars"]
    assert frames.chosen("pandas") is frames.LIBRARIES["pandas"]
    with pytest.raises(DomainError, match="polars or pandas, not excel"):
        frames.chosen("excel")
    monkeypatch.setattr(frames, "find_spec", lambda name: None if name == "polars" else find_spec(name))
    assert frames.chosen() is frames.LIBRARIES["pandas"]
    with pytest.raises(DomainError, match="polars is not installed"):
        frames.chosen("polars")
    monkeypatch.setattr(frames, "find_spec", lambda _: None)
    with pytest.raises(DomainError, match="neither polars nor pandas is installed"):
        frames.chosen()


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("rows.csv", None, "csv"),
        ("rows.raw.csv", None, "raw.csv"),
        ("rows.csv", "raw.csv", "raw.csv"),
        ("rows.raw.csv", "csv", "csv"),
        ("ROWS.PARQUET", None, "parquet"),
        ("rows", None, "csv"),
        ("rows", "arrow", "arrow"),
        ("rows.dat", "arrow", "arrow"),
        ("rows.ndjson", "ndjson", "ndjson"),
    ],
)
def test_the_suffix_says_the_format(name: str, asked: str | None, expected: str) -> None:
    assert format_of(Path(name), asked) == expected


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("rows.csv", "parquet", "the suffix is that of csv, but parquet is asked for"),
        ("rows.parquet", "csv", "the suffix is that of parquet"),
        ("rows.raw.csv", "ndjson", r"the suffix is that of raw\.csv"),
        ("rows.xlsx", None, "there is no format with this suffix"),
        ("rows.xlsx", "xlsx", "must be one of csv, raw.csv, parquet, arrow, ndjson, not xlsx"),
    ],
)
def test_a_format_that_contradicts_the_suffix_is_refused(name: str, asked: str | None, said: str) -> None:
    with pytest.raises(DomainError, match=said):
        format_of(Path(name), asked)
