"""A study with one of the paper's samplers ends in a release that verifies, and that says everywhere what it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.federation import COORDINATOR, POLICY, Federation
from tests.kit.federation import POPULATIONS
from tests.kit.processes import client, horizontal, ledgers, persons

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Servers whose operators do without a proven law."""
    policy = POLICY.replace("certified_only: true", "certified_only: false")
    assert policy != POLICY
    with Federation(
        tmp_path_factory.mktemp("careless"),
        ("north", "south"),
        policy=policy,
        populations=POPULATIONS,
        environment={"CAPS_STALL": "8"},
    ) as found:
        found.start()
        found.wait_ready()
        yield found


@pytest.mark.parametrize("noise", ["paper:irwin-hall", "paper:box-muller"])
def test_a_release_without_a_guarantee_says_so(careless: Federation, tmp_path: Path, noise: str) -> None:
    choices = {"algorithm": "aim", "parameters": {"rounds": 3}, "choice": {"noise": noise}}
    study = horizontal(careless, tmp_path, persons(300, 1), **choices)
    study.go()
    certificate = study.fetch(tmp_path / "release")
    for attestation in certificate.attestations:
        statement = attestation.document.statement
        assert statement["certified"] is False
        assert statement["paragraph"].startswith("NOT CERTIFIED")
        assert noise in statement["paragraph"]
    with client(careless, COORDINATOR, "analyst") as analyst:
        privacy = analyst.report(study.run).privacy
    assert privacy.certified is False
    assert privacy.paragraph.startswith("NOT CERTIFIED")
    for records in ledgers(careless):
        entries = [one["entry"] for one in records if one["run"] == study.run and one["kind"] == "charge"]
        measured = [entry for entry in entries if entry["mechanism"]["kind"] == "gaussian"]
        assert measured
        assert {(entry["sampler"], entry["certified"]) for entry in measured} == {(noise, False)}
        assert all(entry["certified"] for entry in entries if entry not in measured)
