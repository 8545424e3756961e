"""A run goes on only in the build that began it: another parks it and says why, until the first one is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from caps.wire import Attestation, Signed
from caps.wire.steps import request_to_json
from deploy.federation import SERVERS, Federation
from services.mpc_server.build import brief, build_digest
from tests.kit.crashing import arm
from tests.kit.federation import POPULATIONS, Driver, everything, manifest_of, same_release, spent_once

pytestmark = pytest.mark.integration

GENUINE, OTHER = ("tests.kit.crashing",), ("tests.kit.rebuilt",)
ROWS = [{"name": "north", "brings": "rows"}]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("builds")
    with Federation(
        folder,
        ("north",),
        environment={"CAPS_STALL": "4"},
        policy="approval: automatic\nleast_holders: 1\n",
        populations=POPULATIONS,
    ) as found:
        found.start(*SERVERS, under=GENUINE)
        found.wait_ready(*SERVERS)
        yield found


def begun(federation: Federation) -> tuple[Driver, np.ndarray]:
    manifest = manifest_of(federation, ROWS, parameters={"rounds": 3})
    generator = np.random.default_rng(4)
    codes = np.stack([generator.integers(0, size, 200) for size in manifest.domain.sizes], axis=1)
    driver = Driver(federation, manifest)
    driver.ready({"north": manifest.layout.marginals(codes)})
    return driver, codes


def restart(federation: Federation, under: tuple[str, ...]) -> None:
    federation.stop("S2")
    federation.start("S2", under=under)
    federation.wait_ready(*SERVERS)


def dies_in(federation: Federation, driver: Driver, number: int, body: dict[str, Any], *point: Any) -> None:
    """S2 ends in the middle of a step."""
    arm(federation.places["S2"].home, *point)
    with pytest.raises(httpx.TransportError):
        driver.ask(number, [body] * 3)
    assert not federation.running("S2")


def status(federation: Federation, name: str, run: str) -> dict[str, Any]:
    with federation.client(name, "auditor") as auditor:
        return auditor.get(f"/v1/runs/{run}").json()


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("number", "point"),
    [
        pytest.param(0, ("exchange", 9), id="COMPUTE ANSWERS"),
        pytest.param(2, ("committed", 1), id="a charged measurement"),
    ],
)
def test_a_run_waits_for_its_own_build(federation: Federation, number: int, point: tuple[str, int]) -> None:
    driver, codes = begun(federation)
    with driver:
        driver.patience = 30.0
        body = {"kind": "compute"} if number == 0 else request_to_json(driver.until(number - 1))
        driver.patience = 0.0
        dies_in(federation, driver, number, body, *point)
        federation.start("S2", under=OTHER)
        federation.wait_ready(*SERVERS)

        before = everything(federation)
        said = status(federation, "S2", driver.run)
        assert (said["state"], said["party"], said["position"]) == ("waiting", "S2", number)
        assert f"begun by build {brief(build_digest())}, and this is " in said["reason"]
        path = f"/v1/runs/{driver.run}"
        for refused in (
            driver.clients["S2"].put(f"{path}/steps/{number}", json=body),
            driver.clients["S2"].put(f"{path}/attestation"),
        ):
            problem = refused.json()
            assert (refused.status_code, problem["type"]) == (409, "urn:caps:problem:not-ready")
            assert (problem["detail"], problem["party"]) == (said["reason"], "S2")
            assert problem["retryable"], "the coordinator waits, and does not give the run up"
        with federation.client("S2", "auditor") as auditor:
            assert f'caps_run_waiting{{party="S2",run="{driver.run}"}} 1.0' in auditor.get("/metrics").text
            if number:
                assert driver.clients["S2"].get(f"{path}/steps/0").json()["document"]["step"] == 0
                assert auditor.get(f"{path}/steps/0").status_code == 409  # the run has not ended
        assert everything(federation) == before

        restart(federation, GENUINE)
        driver.patience = 60.0
        distributed, _ = driver.finish()
        same_release(distributed, driver.twin(codes))
        words = [Signed[Attestation].model_validate_json(found.content).document for found in driver.attest()]
        assert {word.software for word in words} == {f"caps 0.1.0 (build {build_digest()})"}
        spent_once(federation, driver)

        restart(federation, OTHER)
        assert [found.json()["state"] for found in driver.begin()] == ["ended"] * 3
        assert [Signed[Attestation].model_validate_json(found.content).document for found in driver.attest()] == words
        restart(federation, GENUINE)


def test_builds_that_differ_refuse_each_other_and_the_run_can_be_given_up(federation: Federation) -> None:
    driver, _ = begun(federation)
    restart(federation, OTHER)
    with driver:
        given_up = [client.delete(f"/v1/runs/{driver.run}").json() for client in driver.clients.values()]
        assert [one["state"] for one in given_up] == ["failed"] * 3
        refused = driver.clients["S2"].put(f"/v1/runs/{driver.run}/steps/0", json={"kind": "compute"})
        assert (refused.status_code, refused.json()["detail"]) == (409, "the run has ended")
        assert [found.status_code for found in Driver.begin(another(driver))] == [201] * 3

        deadline = time.monotonic() + 30
        while "build" not in (reason := status(federation, "S1", driver.run)["reason"] or ""):
            assert time.monotonic() < deadline, reason
            time.sleep(0.1)
        assert f"S2: disagrees on build: ours is {build_digest()[:12]}, theirs is " in reason
    restart(federation, GENUINE)


def another(driver: Driver) -> Driver:
    """Speaks for another run of the same study."""
    driver.run = driver.run[::-1]
    return driver
