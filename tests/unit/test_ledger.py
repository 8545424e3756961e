"""The ledger is append-only: a record altered, removed, added or moved is found out; budgets are never overdrawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, insert, select, update

from caps import canonical
from caps.privacy import BudgetExceeded, Gaussian
from caps.privacy.filter import Entry
from caps.study import Manifest
from services.mpc_server.ledger import GENESIS, Ledger, LedgerBroken
from services.mpc_server.tables import ledger as table
from tests.federation_kit import opened
from tests.study_kit import AT, example_manifest

RUNS = [f"{number:032x}" for number in range(40)]
LIMIT = Fraction(1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "state.db") as found:
        yield found


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return example_manifest()[0]


def reserve(database: Engine, manifest: Manifest, run: str, rho: Fraction, limit: Fraction = LIMIT) -> None:
    with database.begin() as transaction:
        Ledger(database).reserve(transaction, run, manifest, rho, limit=limit, at=AT)


def release(database: Engine, manifest: Manifest, run: str, rho: Fraction) -> None:
    with database.begin() as transaction:
        Ledger(database).release(transaction, run, manifest, rho, AT)


def charge(database: Engine, manifest: Manifest, run: str, step: int) -> str:
    entry = Entry(f"initial{step}", Gaussian(Fraction(50)), 1, "joint", 4, Fraction(1, 2**80), certified=True)
    with database.begin() as transaction:
        study, by = manifest.study_id, manifest.task.neighbouring
        return Ledger(database).charge(transaction, run, study, step, f"{step:064x}", entry, by, AT)


@pytest.fixture
def filled(database: Engine, manifest: Manifest) -> Engine:
    """A reservation, three charges, an end."""
    reserve(database, manifest, RUNS[0], Fraction(1, 2))
    for step in (1, 2, 3):
        charge(database, manifest, RUNS[0], step)
    with database.begin() as transaction:
        Ledger(database).close(transaction, RUNS[0], manifest.study_id, Fraction(3, 100), AT)
    return database


def test_records_are_chained(filled: Engine) -> None:
    found = list(Ledger(filled).records())
    assert Ledger(filled).verify() == len(found) == 5
    assert [record["kind"] for record in found] == ["reserve", "charge", "charge", "charge", "close"]
    assert [record["previous"] for record in found] == [GENESIS, *(record["hash"] for record in found[:-1])]
    for record in found:
        content = {name: value for name, value in record.items() if name != "hash"}
        assert canonical.digest("ledger-record", {"record": content}).hex() == record["hash"]


def test_the_range_of_a_run(filled: Engine, manifest: Manifest) -> None:
    reserve(filled, manifest, RUNS[1], Fraction(1, 4))
    charge(filled, manifest, RUNS[1], 1)
    found, records = Ledger(filled).range_of(RUNS[1]), list(Ledger(filled).records())
    assert (found.first, found.last) == (5, 6)
    assert (found.first_hash, found.last_hash) == (records[5]["hash"], records[6]["hash"])


def test_an_empty_ledger_holds(database: Engine) -> None:
    assert Ledger(database).verify() == 0


def rewritten(database: Engine, number: int, members: dict[str, object], *, rehash: bool) -> None:
    """Alter a record; with its hash, as somebody would who knows how it is made."""
    with database.begin() as transaction:
        row = transaction.execute(select(table).where(table.c.number == number)).one()
        record = json.loads(row.record) | members
        digest = canonical.digest("ledger-record", {"record": record}).hex() if rehash else row.hash
        changed = update(table).where(table.c.number == number)
        transaction.execute(changed.values(record=canonical.dump(record).decode(), hash=digest))


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("member", ["at", "kind", "study", "run", "number", "previous"])
def test_an_altered_record_is_found(filled: Engine, number: int, member: str) -> None:
    rewritten(filled, number, {member: 7 if member == "number" else "0" * 63 + "1"}, rehash=False)
    with pytest.raises(LedgerBroken, match=f"record {number} "):
        Ledger(filled).verify()


@pytest.mark.parametrize("number", range(4))
def test_an_altered_record_with_a_hash_of_its_own_breaks_the_next(filled: Engine, number: int) -> None:
    rewritten(filled, number, {"at": "2031-01-01T00:00:00Z"}, rehash=True)
    with pytest.raises(LedgerBroken, match=f"record {number + 1} "):
        Ledger(filled).verify()


@pytest.mark.parametrize("number", range(4))
def test_a_removed_record_is_missed(filled: Engine, number: int) -> None:
    with filled.begin() as transaction:
        transaction.execute(delete(table).where(table.c.number == number))
    with pytest.raises(LedgerBroken, match=f"record {number} "):
        Ledger(filled).verify()


def test_an_inserted_record_is_found(filled: Engine) -> None:
    with filled.begin() as transaction:
        row = transaction.execute(select(table).where(table.c.number == 4)).one()
        transaction.execute(insert(table).values(number=5, record=row.record, hash="0" * 64))
    with pytest.raises(LedgerBroken, match="record 5 "):
        Ledger(filled).verify()


def test_records_in_another_order_are_found(filled: Engine) -> None:
    with filled.begin() as transaction:
        for old, new in ((1, 90), (2, 1), (90, 2)):
            transaction.execute(update(table).where(table.c.number == old).values(number=new))
    with pytest.raises(LedgerBroken, match="record 1 "):
        Ledger(filled).verify()


@pytest.mark.parametrize("text", ["{", "[]", "{}", "7", ""])
def test_what_is_no_record_is_found(filled: Engine, text: str) -> None:
    with filled.begin() as transaction:
        transaction.execute(update(table).where(table.c.number == 2).values(record=text))
    with pytest.raises(LedgerBroken, match="record 2 "):
        Ledger(filled).verify()


def test_a_transaction_that_fails_leaves_nothing(filled: Engine, manifest: Manifest) -> None:
    def interrupted() -> None:
        with filled.begin() as transaction:
            Ledger(filled).reserve(transaction, RUNS[1], manifest, Fraction(1, 4), limit=LIMIT, at=AT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert Ledger(filled).verify() == 5


def test_a_population_is_spent_to_the_last_unit_and_not_beyond(database: Engine, manifest: Manifest) -> None:
    for run in RUNS[:4]:
        reserve(database, manifest, run, Fraction(1, 4))
    with pytest.raises(BudgetExceeded, match="rho 0 left"):
        reserve(database, manifest, RUNS[4], Fraction(1, 10**30))
    assert Ledger(database).verify() == 4


def test_what_is_released_may_be_reserved_again_and_no_more(database: Engine, manifest: Manifest) -> None:
    reserve(database, manifest, RUNS[0], Fraction(3, 4))
    with pytest.raises(BudgetExceeded):
        reserve(database, manifest, RUNS[1], Fraction(1, 2))
    release(database, manifest, RUNS[0], Fraction(3, 4))
    reserve(database, manifest, RUNS[1], LIMIT)
    with pytest.raises(BudgetExceeded):
        reserve(database, manifest, RUNS[2], Fraction(1, 2))


@pytest.mark.parametrize("names", [("one", "another"), ("a_b", "axb", "A_B", "a_b2"), ("reserve", "kind", "run")])
def test_populations_have_budgets_of_their_own(database: Engine, manifest: Manifest, names: tuple[str, ...]) -> None:
    document = manifest.to_json()
    studies = [
        Manifest.from_json(document | {"privacy": manifest.privacy.to_json() | {"population": name}}) for name in names
    ]
    for run, one in zip(RUNS, studies, strict=False):
        reserve(database, one, run, LIMIT)
    for one in studies:
        with pytest.raises(BudgetExceeded, match=f"population {one.privacy.population} "):
            reserve(database, one, RUNS[4], LIMIT)


def test_many_at_once_reserve_no_more_than_there_is(database: Engine, manifest: Manifest) -> None:
    def one(run: str) -> bool:
        try:
            reserve(database, manifest, run, Fraction(1, 10))
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, RUNS)) == 10
    assert Ledger(database).verify() == 10


def test_many_at_once_write_one_chain(database: Engine, manifest: Manifest) -> None:
    with ThreadPoolExecutor(8) as pool:
        hashes = list(pool.map(lambda step: charge(database, manifest, RUNS[0], step), range(40)))
    assert Ledger(database).verify() == len(set(hashes)) == 40
