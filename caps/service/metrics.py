"""The metrics of a service for its operator, in Prometheus' text format at /metrics, defined in one table.

Only the operator and the auditor of the service may read them, with a token (`authorization` in a scrape
configuration). Labels contain route templates, ids, and names of parties and populations, which are public in a study;
never a path, a title or a value from a table. A family keeps at most `MOST` sets of labels.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from fastapi import APIRouter, Depends, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from caps import __version__
from caps.service import logs
from caps.service.identity import Allow
from caps.service.tokens import Scope

PATH = "/metrics"
MOST = 200
"""The most sets of labels in one family. Further ones are counted under `other`, or left out if they are read."""
OTHER = "other"
_SECONDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_SIZES_LAST = 30.0
"""Seconds for which sizes on disk are cached."""

log = logging.getLogger("caps.metrics")

disable_created_metrics()  # type: ignore[no-untyped-call]  # else a second series for each counter


@dataclass(frozen=True)
class Family:
    """The metrics of one name. Gauges and read counters are read on each scrape; the others count events."""

    name: str
    kind: Literal["counter", "histogram", "gauge", "read counter"]
    help: str
    labels: tuple[str, ...] = ()


FAMILIES = (
    Family("caps_build_info", "gauge", "Always 1; labels say what runs here", ("service", "name", "version")),
    Family("caps_ready", "gauge", "1 if /readyz reports ready"),
    Family("caps_requests", "counter", "Requests answered", ("route", "method", "status")),
    Family("caps_request_seconds", "histogram", "Time to answer a request", ("route",)),
    Family("caps_received_bytes", "counter", "Bytes of requests' bodies: tables, shares, documents", ("route",)),
    Family("caps_retries", "counter", "Attempts postponed because a party was out of reach", ("party",)),
    Family("caps_connections", "gauge", "Open connections; strangers have yet to complete the handshake", ("kind",)),
    Family("caps_connections_refused", "counter", "Connections ended because there were too many", ("kind",)),
    Family("caps_unexpected_errors", "counter", "Errors that interrupted requests or other work", ("work", "error")),
    Family("caps_certificate_expiry_seconds", "gauge", "Seconds until a certificate expires", ("certificate",)),
    Family("caps_certificate_renewals", "read counter", "Certificates renewed without a restart"),
    Family("caps_denied_keys", "gauge", "Keys that are not accepted here, whoever certified them"),
    Family("caps_denied_keys_current", "gauge", "1 if policy.yaml is in force; 0: it cannot be read, an older list is"),
    Family("caps_state_bytes", "gauge", "Bytes on disk below CAPS_STATE", ("part",)),
    Family("caps_disk_free_bytes", "gauge", "Free bytes of the file system of CAPS_STATE"),
    Family("caps_disk_bytes", "gauge", "Size of the file system of CAPS_STATE"),
    Family("caps_metrics_errors", "counter", "Metric sources that failed when they were read"),
    Family("caps_studies", "gauge", "Studies known here", ("state",)),
    Family("caps_runs", "gauge", "Runs by state", ("state",)),
    Family("caps_run_waiting", "gauge", "1 for a run that waits for a party", ("run", "party")),
    Family("caps_run_steps", "gauge", "Steps answered in runs that have not ended", ("run",)),
    Family("caps_run_rounds", "gauge", "Rounds with the peers since this process began, of such runs", ("run",)),
    Family("caps_run_sent_bytes", "gauge", "Bytes sent to the peers since this process began, of such runs", ("run",)),
    Family("caps_steps", "counter", "Steps answered", ("kind",)),
    Family("caps_step_seconds", "histogram", "Time to answer a step, from its request on", ("kind",)),
    Family("caps_mesh_connected", "gauge", "1 if all peers are connected"),
    Family("caps_mesh_made", "read counter", "Meshes made since this process began"),
    Family("caps_peer_trouble", "gauge", "1 if the latest news of a peer is a failure", ("peer",)),
    Family("caps_ledger_records", "gauge", "Records of the ledger"),
    Family("caps_ledger_sound", "gauge", "1 if the ledger's chain is intact; 0: this server must not go on"),
    Family(
        "caps_ledger_rho_left", "gauge", "What studies of a population may still spend on this server", ("population",)
    ),
    Family("caps_contributions", "gauge", "Contributions by goal", ("goal",)),
    Family("caps_pushed_bytes", "counter", "Bytes of shares that a server has accepted", ("party",)),
)
"""Every name. Counters are exposed with `_total`, histograms with `_bucket`, `_sum` and `_count`."""

_BY_NAME = {family.name: family for family in FAMILIES}


def exposed_names() -> frozenset[str]:
    """Every name that a query may use."""
    ends = {"counter": ("_total",), "read counter": ("_total",), "gauge": ("",)}
    return frozenset(f.name + end for f in FAMILIES for end in ends.get(f.kind, ("_bucket", "_sum", "_count")))


@dataclass(frozen=True)
class Reading:
    """The current value of a metric."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Reading]]


class Metrics:
    """The metrics of one service."""

    def __init__(self, service: str = "", name: str = "") -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            if family.kind == "counter":
                self._counters[family.name] = Counter(family.name, family.help, family.labels, registry=self._registry)
            elif family.kind == "histogram":
                self._histograms[family.name] = Histogram(
                    family.name, family.help, family.labels, registry=self._registry, buckets=_SECONDS
                )
        self._seen: dict[str, set[tuple[str, ...]]] = {}
        self._lock = Lock()
        self._sources: list[Source] = [lambda: [Reading("caps_build_info", 1, (service, name, __version__))]]
        self._registry.register(_Reader(self))

    def count(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add to a counter."""
        counter, values = self._counters[name], self._bounded(name, labels)
        (counter.labels(*values) if values else counter).inc(amount)

    def observe(self, name: str, seconds: float, /, **labels: str) -> None:
        """Add an observation to a histogram."""
        histogram, values = self._histograms[name], self._bounded(name, labels)
        (histogram.labels(*values) if values else histogram).observe(seconds)

    def read(self, source: Source) -> None:
        """Read this source on each scrape. If it fails, the failure is counted and other sources are still shown."""
        self._sources.append(source)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _bounded(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        values = tuple(labels[label] for label in _BY_NAME[name].labels)
        with self._lock:
            seen = self._seen.setdefault(name, set())
            if values not in seen and len(seen) >= MOST:
                return (OTHER,) * len(values)
            seen.add(values)
        return values

    def readings(self) -> Iterator[Reading]:
        """The current readings of all sources."""
        for source in list(self._sources):
            try:
                yield from list(source())
            except Exception as error:  # noqa: BLE001  logs where, never what; metrics must not end a service
                logs.say(log, "a source of figures failed", level=logging.WARNING, error=type(error).__name__,
                         where=logs.frames(error))  # fmt: skip
                self.count("caps_metrics_errors")


class _Reader:
    """The collector that Prometheus' library calls on each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        """Nothing, so that sources are not read before they are ready."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of all readings."""
        found: dict[str, list[Reading]] = {}
        for reading in self._metrics.readings():
            found.setdefault(reading.name, []).append(reading)
        for name, readings in found.items():
            family = _BY_NAME[name]
            made = (CounterMetricFamily if family.kind == "read counter" else GaugeMetricFamily)(
                name, family.help, labels=family.labels
            )
            for reading in readings[:MOST]:
                made.add_metric(list(reading.labels), reading.value)
            yield made


def router(metrics: Metrics) -> APIRouter:
    """The route for operators and auditors. It is not part of the /v1 contract, so it is in no OpenAPI document."""
    routes = APIRouter()

    @routes.get(PATH, include_in_schema=False, dependencies=[Depends(Allow(scopes=[Scope.OPERATOR, Scope.AUDITOR]))])
    def show() -> Response:
        """All metrics as text."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes


def sizes_of(state: Path, *, monotonic: Callable[[], float] = time.monotonic) -> Source:
    """A source of the sizes below CAPS_STATE, by first-level name, and of the free disk space."""
    cached: tuple[float, list[Reading]] | None = None

    def source() -> list[Reading]:
        nonlocal cached
        if cached is None or monotonic() - cached[0] > _SIZES_LAST:
            cached = monotonic(), list(_sizes(state))
        return cached[1]

    return source


def _sizes(state: Path) -> Iterator[Reading]:
    database = 0
    for entry in sorted(os.scandir(state), key=lambda one: one.name):
        if entry.is_dir(follow_symlinks=False):
            yield Reading("caps_state_bytes", sum(_files(Path(entry.path))), (entry.name,))
        elif entry.name.startswith("state.db"):
            database += entry.stat(follow_symlinks=False).st_size
    yield Reading("caps_state_bytes", database, ("database",))
    room = os.statvfs(state)
    yield Reading("caps_disk_free_bytes", room.f_bavail * room.f_frsize)
    yield Reading("caps_disk_bytes", room.f_blocks * room.f_frsize)


def _files(folder: Path) -> Iterator[int]:
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(at, name), follow_symlinks=False).st_size
            except FileNotFoundError:  # erased meanwhile
                continue
