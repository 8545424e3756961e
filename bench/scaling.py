"""Scaling (the paper's Figure 2 and beyond): rows, holders, queries and domain, over TLS between three processes.

rows: COMPUTE ANSWERS of 40 attributes of 5 categories (W = 200 columns), vertically divided, checks included; beside
the two float64 products that replicated counting needs, by one BLAS thread in the same three processes. holders:
COMPUTE ANSWERS of N holders with rows of their own. queries, domain: a selection and a measurement. workers: the same
rows, which no server holds in memory, with workers at each server. join: two tables under each scheme, memory beside
its forecast, and the local work of one server by phase.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench import results
from bench.timing import summary
from caps.basics.schemes import SCHEMES
from services.mpc_server.local import run_task

ROWS = [10_000, 100_000, 300_000, 1_000_000]
HOLDERS = [2, 10, 100, 1000]
QUERIES = [45, 200, 500, 1000, 2000]
CATEGORIES = [2, 5, 10, 20, 40]
ATTRIBUTES = 40
PARTS = ("rows", "holders", "queries", "domains", "workers", "join")
CREWS = (0, 1, 2)
"""Workers of each server: 0 is a server that does everything itself."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("--repeats", type=int, default=3, help="measured repetitions of each size (default 3)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument(
        "--workers-rows", type=int, default=1_000_000, help="rows for `workers`: 600 bytes of disk each, at two servers"
    )
    parser.add_argument("--join-rows", type=int, nargs="+", default=[100_000], help="rows of each table for `join`")
    parser.add_argument(
        "--join-whole", action="store_true", help="do not record `join` for S2 alone, which takes 1 kB of memory a row"
    )
    parser.add_argument("--join-schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--crews", type=int, nargs="+", default=list(CREWS), help="for `workers`: at each server")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """One key per part, in it one per size, and the fitted law. Parts not asked for stay as they were saved."""
    parameters: dict[str, dict[str, Any]] = {
        "rows": {"sizes": options.rows, "attributes": ATTRIBUTES},
        "holders": {"sizes": HOLDERS},
        "queries": {"sizes": QUERIES},
        "domains": {"sizes": CATEGORIES},
    }
    before = results.current("scaling")
    report: dict[str, Any] = dict(before["report"]) if before else {}
    for part in options.parts:
        if part == "workers":
            report[part] = _workers(options.workers_rows, options.crews)
            record(report)
            continue
        if part == "join":
            report[part] = _join(options.join_schemes, options.join_rows, alone=not options.join_whole)
            record(report)
            continue
        sizes: dict[str, Any] = {}
        # A process for every number of rows: its peak of memory is its own.
        for some in [[n] for n in options.rows] if part == "rows" else [parameters[part]["sizes"]]:
            given = {**parameters[part], "sizes": some, "repeats": options.repeats}
            parties = run_task(f"bench.scaling_tasks:{part}", given, timeout=3600)
            sizes |= {size: _entry([party[size] for party in parties]) for size in parties[0]}
        report[part] = {"sizes": sizes, "law": law(sizes, by="cells" if part in ("queries", "domains") else None)}
        record(report)
    return report


def _workers(rows: int, crews: Sequence[int]) -> dict[str, Any]:
    """COMPUTE ANSWERS on columns that are not in memory, with more and more workers at each server."""
    sizes: dict[str, Any] = {}
    for crew in crews:
        with tempfile.TemporaryDirectory(prefix="caps-bench-") as directory:
            given = {"rows": rows, "attributes": ATTRIBUTES, "crew": crew, "directory": directory}
            parties = run_task("bench.scaling_tasks:workers", given, timeout=6 * 3600)
        for size in parties[0]:
            found = [party[size] for party in parties]
            entry = summary(found)
            entry["alone"] = found[1]["alone"]
            entry["peak"] = max(party["peak"] for party in found)
            entry["working_memory"] = max(party["peak"] - party["peak_before"] for party in found)
            entry["workers_peak"] = max(party["workers"]["peak"] for party in found)
            entry["workers_cpu_seconds"] = sum(party["workers"]["cpu_seconds"] for party in found)
            sizes[size] = entry
    return {"sizes": sizes, "law": {}}


def _join(schemes: Sequence[str], sizes: Sequence[int], *, alone: bool) -> dict[str, Any]:
    """A join of two tables of each size, under each scheme."""
    found: dict[str, Any] = {}
    for scheme in schemes:
        for rows in sizes:
            given = {"rows": rows, "alone": alone}
            parties = run_task("bench.join_alone:measure", given, scheme=SCHEMES[scheme], timeout=3600)
            entry = summary(parties)
            entry["rows"] = 2 * rows
            entry["peak"] = max(party["peak"] for party in parties)
            entry["forecast"] = parties[0]["forecast"]
            entry["alone"] = parties[1].get("alone", {})
            found[f"{scheme} {rows}"] = entry
    return {"sizes": found, "law": {}}


def _entry(parties: list[dict[str, Any]]) -> dict[str, Any]:
    entry = summary(parties)
    if "offline" in parties[0]:
        entry["offline"] = summary([party["offline"] for party in parties])
        entry["cells"] = parties[0]["cells"]
    if "gram" in parties[0]:
        for name in ("gram", "gemm"):
            entry[name] = {
                "seconds": max(party[name]["seconds"] for party in parties),
                "cpu_seconds": sum(party[name]["cpu_seconds"] for party in parties),
            }
            entry[f"{name}_ratio"] = entry["seconds"] / entry[name]["seconds"]
            entry[f"{name}_cpu_ratio"] = entry["cpu_seconds"] / entry[name]["cpu_seconds"]
        for name in ("check", "count"):
            entry[name] = summary([party[name] for party in parties])
        entry["share_bytes"] = parties[0]["share_bytes"]
        entry["estimate"] = parties[0]["estimate"]
        entry["peak"] = max(party["peak"] for party in parties)
        entry["working_memory"] = max(party["peak"] - party["peak_before"] for party in parties)
    return entry


def law(sizes: Mapping[str, Any], *, by: str | None = None) -> dict[str, float]:
    """seconds = fixed + each * size by least squares of relative errors, and the exponent between the last two sizes.

    `by`: the member that is the size, else the key.
    """
    x = np.array([float(entry[by] if by else size) for size, entry in sizes.items()])
    y = np.array([entry["seconds"] for entry in sizes.values()])
    if len(x) < 2:
        return {}
    design = np.stack([1 / y, x / y], axis=1)
    fixed, each = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)[0]
    exponent = np.log(y[-1] / y[-2]) / np.log(x[-1] / x[-2])
    return {"fixed": float(fixed), "each": float(each), "exponent": float(exponent)}


def _alone_lines(entry: Mapping[str, Any]) -> list[str]:
    """The local work of S2: microseconds of processor time a row by phase, and of wall time, measured and computed."""
    each = 1e6 / entry["rows"]
    lines = []
    for threads, found in entry["alone"].items():
        phases = ", ".join(f"{name} {seconds * each:.2f}" for name, seconds in found["phases"].items())
        computed = ", ".join(f"{seconds * each:.1f} by {k}" for k, seconds in found["computed_seconds"].items())
        lines.append(
            f"S2 alone, threads {threads}: CPU us a row {found['cpu_seconds'] * each:.2f} ({phases}); "
            f"wall {found['seconds'] * each:.1f}, computed {computed}"
        )
    return lines


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<20}{'seconds':>10}{'cpu s':>10}{'MB sent':>10}{'rounds':>8}"]
    for part, found in report.items():
        for size, entry in found["sizes"].items():
            text = f"{part + ' ' + size:<20}{entry['seconds']:>10.4f}{entry['cpu_seconds']:>10.4f}"
            text += f"{entry['bytes'] / 1e6:>10.3f}{entry['rounds']:>8}"
            if "gemm_ratio" in entry:
                text += f"   {entry['gemm_ratio']:.2f} x float64 products (CPU {entry['gemm_cpu_ratio']:.2f} x)"
                text += f", {entry['working_memory'] / 1e6:.0f} MB beside the shares"
            if "forecast" in entry:
                text += f"   {entry['peak'] / 1e6:.0f} MB, forecast {entry['forecast'] / 1e6:.0f} MB"
                text += "".join(f"\n  {line}" for line in _alone_lines(entry))
            if "workers_peak" in entry:
                text += f"   workers {entry['workers_cpu_seconds']:.1f} CPU s, {entry['workers_peak'] / 1e6:.0f} MB; "
                text += f"server {entry['peak'] / 1e6:.0f} MB; S2 alone, s and CPU s:"
                text += "".join(
                    f" {name} {one['seconds']:.1f} {one['cpu_seconds']:.1f}" for name, one in entry["alone"].items()
                )
            lines.append(text)
        if found["law"]:
            fitted = found["law"]
            lines.append(f"  {fitted['fixed']:.4g} s + {fitted['each']:.3g} s each; exponent {fitted['exponent']:.2f}")
    return "\n".join(lines)
