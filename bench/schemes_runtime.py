"""Whole studies under every scheme, in turn, through the same services: what active security costs those who wait.

One federation has as many servers as the largest scheme needs; a study names its scheme, and the servers it needs take
part. Seconds go from the upload to the release, as in `bench runtime`; each is the median of `--repeats`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from bench import studies
from bench.datasets import load
from bench.runtime import PARTS, middle
from bench.schemes import ACTIVE, PASSIVE
from caps.basics.schemes import SCHEMES

MOST = 1.5
"""Times the passive scheme's seconds that a study under an active one may take."""


def measure(options: argparse.Namespace, record: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """By dataset, algorithm and setting, then by scheme."""
    report: dict[str, Any] = {}
    largest = max(SCHEMES.values(), key=lambda scheme: scheme.parties)
    with studies.federation(scheme=largest) as federation:
        for scheme in SCHEMES.values():  # warms up
            studies.perform(federation, load(options.datasets[0]), algorithm="aim", setting="horizontal", scheme=scheme)
        for chosen, name, setting in product(options.algorithms, options.datasets, ("horizontal", "vertical")):
            dataset = load(name)
            runs: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in SCHEMES}
            for seed, (known, scheme) in product(range(options.repeats), SCHEMES.items()):
                runs[known].append(
                    studies.perform(federation, dataset, algorithm=chosen, setting=setting, seed=seed, scheme=scheme)[1]
                )
            entry = {scheme: middle(found) for scheme, found in runs.items()}
            for found in entry.values():
                found["seconds_ratio"] = found["seconds"] / entry[PASSIVE]["seconds"]
            report[f"{name}/{chosen}/{setting}"] = entry
            record(report)
    return report


def goals(report: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """The goal of each active scheme, what was measured, and whether that is within it."""
    found = []
    for scheme in ACTIVE:
        ratios = {name: entry[scheme]["seconds_ratio"] for name, entry in report.items() if scheme in entry}
        if ratios:
            worst = max(ratios, key=lambda name: ratios[name])
            within = sum(ratio <= MOST for ratio in ratios.values())
            text = f"{within} of {len(ratios)} kinds of study; at most {ratios[worst]:.2f} x, {worst}"
            found.append((f"{scheme}: whole studies <= {MOST:g} x passive", text, within == len(ratios)))
    return found


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<40}{'scheme':<13}{'seconds':>9}{'x':>6}" + "".join(f"{part:>9}" for part in PARTS)]
    for name, entry in report.items():
        for scheme, one in entry.items():
            found = {**one, **one["parts"]}
            cells = "".join(f"{found[part]:>9.2f}" if part in found else f"{'':>9}" for part in PARTS)
            lines.append(f"{name:<40}{scheme:<13}{one['seconds']:>9.2f}{one['seconds_ratio']:>6.2f}{cells}")
    lines += ["", *(f"{'met' if met else 'MISSED':<8}{goal}: {text}" for goal, text, met in goals(report))]
    return "\n".join(lines)
