"""A server that dies or stops in the middle of a protocol: every survivor ends, and names it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from services.mpc_server.local import local_servers

pytestmark = [pytest.mark.chaos, pytest.mark.integration]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_survivors_name_the_party_that_fell(victim: int, how: signal.Signals, tmp_path: Path) -> None:
    with local_servers("tests.kit.tls_tasks:multiply_for_ever", {"directory": str(tmp_path)}, stall=3.0) as servers:
        while len(list(tmp_path.iterdir())) < 3:  # bounded by pytest's own time-out
            assert all(process.poll() is None for process in servers.processes), "a server ended by itself"
            time.sleep(0.05)
        servers.kill(victim, how)
        survivors = [party for party in range(3) if party != victim]
        for party in survivors:
            servers.processes[party].wait(timeout=60)
        servers.kill(victim, signal.SIGKILL)
        reports = servers.wait(30)
    for party in survivors:
        error = reports[party].error
        assert error is not None, reports[party].stderr
        assert victim in (error["party"], error["blames"]), error
        assert f"S{victim + 1}" in error["message"]
