"""A service that has too much to do (429) is asked again after the time it names, whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from caps.basics.retry import LONGEST_ASKED
from caps.client import Client, ProblemError
from caps.client.client import ATTEMPTS
from caps.wire.coordinator import SampleView
from services.coordinator.execution import Execution
from services.coordinator.servers import Servers
from services.coordinator.states import RunEvent
from tests.kit.coordinator_servers import BRISK, Bench
from tests.kit.holder import HolderBench
from tests.kit.waiting import until

PROBLEM = {"type": "about:blank", "title": "Busy", "status": 429, "detail": "later", "retryable": False}
Answers = Callable[[httpx.Request], httpx.Response]


class Waits(threading.Event):
    """Stands for the end of the service, which comes after so many waits, or never. Waiting takes no time."""

    def __init__(self, ends_after: int | None = None) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._ends_after = ends_after

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return len(self.seconds) == self._ends_after


def client_asks(_: Path, answers: Answers) -> Sequence[float]:
    waits: list[float] = []
    with Client("https://service", transport=httpx.MockTransport(answers), sleep=waits.append) as client:
        client.sample("release")  # a POST that is not repeated when a connection is lost
    return waits


def holder_asks(folder: Path, answers: Answers) -> Sequence[float]:
    waits: list[float] = []
    world = HolderBench(folder, "clinic-a")
    holder = world.holder()
    holder.site.calls = lambda *_, **__: httpx.Client(  # type: ignore[method-assign]
        base_url="https://coordinator", transport=httpx.MockTransport(answers)
    )
    holder._retries._wait = lambda _, seconds: waits.append(seconds)
    try:
        holder.store.add_study(world.manifest)
        holder.approve(world.study)
        until(lambda: holder.store.study(world.study).approval_sent)
    finally:
        holder.close()
        for one in world.sockets.values():
            one.close()
    return waits


def coordinator_asks(folder: Path, answers: Answers) -> Sequence[float]:
    bench, waits = Bench(folder), Waits()
    coordinator, run = bench.started()
    servers = Servers(lambda server: httpx.Client(base_url=server.url, transport=httpx.MockTransport(answers)))
    coordinator.store.change_state(run, RunEvent.PROCEED)
    record = coordinator.runs.run(run)
    execution = Execution(coordinator.store, servers, bench.manifest, record, patience=BRISK, stop=waits)
    try:
        execution.patiently(lambda: servers.ask(bench.manifest.servers[0], "PUT", "/v1/runs/1", {}))
    finally:
        servers.close()
        coordinator.close()
    return waits.seconds


SAMPLE = SampleView(sample="0" * 32, release="1" * 32, rows=1, seed="2" * 64, created_at="now", data=[]).model_dump()
"""What the client asks for; the others do not look at the answer."""
ASKERS = [client_asks, holder_asks, coordinator_asks]


def busy_once(**answer: Any) -> Answers:
    asked: list[httpx.Request] = []

    def answers(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(429, **answer) if len(asked) == 1 else httpx.Response(200, json=SAMPLE)

    return answers


@pytest.mark.parametrize("ask", ASKERS)
@pytest.mark.parametrize("body", [{"json": PROBLEM}, {"html": "<p>busy</p>"}], ids=["problem", "proxy"])
def test_it_is_asked_again_after_the_time_it_names(tmp_path, ask, body):
    assert ask(tmp_path, busy_once(headers={"Retry-After": "7"}, **body)) == [7.0]


@pytest.mark.parametrize("ask", ASKERS)
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "86400"}, LONGEST_ASKED),
        ({"Retry-After": "9" * 400}, LONGEST_ASKED),
        ({"Date": "Tue, 17 Nov 2026 03:00:00 GMT", "Retry-After": "Tue, 17 Nov 2026 03:00:07 GMT"}, 7.0),
    ],
    ids=["long", "absurd", "date"],
)
def test_the_time_may_be_a_date_and_is_bounded(tmp_path, ask, headers, seconds):
    assert ask(tmp_path, busy_once(headers=headers, json=PROBLEM)) == [seconds]


@pytest.mark.parametrize("ask", ASKERS)
@pytest.mark.parametrize("headers", [{}, {"Retry-After": "soon"}, {"Retry-After": "-1"}], ids=["none", "soon", "minus"])
def test_without_a_time_the_pauses_are_the_usual_ones(tmp_path, ask, headers):
    (wait,) = ask(tmp_path, busy_once(headers=headers, json=PROBLEM))
    assert 0 < wait <= 0.25


def test_the_coordinator_asks_for_approvals_no_sooner_than_servers_wish(tmp_path):
    bench, waits = Bench(tmp_path), Waits(ends_after=3)
    honest, busy = bench.federation.handle, ["30", "86400"]

    def handle(name: str, *request: Any) -> Any:
        return (429, {"Retry-After": busy.pop(0)}, PROBLEM) if name == "S2" and busy else honest(name, *request)

    bench.federation.handle = handle  # type: ignore[method-assign]
    coordinator = bench.coordinator()
    coordinator.studies.propose(bench.manifest.to_json())
    coordinator.runs._stop = waits
    coordinator.runs._attend()
    assert waits.seconds == [10.0, LONGEST_ASKED, 10.0]
    assert not busy
    coordinator.close()


def test_the_client_gives_up_at_last():
    waits: list[float] = []
    transport = httpx.MockTransport(lambda _: httpx.Response(429, headers={"Retry-After": "2"}, json=PROBLEM))
    client = Client("https://service", transport=transport, sleep=waits.append)
    with client, pytest.raises(ProblemError, match="Busy: later") as caught:
        client.studies()
    assert waits == [2.0] * (ATTEMPTS - 1)
    assert caught.value.retryable
