"""The engine's speed beside what a Python team would otherwise pick, all measured in one run on one machine.

Each side is three processes on loopback with mutual TLS. `seconds` is the median wall time from the common start to the
last party's end, `cpu_seconds` the processor time of all three parties, `bytes` the payload they send together.
Times on a shared machine are noisy: read the ratios, and the rounds and bytes, which are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.peers.measure import measure_blas, measure_mpyc, measure_pingpong, measure_spu
from bench.timing import summary
from services.mpc_server.local import run_task


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """One key per measurement, each with what it was measured beside."""
    parties = run_task("bench.engine_tasks:measure", {"repeats": repeats}, timeout=600)
    report = {name: summary([party[name] for party in parties]) for name in parties[0]}
    others = {"two_float64_products": measure_blas(), **_bare_tls()}
    if peers:
        others |= {"spu": measure_spu(), "mpyc": measure_mpyc()}
    for name, ours in report.items():
        ours["beside"] = {peer: _compared(ours, entries[name]) for peer, entries in others.items() if name in entries}
    return report


def _bare_tls() -> dict[str, dict[str, Any]]:
    """asyncio's own cost of the 1,000 rounds that `sequential_mul_1000` takes."""
    bare = measure_pingpong()
    scaled: dict[str, dict[str, Any]] = {}
    for name, entry in bare.items():
        thousand = {k: 1000 * v for k, v in entry.items() if k in ("seconds", "seconds_best", "cpu_seconds")}
        scaled[f"asyncio_tls_{name}"] = {"sequential_mul_1000": thousand or entry}
    return scaled


def _compared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Their figures, and how many times ours they are: above 1 means that ours is the faster."""
    compared = dict(theirs)
    for key in ("seconds", "cpu_seconds", "bytes"):
        value = theirs.get(f"{key}_scaled", theirs.get(key))
        if value is not None and ours[key]:
            compared[f"{key}_ratio"] = value / ours[key]
    if "to_ring" in theirs:
        compared["to_ring"] = _compared(ours, theirs["to_ring"])
    return compared


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<44}{'seconds':>10}{'cpu s':>10}{'MB sent':>10}{'rounds':>8}   times ours: wall, cpu"]
    for name, ours in report.items():
        lines.append(_line(name, ours))
        for peer, theirs in ours["beside"].items():
            lines.append(_line(f"  beside {peer}", theirs))
            if "to_ring" in theirs:
                lines.append(_line(f"  beside {peer}, result as ring shares", theirs["to_ring"]))
    return "\n".join(lines)


def _line(label: str, entry: Mapping[str, Any]) -> str:
    for reason in ("skipped", "failed"):
        if reason in entry:
            return f"{label:<44}{reason}: {entry[reason]}"
    text = f"{label:<44}"
    for key, scale, digits in (("seconds", 1.0, 4), ("cpu_seconds", 1.0, 4), ("bytes", 1e-6, 2)):
        value = entry.get(f"{key}_scaled", entry.get(key))
        text += f"{value * scale:>10.{digits}f}" if value is not None else f"{'':>10}"
    rounds = entry.get("rounds")
    text += f"{rounds:>8}" if rounds is not None else f"{'':>8}"
    if "seconds_ratio" in entry:
        text += f"   {entry['seconds_ratio']:8.2f} {entry.get('cpu_seconds_ratio', float('nan')):8.2f}"
    if "seconds_scaled" in entry:
        text += f"   (scaled from {entry['measured_rows']:,} rows)"
    return text
