"""The CaPS protocols over TLS between three processes: ours, the paper's own on our engine, SPU, the paper's figures.

Parameters of the paper's Table 3: two holders, n = 614, nine attributes, |Q| = 45, at most 25 cells a query; and more.
`seconds` of a selection or measurement is online, with the noise drawn beforehand; `offline` is the drawing. SPU does
what it can of them: the products, without lifting counts; scores and their maximum, without bias, weights and noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.peers.measure import measure_spu
from bench.peers.tasks import PROTOCOL_TASKS
from bench.timing import summary
from services.mpc_server.local import run_task

PUBLISHED = {
    "compute_vertical_n614": {"seconds": 2.882, "bytes": 696.6e6},
    "select_aim_q45": {"seconds": 1.187, "bytes": 0.554e6},
    "select_mwem_q45": {"seconds": 0.042, "bytes": 5.341e6},
    "measure_q45": {"seconds": 0.0043, "bytes": 0.261e6},
}
"""CaPS (ICML 2024), Table 3, three parties, semi-honest: MP-SPDZ on the authors' machines."""


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """One key per measurement, each with what it was measured beside."""
    parameters = {"repeats": repeats, "queries": [45, 200, 2000], "rows": [614, 50_000]}
    parties = run_task("bench.protocols_tasks:measure", parameters, timeout=900)
    report: dict[str, Any] = {}
    for name in parties[0]:
        entries = [party[name] for party in parties]
        report[name] = summary(entries)
        extras = {key: summary([entry[key] for entry in entries]) for key in entries[0] if _is_entry(entries[0][key])}
        offline = extras.pop("offline", None)
        if offline is not None:
            report[name]["offline"] = offline
        report[name]["beside"] = {f"{key}, our engine" if key == "paper" else key: e for key, e in extras.items()}
        if name in PUBLISHED:
            report[name]["beside"]["published"] = PUBLISHED[name]
    for name, entry in (measure_spu(PROTOCOL_TASKS) if peers else {}).items():
        report[name]["beside"]["spu"] = entry
    for ours in report.values():
        for other in ours["beside"].values():
            for key in ("seconds", "bytes"):
                if key in other:
                    other[f"{key}_ratio"] = other[key] / ours[key]
    return report


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and "walls" in value


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<40}{'seconds':>10}{'kB sent':>12}{'rounds':>8}   times ours: seconds, bytes"]
    for name, ours in report.items():
        lines.append(_line(name, ours))
        if "offline" in ours:
            lines.append(_line("  noise drawn beforehand", ours["offline"]))
        lines += [_line(f"  beside {other}", entry) for other, entry in ours["beside"].items()]
    return "\n".join(lines)


def _line(label: str, entry: Mapping[str, Any]) -> str:
    if "seconds" not in entry:
        return f"{label:<40}{entry.get('skipped') or entry.get('failed')}"
    text = f"{label:<40}{entry['seconds']:>10.4f}{entry['bytes'] / 1e3:>12,.1f}{entry.get('rounds', ''):>8}"
    if "seconds_ratio" in entry:
        text += f"   {entry['seconds_ratio']:9.1f} {entry['bytes_ratio']:9.1f}"
    return text
