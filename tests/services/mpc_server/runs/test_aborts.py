"""A check on shares that fails ends a run for good: signed evidence is in the ledger, and what was charged stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, insert, select

from caps.dp.bounds import MOST_SESSIONS
from caps.dp.oracle import Compute, request_digest
from caps.errors import CheatingDetected, CheatingUnresolved, LocalError
from caps.study import Manifest, Policy
from caps.trust import signing
from caps.wire import Answer, Evidence, RunStatus, Signed
from caps.wire.steps import request_to_json
from deploy.federation import SERVERS, Federation
from services.mpc_server.runs.record import Record
from services.mpc_server.runs.session import Seat, noticing
from services.mpc_server.storage import tables
from services.mpc_server.storage.ledger import Ledger
from tests.kit.federation import POPULATIONS, Driver, ServerStores, manifest_of, opened
from tests.kit.study import AT, Keys, example_manifest, honest_walk, joined_manifest
from tests.kit.waiting import until

RUN, INPUTS = "ab" * 16, "cd" * 32


@pytest.fixture(scope="module", params=["rep3-active", "rep4"])
def study(request: pytest.FixtureRequest) -> tuple[Manifest, Keys]:
    return example_manifest(scheme=request.param)


@pytest.fixture
def database(tmp_path: Path, study: tuple[Manifest, Keys]) -> Iterator[Engine]:
    with opened(tmp_path / "state.db") as found:
        add_run(found, study[0])
        yield found


def add_run(database: Engine, manifest: Manifest) -> None:
    ledger = Ledger(database)
    with database.begin() as transaction:
        row = {"manifest": "{}", "state": "sealed", "created_at": AT}
        transaction.execute(insert(tables.studies).values(study=manifest.study_id, **row))
        run = {"run": RUN, "study": manifest.study_id, "inputs": INPUTS, "build": "0" * 64, "state": "going"}
        transaction.execute(insert(tables.runs).values(**run))
        population = manifest.privacy.population
        limit = Policy(populations={population: 9.0}).population_budget(population)
        assert limit is not None
        ledger.reserve(transaction, RUN, manifest, manifest.reservation, limit=limit, at=AT)


def record_of(database: Engine, manifest: Manifest) -> Record:
    return Record(database, Ledger(database), manifest, RUN, INPUTS, [holder.name for holder in manifest.holders])


def evidence_of(manifest: Manifest, keys: Keys, server: str = "S3", **changes: Any) -> Signed[Evidence]:
    members: dict[str, Any] = {
        "study": manifest.study_id,
        "run": RUN,
        "step": 1,
        "scheme": manifest.scheme,
        "pair": ("S1", "S2"),
        "check": "messages",
        "server": server,
        "at": AT,
    }
    return Signed[Evidence].by(Evidence(**members | changes), server, keys[server].signing)


def state(database: Engine) -> tuple[str, str | None]:
    with database.begin() as connection:
        row = connection.execute(select(tables.runs).where(tables.runs.c.run == RUN)).one()
    return row.state, row.reason


def kinds(database: Engine) -> list[str]:
    ledger = Ledger(database)
    records = list(ledger.records())
    assert ledger.verify() == len(records)
    return [record["kind"] for record in records]


def write_step(record: Record, number: int) -> None:
    _, steps = honest_walk(record.manifest)
    request = Compute() if number == 0 else steps[number][0]
    record.write(number, request, request_digest(request).hex(), AT)


def test_what_was_charged_stays_charged(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    write_step(record, 0)
    answer = Answer(study=manifest.study_id, run=RUN, step=0, request=record.steps[0].digest, value=(1, 1))
    record.answer(0, Signed[Answer].by(answer, "S1", keys["S1"].signing), {})
    write_step(record, 1)
    record.abort(evidence_of(manifest, keys), AT)
    assert record.aborted
    assert state(database) == ("aborted", "S3 found that S1 or S2 deviates from the protocol")
    assert kinds(database) == ["reserve", "charge", "abort"]
    assert Ledger(database).taken()[manifest.privacy.population] == [manifest.reservation]


def test_a_run_that_charged_nothing_gives_its_budget_back(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    write_step(record, 0)
    record.abort(evidence_of(manifest, keys, step=0), AT)
    assert kinds(database) == ["reserve", "abort", "release"]
    assert Ledger(database).taken()[manifest.privacy.population] == []


def test_a_join_that_servers_saw_something_of_is_a_charge(tmp_path) -> None:
    manifest = joined_manifest(scheme="rep3-active")
    with opened(tmp_path / "state.db") as database:
        add_run(database, manifest)
        record = record_of(database, manifest)
        write_step(record, 0)
        keys = example_manifest()[1]
        record.abort(evidence_of(manifest, keys, step=0), AT)
        assert kinds(database) == ["reserve", "charge", "abort"]


def test_nothing_is_written_after_it(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    record.abort(evidence_of(manifest, keys), AT)
    with pytest.raises(LocalError, match="the run has ended"):
        write_step(record, 0)
    with pytest.raises(LocalError, match="cannot end a run that is aborted"):
        record.end("{}", AT)


def test_evidence_of_each_server_is_kept_once_and_read_again_after_a_restart(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    first = evidence_of(manifest, keys)
    for evidence in (first, evidence_of(manifest, keys, step=7), evidence_of(manifest, keys, "S2", pair=("S1", "S3"))):
        record.abort(evidence, AT)
    found = Ledger(database).evidence(RUN)
    assert [one.signer for one in found] == ["S3", "S2"]
    assert found[0] == first
    for one in found:
        one.verify(manifest.server(one.signer)).matches(manifest, RUN)
    assert kinds(database).count("abort") == 2
    assert state(database)[1] == first.document.words


@pytest.mark.parametrize("event", ["ended", "failed"])
def test_a_run_that_is_over_stays_as_it_is_with_the_evidence_beside_it(database, study, event: str) -> None:
    manifest, keys = study
    with database.begin() as connection:
        connection.execute(tables.runs.update().values(state=event, reason="before"))
    record = record_of(database, manifest)
    record.abort(evidence_of(manifest, keys), AT)
    assert not record.aborted
    assert state(database) == (event, "before")
    assert len(Ledger(database).evidence(RUN)) == 1


def test_a_failed_check_is_signed_and_written_down_before_anything_else(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    seat = Seat(2, "S3", keys["S3"].signing, None, lambda: AT, bytes(32))  # type: ignore[arg-type]
    with pytest.raises(CheatingDetected), noticing(record, seat, 4):
        raise CheatingDetected((1, 0))
    (found,) = Ledger(database).evidence(RUN)
    said = found.verify(manifest.server("S3"))
    assert (said.pair, said.step, said.check, said.scheme) == (("S1", "S2"), 4, "messages", manifest.scheme)
    assert record.aborted
    with noticing(record, seat, 5):
        pass  # nothing happened
    assert len(Ledger(database).evidence(RUN)) == 1


def test_a_failed_check_ends_the_run_even_if_nobody_could_be_named(database, study) -> None:
    manifest, keys = study
    record = record_of(database, manifest)
    seat = Seat(2, "S3", keys["S3"].signing, None, lambda: AT, bytes(32))  # type: ignore[arg-type]
    with pytest.raises(CheatingUnresolved), noticing(record, seat, 4):
        raise CheatingUnresolved(1)
    (found,) = Ledger(database).evidence(RUN)
    said = found.verify(manifest.server("S3"))
    said.matches(manifest, RUN)
    assert said.pair is None
    assert state(database) == ("aborted", "S3 found that a server deviates from the protocol, but not which")


def test_sessions_that_are_interrupted_are_counted_over_all_runs_of_a_study(database, study) -> None:
    manifest, _ = study
    record = record_of(database, manifest)
    with database.begin() as transaction:
        other = {"run": "ef" * 16, "study": manifest.study_id, "inputs": INPUTS, "build": "0" * 64, "state": "failed"}
        transaction.execute(insert(tables.runs).values(**other, interrupted=MOST_SESSIONS - 2))
    for _ in range(3):  # ended well
        record.count_session(1)
        record.count_session(-1)
    record.count_session(1)
    record.require_sessions()
    record.count_session(1)
    with pytest.raises(LocalError, match=f"{MOST_SESSIONS} sessions of this study ended in the middle"):
        record_of(database, manifest).require_sessions()


def test_where_servers_are_trusted_sessions_are_not_counted(tmp_path) -> None:
    manifest, _ = example_manifest()
    with opened(tmp_path / "state.db") as database:
        add_run(database, manifest)
        record = record_of(database, manifest)
        for _ in range(MOST_SESSIONS + 1):
            record.count_session(1)
        record.require_sessions()


# The same in real servers.


@pytest.fixture(scope="module")
def accused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Driver, list[Any]]]:
    """A run that S3 aborts in step 2; the answers to that step."""
    holders = [{"name": "north", "brings": "rows"}]
    with Federation(
        tmp_path_factory.mktemp("accused"), ["north"], populations=POPULATIONS, environment={"CAPS_STALL": "8"}
    ) as federation:
        federation.start("S1", "S2")
        federation.start("S3", under=("tests.kit.accusing_service",), environment={"CAPS_ACCUSE_STEP": "2"})
        federation.wait_ready(*SERVERS)
        manifest = manifest_of(federation, holders, algorithm="mwem", parameters={"rounds": 3})
        with Driver(federation, manifest) as driver:
            counts = manifest.layout.marginals(honest_rows(manifest))
            driver.ready({"north": counts})
            driver.patience = 20.0
            request = driver.until(1)
            driver.patience = 0.0
            responses = driver.ask(2, [request_to_json(request)] * 3)
            yield federation, driver, responses


def honest_rows(manifest: Manifest) -> Any:
    generator = np.random.default_rng(3)
    return np.stack([generator.integers(0, size, 200) for size in manifest.domain.sizes], axis=1)


def state_at(driver: Driver, name: str) -> str:
    return str(driver.clients[name].get(f"/v1/runs/{driver.run}").json()["state"])


def problem(response: Any) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return str(response.json()["type"]).rpartition(":")[2]


@pytest.mark.integration
def test_the_server_refuses_with_the_reason_and_its_peers_wait(accused) -> None:
    federation, driver, responses = accused
    assert problem(responses[2]) == "aborted"
    body = responses[2].json()
    assert "S3 found that S1 or S2 deviates from the protocol" in body["detail"]
    assert body["retryable"] is False
    (given,) = [Signed[Evidence].model_validate(one) for one in body["evidence"]]
    given.verify(driver.manifest.server("S3")).matches(driver.manifest, driver.run)
    assert (given.document.pair, given.document.step) == (("S1", "S2"), 2)
    assert all(problem(response) == "peer-failed" for response in responses[:2])
    for name in ("S1", "S2"):
        until(lambda name=name: state_at(driver, name) == "waiting")
    time.sleep(1.0)  # a session that is opened again would be by now
    assert [state_at(driver, name) for name in SERVERS] == ["waiting", "waiting", "aborted"]
    told = federation.log("S3")
    assert '"aborted"' in told
    assert "session opened" not in told.partition('"aborted"')[2]


@pytest.mark.integration
def test_the_run_is_over_at_this_server_also_after_a_restart(accused) -> None:
    federation, driver, _ = accused
    client = driver.clients["S3"]
    for restarted in (False, True):
        if restarted:
            federation.stop("S3")
            federation.start("S3")
            federation.wait_ready("S3")
        status = RunStatus.model_validate(client.get(f"/v1/runs/{driver.run}").json())
        assert (status.state, len(status.evidence)) == ("aborted", 1)
        again = client.put(f"/v1/runs/{driver.run}/steps/2", json={"kind": "compute"})
        assert again.status_code in (409, 422)
        assert problem(client.put(f"/v1/runs/{driver.run}/attestation")) == "aborted"
        other = client.put(f"/v1/runs/{'ef' * 16}", json={"study": driver.study, "inputs": driver.inputs})
        assert problem(other) == "aborted"
        records = [one for one in ServerStores(federation, "S3").ledger() if one["run"] == driver.run]
        assert [one["kind"] for one in records] == ["reserve", "charge", "charge", "abort"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("changes", "signer", "said"),
    [
        ({}, "S2", "signature-refused"),
        ({"server": "S2", "pair": ("S1", "S3")}, "S3", "invalid"),
        ({"run": "0" * 32}, "S3", "invalid"),
        ({"study": "0" * 64}, "S3", "invalid"),
        ({"pair": ("S2", "S2")}, "S3", "invalid"),
        ({"scheme": "rep4"}, "S3", "invalid"),
    ],
)
def test_evidence_that_does_not_hold_ends_nothing(accused, changes: dict[str, Any], signer: str, said: str) -> None:
    federation, driver, responses = accused
    given = Signed[Evidence].model_validate(responses[2].json()["evidence"][0]).document
    key = signing.read_signing_key(federation.places[signer].home / "signing-key.pem")
    forged = Signed[Evidence].by(given.model_copy(update=changes), "S3", key).to_json()
    client = driver.clients["S1"]
    response = client.put(f"/v1/runs/{driver.run}/evidence", json={"evidence": [forged]})
    assert problem(response) == said
    assert client.get(f"/v1/runs/{driver.run}").json()["state"] in ("waiting", "going")


@pytest.mark.integration
def test_other_callers_bring_no_evidence(accused) -> None:
    federation, driver, _ = accused
    with federation.machine("S1", "north") as holder:
        response = holder.put(f"/v1/runs/{driver.run}/evidence", json={"evidence": []})
        assert response.status_code == 403


@pytest.mark.integration
def test_evidence_brought_to_the_others_ends_the_run_there_and_is_kept(accused) -> None:
    federation, driver, responses = accused
    body = {"evidence": responses[2].json()["evidence"]}
    for name in ("S1", "S2", "S3"):
        for _ in range(2):
            response = driver.clients[name].put(f"/v1/runs/{driver.run}/evidence", json=body)
            assert response.status_code == 200, response.text
            status = RunStatus.model_validate(response.json())
            assert status.state == "aborted"
            assert [one.signer for one in status.evidence] == ["S3"]
        records = [one for one in ServerStores(federation, name).ledger() if one["run"] == driver.run]
        assert [one["kind"] for one in records].count("abort") == 1
        assert driver.clients[name].delete(f"/v1/runs/{driver.run}").json()["state"] == "aborted"
    client = driver.clients["S1"]
    with federation.client("S1", "auditor") as auditor:
        found = auditor.get(f"/v1/studies/{driver.study}/manifest")
        assert found.content == driver.manifest.canonical_bytes()
    refused = client.put(f"/v1/runs/{driver.run}/steps/3", json={"kind": "compute"})
    assert refused.status_code == 409
