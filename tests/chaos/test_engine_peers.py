"""A server that dies or stops in the middle of a protocol: every survivor ends, and names it."""

from __future__ import annotations

import signal
import time

import pytest

from services.mpc_server.local import local_servers


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_survivors_name_the_party_that_fell(victim: int, how: signal.Signals) -> None:
    with local_servers("tests.tls_tasks:multiply_for_ever", stall=2.0) as servers:
        time.sleep(2.5)
        assert all(process.poll() is None for process in servers.processes), "the servers ended by themselves"
        servers.kill(victim, how)
        survivors = [party for party in range(3) if party != victim]
        for party in survivors:
            servers.processes[party].wait(timeout=30)
        servers.kill(victim, signal.SIGKILL)
        reports = servers.wait(30)
    for party in survivors:
        error = reports[party].error
        assert error is not None, reports[party].stderr
        assert victim in (error["party"], error["blames"]), error
        assert f"S{victim + 1}" in error["message"]
