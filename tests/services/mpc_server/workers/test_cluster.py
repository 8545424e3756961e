"""A Dask cluster of one party, over TLS: real schedulers and workers, which are killed."""

from __future__ import annotations

import datetime as dt
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from caps.trust.pki import Authority, generate_key, write_key, write_pem
from services.mpc_server.workers import leader
from services.mpc_server.workers.cluster import Cluster, ClusterSettings
from services.mpc_server.workers.leader import Crew
from tests.kit.jobs import grams

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow]


class Dask:
    """A scheduler and two workers."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self.directory = directory
        now = dt.datetime.now(dt.UTC)
        valid = {"not_before": now - dt.timedelta(minutes=5), "not_after": now + dt.timedelta(days=1)}
        authority, key = Authority.create("cluster of S1", **valid), generate_key()
        write_pem(directory / "ca.crt", authority.certificate)
        write_key(directory / "one.key", key)
        certificate = authority.issue(key.public_key(), subject="S1", hosts=["127.0.0.1"], **valid)
        write_pem(directory / "one.crt", certificate)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"tls://127.0.0.1:{self.port}"
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        self.workers = [
            self._start(
                "worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"
            )
            for _ in range(workers)
        ]

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        files = {"ca-file": "ca.crt", "cert": "one.crt", "key": "one.key"}
        tls = [part for name, file in files.items() for part in (f"--tls-{name}", str(self.directory / file))]
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + kind, *arguments, *tls],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def settings(self) -> ClusterSettings:
        files = (self.directory / name for name in ("ca.crt", "one.crt", "one.key"))
        return ClusterSettings(self.address, *files)

    def staff(self) -> Cluster:
        """The cluster, once both workers are there."""
        found, until = Cluster(self.settings()), time.monotonic() + 90
        while len(found.present()) < len(self.workers):
            assert time.monotonic() < until, "the cluster does not come up"
            time.sleep(0.3)
        return found

    def end(self) -> None:
        for process in (self.scheduler, *self.workers):
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dask]:
    pytest.importorskip("distributed")
    monkeypatch.setattr(leader, "RANGE_WORDS", 1)
    found = Dask(tmp_path)
    yield found
    found.end()


def test_a_cluster_computes_and_a_worker_or_the_scheduler_may_die(
    dask: Dask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, staff = grams(), dask.staff()
    expected = job.totals()
    crew = Crew(staff, stall=20, pays=0)
    asked: list[str] = []
    give = Cluster.give
    monkeypatch.setattr(Cluster, "give", lambda self, worker, *rest: asked.append(worker) or give(self, worker, *rest))
    try:
        assert all(map(np.array_equal, crew.totals(job), expected))
        assert len(set(asked)) == 2, "both workers are used"
        assert all(address.startswith("tls://") for address in asked)
        assert not caplog.records

        # One of them stops in the middle of a range: it is named, and the other does the rest.
        dask.workers[0].send_signal(signal.SIGSTOP)
        with caplog.at_level(logging.ERROR, "caps.workers"):
            assert all(map(np.array_equal, Crew(staff, stall=3, pays=0).totals(job), expected))
        assert any("worker dismissed" in record.getMessage() for record in caplog.records)
        dask.workers[0].kill()

        # The scheduler is killed while a range is computed.
        caplog.clear()
        monkeypatch.setattr(Cluster, "give", _killing(give, dask))
        with caplog.at_level(logging.ERROR, "caps.workers"):
            assert all(map(np.array_equal, crew.totals(job), expected))
        assert any("no workers are left" in record.getMessage() for record in caplog.records)

        # Nobody answers any more.
        caplog.clear()
        assert all(map(np.array_equal, crew.totals(job), expected))
    finally:
        crew.close()


def _killing(give, dask):  # type: ignore[no-untyped-def]
    def given(self, worker, *rest):  # type: ignore[no-untyped-def]
        if dask.scheduler.poll() is None:
            dask.scheduler.kill()
            dask.scheduler.wait()
        give(self, worker, *rest)

    return given


def test_a_worker_of_a_cluster_that_lies_is_dismissed(dask: Dask, caplog: pytest.LogCaptureFixture) -> None:
    job, staff = grams(), dask.staff()
    liar = staff.present()[0]
    returned = staff.returned

    def altered(seconds: float):  # type: ignore[no-untyped-def]
        news = returned(seconds)
        if news is not None and news[0] == liar and isinstance(news[1], bytes):
            return liar, bytes([news[1][0] ^ 1]) + news[1][1:]
        return news

    staff.returned = altered  # type: ignore[method-assign]
    crew = Crew(staff, pays=0)
    try:
        with caplog.at_level(logging.ERROR, "caps.workers"):
            assert all(map(np.array_equal, crew.totals(job), job.totals()))
        assert any(liar in record.getMessage() and "wrong result" in record.getMessage() for record in caplog.records)
        assert liar not in staff.present()
    finally:
        crew.close()


def test_a_certificate_of_another_authority_opens_nothing(dask: Dask, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Dask(tmp_path / "other", workers=0)
    try:
        settings = stranger.settings()
        staff = Cluster(ClusterSettings(dask.address, settings.authority, settings.certificate, settings.key))
        assert not staff.present()
        staff.close()
    finally:
        stranger.end()
