"""A run that the coordinator gave up stays given up, however far it had come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.federation import SERVERS, Federation
from tests.federation_kit import POPULATIONS, Driver
from tests.integration.test_mpc_runs import CONFLICT, HOLDERS, SHORT, horizontal, refused


@pytest.fixture
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    with Federation(folder, HOLDERS, populations=POPULATIONS, environment={"CAPS_STALL": "8"}) as found:
        found.start(*SERVERS)
        found.wait_ready(*SERVERS)
        yield found


def test_a_run_given_up_after_its_last_step_is_not_attested(federation: Federation) -> None:
    manifest, brought, _ = horizontal(federation, parameters=SHORT)
    with Driver(federation, manifest) as driver:
        driver.ready(brought)
        driver.finish()
        for client in driver.clients.values():
            assert client.delete(f"/v1/runs/{driver.run}").json()["state"] == "failed"
        for problem in refused(federation, CONFLICT, driver.attest):
            assert problem["detail"] == "the run has failed: given up by the coordinator"
