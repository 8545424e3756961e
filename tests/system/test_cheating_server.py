"""A server of a live federation deviates from the protocol: the run is over, two are named, and nothing is released.

One federation has four servers, of which a study of three takes the first three. All run under a module that cheats
once where a test says, and is as always before and after.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caps.audit.evidence import examined
from caps.audit.ledger import broken_at
from caps.basics.schemes import REP3, REP4, SCHEMES, Scheme
from caps.client import ProblemError
from caps.wire import RunStatus
from deploy.federation import COORDINATOR
from tests.kit.cheating_service import FILE, arm, cheated
from tests.kit.federation import POPULATIONS
from tests.kit.processes import CANARIES, HOLDERS, Everybody, Study, client, nobody_wrote, persons, vertical
from tests.kit.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

ACTIVE = [scheme for scheme in SCHEMES.values() if scheme.active]
NAMES = [scheme.name for scheme in ACTIVE]
UNDER = ("tests.kit.cheating_service",)
COMPUTING, MEASURING, DRAWING = r"^/compute/", r"-measure/", r"-measure/noise/"
CHECKING = r"/(proofs|heard)$"
"""Proofs of rep3-active; in rep4, what servers heard of each other's digests."""
PATIENCE = 240.0
SESSIONS = 3


@pytest.fixture(scope="module")
def shady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everybody]:
    """Four servers, each of which can be told to cheat."""
    settings = {"CAPS_STALL": "8", "CAPS_TEST_SESSIONS": str(SESSIONS)}
    folder = tmp_path_factory.mktemp("shady")
    with Everybody(folder, HOLDERS, populations=POPULATIONS, environment=settings, scheme=REP4) as found:
        found.under = UNDER
        start(found)
        yield found


def start(federation: Everybody) -> None:
    """All eight services, which takes its time."""
    federation.start()
    federation.wait_ready(timeout=PATIENCE)


def small(federation: Everybody, folder: Path, scheme: Scheme, seed: int = 7) -> Study:
    """AIM on columns of two holders, with few rounds."""
    folder.mkdir(exist_ok=True)
    study = vertical(
        federation, folder, persons(60, seed), slots=64, algorithm="aim", parameters={"rounds": 3}, scheme=scheme
    )
    study.patience = PATIENCE
    return study


def ended(study: Study) -> Any:
    """The run, when it is over."""
    return until(lambda: state if (state := study.state()).state in ("failed", "released") else None, PATIENCE)


def here(study: Study, name: str) -> RunStatus:
    """What a server says about the run."""
    return study.as_person(name, "auditor", lambda it: it.run_here(study.run))


def recorded(study: Study, name: str) -> list[dict[str, Any]]:
    """What a server's ledger has about the run."""
    with client(study.federation, name, "auditor") as auditor:
        records = [record.model_dump(exclude_unset=True) for record in auditor.ledger()]
    assert broken_at(records) is None
    return [record for record in records if record.get("run") == study.run]


def charged(study: Study, name: str) -> list[dict[str, Any]]:
    return [record for record in recorded(study, name) if record["kind"] == "charge"]


def kinds(study: Study, name: str) -> list[str]:
    return [record["kind"] for record in recorded(study, name)]


def caught(federation: Everybody, study: Study, culprit: str, *, charged: bool) -> None:
    """The run failed, its culprit is one of two that honest servers name, and there is nothing to download.

    With four servers, one that has nothing to do with the wrong message only knows that a check has failed.
    """
    state = ended(study)
    assert cheated(federation.places[culprit].home), "the server has not cheated"
    assert state.state == "failed", f"{culprit} cheated in {cheated(federation.places[culprit].home)}"
    servers = study.manifest.sharing.server_names
    accusations = examined(study.manifest, study.run, state.evidence)
    honest = [one for one in accusations if one.server != culprit]
    assert honest
    assert all(one.signature == "valid" for one in accusations)
    named = [one.pair for one in honest if one.pair is not None]
    assert named
    assert all(culprit in pair for pair in named)
    assert len(named) >= len(honest) - (len(servers) - 3)
    assert culprit in state.party
    for name in servers:
        status = here(study, name)
        assert status.state == "aborted"
        assert {one.signer for one in status.evidence} >= {one.server for one in honest}
        found = kinds(study, name)
        assert found.count("abort") == len(status.evidence)
        assert ("charge" in found) == charged
        assert ("release" in found) != charged, "what was not charged is given back, and nothing else"
        assert "close" not in found
    with client(federation, COORDINATOR, "analyst") as analyst:
        for ask in (analyst.release, analyst.certificate):
            with pytest.raises(ProblemError):
                ask(study.run)
    nobody_wrote(federation, *CANARIES)


def begin(study: Study, culprit: str, lie: str, step: str) -> None:
    """Everything up to the start of a run in which a server is going to cheat."""
    study.agree()
    study.contribute()
    arm(study.federation.places[culprit].home, lie, step)
    study.start()


@pytest.mark.parametrize(
    ("culprit", "lie", "step", "charged"),
    [
        ("S2", "message", COMPUTING, False),
        ("S1", "copy", DRAWING, True),
        ("S3", "check", CHECKING, False),
    ],
    ids=["a product", "noise", "a proof or digest"],
)
@pytest.mark.parametrize("scheme", ACTIVE, ids=NAMES)
def test_a_server_that_cheats_ends_the_run_and_is_named(
    shady: Everybody, tmp_path: Path, scheme: Scheme, culprit: str, lie: str, step: str, charged: bool
) -> None:
    study = small(shady, tmp_path, scheme)
    begin(study, culprit, lie, step)
    caught(shady, study, culprit, charged=charged)


@pytest.mark.parametrize("scheme", ACTIVE, ids=NAMES)
def test_an_aborted_run_stays_so_and_others_go_on(shady: Everybody, tmp_path: Path, scheme: Scheme) -> None:
    """After a restart of all, nobody takes it up again, the charges stay, and another study is released."""
    study = small(shady, tmp_path / "one", scheme)
    begin(study, "S2", "message", MEASURING)
    caught(shady, study, "S2", charged=True)
    servers = study.manifest.sharing.server_names
    charges = {name: charged(study, name) for name in servers}
    shady.stop()
    start(shady)
    with client(shady, COORDINATOR, "operator") as operator, pytest.raises(ProblemError, match="abort"):
        operator.start(study.identity)
    after = study.state()
    assert (after.state, after.release) == ("failed", None)
    assert {one.server for one in examined(study.manifest, study.run, after.evidence)}
    other = small(shady, tmp_path / "other", scheme, seed=8)
    other.go(PATIENCE)
    certificate = other.fetch(tmp_path / "release")
    assert certificate.manifest.scheme == scheme.name
    assert {name: charged(study, name) for name in servers} == charges
    assert {here(study, name).state for name in servers} == {"aborted"}


@pytest.mark.parametrize("scheme", ACTIVE, ids=NAMES)
def test_a_server_that_leaves_before_it_is_judged_cannot_try_for_ever(
    shady: Everybody, tmp_path: Path, scheme: Scheme
) -> None:
    study = small(shady, tmp_path, scheme)
    try:
        begin(study, "S2", "leave", MEASURING)
        state = ended(study)
    finally:
        (shady.places["S2"].home / FILE).unlink(missing_ok=True)
    assert state.state == "failed"
    assert not state.evidence
    assert "ended in the middle of a computation" in state.reason
    honest = [name for name in study.manifest.sharing.server_names if name != "S2"]
    for name in honest:
        until(lambda name=name: here(study, name).state == "failed", PATIENCE)
        assert kinds(study, name)[-1] == "charge"
    assert max(here(study, name).interrupted for name in honest) == SESSIONS


def test_where_servers_are_trusted_the_same_lie_is_released(shady: Everybody, tmp_path: Path) -> None:
    """What the active schemes are there for; and the lie is one that changes something."""
    study = small(shady, tmp_path, REP3)
    begin(study, "S1", "copy", DRAWING)
    assert ended(study).state == "released"
    assert cheated(shady.places["S1"].home)
    study.fetch(tmp_path / "release")
