"""Background work never ends unnoticed: an unexpected error is said without its text, counted, and work goes on."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import threading
from pathlib import Path

import pytest

from caps.basics.retry import Backoff
from caps.errors import LocalError
from caps.service.metrics import Metrics
from caps.service.supervision import Supervisor
from tests.kit.service import CANARY

ROOT = Path(__file__).parents[3]
SUPERVISOR = "caps/service/supervision.py"
STARTERS = frozenset(
    {"Thread", "Timer", "create_task", "ensure_future", "run_coroutine_threadsafe", "start_new_thread", "TaskGroup"}
)
"""What begins work that nobody need wait for."""


def broken(error: Exception) -> None:
    raise error


class Watched:
    """A supervisor without pauses, its metrics, and what it logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.ERROR, "caps.supervisor")
        self._caplog = caplog
        self._metrics = Metrics()
        self.supervisor = Supervisor(self._metrics, backoff=Backoff(first=0.0, longest=0.0))

    @property
    def said(self) -> list[tuple[str, str]]:
        """Work and kind of each error; checks that there are places and no text."""
        lines = [json.loads(record.getMessage()) for record in self._caplog.records]
        assert all(line["where"][-1].startswith("service/test_supervision.py:") for line in lines)
        assert CANARY not in self._caplog.text
        return [(line["work"], line["error"]) for line in lines]

    def counted(self, work: str, error: str) -> int:
        label = f'caps_unexpected_errors_total{{error="{error}",work="{work}"}}'
        found = [line for line in self._metrics.text().decode().splitlines() if line.startswith(label)]
        return int(float(found[0].split()[-1])) if found else 0


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(caplog)


def test_a_thread_takes_its_work_up_again(watched: Watched) -> None:
    errors: list[Exception] = [RecursionError(CANARY), ValueError(CANARY), LocalError(CANARY)]

    def work() -> None:
        if errors:
            broken(errors.pop(0))

    thread = watched.supervisor.thread("attendant", work)
    thread.join(20)
    assert not thread.is_alive()
    assert watched.said == [("attendant", "RecursionError"), ("attendant", "ValueError"), ("attendant", "LocalError")]
    assert watched.counted("attendant", "RecursionError") == 1


def test_a_thread_that_is_to_stop_does_not_go_on(watched: Watched) -> None:
    stopping = threading.Event()

    def work() -> None:
        stopping.set()
        broken(ValueError(CANARY))

    watched.supervisor.thread("attendant", work, stopping=stopping).join(20)
    assert watched.said == [("attendant", "ValueError")]


def test_a_coroutine_is_kept_until_it_returns(watched: Watched) -> None:
    errors: list[Exception] = [OSError(CANARY), KeyError(CANARY)]

    async def work() -> str:
        if errors:
            broken(errors.pop(0))
        return "done"

    assert asyncio.run(watched.supervisor.keep("sweep", work)) == "done"
    assert watched.said == [("sweep", "OSError"), ("sweep", "KeyError")]


def test_a_task_that_nobody_waits_for_is_heard_of(watched: Watched) -> None:
    async def work(error: Exception) -> None:
        broken(error)

    async def scenario() -> None:
        for error in (TypeError(CANARY), LocalError("expected")):
            task = watched.supervisor.task("step", work(error))
            await asyncio.wait([task])
        ended = watched.supervisor.task("step", asyncio.sleep(100))
        ended.cancel()
        await asyncio.wait([ended])

    asyncio.run(scenario())
    assert watched.said == [("step", "TypeError")]


def test_what_another_loop_was_given_is_heard_of_and_so_is_an_error_in_a_callback(watched: Watched) -> None:
    async def work() -> None:
        broken(TypeError(CANARY))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        watched.supervisor.take_over(loop)
        loop.call_soon(broken, ZeroDivisionError(CANARY))
        future = watched.supervisor.submit("engine", work(), loop)
        with pytest.raises(TypeError):
            await asyncio.wrap_future(future)

    asyncio.run(scenario())
    assert sorted(watched.said) == [("engine", "TypeError"), ("event loop", "ZeroDivisionError")]


def started_in(path: Path) -> set[str]:
    """The starters that a module calls or inherits from."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    used = [node.func for node in nodes if isinstance(node, ast.Call)]
    used += [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in used}
    return names & STARTERS


def test_all_background_work_of_services_is_started_by_the_supervisor() -> None:
    modules = [path for folder in ("caps", "services") for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): names for path in modules if (names := started_in(path))}
    assert found == {SUPERVISOR: {"Thread", "create_task", "run_coroutine_threadsafe"}}
