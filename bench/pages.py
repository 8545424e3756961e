"""How long each page takes at 100 studies and 20 attributes, in a real federation on this machine.

One of the studies is released, and one of 60 attributes, whose pages have the largest maps; an author has a draft with
20 columns. Every page that a person of each kind finds by following links is fetched over TLS from the running service.
The goal is 200 ms of server time: the first time after a restart, and from then on. CPU of the service's process says
the same on a machine that has other things to do. Parts that ask other parties when they are shown are left out: a page
does not wait for them.
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
from caps.federation.local import CARDS, LocalFederation
from caps.federation.parties import COORDINATOR, POPULATIONS, manifest_parties
from caps.study import Manifest
from caps.trust.tls import client_context
from caps.wire.coordinator import Judged

GOAL = 0.2
STUDIES, ATTRIBUTES, ROWS = 100, 20, 500
WIDE = 60
"""Columns of the release with the largest maps."""
HOLDERS = ("north", "south")
PEOPLE = (
    ("north", "owner"),
    (COORDINATOR, "operator"),
    (COORDINATOR, "analyst"),
    ("S1", "operator"),
    ("S2", "auditor"),
)
ASKED = {"analyst": ("/ui/releases/{wide}/count?where=0.1&where=1.2&where=1.3&by=2&by=3&level=95",)}
"""Pages to which forms lead, and no link: the most that somebody may ask at once of columns never measured together."""
_LINKS = re.compile(r'(?:href|hx-get)="(/ui[^"#]*)"')
_ASKS_OTHERS = re.compile(r"/(?:participation|servers|health|release|budget)$")
_ID = re.compile(r"[0-9a-f]{32,64}")
_NUMBER = re.compile(r"(?<=/)\d+")
PATIENCE = 300.0
"""Seconds that an answer may take on a machine with other things to do."""
_EACH = 3
"""Pages of each kind that are looked at."""
_CATEGORIES = ("a", "b", "c", "d")


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """By person and kind of page, the slowest page of the kind: seconds on the clock and of CPU, first and median."""
    with tempfile.TemporaryDirectory(prefix="caps-pages-") as scratch:
        found = LocalFederation.create(Path(scratch) / "trial", HOLDERS, scheme=REP3, now=_now())
        found.start(now=_now)
        try:
            wide = _fill(found, Path(scratch))
            report = {}
            for name, scope in PEOPLE:
                _restart(found, name)
                report[f"{scope} at {name}"] = dict(sorted(_pages(found, name, scope, wide, repeats).items()))
            return report
        finally:
            found.stop()


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'milliseconds':<52}{'first':>8}{'CPU':>8}{'then':>8}{'CPU':>8}{'KB':>8}"]
    for person, kinds in report.items():
        lines.append(person)
        for kind, one in kinds.items():
            times = (one["first_seconds"], one["first_cpu_seconds"], one["seconds"], one["cpu_seconds"])
            lines.append(f"  {kind:<50}{''.join(f'{1000 * each:>8.0f}' for each in times)}{one['bytes'] / 1000:>8.0f}")
    return "\n".join([*lines, *(f"{words}: {slow} of {count} take longer" for words, slow, count in slow_ones(report))])


def slow_ones(report: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """For each way to measure, in words, how many pages miss the goal, and how many there are."""
    everything = [one for kinds in report.values() for one in kinds.values()]
    for name, words in (
        ("first_seconds", "the first time, on the clock"),
        ("first_cpu_seconds", "the first time, of CPU"),
        ("seconds", "then, on the clock"),
        ("cpu_seconds", "then, of CPU"),
    ):
        yield f"{1000 * GOAL:g} ms {words}", sum(one[name] > GOAL for one in everything), len(everything)


def _restart(found: LocalFederation, name: str) -> None:
    """Nothing of what was shown before is in the service's memory."""
    process = found.process(name)
    assert process is not None
    process.stop(20)
    found.start(now=_now)


def _fill(found: LocalFederation, scratch: Path) -> str:
    """Propose all studies, take the last one and a wide one to their releases, begin a draft. Returns the wide one."""
    sizes = [*[ATTRIBUTES] * (STUDIES - 1), WIDE]
    manifests = [_manifest(found, number, attributes) for number, attributes in enumerate(sizes)]
    with _client(found, COORDINATOR, "operator") as operator:
        for manifest in manifests:
            for server in operator.propose(manifest).servers:
                if server.state is not Judged.APPROVED:
                    raise SystemExit(f"{server.server} does not take part in {manifest.title}: {server.reason}")
    with _client(found, HOLDERS[0], "operator") as person:
        for manifest in manifests[:-2]:
            person.fetch(manifest.coordinator.url, manifest.study_id)
    released = [
        _released(found, manifest.study_id, scratch, attributes)
        for manifest, attributes in zip(manifests[:-3:-1], (WIDE, ATTRIBUTES), strict=True)
    ]
    _draft(found)
    return released[0]


def _released(found: LocalFederation, study: str, scratch: Path, attributes: int) -> str:
    for holder in HOLDERS:
        path = scratch / f"{holder}.csv"
        path.write_text(_table(holder, attributes))
        with _client(found, holder, "operator") as person:
            person.fetch(found.places[COORDINATOR].url, study)
        with _client(found, holder, "owner") as owner:
            owner.approve(study)
            owner.put_table(study, path)
            owner.contribute(study)
            while not all(server.receipt for server in owner.contribution(study).servers):
                time.sleep(0.1)
    with _client(found, COORDINATOR, "operator") as operator:
        run = operator.start(study).run
        for _ in operator.watch(run):
            pass
        if operator.run(run).state != "released":
            raise SystemExit(f"the run ended as {operator.run(run).state}: {operator.run(run).reason}")
    return run


def _draft(found: LocalFederation) -> None:
    """An author's draft with as many columns, ready to be proposed, by the forms of its pages."""
    cards = "\n".join(one.read_text() for one in sorted((found.directory / CARDS).glob("*.json")))
    book = [f"column{place},{category}" for place in range(ATTRIBUTES) for category in _CATEGORIES]
    forms = {
        "about": {"title": "A draft", "purpose": "To be measured.", "population": next(iter(POPULATIONS))},
        "columns": {"codebook": "\n".join(["column,code", *book]), "do": "codebook"},
        "parties": {"cards": cards, "do": "cards"},
        "privacy": {"epsilon": "1", "delta": "1e-9", "persons": "20000", "wished": "5", "do": "stay"},
    }
    with _browser(found, COORDINATOR, "operator") as http:
        draft = http.post("/ui/drafts/new").headers["location"].removesuffix("/about")
        for step, form in forms.items():
            answer = http.post(f"{draft}/{step}/save", data=form)
            if answer.status_code != 303:
                raise SystemExit(f"the draft's {step} are refused: {answer.text[-300:]}")


def _browser(found: LocalFederation, name: str, scope: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {found.token(name, scope)}", "Accept": "text/html"}
    context = client_context(found.authority)
    return httpx.Client(base_url=found.places[name].url, verify=context, headers=headers, timeout=PATIENCE)


def _pages(found: LocalFederation, name: str, scope: str, wide: str, repeats: int) -> dict[str, dict[str, float]]:
    kinds: dict[str, dict[str, float]] = {}
    process = found.process(name)
    assert process is not None
    pid = process.pid

    def got(path: str) -> tuple[httpx.Response, float, float]:
        cpu, began = _cpu(pid), time.perf_counter()
        try:
            answer = http.get(path, follow_redirects=True)  # a draft leads to its first step that is not done
        except httpx.HTTPError as error:
            raise SystemExit(f"{scope} at {name}, {path}: {error}") from error
        return answer, time.perf_counter() - began, _cpu(pid) - cpu

    with _browser(found, name, scope) as http:
        http.get("/ui/federation")  # what a process does once, such as connecting, is not a page's time
        waiting = ["/ui", *(asked.format(wide=wide) for asked in ASKED.get(scope, ()))]
        seen, counts = set(waiting), dict[str, int]()
        while waiting:
            path = waiting.pop()
            answer, first, first_cpu = got(path)
            if answer.status_code != 200 or "text/html" not in answer.headers.get("content-type", ""):
                continue
            again = [got(path)[1:] for _ in range(repeats)]
            one = {
                "first_seconds": first,
                "first_cpu_seconds": first_cpu,
                "seconds": median(seconds for seconds, _ in again),
                "cpu_seconds": sum(cpu for _, cpu in again) / repeats,
                "bytes": float(len(answer.content)),
            }
            before = kinds.setdefault(_kind(path, wide), one)
            kinds[_kind(path, wide)] = {each: max(value, before[each]) for each, value in one.items()}
            for link in sorted({link.replace("&amp;", "&") for link in _LINKS.findall(answer.text)} - seen):
                kind = _kind(link, wide)
                if (
                    counts.get(kind, 0) < _EACH
                    and "/static/" not in link
                    and not _ASKS_OTHERS.search(link.partition("?")[0])
                ):
                    counts[kind] = counts.get(kind, 0) + 1
                    seen.add(link)
                    waiting.append(link)
    return kinds


def _kind(path: str, wide: str) -> str:
    return _NUMBER.sub("N", _ID.sub("ID", path.replace(wide, "@"))).replace("@", f"{WIDE}-COLUMNS")


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _manifest(found: LocalFederation, number: int, attributes: int) -> Manifest:
    columns = [
        {"name": f"column{place}", "kind": "categorical", "categories": list(_CATEGORIES)}
        for place in range(attributes)
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


def _table(holder: str, attributes: int) -> str:
    drawn = (4 * Uniform(holder).floats(ROWS * attributes)).astype(int).reshape(ROWS, attributes)
    lines = [",".join(f"column{place}" for place in range(attributes))]
    return "\n".join(lines + [",".join(_CATEGORIES[code] for code in row) for row in drawn]) + "\n"


def _client(found: LocalFederation, name: str, scope: str) -> Client:
    return Client(found.places[name].url, token=found.token(name, scope), authority=found.authority)


def _now() -> datetime:
    return datetime.now(UTC)
