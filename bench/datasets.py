"""The benchmarks' tables as codes: bins and categories by their schema."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.fetch import fetch
from caps.basics.uniform import Uniform
from caps.data.domain import Domain
from caps.data.schema import Schema

NAMES = ("breast-cancer.caps", "compas-caps", "diabetes.caps", "adult")
"""Tables that have a public home, from which they are downloaded."""

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
FETCHED = ROOT / ".data"
_TENTHS = "0123456789"
LABELS = {
    "tx10": ("PINCP_DECILE", tuple(_TENTHS[6:])),
    "tx10s": ("PINCP_DECILE", tuple(_TENTHS[6:])),
    "wdbc": ("benign", ("1",)),
    "digits": ("digit", tuple(_TENTHS[5:])),
}
"""What classifiers are to tell, where the schema does not say: a column, and the categories that count as positive."""


@dataclass(frozen=True)
class Label:
    """What classifiers are to tell: whether a row's code in this column is one of the positive ones."""

    column: str
    positive: frozenset[int]


@dataclass(frozen=True)
class Dataset:
    """A table of codes, which of its rows are for training and for testing, and its label, if it has one."""

    name: str
    domain: Domain
    codes: npt.NDArray[np.int64]
    train: npt.NDArray[np.intp]
    test: npt.NDArray[np.intp]
    label: Label | None


def folder() -> Path:
    """CAPS_DATA; else the shared folder beside the repository; else `.data`, into which tables are downloaded."""
    if given := os.environ.get("CAPS_DATA"):
        return Path(given)
    return SHARED if SHARED.is_dir() else FETCHED


def files(name: str) -> tuple[Path, Path]:
    """A dataset's schema and its table, which two schemas may share."""
    where, table = folder(), name.removesuffix(".caps")
    if where == FETCHED:
        fetch(table, where)
    found = where / f"{name}.schema.json", where / f"{table}.csv"
    for path in found:
        if not path.is_file():
            raise SystemExit(f"no {path.name} in {where}: set CAPS_DATA to a folder with NAME.csv and NAME.schema.json")
    return found


def present() -> tuple[str, ...]:
    """Every dataset of the folder: each schema whose table is there."""
    where = folder()
    if where == FETCHED:
        return NAMES
    names = (path.name.removesuffix(".schema.json") for path in sorted(where.glob("*.schema.json")))
    return tuple(name for name in names if (where / f"{name.removesuffix('.caps')}.csv").is_file())


def load(name: str) -> Dataset:
    """One dataset. Split as the authors did, or 80/20 by a fixed seed."""
    description, table = files(name)
    text = description.read_text()
    schema = Schema.from_json(text)
    codes, _ = schema.encode(table, extra="ignore")
    order = np.arange(len(codes)) if name == "compas-caps" else Uniform(name).permutation(len(codes))
    count = 4120 if name == "compas-caps" else round(0.8 * len(codes))
    return Dataset(name, schema.domain(), codes, order[:count], order[count:], _label(name, json.loads(text)))


def _label(name: str, schema: Mapping[str, Any]) -> Label | None:
    column, positive = LABELS.get(name, (schema.get("label"), (schema.get("positive"),)))
    for one in schema["columns"]:
        if one["name"] == column:
            categories = [str(category) for category in one["categories"]]
            return Label(column, frozenset(categories.index(str(category)) for category in positive))
    return None
