"""What a server writes down about a run is enough to go on: a record read again stands where the first one stood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Engine, delete, insert, update

from caps.dp.clear import ClearOracle
from caps.dp.oracle import Compute, Measurement, Request, Selection, StepRequest, request_digest
from caps.dp.privacy import BudgetExceeded, Filter, Gaussian
from caps.errors import DomainError, LocalError, NotDue
from caps.study import Manifest
from caps.wire import Answer, Signed
from services.coordinator.algorithms import algorithm
from services.coordinator.generate import create_estimator
from services.mpc_server.runs.record import Record, RequestChanged, value_of
from services.mpc_server.storage import tables
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from tests.kit.federation import opened
from tests.kit.study import AT, COLUMNS, Keys, example_manifest, joined_manifest

RUN, INPUTS = "ab" * 16, "cd" * 32


class Transcript(ClearOracle):
    """Remembers what was asked and answered."""

    def select(self, selection: Selection) -> int:
        value = super().select(selection)
        self.seen.append((selection, value))
        return value

    def measure(self, measurement: Measurement) -> np.ndarray:
        value = super().measure(measurement)
        self.seen.append((measurement, value_of(value)))
        return value


@pytest.fixture(scope="module")
def study() -> tuple[Manifest, Keys]:
    return example_manifest()


@pytest.fixture(scope="module")
def transcript(study: tuple[Manifest, Keys]) -> list[tuple[Request, int | tuple[int, ...]]]:
    """The requests of an honest run, with answers."""
    manifest, _ = study
    generator = np.random.default_rng(1)
    codes = np.stack([generator.integers(0, size, 300) for size in manifest.domain.sizes], axis=1)
    budget = Filter(manifest.budget, manifest.task.neighbouring, allowance=manifest.allowance)
    oracle = Transcript(codes, manifest.layout, manifest.task.neighbouring, budget)
    oracle.seen = []
    choice = manifest.algorithm
    algorithm(choice.name, choice.parameters).run(manifest.task, oracle, create_estimator("kernel", manifest.domain))
    return oracle.seen


@pytest.fixture
def database(tmp_path: Path, study: tuple[Manifest, Keys]) -> Iterator[Engine]:
    manifest, _ = study
    with opened(tmp_path / "state.db") as found:
        with found.begin() as transaction:
            row = {"manifest": "{}", "state": "sealed", "created_at": AT}
            transaction.execute(insert(tables.studies).values(study=manifest.study_id, **row))
            run = {"run": RUN, "study": manifest.study_id, "inputs": INPUTS, "build": "0" * 64, "state": "going"}
            transaction.execute(insert(tables.runs).values(**run))
        yield found


def record_of(database: Engine, manifest: Manifest, budget: Fraction | None = None) -> Record:
    record = Record(database, Ledger(database), manifest, RUN, INPUTS, [holder.name for holder in manifest.holders])
    record.account.filter.budget = budget or manifest.budget
    return record


def write(record: Record, number: int, request: StepRequest) -> None:
    record.write(number, request, request_digest(request).hex(), AT)


def answer(record: Record, keys: Keys, number: int, value: int | tuple[int, ...]) -> None:
    document = Answer(
        study=record.manifest.study_id, run=RUN, step=number, request=record.steps[number].digest, value=value
    )
    record.answer(number, Signed[Answer].by(document, "S1", keys["S1"].signing), {"S2": "00", "S3": "11"})


def same(one: Record, other: Record) -> None:
    assert one.steps == other.steps or [(s.number, s.digest, s.answer) for s in one.steps] == [
        (s.number, s.digest, s.answer) for s in other.steps
    ]
    assert one.answered == other.answered
    ours, theirs = one.account, other.account
    assert (ours.due, ours.ended, ours.steps, ours.filter) == (theirs.due, theirs.ended, theirs.steps, theirs.filter)
    assert all(one.head(count) == other.head(count) for count in range(len(one.steps) + 1))


def test_a_record_read_again_stands_where_it_stood(database, study, transcript) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    write(record, 0, Compute())
    same(record, record_of(database, manifest))
    answer(record, keys, 0, (1, 1))
    for number, (request, value) in enumerate(transcript, 1):
        assert not record.account.ended
        write(record, number, request)
        if number % 5 == 0:
            same(record, record_of(database, manifest))
        answer(record, keys, number, value)
        if number % 7 == 0:
            same(record, record_of(database, manifest))
    assert record.account.ended
    again = record_of(database, manifest)
    same(record, again)
    assert record.transcript() == again.transcript()
    assert record.account.filter.spent <= record.account.filter.budget
    charges = [one for one in Ledger(database).records() if one["kind"] == "charge"]
    assert [one["step"] for one in charges] == list(range(1, len(transcript) + 1))


def test_computing_a_join_is_charged_before_servers_see_anything_of_it(database, study) -> None:
    joined = joined_manifest(holders=COLUMNS)
    record = record_of(database, joined)
    write(record, 0, Compute())
    entry = joined.overlaps_entry
    assert entry is not None
    assert record.account.filter.spent == entry.rho(joined.neighbouring) > 0
    (charge,) = [one for one in Ledger(database).records() if one["kind"] == "charge"]
    assert (charge["step"], charge["request"]) == (0, request_digest(Compute()).hex())
    assert charge["entry"] == entry.to_json(joined.neighbouring)
    same(record, record_of(database, joined))
    Ledger(database).verify()
    with database.begin() as transaction:
        transaction.execute(delete(tables.ledger))
    with pytest.raises(LedgerBroken, match="the charge of a recorded step is missing from the ledger"):
        Ledger(database).verify()


@pytest.fixture
def begun(database: Engine, study: tuple[Manifest, Keys], transcript: list[tuple[Request, int]]) -> Record:
    """Step 0 and step 1 are answered, step 2 is charged."""
    manifest, keys = study
    record = record_of(database, manifest)
    write(record, 0, Compute())
    answer(record, keys, 0, (1, 1))
    write(record, 1, transcript[0][0])
    answer(record, keys, 1, transcript[0][1])
    write(record, 2, transcript[1][0])
    return record


def test_a_step_has_one_request(begun: Record, transcript: list[tuple[Request, int]]) -> None:
    first, second, third = (request_digest(request).hex() for request, _ in transcript[:3])
    assert begun.find(1, first).answer is not None
    assert begun.find(2, second).answer is None
    with pytest.raises(RequestChanged):
        begun.find(1, second)
    with pytest.raises(NotDue):
        begun.find(3, third)  # before step 2 is answered
    with pytest.raises(NotDue):
        begun.find(4, third)


def test_an_answer_is_written_once(begun: Record, study: tuple[Manifest, Keys], transcript: list) -> None:
    _, keys = study
    before = begun.steps[1]
    answer(begun, keys, 1, transcript[0][1])
    assert begun.steps[1] == before
    with pytest.raises(LocalError, match="given a different answer"):
        answer(begun, keys, 1, tuple(x + 1 for x in transcript[0][1]))


def test_what_is_refused_is_not_written(begun: Record, database: Engine, study, transcript: list) -> None:
    count = Ledger(database).verify()
    due = transcript[2][0]
    with pytest.raises(NotDue, match="the answer to step 2"):
        write(begun, 3, due)
    answer(begun, study[1], 2, transcript[1][1])
    finer = replace(due, mechanism=Gaussian(due.mechanism.sigma_squared / 2))
    with pytest.raises(NotDue, match="gaussian"):
        write(begun, 3, finer)
    with pytest.raises(DomainError):
        write(begun, 4, due)
    with pytest.raises(NotDue, match="step compute is not due"):
        write(begun, 3, Compute())
    assert Ledger(database).verify() == count
    assert len(begun.steps) == 3


def test_a_step_beyond_the_budget_is_not_written(database: Engine, study: tuple[Manifest, Keys], transcript) -> None:
    manifest, keys = study
    request = transcript[0][0]
    cost = request.mechanism.rho(manifest.task.neighbouring)
    record = record_of(database, manifest, budget=cost * 3 / 2)
    write(record, 0, Compute())
    answer(record, keys, 0, (1, 1))
    write(record, 1, request)
    answer(record, keys, 1, transcript[0][1])
    with pytest.raises(BudgetExceeded):
        write(record, 2, transcript[1][0])
    assert Ledger(database).verify() == 1
    same(record, record_of(database, manifest, budget=cost * 3 / 2))


def test_a_run_given_up_charges_nothing_more(begun: Record, database: Engine, study, transcript) -> None:
    _, keys = study
    answer(begun, keys, 2, transcript[1][1])
    with database.begin() as transaction:
        transaction.execute(update(tables.runs).values(state="failed"))
    count = Ledger(database).verify()
    with pytest.raises(LocalError, match="has ended"):
        write(begun, 3, transcript[2][0])
    assert Ledger(database).verify() == count
    assert len(begun.steps) == 3


def test_a_ledger_whose_end_was_cut_off_is_found(begun: Record, database: Engine) -> None:
    ledger = Ledger(database)
    last = ledger.verify() - 1
    with database.begin() as transaction:
        transaction.execute(delete(tables.ledger).where(tables.ledger.c.number == last))
    with pytest.raises(LedgerBroken, match="the charge of a recorded step is missing from the ledger"):
        ledger.verify()
    assert begun.account.filter.spent > 0
