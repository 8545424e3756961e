"""The join by tags with real processes: three servers, two holders, all on this host, over TLS.

Two holders with the same number of rows, half of them of the same persons; five attributes of five categories each, two
at one holder and three at the other. `matching` is from the owners' request to the positions of all rows, `seconds` to
the last receipt of a contribution. `rows_per_second` counts the rows of both holders until their positions are there.
Counting happens on aligned columns afterwards, as without a join.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from caps.study import Manifest
from deploy.federation import SERVERS, Federation, approve_everywhere

ROWS = (10_000, 100_000)
LARGE_ROWS = 1_000_000
_COLUMNS = {"north": ("a", "b"), "south": ("c", "d", "e")}
_CATEGORIES = 5
_POLL = 0.05
_PATIENCE = 3600
_ANSWERED = 3 * 32 + 4
"""Bytes that a holder receives for each row."""


def measure(*, repeats: int, large: bool = False) -> dict[str, Any]:
    """One key per number of rows at each holder; every repetition is a study of its own."""
    report = {}
    with TemporaryDirectory() as directory, Federation(Path(directory), list(_COLUMNS)) as federation:
        federation.start()
        federation.wait_ready()
        for rows in (*ROWS, LARGE_ROWS) if large else ROWS:
            times = min(repeats, max(1, 20_000 // rows))
            found = [_once(federation, rows, number) for number in range(times)]
            entry = {key: median(one[key] for one in found) for key in found[0]}
            entry["rows_per_second"] = 2 * rows / entry["matching"]
            report[f"oprf_join_n{rows}"] = entry
    return report


def _once(federation: Federation, rows: int, number: int) -> dict[str, float]:
    manifest = _manifest(federation, rows, number)
    approve_everywhere(federation, manifest)
    path = f"/v1/studies/{manifest.study_id}"
    owners = {name: federation.client(name, "owner", timeout=600) for name in _COLUMNS}
    sent = 0
    for first, (name, owner) in zip((0, rows // 2), owners.items(), strict=True):
        table = _table(_COLUMNS[name], range(first, first + rows))
        owner.put(f"{path}/table", content=table, headers={"content-type": "text/csv"}).raise_for_status()
        sent += sum(
            32 * server["elements"] + 16 * server["tags"] for server in owner.get(f"{path}/preview").json()["servers"]
        )
    started = time.perf_counter()
    for owner in owners.values():
        owner.put(f"{path}/contribution").raise_for_status()
    reached: dict[str, float] = {}
    while "complete" not in reached:
        if time.perf_counter() - started > _PATIENCE:
            raise TimeoutError(f"the join of {rows:,} rows at each holder is not complete after {_PATIENCE} s")
        time.sleep(_POLL)
        states = [owner.get(f"{path}/contribution").raise_for_status().json()["state"] for owner in owners.values()]
        if "matching" not in states:
            reached.setdefault("matched", time.perf_counter() - started)
        if set(states) == {"complete"}:
            reached["complete"] = time.perf_counter() - started
    for owner in owners.values():
        owner.close()
    return {
        "matching": reached["matched"],
        "seconds": reached["complete"],
        "sent_per_row": sent / (2 * rows),
        "received_per_row": float(_ANSWERED),
    }


def _manifest(federation: Federation, rows: int, number: int) -> Manifest:
    names = [name for columns in _COLUMNS.values() for name in columns]
    categories = [str(code) for code in range(_CATEGORIES)]
    holders = [
        {"name": name, "brings": "columns", "columns": list(columns), "capacity": rows}
        for name, columns in _COLUMNS.items()
    ]
    return Manifest.from_json(
        {
            "title": f"{rows} rows at each holder, {number}",
            "schema": {"columns": [{"name": one, "kind": "categorical", "categories": categories} for one in names]},
            "algorithm": {"name": "mst"},
            "privacy": {"epsilon": "1", "delta": "1e-9", "population": "invented-patients"},
            "join": {"key": {"columns": [{"name": "number", "kind": "integer"}]}, "protocol": "oprf"},
            **federation.parties(holders),
        }
    )


def _table(columns: tuple[str, ...], persons: range) -> bytes:
    """Every person once, in an order that has nothing to do with the other holder's."""
    lines = [",".join(("number", *columns))]
    step = 7919  # coprime to all numbers of rows here
    for place in range(len(persons)):
        person = persons[place * step % len(persons)]
        values = [str(person * (i + 3) // 7 % _CATEGORIES) for i in range(len(columns))]
        lines.append(",".join((str(person), *values)))
    return "\n".join(lines).encode() + b"\n"


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<22}{'matching s':>11}{'rows/s':>9}{'B sent/row':>12}{'B got/row':>11}{'contributed s':>15}"]
    lines += [
        f"{name:<22}{entry['matching']:>11.2f}{entry['rows_per_second']:>9,.0f}{entry['sent_per_row']:>12.0f}"
        f"{entry['received_per_row']:>11.0f}{entry['seconds']:>15.2f}"
        for name, entry in report.items()
    ]
    return "\n".join([*lines, f"servers {', '.join(SERVERS)} and both holders share this host"])
