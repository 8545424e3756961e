"""Processes that outlive their starter: found by id and start, never mistaken for another, stopped in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from caps.errors import DomainError
from caps.federation.processes import Process, begin
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Process]:
    process = launch(tmp_path, SLEEP)
    yield process
    process.stop(1)


def launch(folder: Path, command: list[str]) -> Process:
    """Until it says that it is up."""
    log = folder / "log"
    process = begin(command, directory=folder, environment=os.environ, log=log, since="2030-01-01T00:00:00Z")
    until(lambda: log.exists() and "up" in log.read_text(), 20)
    return process


def test_a_process_lives_in_a_session_of_its_own_until_it_is_stopped(started: Process, tmp_path: Path) -> None:
    assert started.lives()
    assert os.getsid(started.pid) == started.pid
    assert os.readlink(f"/proc/{started.pid}/cwd") == str(tmp_path)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert started.stop(10)
    assert not started.lives()
    assert started.stop(10)


def test_what_was_kept_finds_it_again(started: Process, tmp_path: Path) -> None:
    started.keep(tmp_path / "kept.json")
    found = Process.read(tmp_path / "kept.json")
    assert found == started
    assert found.lives()
    assert Process.read(tmp_path / "nothing.json") is None
    (tmp_path / "kept.json").write_text('{"pid": 1}')
    assert Process.read(tmp_path / "kept.json") is None


@pytest.mark.parametrize("change", [{"ticks": 1}, {"boot": "another"}])
def test_another_process_with_the_same_id_is_left_alone(started: Process, change: dict[str, object]) -> None:
    stale = started.model_copy(update=change)
    assert not stale.lives()
    assert stale.stop(0.2)
    assert started.lives()


def test_one_that_does_not_listen_is_killed_after_a_while(tmp_path: Path) -> None:
    process = launch(tmp_path, DEAF)
    assert not process.stop(0.3)
    assert not process.lives()


def test_one_that_ended_by_itself_does_not_live(tmp_path: Path) -> None:
    process = launch(tmp_path, [sys.executable, "-c", "print('up')"])
    until(lambda: not process.lives())
    assert process.stop(0.1)


def test_the_child_of_another_process_is_no_zombie_of_ours(started: Process) -> None:
    os.kill(started.pid, signal.SIGKILL)
    until(lambda: not started.lives())
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(started.pid)], capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_a_command_that_is_not_there_leaves_a_line_and_does_not_live(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = begin(["/nothing/here"], directory=tmp_path, environment={}, log=log, since="2030-01-01T00:00:00Z")
    until(lambda: not process.lives())
    assert "/nothing/here" in log.read_text()


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="cannot be started"):
        begin(SLEEP, directory=tmp_path, environment={}, log=tmp_path / "no" / "log", since="2030-01-01T00:00:00Z")
