"""Private record alignment over TLS between three processes: rows per second, bytes and memory.

Two holders with the same number of rows, half of them of the same persons; five attributes of five categories each; all
one- and two-way marginals of the union. Dummies are those of a study of epsilon 1 and delta 10^-9, their noise drawn
within the time measured. `rows_per_second` counts the rows of both holders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import oprf_join
from bench.timing import summary
from services.mpc_server.local import run_task

ROWS = (10_000, 100_000)
LARGE_ROWS = 1_000_000


def measure(*, repeats: int, peers: bool, large: bool = False) -> dict[str, Any]:
    """One key per protocol and number of rows at each holder."""
    report = {}
    for rows in (*ROWS, LARGE_ROWS) if large else ROWS:
        times = 1 if rows == LARGE_ROWS else repeats
        parties = run_task("bench.join_tasks:measure", {"repeats": times, "rows": [rows]}, timeout=1800)
        entries = [party[str(rows)] for party in parties]
        entry = summary(entries)
        entry["rows_per_second"] = 2 * rows / entry["seconds"]
        entry["bytes_per_row"] = entry["bytes"] / (2 * rows)
        entry["peak_memory"] = max(one["peak_memory"] for one in entries)
        entry["phases"] = {name: max(one["phases"][name] for one in entries) for name in entries[0]["phases"]}
        report[f"join_n{rows}"] = entry
    return report | {"light": oprf_join.measure(repeats=repeats, large=large)}


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    head = f"{'':<18}{'seconds':>9}{'rows/s':>11}{'MB sent':>9}{'B/row':>8}{'rounds':>8}{'MB peak':>9}"
    lines = [head + "   seconds of the last run by phase"]
    for name, entry in report.items():
        if name == "light":
            continue
        phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in entry["phases"].items())
        lines.append(
            f"{name:<18}{entry['seconds']:>9.2f}{entry['rows_per_second']:>11,.0f}{entry['bytes'] / 1e6:>9.0f}"
            f"{entry['bytes_per_row']:>8.0f}{entry['rounds']:>8}{entry['peak_memory'] / 1e6:>9.0f}   {phases}"
        )
    lines += ["", "the light alternative, by tags: most of the work is the holders'", oprf_join.table(report["light"])]
    return "\n".join(lines)
