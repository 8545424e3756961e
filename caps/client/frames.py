"""Synthetic rows as data frames, of whichever library the analyst has."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from caps.errors import DomainError


class Library(NamedTuple):
    """A library of data frames: the format it reads without further packages, and how."""

    format: str
    read: Callable[[Path], Any]


def _polars(path: Path) -> Any:
    return import_module("polars").read_parquet(path)


def _pandas(path: Path) -> Any:
    with path.open("rb") as lines:  # not by read_json, which makes dates of columns with certain names
        return import_module("pandas").DataFrame.from_records([json.loads(line) for line in lines])


LIBRARIES = {"polars": Library("parquet", _polars), "pandas": Library("ndjson", _pandas)}
"""In the order of preference."""


def chosen(name: str | None = None) -> Library:
    """The library of that name, or the first that is installed. Raises DomainError if there is none."""
    if name is not None and name not in LIBRARIES:
        raise DomainError(f"the library must be {' or '.join(LIBRARIES)}, not {name}")
    for one, library in LIBRARIES.items():
        if name in (None, one) and find_spec(one) is not None:
            return library
    raise DomainError(f"{name or 'neither polars nor pandas'} is {'not ' if name else ''}installed: pip install polars")
