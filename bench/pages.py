"""How long each page takes at 100 studies and 20 attributes, in a real federation on this machine.

Every page that a person of each kind finds by following links is fetched over TLS from the running service. The goal is
200 ms of server time. CPU of the service's process says the same on a machine that has other things to do. Parts that
ask other parties when they are shown are left out: a page does not wait for them.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from caps.basics.schemes import REP3
from caps.basics.uniform import Uniform
from caps.client import Client
from caps.federation.local import LocalFederation
from caps.federation.parties import COORDINATOR, POPULATIONS, manifest_parties
from caps.study import Manifest
from caps.trust.tls import client_context

GOAL = 0.2
STUDIES, ATTRIBUTES, ROWS = 100, 20, 500
HOLDERS = ("north", "south")
PEOPLE = (
    ("north", "owner"),
    (COORDINATOR, "operator"),
    (COORDINATOR, "analyst"),
    ("S1", "operator"),
    ("S2", "auditor"),
)
_LINKS = re.compile(r'(?:href|hx-get)="(/ui[^"#]*)"')
_ASKS_OTHERS = re.compile(r"/(?:participation|servers|health|release|budget)$")
_ID = re.compile(r"[0-9a-f]{32,64}")
_CATEGORIES = ("a", "b", "c", "d")


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """By person and kind of page, the slowest page of the kind: median seconds on the clock, and of CPU."""
    with tempfile.TemporaryDirectory(prefix="caps-pages-") as scratch:
        found = LocalFederation.create(Path(scratch) / "trial", HOLDERS, scheme=REP3, now=_now())
        found.start(now=_now)
        try:
            _fill(found, Path(scratch))
            return {
                f"{scope} at {name}": dict(sorted(_pages(found, name, scope, repeats).items()))
                for name, scope in PEOPLE
            }
        finally:
            found.stop()


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'milliseconds':<52}{'clock':>8}{'CPU':>8}{'KB':>8}"]
    everything = []
    for person, kinds in report.items():
        lines.append(person)
        for kind, one in kinds.items():
            everything.append(one)
            lines.append(
                f"  {kind:<50}{1000 * one['seconds']:>8.0f}{1000 * one['cpu_seconds']:>8.0f}{one['bytes'] / 1000:>8.0f}"
            )
    for name, words in (("seconds", "on the clock"), ("cpu_seconds", "of CPU")):
        slow = sum(one[name] > GOAL for one in everything)
        lines.append(f"{slow} of {len(everything)} take more than {1000 * GOAL:g} ms {words}")
    return "\n".join(lines)


def _fill(found: LocalFederation, scratch: Path) -> None:
    """Propose all studies, and take the last one to its release."""
    manifests = [_manifest(found, number) for number in range(STUDIES)]
    last = manifests[-1].study_id
    with _client(found, COORDINATOR, "operator") as operator:
        for manifest in manifests:
            operator.propose(manifest)
        with _client(found, HOLDERS[0], "operator") as person:
            for manifest in manifests[:-1]:
                person.fetch(manifest.coordinator.url, manifest.study_id)
        for holder in HOLDERS:
            path = scratch / f"{holder}.csv"
            path.write_text(_table(holder))
            with _client(found, holder, "operator") as person:
                person.fetch(found.places[COORDINATOR].url, last)
            with _client(found, holder, "owner") as owner:
                owner.approve(last)
                owner.put_table(last, path)
                owner.contribute(last)
                while not all(server.receipt for server in owner.contribution(last).servers):
                    time.sleep(0.1)
        run = operator.start(last).run
        for _ in operator.watch(run):
            pass
        if operator.run(run).state != "released":
            raise SystemExit(f"the run ended as {operator.run(run).state}: {operator.run(run).reason}")


def _pages(found: LocalFederation, name: str, scope: str, repeats: int) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    process = found.process(name)
    assert process is not None
    headers = {"Authorization": f"Bearer {found.token(name, scope)}", "Accept": "text/html"}
    context = client_context(found.authority)
    with httpx.Client(base_url=found.places[name].url, verify=context, headers=headers, timeout=60) as http:
        for path, size in _crawled(http):
            kind = _ID.sub("ID", path)
            if kind in kinds and _ID.search(path):
                continue  # one of each kind is enough
            cpu, times = _cpu(process.pid), []
            for _ in range(repeats):
                began = time.perf_counter()
                http.get(path).raise_for_status()
                times.append(time.perf_counter() - began)
            used = (_cpu(process.pid) - cpu) / repeats
            kinds[kind] = {"seconds": median(times), "cpu_seconds": used, "bytes": size}
    return kinds


def _crawled(http: httpx.Client) -> Iterator[tuple[str, int]]:
    """Every page that is found by links, of each kind with an id at most three; with its size."""
    waiting, seen, kinds = ["/ui"], {"/ui"}, dict[str, int]()
    while waiting:
        path = waiting.pop()
        answer = http.get(path)
        if answer.status_code != 200 or "text/html" not in answer.headers.get("content-type", ""):
            continue
        yield path, len(answer.content)
        for one in sorted({link.replace("&amp;", "&") for link in _LINKS.findall(answer.text)} - seen):
            kind = _ID.sub("ID", one)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= 3 and "/static/" not in one and not _ASKS_OTHERS.search(one.partition("?")[0]):
                seen.add(one)
                waiting.append(one)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _manifest(found: LocalFederation, number: int) -> Manifest:
    columns = [
        {"name": f"column{place}", "kind": "categorical", "categories": list(_CATEGORIES)}
        for place in range(ATTRIBUTES)
    ]
    return Manifest.from_json(
        {
            "title": f"Study number {number + 1}",
            "schema": {"name": "invented", "columns": columns},
            "algorithm": {"name": "mst"},
            "privacy": {"epsilon": "1", "delta": "1e-9", "population": next(iter(POPULATIONS))},
            **manifest_parties(found.places, REP3, [{"name": name, "brings": "rows"} for name in HOLDERS]),
        }
    )


def _table(holder: str) -> str:
    drawn = (4 * Uniform(holder).floats(ROWS * ATTRIBUTES)).astype(int).reshape(ROWS, ATTRIBUTES)
    lines = [",".join(f"column{place}" for place in range(ATTRIBUTES))]
    return "\n".join(lines + [",".join(_CATEGORIES[code] for code in row) for row in drawn]) + "\n"


def _client(found: LocalFederation, name: str, scope: str) -> Client:
    return Client(found.places[name].url, token=found.token(name, scope), authority=found.authority)


def _now() -> datetime:
    return datetime.now(UTC)
