"""An old backup of a real server's state is found out by what its peers keep, and nothing is computed with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from caps.cli import app
from caps.cli.exits import Exit
from caps.trust.cards import Card
from deploy.federation import SERVERS, Federation, NotStarted
from tests.kit.federation import POPULATIONS, Driver, manifest_of
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

ROWS = [{"name": "north", "brings": "rows"}]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path / "federation", ["north"], populations=POPULATIONS) as found:
        found.start(*SERVERS)
        found.wait_ready(*SERVERS)
        yield found


def begun(federation: Federation) -> Driver:
    """A run whose session is open: all servers keep each other's heads."""
    manifest = manifest_of(federation, ROWS, algorithm="gaussian")
    driver = Driver(federation, manifest)
    driver.ready({"north": manifest.layout.marginals([[0] * len(manifest.domain.names)])})
    until(lambda: all(len(_heads(federation, name, driver.run)) == len(SERVERS) for name in SERVERS))
    return driver


def _heads(federation: Federation, name: str, run: str) -> list[dict[str, Any]]:
    with federation.client(name, "auditor") as client:
        found = client.get("/v1/ledger/heads").raise_for_status().json()
    return [one["document"] for one in found if one["document"]["run"] == run]


def caps(federation: Federation, name: str, *arguments: object, expect: Exit = Exit.OK) -> dict[str, Any]:
    place = federation.places[name]
    options = ("--url", place.url, "--token-file", place.home / "auditor.token", "--authority", federation.authority)
    found = CliRunner().invoke(app, [str(one) for one in ("ledger", *arguments, *options, "--json")])
    assert found.exit_code == expect, found.output
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_a_server_restored_from_an_old_backup_computes_nothing(federation: Federation, tmp_path: Path) -> None:
    home = federation.places["S2"].home
    Card.of_site(home, url="https://s2.example:8443", mesh="s2.example:9443").write(tmp_path / "card.json")
    with begun(federation) as first:
        federation.stop("S2")
        shutil.copytree(home / "state", tmp_path / "backup")
        federation.start("S2")
        federation.wait_ready("S2")
        with begun(federation):
            kept = tmp_path / "kept.json"
            kept.write_text(json.dumps(caps(federation, "S1", "heads")))
            verify = ("verify", "--card", tmp_path / "card.json", "--heads", kept)
            whole = caps(federation, "S2", *verify)
            assert (whole["verified"], whole["compared"], whole["broken_at"]) == (True, 1, None)
            assert len(whole["heads"]) == 4  # two runs, as S1 and as S2 itself keep them

        federation.stop("S2")
        shutil.rmtree(home / "state")
        shutil.copytree(tmp_path / "backup", home / "state")
        federation.start("S2")
        with federation.client("S2", "operator") as client:
            until(lambda: "rolled back or rewritten" in _answer(client, "/readyz"))
        refused = first.begin()[SERVERS.index("S2")]
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:caps:problem:conflict")
        assert "the ledger lacks record 1 as this server has signed it" in refused.json()["detail"]
        with federation.client("S1", "operator") as client:
            status = until(lambda: _waiting(client, first.run))
        assert status["party"] == "S2"
        found = caps(federation, "S2", *verify, expect=Exit.NOT_VERIFIED)
        assert (found["verified"], found["broken_at"]) == (False, None)  # the chain itself holds

    federation.stop("S2")
    federation.start("S2")
    with pytest.raises(NotStarted, match="S2 ended"):
        federation.wait_ready("S2")
    assert "the ledger cannot be trusted" in federation.log("S2")


def _answer(client: Any, path: str) -> str:
    try:
        return str(client.get(path).text)
    except Exception:  # noqa: BLE001  it is starting
        return ""


def _waiting(client: Any, run: str) -> dict[str, Any] | None:
    found: dict[str, Any] = client.get(f"/v1/runs/{run}").json()
    return found if found["state"] == "waiting" and found["party"] == "S2" else None
