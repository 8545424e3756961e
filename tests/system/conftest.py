"""One federation for all end-to-end tests of a process: three servers, a coordinator, three holders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.federation import POLICY
from tests.kit.federation import POPULATIONS
from tests.kit.processes import HOLDERS, LARGEST_UPLOAD, Everybody


@pytest.fixture(scope="session")
def everybody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everybody]:
    """Provisioned; whoever uses it says how the services are to be started."""
    settings = {"CAPS_STALL": "8", "CAPS_MAX_UPLOAD": str(LARGEST_UPLOAD)}
    policy = POLICY + "most_studies: 10000\n"  # some tests have a study for each point at which a service can die
    with Everybody(
        tmp_path_factory.mktemp("e2e"), HOLDERS, populations=POPULATIONS, policy=policy, environment=settings
    ) as found:
        yield found


@pytest.fixture
def federation(everybody: Everybody) -> Everybody:
    """All of it up, whatever the test before did."""
    everybody.start()
    everybody.wait_ready()
    return everybody
