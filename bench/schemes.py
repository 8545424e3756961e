"""The schemes side by side, in one run: the paper's Table 3, and what active security costs.

The servers of all schemes run at the same time and are asked in turn, so that whatever else the machine does falls on
all alike. Parameters are those of `bench.protocols`: n = 614, nine attributes, |Q| = 45, and larger ones. A time is the
slowest server's; `cpu_seconds` are of all servers. Noise is drawn beforehand, as in a run; `offline` is the drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.timing import summary
from caps.basics.schemes import REP3, SCHEMES
from services.mpc_server.local import LocalServers, local_servers

PASSIVE = REP3.name
ACTIVE = tuple(name for name, scheme in SCHEMES.items() if scheme.active)
COMPUTE, SELECT_A, SELECT_M, MEASURE = "compute_n614_w45", "select_aim_q45", "select_mwem_q45", "measure_q45"
TALL, WIDE, JOIN = "compute_n50000_w45", "compute_n50000_w200", "join_n10000"
TASKS: Mapping[str, Mapping[str, Any]] = {
    COMPUTE: {"task": "compute", "rows": 614, "queries": 45},
    SELECT_A: {"task": "select", "kind": "aim", "queries": 45},
    SELECT_M: {"task": "select", "kind": "mwem", "queries": 45},
    MEASURE: {"task": "measure", "queries": 45},
    TALL: {"task": "compute", "rows": 50_000, "queries": 45},
    WIDE: {"task": "compute", "rows": 50_000, "queries": 820},
    JOIN: {"task": "join", "rows": 10_000},
}
"""What is measured: w counts one-hot columns, five of each attribute, and q marginals."""
PAPER = {
    COMPUTE: ((2.882, 696.6e6), (21.612, 3_830.53e6), (6.00, 1_615.61e6)),
    SELECT_A: ((1.187, 0.554e6), (1.773, 11.971e6), (2.169, 13.707e6)),
    SELECT_M: ((0.042, 5.341e6), (0.306, 33.946e6), (0.135, 4.700e6)),
    MEASURE: ((0.0043, 0.261e6), (0.030, 2.140e6), (0.0157, 0.714e6)),
}
"""CaPS (ICML 2024), Table 3, seconds and bytes: three servers passive, three active, four active, with MP-SPDZ."""
COLUMN = {"rep3": 0, "rep3-active": 1, "rep4": 2}
"""Which of the paper's figures are of a scheme with the same number of servers and the same adversary."""


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """By task and scheme. There are no peers to measure beside: the paper's figures are known."""
    return side_by_side(TASKS, repeats)


def side_by_side(tasks: Mapping[str, Mapping[str, Any]], repeats: int) -> dict[str, Any]:
    """Each task under each scheme, in turn; a large one half as often, and a very large one once."""
    report: dict[str, Any] = {}
    with _all_servers() as servers:
        for name, task in tasks.items():
            rows = task.get("rows", 0)
            times = repeats if rows < 10_000 else max(1, repeats // 2) if rows <= 100_000 else 1
            turns: dict[str, list[list[dict[str, Any]]]] = {scheme: [] for scheme in SCHEMES}
            for turn in range(times + 1):
                for scheme, group in servers.items():
                    if turn:
                        turns[scheme].append(group.ask({**task, "repeats": 1}))
                    elif rows <= 100_000:
                        group.ask({**task, "repeats": 1})  # warms up
            report[name] = {scheme: _entry(found) for scheme, found in turns.items()}
            for entry in report[name].values():
                if task["task"] == "join":
                    entry["rows_per_second"] = 2 * rows / entry["seconds"]
                for key in ("seconds", "cpu_seconds", "bytes"):
                    entry[f"{key}_ratio"] = entry[key] / report[name][PASSIVE][key]
    return report


@contextmanager
def _all_servers() -> Iterator[dict[str, LocalServers]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(local_servers("bench.schemes_tasks:serve", scheme=scheme, stall=1800.0))
            for name, scheme in SCHEMES.items()
        }


def _entry(turns: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """One measurement from the answers of all parties in every turn."""

    def together(key: str | None) -> dict[str, Any]:
        parties = [
            [turn[party] if key is None else turn[party][key] for turn in turns] for party in range(len(turns[0]))
        ]
        return summary(
            [
                {
                    "walls": [wall for one in answers for wall in one["walls"]],
                    "cpus": [cpu for one in answers for cpu in one["cpus"]],
                    "rounds": answers[-1]["rounds"],
                    "sent": answers[-1]["sent"],
                }
                for answers in parties
            ]
        )

    found = together(None)
    return {**found, "offline": together("offline")} if "offline" in turns[0][0] else found


def goals(report: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """What each active scheme may cost: the goal, what was measured, and whether that is within it."""
    found = []
    for task, key, title, most in (
        (WIDE, "cpu_seconds", "CPU of COMPUTE 50,000 x 200", {"rep4": 3.0, "rep3-active": 2.0}),
        (SELECT_A, "cpu_seconds", "CPU of SELECT, AIM, 45 candidates", {"rep4": 3.0, "rep3-active": 3.0}),
        (JOIN, "cpu_seconds", "CPU of a join", {"rep4": 3.0}),
    ):
        for scheme, limit in most.items():
            if task in report and scheme in report[task]:
                ratio = report[task][scheme][f"{key}_ratio"]
                found.append((f"{scheme}: {title} <= {limit:g} x passive", f"{ratio:.2f} x", ratio <= limit))
    for scheme, more in {"rep4": 1, "rep3-active": 4}.items():
        if MEASURE in report and scheme in report[MEASURE]:
            extra = report[MEASURE][scheme]["rounds"] - report[MEASURE][PASSIVE]["rounds"]
            goal = f"{scheme}: MEASURE with a filled pool in at most {more} more rounds"
            found.append((goal, f"{extra} more", extra <= more))
    if JOIN in report and "rep3-active" in report[JOIN]:
        speed = report[JOIN]["rep3-active"]["rows_per_second"]
        found.append(("rep3-active: a join of 10,000 rows per second", f"{speed:,.0f} rows/s", speed >= 10_000))
    for task, title in ((TALL, "45"), (WIDE, "200")):
        if task in report and "rep3-active" in report[task]:
            extra = report[task]["rep3-active"]["bytes_ratio"] - 1
            goal = f"rep3-active: COMPUTE 50,000 x {title} with less than 5 % more bytes"
            found.append((goal, f"{extra:+.1%}", extra < 0.05))
    return found


def published(task: str, scheme: str) -> tuple[float, float] | None:
    """The paper's seconds and bytes, if it has such a scheme."""
    return PAPER[task][COLUMN[scheme]] if task in PAPER and scheme in COLUMN else None


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    head = f"{'':<22}{'scheme':<13}{'seconds':>10}{'CPU s':>10}{'kB sent':>12}{'rounds':>8}"
    lines = [head + "   times passive: s, CPU, bytes   the paper's: s, MB"]
    for task, schemes in report.items():
        for scheme, entry in schemes.items():
            lines.append(
                f"{task:<22}{scheme:<13}{entry['seconds']:>10.4f}{entry['cpu_seconds']:>10.4f}"
                f"{entry['bytes'] / 1e3:>12,.1f}{entry['rounds']:>8}   {entry['seconds_ratio']:>8.2f} "
                f"{entry['cpu_seconds_ratio']:>6.2f} {entry['bytes_ratio']:>7.3f}"
            )
            paper = published(task, scheme)
            lines[-1] += f"   {paper[0]:>12.4f} {paper[1] / 1e6:>10,.3f}" if paper else ""
            lines[-1] += f"   {entry['rows_per_second']:>12,.0f} rows/s" if "rows_per_second" in entry else ""
    lines += ["", *(f"{'met' if met else 'MISSED':<8}{goal}: {measured}" for goal, measured, met in goals(report))]
    return "\n".join(lines)
