"""An auditor compares a ledger with the heads that peers keep: nobody who rewrites it can explain a signature away."""

from __future__ import annotations

from typing import Any

from caps.audit.ledger import broken_at, compared
from caps.basics import canonical
from caps.wire import LedgerHead, Signed
from tests.kit.study import AT, RUN, make_keys

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
