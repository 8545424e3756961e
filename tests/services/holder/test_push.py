"""The holder's service against stand-in servers over TLS: pushing, crashes, withdrawing, and peers that misbehave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.basics import files
from caps.basics.retry import Backoff
from caps.basics.schemes import SCHEMES
from caps.service.problems import Problem
from caps.wire import Receipt, Signed
from caps.wire.holder import Delivery, Goal, State
from caps.wire.media import CSV
from caps.wire.problems import Kind
from services.holder import service, sharing, uploader
from services.holder.retry_queue import Stopped
from services.holder.service import HolderService
from services.holder.store import Store
from services.holder.table import Sent
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS, MIXED, ROWS
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

TABLE = "age,smoker,region,diagnosis\n30,no,north,A\n79,yes,south,\n5,no,north,C\n"
CODES = np.array([[1, 0, 0, 1], [3, 1, 2, -1], [0, 0, 0, 3]])


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HolderBench]:
    monkeypatch.setattr(sharing, "CHUNK_BYTES", 1 << 10)
    wide = {"name": "region", "kind": "categorical", "categories": ["north", "south", *map(str, range(200))]}
    schema: dict[str, Any] = {
        "version": 1,
        "columns": [
            {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 20, 40, 60, 80]},
            {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes"},
            wide,
            {"name": "diagnosis", "kind": "categorical", "categories": ["none", "A", "B", "C"], "missing": "null"},
        ],
    }
    world = HolderBench(tmp_path, "clinic-a", holders=ROWS, schema=schema)
    with world.others():
        yield world


def begin(holder: HolderService, world: HolderBench, table: str = TABLE) -> None:
    """Up to a loaded table; what was done before is only repeated."""
    holder.know(world.urls["coordinator"], world.study)
    holder.approve(world.study)
    if holder.store.study(world.study).state is State.APPROVED:
        load(holder, world, table)


def load(holder: HolderService, world: HolderBench, table: str = TABLE) -> None:
    path = holder.upload_path(world.study)
    path.write_text(table)
    holder.load(world.study, path, Sent.of(CSV), sha256(table.encode()).hexdigest())


def goal(holder: HolderService, world: HolderBench) -> Goal:
    return holder.contribution(world.study).goal


def counts(world: HolderBench) -> Any:
    codes = CODES.copy()
    codes[1, 2] = 1
    return world.manifest.layout.marginals(codes)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_servers_of_every_scheme_together_hold_the_counts(tmp_path: Path, scheme: str) -> None:
    world = HolderBench(tmp_path, "clinic-a", holders=ROWS, scheme=scheme)
    with world.others(), world.running() as holder:
        begin(holder, world)
        preview = holder.preview(world.study)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        record = holder.contribution(world.study)
    assert np.array_equal(world.reconstructed(), world.manifest.layout.marginals(CODES))
    assert len(record.deliveries) == len(preview.servers) == world.scheme.parties
    for server, held in zip(preview.servers, world.scheme.held, strict=True):
        assert [one.component for one in server.components] == list(held)
        assert (server.vector_bytes > 0) == (world.scheme.vector in held)
    words = {"rep3": "two of three", "rep3-active": "two of three", "rep4": "three of four"}[scheme]
    assert f"Each server receives {words} components" in preview.statement


def test_three_servers_together_hold_the_counts_and_nothing_is_left_behind(world: HolderBench) -> None:
    with world.running() as holder:
        begin(holder, world)
        preview = holder.preview(world.study)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        until(lambda: world.files() == ["table"])
        until(lambda: holder.store.study(world.study).approval_sent)
        record = holder.contribution(world.study)
    assert np.array_equal(world.reconstructed(), counts(world))
    assert [one.accepted is not None and one.accepted.signer for one in record.deliveries] == ["S1", "S2", "S3"]
    assert len(world.approvals) == 1
    document = record.document.document
    assert document.chunks > 1
    for server, shown in zip(world.servers, preview.servers, strict=True):
        offer = server.offers[record.contribution]
        assert shown.offer_bytes == len(offer.model_dump_json())
        assert shown.vector_bytes == len(server.vector(record.contribution))
        assert shown.chunks == sum("/chunks/" in request for request in server.requests)
        assert [one.component for one in shown.components] == [one.component for one in offer.openings]
    assert sum(part.cells for part in preview.parts) == world.manifest.layout.cells == preview.shape[0]
    assert document.bits == 32


@pytest.mark.parametrize("column", [None, "slot"])
def test_columns_arrive_one_hot_in_their_slots(tmp_path: Path, column: str | None) -> None:
    alignment = {"slots": 50, "column": column}
    world = HolderBench(tmp_path, "lab", holders=COLUMNS, alignment=alignment)
    table = "region,diagnosis\neast,A\nsouth,\n" if column is None else "slot,region,diagnosis\n40,east,A\n7,south,\n"
    with world.others(), world.running() as holder:
        begin(holder, world, table)
        assert [part.cells for part in holder.preview(world.study).parts] == [3, 4]
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        expected = np.zeros((50, 7), np.uint16)
        for slot, ones in zip((0, 1) if column is None else (40, 7), ([1, 4], [2]), strict=True):
            expected[slot, ones] = 1
        assert np.array_equal(world.reconstructed(), expected)


def test_a_holder_of_rows_among_holders_of_columns_counts(tmp_path: Path) -> None:
    world = HolderBench(tmp_path, "clinic-a", holders=MIXED)
    with world.others(), world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        assert np.array_equal(world.reconstructed(), world.manifest.layout.marginals(CODES))


def test_files_are_the_owners_alone(world: HolderBench) -> None:
    for server in world.servers:
        server.hook = _raising(Problem(Kind.PEER_FAILED, "not now"))
    with world.running(backoff=Backoff(first=60.0, longest=60.0)) as holder:
        begin(holder, world)
        holder.contribute(world.study)
        assert world.files() == ["shares", "table"]
        for folder, _, names in os.walk(world.data / "studies"):
            assert Path(folder).stat().st_mode & 0o777 == 0o700
            for name in names:
                assert name.startswith("table") or (Path(folder) / name).stat().st_mode & 0o777 == 0o600


def test_an_erased_table_does_not_stop_the_push(world: HolderBench) -> None:
    world.servers[1].hook = _raising(Problem(Kind.PEER_FAILED, "not now"))
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        holder.erase_table(world.study)
        assert world.files() == ["shares"]
        world.servers[1].hook = lambda *_: None
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        until(lambda: world.files() == [])
        assert holder.store.study(world.study).state is State.CONTRIBUTED
        with pytest.raises(Problem, match="withdraw it"):
            load(holder, world, TABLE)
        assert world.files() == []


def _raising(error: BaseException) -> Callable[[str, str], None]:
    def hook(method: str, path: str) -> None:
        raise error

    return hook


STEPS: list[tuple[Any, str]] = [
    (service, "read_table"),
    (files, "sync_path"),
    (Store, "load"),
    (service, "erase"),
    (service, "prepare"),
    (sharing, "write_vector"),
    (sharing, "write_private"),
    (sharing, "commitment"),
    (Store, "contribute"),
    (uploader.Uploader, "start"),
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_the_process_may_end_at_any_step(world: HolderBench, owner: Any, name: str, late: bool) -> None:
    inner = getattr(owner, name)

    def killing(*args: Any, **kwargs: Any) -> Any:
        if late:
            inner(*args, **kwargs)
        raise Killed

    died = False
    with world.running() as holder, pytest.MonkeyPatch.context() as patch:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        path = holder.upload_path(world.study)
        path.write_text(TABLE)
        digest = sha256(TABLE.encode()).hexdigest()
        patch.setattr(owner, name, killing)
        try:
            holder.load(world.study, path, Sent.of(CSV), digest)
            holder.contribute(world.study)
        except Killed:
            died = True
        path.write_text("what a killed process cannot erase")
    assert died
    with world.running() as holder:
        assert "upload" not in world.files()
        state = holder.store.study(world.study).state
        assert ("table" in world.files()) == (holder.store.table(world.study) is not None) == (state != "approved")
        assert ("shares" in world.files()) <= (state is State.CONTRIBUTED)
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        until(lambda: world.files() == ["table"])
    assert np.array_equal(world.reconstructed(), counts(world))


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("party", "part"),
    [
        (0, "PUT offer"),
        (0, "POST receipt"),
        (1, "PUT offer"),
        (1, "PUT chunks/0"),
        (1, "POST receipt"),
        (2, "PUT chunks/3"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_an_interrupted_push_goes_on_with_the_same_contribution(
    world: HolderBench, monkeypatch: pytest.MonkeyPatch, party: int, part: str, late: bool
) -> None:
    ask, cut = uploader.ask, []

    def cutting(client: Any, name: str, method: str, path: str, **kwargs: Any) -> Any:
        tail = path.partition(world.study)[2].split("/", 3)[3:] or ["offer"]
        if cut or name != f"S{party + 1}" or f"{method} {tail[0]}" != part:
            return ask(client, name, method, path, **kwargs)
        if late:
            ask(client, name, method, path, **kwargs)
        cut.append(part)
        holder._retries._stop.set()
        raise Stopped

    monkeypatch.setattr(uploader, "ask", cutting)
    with world.running() as holder:
        begin(holder, world)
        first = holder.contribute(world.study)
        until(lambda: bool(cut))
    with world.running() as holder:
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        assert holder.contribution(world.study).contribution == first.contribution
        until(lambda: world.files() == ["table"])
    assert np.array_equal(world.reconstructed(), counts(world))
    for server in world.servers[1:]:
        sent = [request for request in server.requests if "/chunks/" in request]
        assert len(sent) - len(set(sent)) <= 1  # nothing that a server has is sent again


def test_servers_that_fail_for_a_while_are_asked_again(world: HolderBench) -> None:
    failing = {"left": 3}

    def hook(method: str, path: str) -> None:
        if failing["left"]:
            failing["left"] -= 1
            raise Problem(Kind.NOT_READY, "the study is not approved here yet")

    world.servers[1].hook = hook
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        assert [one.problem for one in holder.contribution(world.study).deliveries] == [None] * 3


def test_a_refusal_is_shown_and_the_owner_can_ask_again(world: HolderBench) -> None:
    world.servers[2].hook = _raising(Problem(Kind.POLICY_REFUSED, "not with us"))
    with world.running() as holder:
        begin(holder, world)
        first = holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).deliveries[2].problem is not None)
        problem = holder.contribution(world.study).deliveries[2].problem
        assert problem is not None
        assert (problem["detail"], problem["retryable"], problem["party"]) == ("not with us", False, "S3")
        assert world.files() == ["shares", "table"]
        world.servers[2].hook = lambda *_: None
        assert holder.contribute(world.study).contribution == first.contribution
        until(lambda: goal(holder, world) is Goal.COMPLETE)


def test_a_receipt_that_is_not_the_servers_is_no_receipt(world: HolderBench) -> None:
    server = world.servers[0]
    honest = server.signed

    def forged(contribution: str, event: Any) -> Signed[Receipt]:
        return honest(contribution, event).model_copy(update={"signature": "00" * 64})

    server.signed = forged  # type: ignore[method-assign]
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).deliveries[0].problem is not None)
        problem = holder.contribution(world.study).deliveries[0].problem
        assert problem is not None
        assert problem["type"] == Kind.SIGNATURE_REFUSED.urn
        assert holder.contribution(world.study).deliveries[0].accepted is None
        assert goal(holder, world) is Goal.PUSHING
        server.signed = honest  # type: ignore[method-assign]
        server.receipts.clear()
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)


def test_a_receipt_for_something_else_is_refused(world: HolderBench) -> None:
    server = world.servers[0]
    honest = server.signed
    server.signed = lambda contribution, _: honest(contribution, "erased")  # type: ignore[method-assign]
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).deliveries[0].problem is not None)
        problem = holder.contribution(world.study).deliveries[0].problem
        assert problem is not None
        assert "something else" in problem["detail"]


def test_a_server_with_another_key_gets_nothing(world: HolderBench, tmp_path: Path) -> None:
    servers = [dict(one) for one in world.document["servers"]]
    servers[0]["url"], servers[1]["url"] = servers[1]["url"], servers[0]["url"]
    document = world.document | {"servers": servers}
    world.manifest = type(world.manifest).from_json(document)
    world.answer = world.manifest.canonical_bytes()
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: all(one.problem for one in holder.contribution(world.study).deliveries[:2]))
        problem = holder.contribution(world.study).deliveries[0].problem
        assert problem is not None
        assert "not caps:mpc-server/S1" in problem["detail"]
    assert not world.servers[0].requests
    assert not world.servers[1].requests


def test_withdrawn_everywhere_and_contributed_anew(world: HolderBench) -> None:
    with world.running() as holder:
        begin(holder, world)
        first = holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        record = holder.withdraw(world.study)
        assert record.goal is Goal.WITHDRAWN
        assert [one.withdrawn is not None and one.withdrawn.signer for one in record.deliveries] == ["S1", "S2", "S3"]
        assert holder.store.study(world.study).state is State.WITHDRAWN
        assert holder.withdraw(world.study) == record
        load(holder, world)
        assert holder.contribute(world.study).contribution != first.contribution
        until(lambda: goal(holder, world) is Goal.COMPLETE)


def test_a_withdrawal_overtakes_a_push(world: HolderBench) -> None:
    world.servers[1].hook = _raising(Problem(Kind.PEER_FAILED, "not now"))
    with world.running(backoff=Backoff(first=60.0, longest=60.0)) as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).deliveries[1].problem is not None)
        world.servers[1].hook = lambda *_: None
        record = holder.withdraw(world.study)
        assert record.goal is Goal.WITHDRAWN
        assert record.deliveries[1].state is Delivery.ABSENT
        until(lambda: world.files() == ["table"])


def test_after_sealing_the_servers_refusal_is_passed_on(world: HolderBench) -> None:
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        for server in world.servers:
            server.sealed = True
        with pytest.raises(Problem, match="sealed") as refused:
            holder.withdraw(world.study)
        assert refused.value.kind is Kind.CONFLICT
        assert goal(holder, world) is Goal.COMPLETE
        assert holder.store.study(world.study).state is State.CONTRIBUTED


def test_a_withdrawal_goes_on_where_it_is_refused_once_another_server_has_done_it(
    world: HolderBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1 was asked to seal it, the others were not: they withdraw, and S1 does when the seal is replaced."""
    monkeypatch.setattr(service, "_PATIENCE", 5.0)
    with world.running(backoff=Backoff(first=0.05, longest=0.05)) as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        world.servers[0].sealed = True
        monkeypatch.setattr(service, "_PATIENCE", 0.5)
        record = holder.withdraw(world.study)
        assert record.goal is Goal.WITHDRAWING
        assert [one.state for one in record.deliveries] == [
            Delivery.ACCEPTED,
            Delivery.WITHDRAWN,
            Delivery.WITHDRAWN,
        ]
        assert record.deliveries[0].problem is not None
        assert world.files() == ["table"]  # nobody can compute on it any more
        world.servers[0].sealed = False
        until(lambda: goal(holder, world) is Goal.WITHDRAWN)


def test_if_all_refuse_to_withdraw_it_the_push_goes_on(world: HolderBench) -> None:
    """All servers have it and are sealed, but one receipt was lost on the way."""
    with world.running(backoff=Backoff(first=60.0, longest=60.0)) as holder:
        begin(holder, world)
        lost = _raising(Problem(Kind.PEER_FAILED, "not now"))
        world.servers[1].hook = lambda method, path: lost(method, path) if path.endswith("/receipt") else None
        holder.contribute(world.study)
        until(lambda: holder.contribution(world.study).deliveries[1].problem is not None)
        until(lambda: all(holder.contribution(world.study).deliveries[i].accepted for i in (0, 2)))
        for server in world.servers:
            server.sealed = True
        world.servers[1].hook = lambda *_: None
        with pytest.raises(Problem, match="sealed"):
            holder.withdraw(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)


def test_after_a_withdrawal_the_same_table_is_contributed_again(world: HolderBench) -> None:
    with world.running() as holder:
        begin(holder, world)
        first = holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        assert holder.withdraw(world.study).goal is Goal.WITHDRAWN
        assert holder.contribute(world.study).contribution != first.contribution
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        holder.withdraw(world.study)
        holder.erase_table(world.study)
        with pytest.raises(Problem, match="load a table first"):
            holder.contribute(world.study)


def test_a_withdrawal_that_was_cut_off_goes_on(world: HolderBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PATIENCE", 0.0)
    with world.running() as holder:
        begin(holder, world)
        holder.contribute(world.study)
        until(lambda: goal(holder, world) is Goal.COMPLETE)
        world.servers[2].hook = _raising(Problem(Kind.PEER_FAILED, "not now"))
        holder.withdraw(world.study)
        until(lambda: holder.contribution(world.study).deliveries[2].problem is not None)
        with pytest.raises(Problem, match="being withdrawn"):
            holder.contribute(world.study)
    world.servers[2].hook = lambda *_: None
    with world.running() as holder:
        until(lambda: goal(holder, world) is Goal.WITHDRAWN)
        assert holder.store.study(world.study).state is State.WITHDRAWN


def test_a_decline_waits_for_the_coordinator_and_an_approval_takes_it_back(world: HolderBench) -> None:
    world.approval_hook = lambda: _raising(Problem(Kind.PEER_FAILED, "not now"))("", "")
    with world.running() as holder:
        holder.know(world.urls["coordinator"], world.study)
        assert holder.decline(world.study, "No.").state is State.DECLINED
        until(lambda: holder.store.study(world.study).approval_problem is not None)
    world.approval_hook = lambda: None
    with world.running() as holder:
        until(lambda: holder.store.study(world.study).decline_sent)
        assert [one.document.reason for one in world.declines] == ["No."]
        holder.decline(world.study, "Never.")
        until(lambda: holder.store.study(world.study).decline_sent)
        assert [one.document.reason for one in world.declines] == ["No.", "Never."]
        with pytest.raises(Problem, match="approve the study first"):
            holder.upload_path(world.study)
        found = holder.approve(world.study)
        assert (found.state, found.decline) == (State.APPROVED, None)
        until(lambda: holder.store.study(world.study).approval_sent)
        with pytest.raises(Problem, match="a signature stands"):
            holder.decline(world.study, "Too late.")
    assert (len(world.approvals), len(world.declines)) == (1, 2)


def test_the_approval_waits_for_the_coordinator(world: HolderBench) -> None:
    world.approval_hook = lambda: _raising(Problem(Kind.PEER_FAILED, "not now"))("", "")
    with world.running() as holder:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        until(lambda: holder.store.study(world.study).approval_problem is not None)
    world.approval_hook = lambda: None
    with world.running() as holder:
        until(lambda: holder.store.study(world.study).approval_sent)
        assert holder.store.study(world.study).approval_problem is None
        holder.approve(world.study)
    assert len(world.approvals) == 1
