"""An invented study: two hospitals with different patients, and an insurer with other columns about most of them.

Persons are matched by their insurance number, which every owner writes in its own way; each file has its own order.

Nothing here is about real people. The columns depend on each other, so that there is something to find.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from caps.basics.uniform import Uniform
from caps.data.domain import Codes
from caps.data.schema import Schema

PATIENTS = {"north-hospital": 3_000, "south-hospital": 2_200}
COMMON = 150
"""Patients of both hospitals: the first hospital's values count."""
INSURED, STRANGERS = 4_800, 400
"""Patients that the insurer has, and its other customers."""
INSURER = "insurer"
NUMBER = "insurance_number"
JOIN: dict[str, Any] = {
    "key": {"columns": [{"kind": "text", "name": NUMBER, "case": "fold", "whitespace": "remove", "remove": "-"}]},
    "mode": "union",
}

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
    {"name": "north-hospital", "brings": "columns", "columns": list(MEDICAL), "capacity": 4_000},
    {"name": "south-hospital", "brings": "columns", "columns": list(MEDICAL), "capacity": 4_000},
    {"name": INSURER, "brings": "columns", "columns": list(FINANCIAL), "capacity": 8_000},
]
DIVISION = "two hospitals split the patients (rows), the insurer has other columns of most of them"

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
    """Every owner's CSV, each with its own order and spelling."""
    first, second = PATIENTS.values()
    patients_ = first + second - COMMON
    everybody = patients(patients_ + STRANGERS)
    numbers = np.array([f"{n:08d}" for n in shuffled(10**6)[: patients_ + STRANGERS]])
    rows = {
        "north-hospital": np.arange(first),
        "south-hospital": np.arange(patients_ - second, patients_),
        INSURER: np.concatenate([shuffled(patients_)[:INSURED], np.arange(patients_, patients_ + STRANGERS)]),
    }
    spelt = {
        "north-hospital": lambda n: f"p-{n}",
        "south-hospital": lambda n: f"P {n[:4]} {n[4:]}",
        INSURER: lambda n: f"P{n[:4]}-{n[4:]}",
    }
    files = {}
    for owner, which in rows.items():
        columns = FINANCIAL if owner == INSURER else MEDICAL
        files[owner] = _write(
            directory / f"{owner}.csv", everybody, columns, numbers, which[shuffled(len(which))], spelt[owner]
        )
    return files


def joined(files: dict[str, Path], schema: Schema) -> Codes:
    """The joint table, which nobody in the study can see, to judge the demonstration. -1 is a missing value."""
    tables = {}
    for owner, path in files.items():
        frame = pl.read_csv(path, schema_overrides={NUMBER: pl.String})
        number = frame[NUMBER].str.to_lowercase().str.replace_all(r"[\s-]", "")
        own = schema.select(FINANCIAL if owner == INSURER else MEDICAL)
        codes, _ = own.encode({name: frame[name] for name in own.domain().names})
        tables[owner] = dict(zip(number.to_list(), codes, strict=True))
    medical = tables["south-hospital"] | tables["north-hospital"]
    missing = {width: np.full(width, -1) for width in (len(MEDICAL), len(FINANCIAL))}
    persons = sorted(medical.keys() | tables[INSURER].keys())
    return np.array(
        [
            np.concatenate([medical.get(one, missing[len(MEDICAL)]), tables[INSURER].get(one, missing[len(FINANCIAL)])])
            for one in persons
        ]
    )


def shuffled(count: int) -> npt.NDArray[np.intp]:
    """The numbers below `count` in a random order."""
    return np.argsort(Uniform().floats(count))


def _write(
    path: Path,
    everybody: dict[str, Column],
    columns: tuple[str, ...],
    numbers: Column,
    rows: Column,
    spelt: Callable[[str], str],
) -> Path:
    lines = [",".join((NUMBER, *columns))]
    lines += [",".join([spelt(numbers[row]), *(str(everybody[name][row]) for name in columns)]) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path
