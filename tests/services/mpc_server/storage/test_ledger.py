"""The ledger is append-only: a record altered, removed, added or moved is found out; budgets are never overdrawn."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from sqlalchemy import Engine, delete, insert, select, update

from caps.basics import canonical
from caps.dp.privacy import (
    Allowance,
    BudgetExceeded,
    PopulationBudget,
    Relation,
    Reservation,
)
from caps.study import Manifest, Policy
from services.mpc_server.figures import ledger_figures
from services.mpc_server.storage.ledger import GENESIS, Ledger, LedgerBroken
from services.mpc_server.storage.tables import ledger as table
from tests.kit.ledger import BUDGET, LIMIT, RUNS, charge, database, filled, manifest, release, reserve, taking  # noqa: F401
from tests.kit.study import AT


def test_records_are_chained(filled: Engine) -> None:
    found = list(Ledger(filled).records())
    assert Ledger(filled).verify() == len(found) == 5
    assert [record["kind"] for record in found] == ["reserve", "charge", "charge", "charge", "close"]
    assert [record["previous"] for record in found] == [GENESIS, *(record["hash"] for record in found[:-1])]
    for record in found:
        content = {name: value for name, value in record.items() if name != "hash"}
        assert canonical.digest("ledger-record", {"record": content}).hex() == record["hash"]


def test_the_range_of_a_run(filled: Engine, manifest: Manifest) -> None:
    reserve(filled, manifest, RUNS[1], LIMIT / 4)
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
        transaction.execute(insert(table).values(**dict(row._mapping) | {"number": 5, "hash": "0" * 64}))
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
            Ledger(filled).reserve(transaction, RUNS[1], manifest, taking(LIMIT / 4), limit=BUDGET, at=AT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert Ledger(filled).verify() == 5


def test_a_population_is_spent_to_the_last_unit_and_not_beyond(database: Engine, manifest: Manifest) -> None:
    for run in RUNS[:4]:
        reserve(database, manifest, run, LIMIT / 4)
    with pytest.raises(BudgetExceeded, match="rho 0 left on this server, which is epsilon 0 at the study's delta, and"):
        reserve(database, manifest, RUNS[4], LIMIT / 10**15)
    assert Ledger(database).verify() == 4


def test_what_is_left_is_told_in_rho_and_epsilon(database: Engine, manifest: Manifest) -> None:
    reserve(database, manifest, RUNS[0], LIMIT - manifest.budget / 2)
    with pytest.raises(BudgetExceeded) as caught:
        reserve(database, manifest, RUNS[1], manifest.reservation)
    assert f"needs rho {float(manifest.budget):.4g}" in str(caught.value)
    assert "which is epsilon 0.691 at the study's delta" in str(caught.value)
    reserve(database, manifest, RUNS[1], manifest.budget / 2)


def test_relations_and_multiplicities_are_not_added_as_if_they_were_one(database: Engine, manifest: Manifest) -> None:
    """A study of 3 rows a person, 9-fold; then a bounded one makes the others 4-fold."""
    reserve(database, manifest, RUNS[0], LIMIT / 18)
    with pytest.raises(BudgetExceeded, match="added up as unbounded with up to 3 rows a person"):
        reserve(database, manifest, RUNS[1], taking(LIMIT * 51 / 100, 3))
    reserve(database, manifest, RUNS[1], taking(LIMIT * 4 / 100, 3))
    with pytest.raises(BudgetExceeded, match="added up as bounded with up to 3 rows a person"):
        reserve(database, manifest, RUNS[2], taking(LIMIT / 100, 3, Relation.BOUNDED))
    release(database, manifest, RUNS[0])
    reserve(database, manifest, RUNS[2], taking(LIMIT / 100, 3, Relation.BOUNDED))
    assert Ledger(database).taken() == {
        "patients": [taking(LIMIT * 4 / 100, 3), taking(LIMIT / 100, 3, Relation.BOUNDED)]
    }


def test_many_tiny_studies_use_delta_up(database: Engine, manifest: Manifest) -> None:
    """Each takes next to nothing of rho, and a quarter of what delta has room for."""
    tiny = Reservation(LIMIT / 10**9, manifest.neighbouring, Allowance(eta=BUDGET.delta / 90, nu=Fraction(0)))
    for run in RUNS[:4]:
        reserve(database, manifest, run, tiny)
    with pytest.raises(BudgetExceeded, match="rho 0 left"):
        reserve(database, manifest, RUNS[4], tiny)


def test_what_is_released_may_be_reserved_again_and_no_more(database: Engine, manifest: Manifest) -> None:
    reserve(database, manifest, RUNS[0], LIMIT * 3 / 4)
    with pytest.raises(BudgetExceeded):
        reserve(database, manifest, RUNS[1], LIMIT / 2)
    release(database, manifest, RUNS[0])
    reserve(database, manifest, RUNS[1], LIMIT)
    with pytest.raises(BudgetExceeded):
        reserve(database, manifest, RUNS[2], LIMIT / 2)


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


def test_figures_tell_what_each_population_has_left(database: Engine, manifest: Manifest) -> None:
    """Those with a budget that nobody touched too, and those that the operator no longer has."""
    reserve(database, manifest, RUNS[0], LIMIT / 4)
    policies = Policy(populations={"patients": 3.0, "others": 1.0}), Policy(populations={"others": 1.0})
    told = [{one.labels: one.value for one in ledger_figures(Ledger(database), policy)()} for policy in policies]
    whole = PopulationBudget(Fraction(1), BUDGET.delta).left([], manifest.neighbouring)
    assert told[0][("patients",)] == pytest.approx(float(LIMIT * 3 / 4))
    assert told[0][("others",)] == told[1][("others",)] == float(whole)
    assert told[1][("patients",)] == 0


def test_many_at_once_reserve_no_more_than_there_is(database: Engine, manifest: Manifest) -> None:
    def one(run: str) -> bool:
        try:
            reserve(database, manifest, run, LIMIT / 10)
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
