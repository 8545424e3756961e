"""A full disk: recognised as such, told to whoever asks, over once a write succeeds."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from caps.service import room
from caps.service.room import DiskRoom, is_full
from caps.service.tokens import Scope
from caps.wire import media
from tests.kit.service import Sample


def database_error(**members: object) -> OperationalError:
    return OperationalError("INSERT", {}, SimpleNamespace(**members))  # type: ignore[arg-type]


def test_errors_of_files_and_databases_are_recognised() -> None:
    with pytest.raises(OSError, match="No space") as refused:
        Path("/dev/full").write_bytes(b"x")
    assert is_full(refused.value)
    assert is_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_full(database_error(sqlite_errorcode=sqlite3.SQLITE_FULL))
    assert is_full(database_error(sqlstate="53100"))


def test_other_errors_are_not_a_full_disk() -> None:
    assert not is_full(FileNotFoundError(errno.ENOENT, "No such file"))
    assert not is_full(database_error(sqlite_errorcode=sqlite3.SQLITE_BUSY))
    assert not is_full(database_error(sqlstate="55P03"))
    assert not is_full(ValueError("28"))


def test_a_database_that_may_not_grow_is_full(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "small.db") as found:
        found.execute("PRAGMA max_page_count=2")
        found.execute("CREATE TABLE t (x)")
        with pytest.raises(sqlite3.OperationalError) as refused:
            found.execute("INSERT INTO t VALUES (zeroblob(100000))")
    found.close()
    assert is_full(OperationalError("INSERT", {}, refused.value))


def test_after_a_failed_write_it_is_full_until_a_write_succeeds(tmp_path: Path) -> None:
    times = iter([100.0, 101.0, 200.0, 200.0])
    disk = DiskRoom(tmp_path, monotonic=lambda: next(times))
    assert disk.reasons() == []
    disk.failed()
    (told,) = disk.reasons()  # a second later: not tried again yet
    assert "full" in told
    assert disk.reasons() == []
    assert list(tmp_path.iterdir()) == []


def test_it_stays_full_while_nothing_can_be_written(tmp_path: Path) -> None:
    times = iter(float(number) for number in range(0, 1000, 10))
    disk = DiskRoom(tmp_path / "state", monotonic=lambda: next(times))
    (tmp_path / "state").mkdir()
    disk.failed()
    (tmp_path / "state").rmdir()
    (tmp_path / "state").write_text("no directory: every attempt to write below it fails")
    assert len(disk.reasons()) == 1
    assert len(disk.reasons()) == 1


def test_little_room_is_a_reason_before_a_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "LEAST_ROOM", 1 << 62)
    (told,) = DiskRoom(tmp_path).reasons()
    assert told.startswith("the disk of CAPS_STATE is full")


def test_a_request_that_finds_no_room_is_told_so_with_its_id(tmp_path: Path) -> None:
    sample = Sample(tmp_path, room=DiskRoom(tmp_path))
    headers = {"Authorization": f"Bearer {sample.token(Scope.OPERATOR)}", "X-Request-Id": "who-fills-the-disk"}

    async def exchange() -> list[httpx.Response]:
        transport = httpx.ASGITransport(sample.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://service.test") as client:
            return [await client.get(path, headers=headers) for path in ("/readyz", "/v1/full", "/readyz")]

    before, answer, after = asyncio.run(exchange())
    assert before.status_code == 200
    assert answer.status_code == 507
    assert answer.headers["content-type"] == media.PROBLEM
    problem = answer.json()
    assert (problem["type"], problem["request_id"]) == ("urn:caps:problem:no-space", "who-fills-the-disk")
    assert problem["retryable"]
    assert after.status_code == 503
    assert "full" in after.json()["reasons"][0]
