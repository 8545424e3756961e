"""An error of the server itself neither ends a run nor goes unheard."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from caps.basics.retry import Backoff
from caps.errors import LocalError
from caps.service.supervision import Supervisor
from services.mpc_server.runs.alive import AliveRuns


def test_an_interrupted_run_is_taken_up_again_and_the_log_says_where(caplog: pytest.LogCaptureFixture) -> None:
    errors: list[Exception] = [OSError("no space for row 4711"), RuntimeError("4711"), LocalError("shares are gone")]
    failed: list[tuple[str, str]] = []

    async def live() -> None:
        raise errors.pop(0)

    record = SimpleNamespace(manifest=SimpleNamespace(study_id="s"), account=SimpleNamespace(stopped=None))
    alive: Any = SimpleNamespace(record=record, live=live)
    server: Any = SimpleNamespace(
        _fail=lambda run, reason, **_: failed.append((run, reason)),
        _keep_alive=lambda *given: AliveRuns._keep_alive(server, *given),
        _site=SimpleNamespace(supervisor=Supervisor(backoff=Backoff(first=0.0, longest=0.0))),
    )
    with caplog.at_level(logging.ERROR, "caps.supervisor"):
        asyncio.run(AliveRuns._kept_alive(server, alive, "a run"))
    assert failed == [("a run", "shares are gone")]
    said = [record.getMessage() for record in caplog.records]
    assert ["OSError" in said[0], "RuntimeError" in said[1], len(said)] == [True, True, 2]
    assert all("test_interrupted.py" in line and "4711" not in line for line in said)
