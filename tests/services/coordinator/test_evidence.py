"""A run that servers abort: it fails with the pair named, nothing is released, and all evidence reaches all servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from caps.service.problems import Problem
from caps.wire.problems import Kind
from services.coordinator.evidence import exchange
from services.coordinator.runs import Runs
from services.coordinator.store import State
from tests.kit.coordinator_servers import Bench, performed
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

PAIR = ("S1", "S2")


@pytest.fixture(params=["rep3-active", "rep4"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Bench:
    return Bench(tmp_path, scheme=request.param)


def test_a_run_in_every_scheme_is_released(bench: Bench) -> None:
    coordinator, run = performed(bench)
    assert run.state is State.RELEASED
    certificate = coordinator.store.release(run.run).certificate
    assert tuple(one.signer for one in certificate.attestations) == bench.manifest.sharing.server_names
    assert coordinator.store.evidence(run.run) == []


@pytest.mark.parametrize("step", [0, 2])
def test_the_run_fails_with_the_pair_and_nothing_is_released(bench: Bench, step: int) -> None:
    bench.federation.faults.accuses = {"S3": (step, PAIR)}
    coordinator, run = performed(bench)
    assert run.state is State.FAILED
    assert run.party == "S1, S2"
    assert run.reason == "S3 found that S1 or S2 deviates from the protocol"
    assert coordinator.store.release(run.run) is None
    assert not bench.folder(run.run).exists()
    (kept,) = coordinator.store.evidence(run.run)
    kept.verify(bench.manifest.server("S3")).matches(bench.manifest, run.run)
    for name, evidence in bench.federation.evidence.items():
        assert [one.signer for one in evidence] == ["S3"], name
    assert {name for name, _ in bench.federation.abandoned} == set(bench.manifest.sharing.server_names)


def test_evidence_of_several_servers_is_brought_to_all(bench: Bench) -> None:
    bench.federation.faults.accuses = {"S3": (1, PAIR), "S2": (1, ("S1", "S3"))}
    coordinator, run = performed(bench)
    assert run.party == "S1, S2, S3"
    assert [one.signer for one in coordinator.store.evidence(run.run)] == ["S2", "S3"]
    for evidence in bench.federation.evidence.values():
        assert sorted(one.signer for one in evidence) == ["S2", "S3"]


def test_a_server_out_of_reach_is_told_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = bench.federation
    coordinator, run = bench.started()
    federation.faults.accuses = {"S3": (1, PAIR)}
    original = Runs._abort

    def cut(self: Runs, *arguments: object) -> None:
        federation.faults.down = {"S1"}
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Runs, "_abort", cut)
    coordinator.runs.perform(run)
    assert coordinator.runs._untold[run] == {"S1"}
    assert federation.evidence["S1"] == []
    federation.faults.down = set()
    monkeypatch.setattr("services.coordinator.runs._ATTEND_EVERY", 0.01)
    again = bench.coordinator()  # after a restart, too
    again.runs.open()
    try:
        until(lambda: bool(federation.evidence["S1"]))
        until(lambda: not again.runs._untold[run])
    finally:
        again.runs.close()


def test_the_study_is_not_begun_again(bench: Bench) -> None:
    bench.federation.faults.accuses = {"S3": (1, PAIR)}
    coordinator, _ = performed(bench)
    with pytest.raises(Problem, match="S3 found that S1 or S2") as raised:
        coordinator.runs.start(bench.manifest.study_id)
    assert raised.value.kind is Kind.ABORTED


def test_evidence_that_nobody_signed_names_nobody_but_its_sender(bench: Bench) -> None:
    bench.federation.faults.accuses = {"S3": (1, PAIR)}
    bench.federation.faults.bad_signature = set()
    coordinator, run = bench.started()
    accuse = bench.federation._accuse

    def forge(name: str, step: int, pair: tuple[str, str]) -> None:
        bench.federation.faults.bad_signature = {"S3"}
        accuse(name, step, pair)
        bench.federation.faults.bad_signature = set()

    bench.federation._accuse = forge  # type: ignore[method-assign]
    coordinator.runs.perform(run)
    found = coordinator.store.run(run)
    assert (found.state, found.party) == (State.FAILED, "S3")
    assert found.reason == "says that the run was aborted, but gives no evidence that holds"
    assert coordinator.store.evidence(run) == []
    assert all(evidence == [] for name, evidence in bench.federation.evidence.items() if name != "S3")


def test_what_is_known_is_not_asked_for_again(bench: Bench) -> None:
    bench.federation.faults.accuses = {"S3": (1, PAIR)}
    coordinator, run = performed(bench)
    before = coordinator.store.evidence(run.run)
    assert exchange(coordinator.store, coordinator.runs._servers, bench.manifest, run.run) == set()
    assert coordinator.store.evidence(run.run) == before
