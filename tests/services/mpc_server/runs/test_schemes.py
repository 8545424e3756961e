"""Whole runs on real servers in every scheme that the engine has: the release is the central one, bit for bit.

The federation has as many servers as the largest of these schemes; studies of fewer are run among the same servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from caps.basics.schemes import SCHEMES, Scheme
from caps.study import Manifest
from caps.study.planning import declared_costs
from caps.wire import Attestation, RunStatus, Signed
from deploy.federation import Federation
from services.mpc_server.engine.guard import guard
from tests.kit.federation import POPULATIONS, Driver, ServerStores, manifest_of, same_release, spent_once

pytestmark = pytest.mark.integration

ENGINE = [scheme for scheme in SCHEMES.values() if scheme.name in guard.schemes]
"""The schemes whose protocols are here."""
BEGINNING, CONTROL_BYTES = 5, 1 << 14
"""What a session costs besides its protocols: rounds until records are compared, then two for each step; bytes."""
ALL = pytest.mark.parametrize("scheme", ENGINE, ids=[scheme.name for scheme in ENGINE])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(
        tmp_path_factory.mktemp("four"),
        ["north", "south"],
        populations=POPULATIONS,
        environment={"CAPS_STALL": "20"},
        scheme=SCHEMES["rep4"],
    ) as found:
        found.start(*found.servers)
        found.wait_ready(*found.servers)
        yield found


def drawn(manifest: Manifest, rows: int) -> np.ndarray:
    generator = np.random.default_rng(11)
    return np.stack([generator.binomial(size - 1, 0.4, rows) for size in manifest.domain.sizes], axis=1)


def study(federation: Federation, scheme: Scheme, brings: str) -> tuple[Manifest, dict[str, np.ndarray], np.ndarray]:
    """Two holders that split persons or columns, what they share, and the data in one place."""
    choices = {"algorithm": "aim", "parameters": {"rounds": 2}, "scheme": scheme}
    if brings == "rows":
        holders = [{"name": name, "brings": "rows"} for name in ("north", "south")]
        manifest = manifest_of(federation, holders, **choices)
        codes = drawn(manifest, 300)
        layout = manifest.layout
        return manifest, {"north": layout.marginals(codes[:100]), "south": layout.marginals(codes[100:])}, codes
    columns = {"north": ["age"], "south": ["smoker", "illness"]}
    holders = [{"name": name, "brings": "columns", "columns": listed} for name, listed in columns.items()]
    manifest = manifest_of(federation, holders, slots=96, **choices)
    codes = drawn(manifest, 80)
    shared = {}
    for name in columns:
        domain = manifest.columns_of(manifest.holder(name)).domain()
        places = [manifest.domain.names.index(one) for one in domain.names]
        shared[name] = np.zeros((96, domain.width), np.uint16)
        shared[name][:80] = domain.one_hot(codes[:, places])
    return manifest, shared, codes


@pytest.mark.drawn(3)
@pytest.mark.parametrize("brings", ["rows", "columns"])
@ALL
def test_a_run_is_the_central_one(four: Federation, scheme: Scheme, brings: str) -> None:
    manifest, shared, codes = study(four, scheme, brings)
    with Driver(four, manifest) as driver:
        driver.ready(shared)
        driver.patience = 60.0
        outcome, _ = driver.finish()
        same_release(outcome, driver.twin(codes))
        attested = [Signed[Attestation].model_validate_json(one.content) for one in driver.attest()]
        assert tuple(one.signer for one in attested) == scheme.server_names
        assert manifest.premises[0] in attested[0].document.statement["assumptions"]
        spent_once(four, driver)
        answers = [client.get(f"/v1/runs/{driver.run}").json() for client in driver.clients.values()]
        statuses = [RunStatus.model_validate(one) for one in answers]
        assert all((status.state, status.evidence) == ("ended", ()) for status in statuses)
        costs = declared_costs(manifest)
        assert costs is not None
        assert (costs.checks.rounds > 0) == scheme.active
        control = BEGINNING + 2 * statuses[0].position
        for status, sent in zip(statuses, costs.total.sent, strict=True):
            assert status.rounds <= costs.total.rounds + control <= 3 * status.rounds
            assert status.bytes_sent <= sent + CONTROL_BYTES
    if scheme.parties == 3:
        assert not any(row for row in ServerStores(four, "S4").rows()["runs"] if row[0] == driver.run)


@ALL
def test_a_step_interrupted_by_a_crash_opens_the_same(four: Federation, scheme: Scheme) -> None:
    manifest, shared, codes = study(four, scheme, "rows")
    with Driver(four, manifest) as driver:
        driver.ready(shared)
        driver.patience = 90.0
        driver.until(1)
        last = scheme.server_names[-1]
        four.kill(last)
        four.start(last)
        four.wait_ready(*four.servers)
        outcome, _ = driver.finish()
        same_release(outcome, driver.twin(codes))
        spent_once(four, driver)


def test_the_fourth_server_refuses_a_study_of_three(four: Federation) -> None:
    manifest, _, _ = study(four, SCHEMES["rep3"], "rows")
    with four.machine("S4", "coordinator") as client:
        response = client.put(f"/v1/studies/{manifest.study_id}", json=manifest.to_json())
    assert response.status_code == 422
    assert "does not list S4" in response.text
