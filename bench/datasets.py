"""The benchmarks' tables as codes: bins and categories by their schema."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.fetch import fetch
from caps.basics.uniform import Uniform
from caps.data.domain import Domain
from caps.data.schema import Schema

NAMES = ("breast-cancer.caps", "compas-caps", "diabetes.caps", "adult")
ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
FETCHED = ROOT / ".data"


@dataclass(frozen=True)
class Dataset:
    """A table of codes and which of its rows are for training and for testing."""

    name: str
    domain: Domain
    codes: npt.NDArray[np.int64]
    train: npt.NDArray[np.intp]
    test: npt.NDArray[np.intp]


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


def load(name: str) -> Dataset:
    """One dataset. Split as the authors did, or 80/20 by a fixed seed."""
    description, table = files(name)
    schema = Schema.from_json(description.read_text())
    codes, _ = schema.encode(table, extra="ignore")
    order = np.arange(len(codes)) if name == "compas-caps" else Uniform(name).permutation(len(codes))
    count = 4120 if name == "compas-caps" else round(0.8 * len(codes))
    return Dataset(name, schema.domain(), codes, order[:count], order[count:])
