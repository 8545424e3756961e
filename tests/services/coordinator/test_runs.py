"""A run from the manifest to the release, and everything that can come between."""

from __future__ import annotations

import json
import secrets
import threading
from contextlib import contextmanager

import pytest

from caps.audit.verification import verify
from caps.basics.retry import Backoff
from caps.service.problems import Problem
from caps.wire import Attestation, Certificate
from caps.wire.coordinator import Judged
from services.coordinator import runs
from services.coordinator.execution import Stopped
from services.coordinator.formats import digest_of
from services.coordinator.service import Coordinator
from services.coordinator.store import State
from tests.kit.coordinator_servers import Bench, performed, written
from tests.kit.study import AT, COLUMNS, NOW, SERVERS, example_json, make_keys
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

ROWS = ("data.csv", "data.parquet", "data.arrow", "data.ndjson")
FILES = (*ROWS, "model.caps", "measurements.json", "transcript.ndjson", "report.json")


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def verified(bench: Bench, coordinator: Coordinator, run: str) -> None:
    """What was released follows from what the servers signed; rows in any format are the release's."""
    folder, certificate = bench.folder(run), coordinator.store.release(run).certificate
    opened = {"transcript": folder / "transcript.ndjson", "measurements": folder / "measurements.json"}
    for name in ROWS:
        checks = verify(certificate, data=folder / name, now=NOW, **opened)
        assert [check for check in checks if not check.passed] == []


def test_a_run_becomes_a_release(bench):
    coordinator, run = performed(bench)
    assert (run.state, run.reason) == (State.RELEASED, None)
    release = coordinator.store.release(run.run)
    certificate = release.certificate
    assert certificate.manifest == bench.manifest
    assert [one.signer for one in certificate.approvals] == ["S1", "S2", "S3", "clinic-a", "clinic-b"]
    body = certificate.release.verify(bench.manifest.coordinator)
    folder = bench.folder(run.run)
    assert body.files == {name: digest_of(folder / name) for name in FILES}
    assert body.transcript == certificate.attestations[0].document.transcript
    for server, attestation in zip(bench.manifest.servers, certificate.attestations, strict=True):
        assert attestation.verify(server).server == server.name
    assert body.rows == len((folder / "data.csv").read_text().splitlines()) - 1
    position = coordinator.runs.position(run.run)
    assert position.percent == 100
    assert position.steps == len(bench.federation.answered)
    assert set(position.measured[:4]) == {(name,) for name in bench.manifest.domain.names}
    assert {path.name for path in folder.iterdir()} == {*FILES, "findings.json"}
    verified(bench, coordinator, run.run)


def test_measurements_are_what_the_servers_opened(bench):
    _, run = performed(bench)
    measured = json.loads((bench.folder(run.run) / "measurements.json").read_bytes())["measurements"]
    opened = [list(value) for _, value in bench.federation.answered[1:] if not isinstance(value, int)]
    assert [one["values"] for one in measured] == opened
    assert measured[0]["categories"] == [["[0, 20)", "[20, 40)", "[40, 60)", "[60, 80)"]]
    assert all(one["half_width_95"] == pytest.approx(1.96 * one["sigma"], abs=0.02) for one in measured)
    report = json.loads((bench.folder(run.run) / "report.json").read_bytes())
    assert report["privacy"]["epsilon"] == pytest.approx(1.0)
    assert 0 < report["quality"]["mean_ratio"] < 3


@pytest.mark.parametrize("algorithm", ["mst", {"name": "mwem", "parameters": {"rounds": 2}}, "gaussian"])
def test_every_algorithm_gets_there(tmp_path, algorithm):
    bench = Bench(tmp_path, algorithm=algorithm)
    coordinator, run = performed(bench)
    assert run.state is State.RELEASED
    verified(bench, coordinator, run.run)


def test_a_pure_budget(tmp_path):
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}
    algorithm = {"name": "mwem", "parameters": {"rounds": 2}}
    bench = Bench(tmp_path, algorithm=algorithm, privacy=privacy)
    coordinator, run = performed(bench)
    assert (run.state, run.reason) == (State.RELEASED, None)
    verified(bench, coordinator, run.run)
    measured = json.loads((bench.folder(run.run) / "measurements.json").read_bytes())["measurements"]
    assert {one["noise"] for one in measured} == {"laplace"}


def test_holders_of_columns(tmp_path):
    assert performed(Bench(tmp_path, holders=COLUMNS))[1].state is State.RELEASED


class Crash(BaseException):
    """What kill -9 is to a process."""


class Crashes:
    """Raises before or after the n-th transaction of a store, counted from now."""

    def __init__(self, store, at: int, *, after: bool) -> None:
        self.seen, self._inner = 0, store._write

        @contextmanager
        def write():
            self.seen += 1
            if self.seen == at and not after:
                raise Crash
            with self._inner() as connection:
                yield connection
            if self.seen == at and after:
                raise Crash

        store._write = write


@pytest.fixture
def fixed_ids(monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda count=32: "ab" * count)


def finished(bench: Bench, coordinator: Coordinator, run: str) -> dict[str, bytes]:
    record = coordinator.store.run(run)
    assert (record.state, record.reason) == (State.RELEASED, None)
    certificate = json.dumps(coordinator.store.release(run).certificate.to_json()).encode()
    told = [event.body for event in coordinator.store.events(run) if event.kind == "progress"]
    events = [{**one, "fit_seconds": one["fit_seconds"] is not None} for one in told]  # fits take what they take
    return {**written(bench.folder(run), FILES), "certificate": certificate, "events": json.dumps(events).encode()}


def test_a_crash_at_any_write_changes_nothing(tmp_path, fixed_ids):
    bench = Bench(tmp_path / "whole")
    coordinator, run = bench.started()
    counted = Crashes(coordinator.store, -1, after=False)
    coordinator.runs.perform(run)
    expected, writes = finished(bench, coordinator, run), counted.seen
    assert writes > 15
    for at in range(1, writes + 1):
        folder = tmp_path / str(at)
        again = Bench(folder, keys=bench.keys)
        assert again.manifest == bench.manifest
        coordinator, run = again.started()
        Crashes(coordinator.store, at, after=False)
        with pytest.raises(Crash):
            coordinator.runs.perform(run)
        restarted = again.coordinator()
        restarted.runs.perform(run)
        assert finished(again, restarted, run) == expected, f"crash before write {at}"


def test_a_crash_after_every_single_write_changes_nothing(tmp_path, fixed_ids):
    bench = Bench(tmp_path / "whole")
    coordinator, run = bench.started()
    coordinator.runs.perform(run)
    expected = finished(bench, coordinator, run)
    again = Bench(tmp_path / "crashing", keys=bench.keys)
    coordinator, run = again.started()
    crashes = 0
    while coordinator.store.run(run).state is not State.RELEASED:
        Crashes(coordinator.store, 1, after=True)
        with pytest.raises(Crash):
            coordinator.runs.perform(run)
        crashes += 1
        assert crashes < 500
        coordinator = again.coordinator()
    assert crashes > 15
    assert finished(again, coordinator, run) == expected


def test_the_seed_is_kept_over_a_crash(bench, monkeypatch):
    coordinator, run = bench.started()
    with monkeypatch.context() as broken:
        broken.setattr("services.coordinator.publish.write_rows", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            coordinator.runs.perform(run)
    seed = coordinator.store.run(run).seed
    assert seed is not None
    restarted = bench.coordinator()
    restarted.runs.perform(run)
    assert restarted.store.release(run).certificate.release.document.seed == seed


def test_a_loop_that_asks_something_else_after_a_restart_is_stopped(bench, monkeypatch):
    coordinator, run = bench.started()
    bench.federation.faults.refused_step = None
    original = coordinator.store.add_step

    def crash_at_six(run, step, request, digest, news):
        original(run, step, request, digest, news)
        if step == 6:
            raise Crash

    coordinator.store.add_step = crash_at_six
    with pytest.raises(Crash):
        coordinator.runs.perform(run)
    monkeypatch.setattr("caps.dp.oracle.UNIT_BITS", 7)  # as another version of the software might
    monkeypatch.setattr("services.coordinator.algorithms.base.UNIT_BITS", 7)
    restarted = bench.coordinator()
    restarted.runs.perform(run)
    record = restarted.store.run(run)
    assert record.state is State.FAILED
    assert "differs from the recorded one" in record.reason


def test_a_full_disk_is_waited_out(bench, monkeypatch):
    from services.coordinator import publish

    failures, original = [3], publish.write_rows

    def sometimes(*arguments):
        if failures[0]:
            failures[0] -= 1
            raise OSError(28, "No space left on device")
        original(*arguments)

    monkeypatch.setattr(publish, "write_rows", sometimes)
    coordinator, run = performed(bench)
    assert run.state is State.RELEASED
    waits = [event.body for event in coordinator.store.events(run.run) if event.body.get("state") == "waiting"]
    assert [(one["party"], "No space" in one["reason"]) for one in waits] == [("coordinator", True)]


def failure(bench: Bench) -> tuple[str | None, str]:
    coordinator, run = performed(bench)
    assert run.state is State.FAILED
    assert coordinator.store.release(run.run) is None
    assert not bench.folder(run.run).exists()
    assert bench.federation.abandoned == [(name, run.run) for name in SERVERS]
    return run.party, run.reason


def test_another_value_fails_the_run_and_names_the_server(bench):
    bench.federation.faults.other_value = {"S2"}
    party, reason = failure(bench)
    assert party == "S2"
    assert reason == "reports a different answer to step 0 than S1 and S3"


def test_a_bad_signature_fails_the_run_and_names_the_server(bench):
    coordinator, run = bench.started()
    bench.federation.faults.bad_signature = {"S3"}
    coordinator.runs.perform(run)
    record = coordinator.store.run(run)
    assert (record.state, record.party) == (State.FAILED, "S3")
    assert "signature" in record.reason


def test_another_transcript_fails_the_run(bench):
    bench.federation.faults.other_transcript = {"S1"}
    assert failure(bench) == ("S1", "reports a different attestation than S2 and S3")


def test_a_transcript_that_is_not_the_coordinators_fails_the_run(bench):
    bench.federation.faults.other_transcript = {"S1", "S2", "S3"}
    assert "differ from the coordinator's record: transcript" in failure(bench)[1]


def test_a_statement_that_is_not_true_fails_the_run(bench):
    bench.federation.faults.other_statement = True
    assert "privacy statement does not hold" in failure(bench)[1]


def test_a_refused_step_fails_the_run(bench):
    bench.federation.faults.refused_step = 3
    party, reason = failure(bench)
    assert party == "S1"
    assert "schedule" in reason


def test_an_invalid_contribution_fails_the_run_and_names_the_holder(bench):
    bench.federation.faults.invalid = {"clinic-b"}
    party, reason = failure(bench)
    assert party == "clinic-b"
    assert "clinic-b" in reason
    assert len(bench.federation.answered) == 1


def test_a_run_that_has_failed_at_a_server_fails_with_its_reason(bench):
    """As after a crash: the servers have stopped, and the coordinator has not kept their answer."""
    bench.federation.faults.invalid = {"clinic-b"}
    coordinator, run = bench.started()
    bench.federation.run = run
    record = coordinator.runs.run(run)
    for name in SERVERS:
        bench.federation.handle(name, "PUT", f"/v1/studies/{record.study}/seal", record.seal_request.to_json())
        bench.federation.handle(name, "PUT", f"/v1/runs/{run}/steps/0", {"kind": "compute"})
    coordinator.runs.perform(run)
    found = coordinator.runs.run(run)
    assert (found.state, found.party) == (State.FAILED, "S1")
    assert "clinic-b failed the servers' checks" in found.reason


def test_an_invalid_contribution_is_left_out_if_the_study_says_so(tmp_path):
    bench = Bench(tmp_path, inputs={"refused": "leave-out"})
    bench.federation.faults.invalid = {"clinic-b"}
    coordinator, run = performed(bench)
    assert (run.state, run.reason) == (State.RELEASED, None)
    verified(bench, coordinator, run.run)
    said = coordinator.store.release(run.run).certificate.attestations[0].document
    assert (said.holders, said.refused) == (("clinic-a",), ("clinic-b",))
    assert coordinator.runs.refused(run) == ["clinic-b"]


@pytest.mark.parametrize("named", [("clinic-a", "clinic-b"), ()])
def test_attestations_must_name_whom_the_servers_accepted(tmp_path, named):
    bench = Bench(tmp_path, inputs={"refused": "leave-out"})
    bench.federation.faults.invalid = {"clinic-b"}
    attest = bench.federation._attest

    def lying(name):
        status, headers, answer = attest(name)
        document = Attestation(**answer["document"] | {"holders": named})
        return status, headers, bench.federation._signed(name, document)

    bench.federation._attest = lying
    _, reason = failure(bench)
    assert "differ from the coordinator's record: holders" in reason


def test_answers_that_take_their_time(bench):
    bench.federation.faults.computing = 3
    assert performed(bench)[1].state is State.RELEASED


@pytest.mark.parametrize("step", [0, 2, 6])
def test_a_server_that_disappears_pauses_the_run_until_it_is_back(bench, step):
    coordinator, run = bench.started()
    coordinator.runs._patience = Backoff(first=1.0, longest=1.0)  # time to bring the server back
    bench.federation.faults.down_at[step] = "S3"
    worker = threading.Thread(target=coordinator.runs.perform, args=(run,))
    worker.start()
    until(lambda: coordinator.store.run(run).state is State.WAITING)
    record = coordinator.store.run(run)
    assert record.party == "S3"
    assert "reached" in record.reason
    bench.federation.faults.down.clear()
    worker.join(30)
    assert coordinator.store.run(run).state is State.RELEASED
    states = [event.body["state"] for event in coordinator.store.events(run) if event.kind == "state"]
    assert states == ["queued", "running", "waiting", "running", "publishing", "released"]


def test_a_stop_ends_waiting_and_a_new_start_takes_the_run_up(bench):
    coordinator, run = bench.started()
    bench.federation.faults.down = {"S1"}
    ended = []

    def work():
        try:
            coordinator.runs.perform(run)
        except Stopped:
            ended.append(True)

    worker = threading.Thread(target=work)
    worker.start()
    until(lambda: coordinator.store.run(run).state is State.WAITING)
    coordinator.close()
    worker.join(10)
    assert ended == [True]
    bench.federation.faults.down.clear()
    restarted = bench.coordinator()
    restarted.runs.open()
    until(lambda: restarted.store.run(run).state is State.RELEASED)
    restarted.close()


def test_a_stop_in_the_middle_of_a_call_is_no_failure(bench):
    coordinator, run = bench.started()

    def closed(*_):
        coordinator.close()
        return coordinator.servers._threads.submit(print)

    coordinator.servers.ask_all = closed
    with pytest.raises(Stopped):
        coordinator.runs.perform(run)
    assert coordinator.store.run(run).state is State.RUNNING
    restarted = bench.coordinator()
    restarted.runs.perform(run)
    assert restarted.store.run(run).state is State.RELEASED


def test_a_second_start_is_the_same_run_and_none_follows_a_release(bench):
    coordinator, run = bench.started()
    again, new = coordinator.runs.start(bench.manifest.study_id)
    assert (again.run, new) == (run, False)
    coordinator.runs.perform(run)
    with pytest.raises(Problem, match="is already released"):
        coordinator.runs.start(bench.manifest.study_id)


def test_another_attempt_is_on_the_same_inputs(bench):
    coordinator, run = bench.started()
    bench.federation.faults.other_value = {"S2"}
    coordinator.runs.perform(run)
    bench.federation.faults.other_value.clear()
    bench.federation.held["S1"].clear()  # no longer asked
    second, new = coordinator.runs.start(bench.manifest.study_id)
    assert new
    assert second.run != run
    assert second.seal_request == coordinator.store.run(run).seal_request


def test_a_run_needs_approvals_and_contributions(bench):
    coordinator = bench.coordinator()
    study = bench.manifest.study_id
    bench.federation.faults.manual = {"S2"}
    coordinator.studies.propose(bench.manifest.to_json())
    with pytest.raises(Problem, match="S2 must approve"):
        coordinator.runs.start(study)
    bench.federation.faults.manual = set()
    coordinator.studies.refresh(study)
    with pytest.raises(Problem, match="nobody has contributed"):
        coordinator.runs.start(study)
    for holder in bench.manifest.holders:
        coordinator.studies.approve(study, holder, bench.federation.approvals_of_holders()[holder.name])
    bench.federation.held["S3"].pop("clinic-b")
    with pytest.raises(Problem, match="clinic-b must approve and contribute"):
        coordinator.runs.start(study, ("clinic-a", "clinic-b"))
    bench.federation.faults.down = {"S1"}
    with pytest.raises(Problem, match="S1 cannot be reached"):
        coordinator.runs.start(study)


def test_columns_that_nobody_brought(tmp_path):
    bench = Bench(tmp_path, holders=COLUMNS)
    coordinator = bench.agreed()
    for held in bench.federation.held.values():
        held.pop("lab")
    with pytest.raises(Problem, match="columns region, diagnosis"):
        coordinator.runs.start(bench.manifest.study_id)


def test_judgements_of_the_servers(bench):
    coordinator, study = bench.coordinator(), bench.manifest.study_id
    faults = bench.federation.faults
    faults.down, faults.refuses, faults.manual = {"S1"}, {"S2"}, {"S3"}
    manifest, new = coordinator.studies.propose(bench.manifest.to_json())
    assert new
    judged = coordinator.store.judgements(study)
    assert {name: one.state for name, one in judged.items()} == {
        "S1": Judged.PENDING,
        "S2": Judged.REFUSED,
        "S3": Judged.WAITING,
    }
    assert judged["S2"].objections == ("epsilon 1 exceeds this server's limit of 0.1",)
    faults.down, faults.refuses, faults.manual, faults.bad_signature = set(), set(), set(), {"S2"}
    assert coordinator.studies.propose(bench.manifest.to_json()) == (manifest, False)
    judged = coordinator.store.judgements(study)
    assert [one.state for one in judged.values()] == [Judged.APPROVED, Judged.REFUSED, Judged.APPROVED]
    assert coordinator.studies.state(study, []) == "proposed"
    faults.bad_signature = set()
    coordinator.studies.refresh(study)
    assert coordinator.studies.state(study, []) == "approved"


def test_servers_that_were_away_are_asked_again_and_those_that_refused_are_not(bench, monkeypatch):
    monkeypatch.setattr(runs, "_ATTEND_EVERY", 0.02)
    coordinator, study, faults = bench.coordinator(), bench.manifest.study_id, bench.federation.faults
    faults.down, faults.refuses, faults.manual = {"S1"}, {"S2"}, {"S3"}
    coordinator.studies.propose(bench.manifest.to_json())
    assert coordinator.store.unjudged() == [study]
    coordinator.runs.open()
    try:
        faults.down, faults.manual = set(), set()
        until(lambda: coordinator.store.unjudged() == [])
        judged = coordinator.store.judgements(study).values()
        assert [one.state for one in judged] == [Judged.APPROVED, Judged.REFUSED, Judged.APPROVED]
    finally:
        coordinator.runs.close()


def test_participation_shows_who_holds_what(bench):
    coordinator = bench.agreed()
    bench.federation.held["S2"]["clinic-a"] = "f" * 64
    bench.federation.held["S3"].pop("clinic-b")
    bench.federation.faults.down = set()
    found = coordinator.studies.participation(bench.manifest.study_id)
    a, b = found.parts
    assert (a.approved, sorted(a.held), a.contribution) == (True, ["S1", "S2", "S3"], None)
    assert (sorted(b.held), b.contribution) == (["S1", "S2"], None)
    bench.federation.faults.down = {"S2"}
    assert "S2" in coordinator.studies.participation(bench.manifest.study_id).unreached


def test_manifests_that_are_not_for_this_coordinator(bench):
    coordinator = bench.coordinator()
    stranger, _ = example_json(keys={**bench.keys, "coordinator": make_keys(["coordinator"])["coordinator"]})
    with pytest.raises(Problem, match="a different coordinator"):
        coordinator.studies.propose(stranger)
    spoilt, _ = example_json(keys=bench.keys, workload=[{"attributes": ["nothing"]}])
    with pytest.raises(Problem) as refused:
        coordinator.studies.propose(spoilt)
    assert refused.value.members["errors"]
    with pytest.raises(Problem):
        coordinator.studies.propose([1])
    assert coordinator.store.studies() == []


def test_the_certificate_is_one(bench):
    coordinator, run = performed(bench)
    text = json.dumps(coordinator.store.release(run.run).certificate.to_json())
    assert Certificate.model_validate_json(text).release.document.at == AT
