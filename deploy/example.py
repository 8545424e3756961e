"""An invented study: two hospitals with different patients, and an insurer with further columns about all of them.

Nothing here is about real people. The numbers depend on each other, so that there is something to find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.uniform import Uniform

SLOTS = 6_000
"""Public size of the joint table: it hides that there are 5,200 patients."""
PATIENTS = {"north-hospital": 3_000, "south-hospital": 2_200}
INSURER = "insurer"
RECORD = "record"

SCHEMA: dict[str, Any] = {
    "name": "patients and what they cost",
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 18, 30, 45, 60, 75, 101]},
        {"name": "smoker", "kind": "categorical", "categories": ["no", "former", "yes"]},
        {"name": "systolic", "kind": "numeric", "integer": True, "bin_edges": [80, 110, 125, 140, 160, 220]},
        {"name": "diagnosis", "kind": "categorical", "categories": ["none", "asthma", "COPD", "diabetes", "other"]},
        {"name": "plan", "kind": "categorical", "categories": ["basic", "standard", "plus"]},
        {"name": "cost", "kind": "numeric", "integer": True, "bin_edges": [0, 500, 2000, 8000, 30000, 200000]},
    ],
}
MEDICAL = ("age", "smoker", "systolic", "diagnosis")
FINANCIAL = ("plan", "cost")
HOLDERS: list[dict[str, Any]] = [
    {"name": "north-hospital", "brings": "columns", "columns": list(MEDICAL)},
    {"name": "south-hospital", "brings": "columns", "columns": list(MEDICAL)},
    {"name": INSURER, "brings": "columns", "columns": list(FINANCIAL)},
]
DIVISION = "two hospitals split the patients (rows), the insurer has other columns of all of them"

Column = npt.NDArray[Any]


def patients(count: int) -> dict[str, Column]:
    """Invented persons, with all columns."""
    uniform = Uniform()

    def drawn(names: list[str], until: list[float], shift: Column) -> Column:
        return np.array(names)[np.searchsorted(until, np.clip(uniform.floats(count) + shift, 0, 0.9999))]

    age = (100 * uniform.floats(count) ** 1.3).astype(int)
    smoker = drawn(["no", "former", "yes"], [0.5, 0.75], -0.3 * (age < 20))
    systolic = (95 + 0.5 * age + 20 * uniform.floats(count) + 10 * (smoker == "yes")).astype(int)
    burdened = (age > 60) * (smoker != "no")
    diagnosis = drawn(["COPD", "asthma", "diabetes", "other", "none"], [0.1, 0.18, 0.28, 0.45], -0.35 * burdened)
    plan = drawn(["basic", "standard", "plus"], [0.4, 0.8], 0.3 * (age > 50))
    ill = np.array([{"none": 0.0, "other": 0.9, "asthma": 1.1, "diabetes": 1.8, "COPD": 2.6}[one] for one in diagnosis])
    cost = np.minimum(120 * np.exp(ill + age / 40 + 2 * uniform.floats(count)), 199_999).astype(int)
    return {"age": age, "smoker": smoker, "systolic": systolic, "diagnosis": diagnosis, "plan": plan, "cost": cost}


def write_tables(directory: Path) -> dict[str, Path]:
    """Every owner's CSV, each in an order of its own; patients are known by a record number that all share."""
    total = sum(PATIENTS.values())
    everybody = patients(total)
    slots = shuffled(SLOTS)[:total]
    files, start = {}, 0
    for hospital, count in PATIENTS.items():
        files[hospital] = _write(
            directory / f"{hospital}.csv", everybody, MEDICAL, slots, np.arange(start, start + count)
        )
        start += count
    files[INSURER] = _write(directory / f"{INSURER}.csv", everybody, FINANCIAL, slots, shuffled(total))
    return files


def joined(files: dict[str, Path]) -> dict[str, Column]:
    """All columns of all patients, as nobody in the study can see them: to judge the demonstration by."""
    hospitals = pl.concat([pl.read_csv(files[hospital]) for hospital in PATIENTS])
    whole = hospitals.join(pl.read_csv(files[INSURER]), on=RECORD)
    return {name: whole[name].to_numpy() for name in (*MEDICAL, *FINANCIAL)}


def shuffled(count: int) -> npt.NDArray[np.intp]:
    """The numbers below `count` in a random order."""
    return np.argsort(Uniform().floats(count))


def _write(path: Path, everybody: dict[str, Column], columns: tuple[str, ...], slots: Column, rows: Column) -> Path:
    lines = [",".join((RECORD, *columns))]
    lines += [
        ",".join(str(value) for value in (slots[row], *(everybody[name][row] for name in columns))) for row in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
