"""One federation for all rogues of a process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deploy.federation import POLICY
from tests.adversary.stage import HOLDERS, PATIENCE_FOR_ALL, Stage, finish, make_stage
from tests.kit.federation import POPULATIONS
from tests.kit.processes import LARGEST_UPLOAD, Everybody


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Processes started here may have as many descriptors as most systems give them, unless they ask for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where rogues act. At the end, whatever they did, the honest parties' study completes."""
    folder = tmp_path_factory.mktemp("siege")
    settings = {"CAPS_STALL": "30", "CAPS_MAX_UPLOAD": str(LARGEST_UPLOAD), "CAPS_MOST_SAMPLES": "12"}
    policy = f"{POLICY}most_studies: 40\nmost_contributions: 12\n"  # as small as lets quotas be reached soon
    with Everybody(
        folder / "federation", HOLDERS, policy=policy, populations=POPULATIONS, environment=settings
    ) as federation:
        with few_descriptors():
            federation.start()
        federation.wait_ready(timeout=PATIENCE_FOR_ALL)
        found = make_stage(federation, folder)
        yield found
        finish(found)
