"""A ledger that was cut off or written anew is found out by the heads that its server has signed; lies change nothing.

The adversary has a server's database, or an old copy of it, and may be a peer; it does not have the signing key of the
server whose ledger it is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, delete

from caps.study import Manifest, Policy
from caps.trust import signing
from caps.trust.cards import Party
from caps.wire import LedgerHead, Signed
from services.mpc_server.figures import ledger_figures
from services.mpc_server.storage.heads import HeadRefused, Heads
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.storage.tables import ledger as table
from services.mpc_server.storage.tables import steps
from tests.kit.federation import opened
from tests.kit.ledger import LIMIT, RUNS, back_up, charge, database, filled, manifest, reserve  # noqa: F401
from tests.kit.study import AT, Keys, make_keys

KEYS: Keys = make_keys(["S1", "S2", "S3"])


def party(name: str) -> Party:
    return Party(**KEYS[name].party())


def heads_of(database: Engine, name: str = "S1") -> Heads:
    return Heads(database, Ledger(database), name, KEYS[name].signing)


def cut(database: Engine, keep: int) -> None:
    """Roll the ledger back to its first records, and everything that could show it."""
    with database.begin() as transaction:
        transaction.execute(delete(steps))
        transaction.execute(delete(table).where(table.c.number >= keep))
    Ledger(database).verify()  # the chain alone does not show it


def signed(name: str, run: str, number: int, digest: str, *, by: str | None = None) -> Signed[LedgerHead]:
    document = LedgerHead(server=name, run=run, number=number, hash=digest, at=AT)
    return Signed[LedgerHead].by(document, name, KEYS[by or name].signing)


def test_a_head_is_the_last_record_and_is_kept(filled: Engine) -> None:
    heads = heads_of(filled)
    head = heads.sign(RUNS[0], AT)
    last = list(Ledger(filled).records())[-1]
    assert head.verify(party("S1")) == LedgerHead(server="S1", run=RUNS[0], number=4, hash=last["hash"], at=AT)
    assert heads.all() == [head] == [heads.latest(party("S1"))]
    heads.verify()
    heads.told(head)
    heads.require_sound()


def test_a_server_finds_at_its_start_that_its_ledger_was_cut_off(filled: Engine) -> None:
    heads_of(filled).sign(RUNS[0], AT)
    cut(filled, 2)
    with pytest.raises(LedgerBroken, match=r"lacks record 4 as this server has signed it: it was rolled back"):
        heads_of(filled).verify()
    figures = {one.name: one.value for one in ledger_figures(Ledger(filled), Policy(), heads_of(filled))()}
    assert figures == {"caps_ledger_sound": 0}


def test_a_server_finds_at_its_start_that_its_ledger_was_written_anew(filled: Engine, manifest: Manifest) -> None:
    heads_of(filled).sign(RUNS[0], AT)
    cut(filled, 1)
    for step in (1, 2, 3, 4, 5, 6):  # longer than before, with a chain that holds
        charge(filled, manifest, RUNS[0], step)
    assert Ledger(filled).verify() == 7
    with pytest.raises(LedgerBroken, match="rewritten"):
        heads_of(filled).verify()


@pytest.mark.parametrize("fork", [False, True], ids=["rollback", "fork"])
def test_a_restored_backup_is_found_when_a_peer_shows_the_head(
    filled: Engine, manifest: Manifest, tmp_path: Path, fork: bool
) -> None:
    back_up(filled, tmp_path / "backup.db")
    reserve(filled, manifest, RUNS[1], LIMIT / 4)
    shown = heads_of(filled).sign(RUNS[1], AT)  # what the peer keeps
    with opened(tmp_path / "backup.db") as backup:
        if fork:
            reserve(backup, manifest, RUNS[2], LIMIT / 4)
            reserve(backup, manifest, RUNS[3], LIMIT / 8)
        heads = heads_of(backup)
        heads.verify()  # nothing in the backup itself shows it
        with pytest.raises(LedgerBroken, match="lacks record 5 as this server has signed it"):
            heads.told(shown)
        for refuses in (heads.require_sound, lambda: heads.sign(RUNS[3], AT)):
            with pytest.raises(LedgerBroken):
                refuses()
        with pytest.raises(LedgerBroken):
            heads_of(backup).verify()  # a restart does not forget it


def test_a_lie_about_a_head_changes_nothing(filled: Engine) -> None:
    heads, before = heads_of(filled), heads_of(filled).all()
    for lie in (
        signed("S1", RUNS[0], 900, "f" * 64, by="S2"),
        signed("S1", RUNS[0], 2, "f" * 64, by="S2"),
        signed("S2", RUNS[0], 900, "f" * 64),
    ):
        heads.told(lie)
    heads.verify()
    assert heads.all() == before


def test_an_old_head_that_the_ledger_contains_is_no_harm(filled: Engine, manifest: Manifest) -> None:
    heads = heads_of(filled)
    old = heads.sign(RUNS[0], AT)
    reserve(filled, manifest, RUNS[1], LIMIT / 4)
    heads.sign(RUNS[1], AT)
    heads.told(old)
    heads.verify()
    assert [one.document.number for one in heads.all()] == [4, 5]


def test_a_new_key_begins_anew(filled: Engine) -> None:
    heads_of(filled).sign(RUNS[0], AT)
    cut(filled, 2)
    other = signing.generate_signing_key()
    Heads(filled, Ledger(filled), "S1", other).verify()


@pytest.mark.parametrize(
    ("later", "refused"),
    [
        pytest.param({"number": 6}, "ends with record 6, but lacks record 7", id="rollback"),
        pytest.param({"number": 7, "digest": "b" * 64}, "lacks record 7", id="fork"),
        pytest.param({"number": 9, "by": "S3"}, "not validly signed", id="another signature"),
        pytest.param({"number": 9, "run": RUNS[5]}, "for another server or run", id="another run"),
    ],
)
def test_a_peer_whose_ledger_lacks_what_it_signed_is_refused(
    database: Engine, later: dict[str, Any], refused: str
) -> None:
    heads = heads_of(database)
    heads.take(party("S2"), RUNS[0], signed("S2", RUNS[0], 7, "a" * 64))
    chosen = {"run": RUNS[1], "digest": "a" * 64} | later
    with pytest.raises(HeadRefused, match=refused):
        heads.take(party("S2"), RUNS[1], signed("S2", **chosen))
    assert [one.document.number for one in heads.all()] == [7]


def test_the_head_of_another_server_is_refused_even_if_it_is_genuine(database: Engine) -> None:
    with pytest.raises(HeadRefused, match="not validly signed"):
        heads_of(database).take(party("S2"), RUNS[0], signed("S3", RUNS[0], 7, "a" * 64))


def test_a_peer_that_connects_again_and_again_takes_no_more_room(database: Engine) -> None:
    heads = heads_of(database)
    for number in range(7, 40):
        heads.take(party("S2"), RUNS[0], signed("S2", RUNS[0], number, f"{number:064x}"))
    heads.take(party("S2"), RUNS[0], signed("S2", RUNS[0], 39, f"{39:064x}"))
    assert [one.document.number for one in heads.all()] == [39]
    latest = heads.latest(party("S2"))
    assert latest is not None
    assert latest.document.number == 39
    assert heads.latest(party("S3")) is None


def test_an_empty_ledger_has_no_head(database: Engine) -> None:
    with pytest.raises(LedgerBroken, match="the ledger is empty"):
        heads_of(database).sign(RUNS[0], AT)
