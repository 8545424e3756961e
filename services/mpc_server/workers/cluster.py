"""Workers on several machines of one party: a Dask cluster, reached by TLS with certificates on both sides.

Dask's own messages are pickled, so whoever is in the cluster can execute code in it: it belongs to one party, and its
certificates to nobody else. Results are octets, and are checked like those of any worker.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from caps.errors import LocalError
from services.mpc_server.workers import tasks
from services.mpc_server.workers.leader import Staff, WorkerLost
from services.mpc_server.workers.tasks import Header, Octets, Task

_CONNECT = 10.0
"""Seconds that the scheduler has to answer."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Where the scheduler is, and the leader's certificate, key and authority in the cluster."""

    address: str
    authority: Path
    certificate: Path
    key: Path


def performed(header: Header, sent: bytes) -> bytes:
    """What a worker of the cluster does."""
    return tasks.performed(tasks.apart(header, memoryview(sent)))


class Cluster(Staff):
    """The workers that the scheduler knows, by their addresses. One that was dismissed is never asked again."""

    def __init__(self, settings: ClusterSettings) -> None:
        if find_spec("distributed") is None:
            raise LocalError("CAPS_WORKERS names a Dask cluster, but Dask is not installed: pip install 'caps[dask]'")
        self._settings = settings
        self._client: Any = None
        self._futures: dict[str, Any] = {}
        self._dismissed: set[str] = set()
        self._news: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def present(self) -> Sequence[str]:
        if self._client is None or self._client.status != "running":
            self._connect()
        if self._client is None:
            return []
        try:
            known = self._client.run_on_scheduler(_addresses)
        except Exception:  # noqa: BLE001 - whatever a cluster does, the run goes on without it
            self._disconnect()
            return []
        return [address for address in known if address not in self._dismissed]

    def _connect(self) -> None:
        self._disconnect()
        distributed: Any = import_module("distributed")  # optional, and without types
        settings = self._settings
        security = distributed.Security(
            tls_ca_file=str(settings.authority),
            tls_client_cert=str(settings.certificate),
            tls_client_key=str(settings.key),
            require_encryption=True,
        )
        try:
            self._client = distributed.Client(
                settings.address, security=security, timeout=_CONNECT, set_as_default=False, direct_to_workers=False
            )
        except Exception:  # noqa: BLE001 - as above
            self._client = None

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._futures.clear()
        if client is not None:
            client.close(timeout=1)

    def give(self, worker: str, task: Task, result_bytes: int) -> None:
        if self._client is None or self._client.status != "running":
            raise WorkerLost("its scheduler is gone")
        sent = b"".join(task.sent)
        future = self._client.submit(
            performed, task.header, sent, workers=[worker], allow_other_workers=False, pure=False, retries=0
        )
        self._futures[worker] = future
        future.add_done_callback(lambda done: self._news.put((worker, done)) if self._is(worker, done) else None)

    def _is(self, worker: str, future: Any) -> bool:
        """Whether a worker is still to return this."""
        return self._futures.get(worker) is future

    def returned(self, seconds: float) -> tuple[str, Octets | WorkerLost] | None:
        try:
            news = self._news.get(timeout=seconds) if seconds else self._news.get_nowait()
        except queue.Empty:
            return self._missing()
        worker, future = news
        if self._futures.pop(worker, None) is None:  # given up before
            return None
        if future.status != "finished":
            return worker, WorkerLost(f"its task ended as {future.status}")
        try:
            result = future.result(timeout=_CONNECT)
        except Exception as error:  # noqa: BLE001 - as above
            return worker, WorkerLost(f"its result cannot be had: {type(error).__name__}")
        return worker, result if isinstance(result, bytes) else WorkerLost("it returned something that is no result")

    def _missing(self) -> tuple[str, WorkerLost] | None:
        """A worker that has a task and is in the cluster no more."""
        if not self._futures:
            return None
        known: set[str] = set()
        if self._client is not None and self._client.status == "running":
            known = set(self._client.scheduler_info(n_workers=-1)["workers"])
        for worker in self._futures:
            if worker not in known:
                del self._futures[worker]
                return worker, WorkerLost("it has left its cluster, or the scheduler is gone")
        return None

    def dismiss(self, worker: str, reason: str) -> None:
        self._dismissed.add(worker)
        future = self._futures.pop(worker, None)
        if future is not None and self._client is not None and self._client.status == "running":
            future.cancel()

    def close(self) -> None:
        self._disconnect()


def _addresses(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.workers)
