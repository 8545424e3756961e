"""The tables of ../shared/data as codes: bins and categories by their schema."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from caps.domain import Attribute, Domain
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
    schema = json.loads((folder() / f"{name}.schema.json").read_text())
    with (folder() / f"{name.removesuffix('.caps')}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [_codes([row[column["name"]] for row in rows], column) for column in schema["columns"]]
    domain = Domain(tuple(Attribute(c["name"], size) for c, (size, _) in zip(schema["columns"], columns, strict=True)))
    codes = domain.check_codes(np.stack([column for _, column in columns], axis=1))
    order = np.arange(len(codes)) if name == "compas-caps" else Uniform(name).permutation(len(codes))
    count = 4120 if name == "compas-caps" else round(0.8 * len(codes))
    return Dataset(name, domain, codes, order[:count], order[count:])


def _codes(values: list[str], column: dict[str, Any]) -> tuple[int, npt.NDArray[np.int64]]:
    if column["kind"] == "categorical":
        numbers = {category: i for i, category in enumerate(column["categories"])}
        return len(numbers), np.array([numbers[value] for value in values], np.int64)
    edges = np.array(column["bin_edges"], np.float64)
    bins = len(edges) - 1
    missing = str(column["missing_value"]) if "missing_value" in column else None
    known = np.array([edges[0] if value == missing else float(value) for value in values])
    side = "left" if column.get("side") == "left" else "right"
    codes = np.clip(np.searchsorted(edges, known, side=side) - 1, 0, bins - 1).astype(np.int64)  # type: ignore[call-overload]
    codes[np.array([value == missing for value in values])] = bins
    return bins + (missing is not None), codes
