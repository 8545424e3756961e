"""An auditor compares a ledger with the heads that peers keep: nobody who rewrites it can explain a signature away."""

from __future__ import annotations

from typing import Any

import pytest

from caps.audit.ledger import broken_at, compared, spending
from caps.basics import canonical
from caps.errors import DomainError
from caps.study import Manifest, Policy
from caps.wire import LedgerHead, Signed
from tests.kit.study import AT, RUN, example_manifest, make_keys

KEYS = make_keys(["S1", "S2"])


def chain(count: int, kind: str = "reserve") -> list[dict[str, Any]]:
    records, previous = [], "0" * 64
    for number in range(count):
        record = {"number": number, "previous": previous, "kind": kind, "run": RUN}
        previous = canonical.digest("ledger-record", {"record": record}).hex()
        records.append({**record, "hash": previous})
    return records


def head(records: list[dict[str, Any]], number: int, name: str = "S1", by: str = "S1") -> Signed[LedgerHead]:
    document = LedgerHead(server=name, run=RUN, number=number, hash=records[number]["hash"], at=AT)
    return Signed[LedgerHead].by(document, name, KEYS[by].signing)


def holds(records: list[dict[str, Any]], *heads: Signed[LedgerHead]) -> list[bool | None]:
    return [one.holds for one in compared(records, "S1", KEYS["S1"].signing_key, {"S2": heads})]


def test_a_whole_chain_holds_and_a_broken_one_is_seen_where_it_breaks() -> None:
    assert broken_at(chain(4)) is None
    assert broken_at([]) is None
    altered = chain(4)
    altered[2]["kind"] = "charge"
    assert broken_at(altered) == 2
    missing = chain(4)
    del missing[1]
    assert broken_at(missing) == 1
    rehashed = chain(4)
    rehashed[1]["hash"] = "1" * 64
    assert broken_at(rehashed) == 1


def test_every_head_is_in_an_honest_ledger() -> None:
    records = chain(6)
    assert holds(records, head(records, 2), head(records, 5)) == [True, True]


def test_a_ledger_that_was_cut_off_or_written_anew_lacks_a_head() -> None:
    records, anew = chain(6), chain(9, "charge")
    for other in (records[:4], [], anew):
        assert broken_at(other) is None
        assert holds(other, head(records, 5)) == [False]
    (found,) = compared(anew, "S1", KEYS["S1"].signing_key, {"S2": [head(records, 5)]})
    assert (found.kept_by, found.number) == ("S2", 5)
    assert "NOT IN THE LEDGER" in found.verdict


def test_what_the_server_did_not_sign_proves_nothing() -> None:
    records, anew = chain(6), chain(6, "charge")
    assert holds(records, head(anew, 5, by="S2")) == [None]
    assert holds(records, head(anew, 5, name="S2", by="S2")) == []  # another server's


MANIFEST, _ = example_manifest(population="patients")
POLICY = Policy(populations={"patients": 3.0, "insured": 2.0})


def reserved(run: str, manifest: Manifest = MANIFEST) -> dict[str, Any]:
    """A record as a server writes it (`services.mpc_server.storage.ledger`)."""
    privacy = manifest.privacy
    members = {"population": privacy.population, "privacy": privacy.to_json(), **manifest.reservation.to_json()}
    return {"number": 0, "kind": "reserve", "run": run, **members}


def test_what_a_population_has_used_and_left_is_said_in_epsilon() -> None:
    one, two = (spending([reserved(str(run)) for run in range(runs)], POLICY)[1] for runs in (1, 2))
    assert (one.population, one.runs, one.limit, one.delta) == ("patients", 1, 3.0, 1e-6)
    assert one.used is not None
    assert two.used is not None
    assert 0.9 < one.used <= 1.0  # the study's epsilon, at the same delta
    assert 1.2 < two.used / one.used < 2  # rho adds up, epsilon does not
    assert one.left is not None
    assert two.left is not None
    assert 3 > one.left > two.left > 0
    budget = POLICY.population_budget("patients")
    assert budget is not None
    assert budget.admits([MANIFEST.reservation] * 2)
    untouched = spending([], POLICY)
    assert [(found.population, found.runs, found.used) for found in untouched] == [
        ("insured", 0, 0.0),
        ("patients", 0, 0.0),
    ]
    assert untouched[0].left == pytest.approx(2.0, rel=0.02)


def test_what_was_given_back_is_not_counted() -> None:
    released = {"number": 1, "kind": "release", "run": "0", "population": "patients"}
    (found,) = spending([reserved("0"), reserved("1"), released])
    assert (found.runs, found.limit, found.left) == (1, None, None)
    assert found.delta == pytest.approx(float(MANIFEST.privacy.exact_delta))
    assert spending([reserved("0"), released])[0].used == 0.0


def test_a_population_that_is_used_up_has_nothing_left() -> None:
    (_, found) = spending([reserved(str(run)) for run in range(40)], POLICY)
    assert found.left == 0.0


@pytest.mark.parametrize("lacks", ["rho", "neighbouring", "allowance", "population", "privacy"])
def test_a_reservation_without_its_members_is_refused(lacks: str) -> None:
    broken = reserved("0")
    del broken[lacks]
    with pytest.raises(DomainError, match="record 0: not a reservation"):
        spending([broken])
