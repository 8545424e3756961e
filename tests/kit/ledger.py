"""A ledger for tests: reservations, charges and releases of runs, in a database of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest
from sqlalchemy import Engine

from caps.dp.privacy import (
    NOTHING,
    Gaussian,
    Neighbouring,
    PopulationBudget,
    Relation,
    Reservation,
    calibrate,
)
from caps.dp.privacy.filter import Entry
from caps.study import Manifest
from services.mpc_server.storage.ledger import Ledger
from tests.kit.federation import opened
from tests.kit.study import AT, example_manifest

RUNS = [f"{number:032x}" for number in range(40)]
BUDGET = PopulationBudget(Fraction(3), Fraction(1, 10**6))
LIMIT = calibrate(BUDGET.epsilon, BUDGET.delta, NOTHING)
"""The rho of all studies in BUDGET, if delta has nothing else to cover."""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "state.db") as found:
        yield found


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return example_manifest()[0]


def taking(rho: Fraction, multiplicity: int = 1, relation: Relation = Relation.UNBOUNDED) -> Reservation:
    return Reservation(rho, Neighbouring(relation, multiplicity), NOTHING)


def reserve(database: Engine, manifest: Manifest, run: str, wanted: Fraction | Reservation) -> None:
    wanted = wanted if isinstance(wanted, Reservation) else taking(wanted)
    with database.begin() as transaction:
        Ledger(database).reserve(transaction, run, manifest, wanted, limit=BUDGET, at=AT)


def release(database: Engine, manifest: Manifest, run: str) -> None:
    with database.begin() as transaction:
        Ledger(database).release(transaction, run, manifest, AT)


def charge(database: Engine, manifest: Manifest, run: str, step: int) -> str:
    entry = Entry(f"initial{step}", Gaussian(Fraction(50)), 1, "joint", 4, Fraction(1, 2**80), certified=True)
    with database.begin() as transaction:
        study, by = manifest.study_id, manifest.task.neighbouring
        return Ledger(database).charge(transaction, run, study, step, f"{step:064x}", entry, by, AT)


@pytest.fixture
def filled(database: Engine, manifest: Manifest) -> Engine:
    """A reservation, three charges, an end."""
    reserve(database, manifest, RUNS[0], LIMIT / 2)
    for step in (1, 2, 3):
        charge(database, manifest, RUNS[0], step)
    with database.begin() as transaction:
        Ledger(database).close(transaction, RUNS[0], manifest.study_id, Fraction(3, 100), AT)
    return database


def back_up(database: Engine, to: Path) -> None:
    """A consistent copy of a database, as operators make one (docs/operations.md)."""
    assert database.url.database is not None
    with closing(sqlite3.connect(database.url.database)) as source, closing(sqlite3.connect(to)) as copy:
        source.backup(copy)
