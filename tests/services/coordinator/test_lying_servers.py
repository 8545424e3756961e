"""A server that answers anything: the coordinator blames it and goes on, and its attendant never ends unnoticed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest

from caps.basics.retry import Backoff
from caps.service.supervision import Supervisor
from caps.study import Server
from caps.wire.coordinator import Judged
from services.coordinator.servers import Misbehaved
from tests.kit.attacks import BODIES
from tests.kit.coordinator_servers import Bench
from tests.kit.waiting import until


def lying(bench: Bench, body: bytes, status: int = 200) -> None:
    """S2 answers every request with this."""
    honest = bench.federation.connect

    def connect(server: Server) -> httpx.Client:
        if server.name != "S2":
            return honest(server)
        answer = httpx.MockTransport(lambda _: httpx.Response(status, content=body, headers={"Retry-After": "1"}))
        return httpx.Client(base_url=server.url, transport=answer)

    bench.federation.connect = connect  # type: ignore[method-assign]


class Rounds:
    """Stands for the end of the service, which comes after so many waits of no time."""

    def __init__(self, number: int) -> None:
        self._left = number

    def wait(self, _: float) -> bool:
        self._left -= 1
        return self._left < 0

    def set(self) -> None:
        """Nothing waits."""

    def is_set(self) -> bool:
        """Whether it is over."""
        return self._left < 0


@pytest.mark.parametrize("name", BODIES)
def test_the_attendant_survives_whatever_a_server_answers(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path)
    lying(bench, BODIES[name]())
    coordinator = bench.coordinator()
    coordinator.studies.propose(bench.manifest.to_json())
    coordinator.runs._stop = Rounds(2)  # type: ignore[assignment]
    coordinator.runs._attend()
    judged = coordinator.store.judgements(bench.manifest.study_id)
    assert {server: one.state for server, one in judged.items() if one.state is Judged.APPROVED}.keys() == {"S1", "S3"}
    coordinator.close()


def test_200000_brackets_of_a_server_are_its_own_fault(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lying(bench, b"[" * 200_000)
    coordinator = bench.coordinator()
    with pytest.raises(Misbehaved, match="nested") as caught:
        coordinator.servers.ask(bench.manifest.servers[1], "GET", "/v1/studies")
    assert caught.value.party == "S2"
    coordinator.close()


def test_an_attendant_that_an_unexpected_error_stops_takes_its_work_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    bench = Bench(tmp_path)
    coordinator = bench.coordinator()
    looked = []

    def unjudged() -> list[str]:
        looked.append(True)
        if len(looked) == 1:
            raise RecursionError("4711")
        return []

    monkeypatch.setattr("services.coordinator.runs._ATTEND_EVERY", 0.001)
    monkeypatch.setattr(coordinator.store, "unjudged", unjudged)
    runs = coordinator.runs
    runs._supervisor = Supervisor(runs._metrics, backoff=Backoff(first=0.0, longest=0.0))
    runs.open()
    until(lambda: len(looked) > 2)
    coordinator.close()
    said = [json.loads(record.getMessage()) for record in caplog.records if record.name == "caps.supervisor"]
    assert [(one["work"], one["error"]) for one in said] == [("attendant", "RecursionError")]
    assert "4711" not in caplog.text
    assert b'caps_unexpected_errors_total{error="RecursionError",work="attendant"} 1.0' in runs._metrics.text()
