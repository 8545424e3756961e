"""The light join at the servers: who may ask how much, what is kept, and what is gone once inputs are sealed."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError
from sqlalchemy import select

from caps.data import oprf
from caps.data.joinkey import random_ids
from caps.study import Policy
from caps.wire.problems import Kind
from services.mpc_server.intake.matching import MOST_ELEMENTS
from services.mpc_server.storage import tables
from tests.kit.mpc_server import Dealt, Desk, Parties, approvals, dealt, seal_request
from tests.kit.study import COLUMNS, MIXED, POPULATIONS, SERVERS, example_manifest

CAPACITY = 8
JOIN: dict[str, Any] = {"key": {"columns": [{"name": "number", "kind": "text"}]}, "protocol": "oprf"}
POLICY = Policy(populations=POPULATIONS, approval="automatic", least_capacity=1)
IDENTITY = bytes(32)
NO_ELEMENT = b"\xff" * 32


@pytest.fixture
def federation(tmp_path: Path) -> Parties:
    return Parties(tmp_path, holders=MIXED, capacity=CAPACITY, join=JOIN)


@pytest.fixture
def desk(federation: Parties) -> Desk:
    desk = federation.desk("S1", policy=POLICY)
    desk.propose()
    return desk


def elements(count: int, client: oprf.Client | None = None) -> bytes:
    return (client or oprf.Client.fresh()).blind(random_ids(count))


def evaluate(desk: Desk, batch: bytes, who: Any = "lab", **choices: Any) -> httpx.Response:
    return desk.call(who, "POST", "/oprf", content=batch, **choices)


def put_tags(desk: Desk, tags: bytes, who: Any = "lab") -> httpx.Response:
    return desk.call(who, "PUT", "/tags", content=tags)


def fresh_tags(count: int = CAPACITY) -> bytes:
    return secrets.token_bytes(16 * count)


def positions(desk: Desk, who: Any = "lab") -> httpx.Response:
    return desk.call(who, "GET", "/positions")


def refused(response: httpx.Response, kind: Kind, words: str = "") -> None:
    assert response.headers["content-type"].startswith("application/problem+json")
    assert (response.status_code, response.json()["type"]) == (kind.value.status, kind.urn), response.text
    assert words in response.json()["detail"]


def told(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<u4").tolist()


def test_three_servers_evaluate_a_function_that_all_holders_share(federation: Parties) -> None:
    desks = [federation.desk(name, policy=POLICY) for name in SERVERS]
    ids, found = random_ids(CAPACITY), []
    for desk in desks:
        desk.propose()
    for who in ("registry", "lab"):
        client = oprf.Client.fresh()
        answers = [evaluate(desk, client.blind(ids), who).content for desk in desks]
        found.append(client.finalise(ids, answers))
    assert np.array_equal(*found)
    assert len({answer[:32] for answer in answers}) == 3


def test_a_holder_has_as_many_elements_as_rows_and_repeats_are_free(desk: Desk) -> None:
    first, second = elements(5), elements(3)
    answer = evaluate(desk, first)
    assert answer.headers["content-type"] == "application/octet-stream"
    refused(evaluate(desk, elements(4)), Kind.FORBIDDEN, "3 of them are left")
    assert evaluate(desk, second).status_code == 200
    before = desk.snapshot()
    assert evaluate(desk, first).content == answer.content
    refused(evaluate(desk, elements(1)), Kind.FORBIDDEN, "0 of them are left")
    refused(evaluate(desk, first[32:] + first[:32]), Kind.FORBIDDEN)
    assert desk.snapshot() == before
    again = desk.federation.desk("S1")
    assert evaluate(again, first).content == answer.content
    assert evaluate(desk, elements(8), "registry").status_code == 200


@pytest.mark.parametrize(
    ("batch", "kind", "words"),
    [
        (b"", Kind.INVALID, "1 to 32768"),
        (bytes(31), Kind.INVALID, "32 bytes"),
        (bytes(32 * 9), Kind.FORBIDDEN, "8 elements"),
        (bytes(32 * (MOST_ELEMENTS + 1)), Kind.TOO_LARGE, ""),
    ],
)
def test_a_batch_that_is_none_changes_nothing(desk: Desk, batch: bytes, kind: Kind, words: str) -> None:
    evaluate(desk, elements(1), "registry")  # the keys are made
    before = desk.snapshot()
    refused(evaluate(desk, batch), kind, words)
    assert desk.snapshot() == before
    assert evaluate(desk, elements(CAPACITY)).status_code == 200


@pytest.mark.parametrize(
    ("batch", "words"), [(IDENTITY, "element 0"), (NO_ELEMENT, "element 0"), (b"good" + IDENTITY, "element 1")]
)
def test_a_batch_is_counted_before_it_is_evaluated(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, batch: bytes, words: str
) -> None:
    """So nobody can have a server work on elements that are none, again and again."""
    batch = batch.replace(b"good", elements(1))
    left = CAPACITY - len(batch) // 32
    refused(evaluate(desk, batch), Kind.INVALID, words)
    with monkeypatch.context() as patch:
        patch.setattr(oprf.ServerKey, "evaluate", no_work)
        refused(evaluate(desk, batch), Kind.INVALID, "refused before")
        refused(evaluate(desk, elements(CAPACITY)), Kind.FORBIDDEN, f"{left} of them are left")
    assert evaluate(desk, elements(left)).status_code == 200


def no_work(*_: Any) -> Any:
    raise AssertionError("nothing should be evaluated")


def test_a_repeated_batch_is_no_work(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = elements(3)
    answer = evaluate(desk, batch).content
    monkeypatch.setattr(oprf.ServerKey, "evaluate", no_work)
    assert evaluate(desk, batch).content == answer
    assert evaluate(desk.federation.desk(desk.name, policy=POLICY), batch).content == answer


def test_one_batch_of_a_holder_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    inner: list[httpx.Response] = []
    honest = oprf.ServerKey.evaluate

    def meanwhile(key: oprf.ServerKey, batch: bytes) -> bytes:
        if not inner:
            inner.append(evaluate(desk, elements(2)))
            inner.append(evaluate(desk, elements(2), "registry"))
        return honest(key, batch)

    monkeypatch.setattr(oprf.ServerKey, "evaluate", meanwhile)
    assert evaluate(desk, elements(2)).status_code == 200
    refused(inner[0], Kind.TOO_MANY, "1 evaluations open")
    assert inner[0].headers["retry-after"] == "1"
    assert inner[1].status_code == 200
    refused(evaluate(desk, elements(CAPACITY)), Kind.FORBIDDEN, f"{CAPACITY - 2} of them are left")


def test_who_may_not_ask(desk: Desk, tmp_path: Path) -> None:
    federation = desk.federation
    stranger = federation.certificate("lab", impostor=True)
    outside = Parties(tmp_path / "other", holders=[("stranger", None)])
    other = Parties(tmp_path / "aligned", holders=COLUMNS)
    aligned = other.desk("S1")
    aligned.propose()
    before = desk.snapshot()
    for call in (
        lambda desk, who: evaluate(desk, elements(1), who),
        lambda desk, who: put_tags(desk, fresh_tags(), who),
        positions,
    ):
        refused(call(desk, "clinic-a"), Kind.FORBIDDEN, "contributes nothing that is joined by tags")
        refused(call(desk, stranger), Kind.FORBIDDEN, "does not have the key")
        refused(call(desk, outside.certificate("stranger")), Kind.FORBIDDEN, "is not a holder of this study")
        refused(call(desk, "coordinator"), Kind.FORBIDDEN)
        refused(call(desk, None), Kind.UNAUTHENTICATED)
        refused(call(aligned, "lab"), Kind.NOT_FOUND, "does not join by tags")
    unknown = desk.call("lab", "POST", f"/v1/studies/{'0' * 64}/oprf", content=elements(1))
    refused(unknown, Kind.NOT_FOUND)
    assert desk.snapshot() == before


def test_only_s1_matches(federation: Parties) -> None:
    desk = federation.desk("S2", policy=POLICY)
    desk.propose()
    refused(put_tags(desk, fresh_tags()), Kind.NOT_FOUND, "at S1")
    refused(positions(desk), Kind.NOT_FOUND, "at S1")


def test_positions_come_when_all_tags_are_there_and_then_tags_are_settled(desk: Desk) -> None:
    mine, theirs = fresh_tags(), fresh_tags()
    theirs = mine[:48] + theirs[48:]
    response = positions(desk)
    refused(response, Kind.NOT_READY, "have not sent their tags yet")
    assert response.json()["retryable"]
    assert response.json()["holders"] == ["registry", "lab"]
    assert put_tags(desk, fresh_tags()).status_code == 204
    assert put_tags(desk, mine).status_code == 204  # others, before positions were given
    assert positions(desk).json()["holders"] == ["registry"]
    assert put_tags(desk, theirs, "registry").status_code == 204
    found, other = told(positions(desk)), told(positions(desk, "registry"))
    assert found[:3] == other[:3]
    assert len({*found, *other}) == 2 * CAPACITY - 3
    assert set(found) | set(other) <= set(range(2 * CAPACITY))
    before = desk.snapshot()
    assert put_tags(desk, mine).status_code == 204
    refused(put_tags(desk, fresh_tags()), Kind.CONFLICT, "positions were already given")
    assert told(positions(desk.federation.desk("S1"))) == found
    assert desk.snapshot() == before


@pytest.mark.parametrize(
    ("tags", "kind", "words"),
    [
        (fresh_tags(CAPACITY - 1), Kind.INVALID, "128 bytes"),
        (b"", Kind.INVALID, "128 bytes"),
        (fresh_tags(CAPACITY + 1), Kind.TOO_LARGE, "128 bytes"),
        (b"tag of a person." * 2 + fresh_tags(CAPACITY - 2), Kind.INVALID, "1 tags of lab are duplicates"),
    ],
)
def test_tags_that_cannot_be(desk: Desk, tags: bytes, kind: Kind, words: str) -> None:
    before = desk.snapshot()
    refused(put_tags(desk, tags), kind, words)
    assert desk.snapshot() == before


def sealed(federation: Parties) -> dict[str, Desk]:
    """All servers have evaluated and S1 has matched; then the inputs are sealed."""
    desks = {name: federation.desk(name, policy=POLICY) for name in SERVERS}
    given = approvals(federation, desks)
    for desk in desks.values():
        evaluate(desk, elements(2))
    for who in ("lab", "registry"):
        put_tags(desks["S1"], fresh_tags(), who)
    told(positions(desks["S1"]))
    made: list[Dealt] = [dealt(federation, holder.name) for holder in federation.manifest.holders]
    for name, desk in desks.items():
        for one in made:
            assert desk.contribute(one).status_code == 200, name
        response = desk.call("coordinator", "PUT", "/seal", seal_request(made, given))
        assert response.status_code == 200, response.text
    return desks


def test_the_key_and_all_tags_are_gone_once_inputs_are_sealed(federation: Parties) -> None:
    for desk in sealed(federation).values():
        with desk.database.begin() as connection:
            assert connection.execute(select(tables.studies.c.join_key)).scalars().all() == [None]
            assert connection.execute(select(tables.tags)).all() == []
            assert connection.execute(select(tables.evaluations)).all() == []
        assert not list((desk.home / "state" / "shares" / "blobs").rglob("join/*"))
        before = desk.snapshot()
        refused(evaluate(desk, elements(1)), Kind.CONFLICT, "sealed")
        if desk.name == "S1":
            refused(put_tags(desk, fresh_tags()), Kind.CONFLICT, "sealed")
            refused(positions(desk), Kind.CONFLICT, "sealed")
        assert desk.snapshot() == before


def test_what_a_crash_at_the_seal_left_is_unlinked(federation: Parties) -> None:
    desk = sealed(federation)["S1"]
    desk.store.put(f"{federation.study}/join/tags/left", bytes(32), b"tags")
    desk.studies.sweep(federation.clock())
    assert not list((desk.home / "state" / "shares" / "blobs").rglob("join/*"))


def test_an_erased_study_keeps_nothing_of_it(desk: Desk) -> None:
    evaluate(desk, elements(1))
    put_tags(desk, fresh_tags())
    desk.studies.erase(desk.federation.study)
    refused(evaluate(desk, elements(1)), Kind.CONFLICT, "erased")
    assert not list((desk.home / "state" / "shares" / "blobs").rglob("*"))
    with desk.database.begin() as connection:
        assert connection.execute(select(tables.studies.c.join_key)).scalars().all() == [None]
        assert connection.execute(select(tables.tags)).all() == []


def test_tags_rest_encrypted_and_no_log_has_them(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    tags, batch = fresh_tags(), elements(2)
    with caplog.at_level("DEBUG"):
        answer = evaluate(desk, batch).content
        put_tags(desk, tags)
    assert "evaluated" in caplog.text
    for secret in (tags[:16], batch[:32], answer[:32]):
        assert secret.hex() not in caplog.text
        for path in (desk.home / "state").rglob("*"):
            assert not path.is_file() or secret not in path.read_bytes()


def test_a_study_that_is_not_approved_answers_nothing(federation: Parties) -> None:
    desk = federation.desk("S1", policy=Policy(populations=POPULATIONS, approval="manual", least_capacity=1))
    desk.propose()
    refused(evaluate(desk, elements(1)), Kind.NOT_READY, "not approved")
    refused(put_tags(desk, fresh_tags()), Kind.NOT_READY)


def test_an_inner_join_by_tags_is_refused_and_one_on_shares_is_not() -> None:
    example_manifest(holders=COLUMNS, capacity=CAPACITY, join=JOIN | {"mode": "inner", "protocol": "shuffle"})
    with pytest.raises(ValidationError, match=r"join\.mode: oprf only supports a union"):
        example_manifest(holders=COLUMNS, capacity=CAPACITY, join=JOIN | {"mode": "inner"})


def test_services_load_the_groups_library_only_for_such_studies() -> None:
    code = "import sys, services.mpc_server.service, services.holder.api; sys.exit('rbcl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
