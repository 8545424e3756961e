"""The tables of ../shared/data as codes: bins and categories by their schema."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from caps.domain import Domain
from caps.schema import Schema
from caps.uniform import Uniform

NAMES = ("breast-cancer.caps", "compas-caps", "diabetes.caps", "adult")


@dataclass(frozen=True)
class Dataset:
    """A table of codes and which of its rows are for training and for testing."""

    name: str
    domain: Domain
    codes: npt.NDArray[np.int64]
    train: npt.NDArray[np.intp]
    test: npt.NDArray[np.intp]


def folder() -> Path:
    """CAPS_DATA, or the shared folder beside the repository."""
    path = Path(os.environ.get("CAPS_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not path.is_dir():
        raise SystemExit(f"no datasets in {path}: set CAPS_DATA to a folder with NAME.csv and NAME.schema.json")
    return path


def load(name: str) -> Dataset:
    """One dataset: `NAME.schema.json` and its table. Split as the authors did, or 80/20 by a fixed seed."""
    schema = Schema.from_json((folder() / f"{name}.schema.json").read_text())
    codes, _ = schema.encode(folder() / f"{name.removesuffix('.caps')}.csv", extra="ignore")
    order = np.arange(len(codes)) if name == "compas-caps" else Uniform(name).permutation(len(codes))
    count = 4120 if name == "compas-caps" else round(0.8 * len(codes))
    return Dataset(name, schema.domain(), codes, order[:count], order[count:])
