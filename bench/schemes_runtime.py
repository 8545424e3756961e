"""Whole studies under every scheme, in turn, through the same services: what active security costs those who wait.

One federation has as many servers as the largest scheme needs; a study names its scheme, and the servers it needs take
part. Seconds go from the upload to the release, as in `bench runtime`; each is the median of `--repeats`. The first
repeat covers every kind of study under every scheme, then comes the next: what a machine does besides meets all alike.

AIM takes as many rounds as its noise leads it to, and two runs of the same study do different work. So schemes are
compared by the seconds that each run would have taken for the same number of steps: see `at_equal_work`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import product
from statistics import median
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
    kinds = list(product(options.algorithms, options.datasets, ("horizontal", "vertical")))
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with studies.federation(scheme=largest) as federation:
        for scheme in SCHEMES.values():  # warms up
            studies.perform(federation, load(options.datasets[0]), algorithm="aim", setting="horizontal", scheme=scheme)
        for seed, (chosen, name, setting) in product(range(options.repeats), kinds):
            found = runs.setdefault(f"{name}/{chosen}/{setting}", {scheme: [] for scheme in SCHEMES})
            for known, scheme in SCHEMES.items():
                _, one = studies.perform(
                    federation, load(name), algorithm=chosen, setting=setting, seed=seed, scheme=scheme
                )
                found[known].append(one)
            report[f"{name}/{chosen}/{setting}"] = compared(found)
            record(report)
    return report


def compared(runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """By scheme: its run of median time, and what its runs would take for the same work, beside the passive scheme."""
    every = [run for found in runs.values() for run in found]
    selections, measurements = (median(steps_of(run)[kind] for run in every) for kind in (0, 1))
    entry: dict[str, Any] = {}
    for scheme, found in runs.items():
        even = median(at_equal_work(run, selections, measurements) for run in found)
        entry[scheme] = {**middle(found), "every_rounds": [run["rounds"] for run in found], "even_seconds": even}
    for one in entry.values():
        one["seconds_ratio"] = one["even_seconds"] / entry[PASSIVE]["even_seconds"]
    return entry


def steps_of(run: Mapping[str, Any]) -> tuple[int, int]:
    """How often a run selected and how often it measured; one step more computed."""
    return run["rounds"], run["steps"] - 1 - run["rounds"]


def at_equal_work(run: Mapping[str, Any], selections: float, measurements: float) -> float:
    """Seconds that a run would have taken with so many selections and measurements: each at what the run's own took.

    What lies between steps (the coordinator's fits, and waiting) is taken by the step; all else does not depend on how
    many there are. If the run had just as many, these are its seconds.
    """
    parts = run["parts"]
    selected, measured = steps_of(run)
    seconds: float = run["seconds"]
    for part, had, wanted in (
        ("select", selected, selections),
        ("measure", measured, measurements),
        ("generate", selected + measured, selections + measurements),
        ("waiting", selected + measured, selections + measurements),
    ):
        seconds += parts[part] * (wanted / had - 1) if had else 0.0
    return seconds


def goals(report: Mapping[str, Any]) -> list[tuple[str, str, bool]]:
    """The goal of each active scheme, what was measured, and whether that is within it."""
    found = []
    for scheme in ACTIVE:
        ratios = {name: entry[scheme]["seconds_ratio"] for name, entry in report.items() if scheme in entry}
        if ratios:
            worst = max(ratios, key=lambda name: ratios[name])
            within = sum(ratio <= MOST for ratio in ratios.values())
            text = f"{within} of {len(ratios)} kinds of study; at most {ratios[worst]:.2f} x, {worst}"
            found.append((f"{scheme}: whole studies <= {MOST:g} x passive, at equal work", text, within == len(ratios)))
    return found


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    titles = f"{'':<40}{'scheme':<13}{'rounds':>7}{'seconds':>9}{'even':>8}{'x':>6}"
    lines = [titles + "".join(f"{part:>9}" for part in PARTS)]
    for name, entry in report.items():
        for scheme, one in entry.items():
            found = {**one, **one["parts"]}
            cells = "".join(f"{found[part]:>9.2f}" if part in found else f"{'':>9}" for part in PARTS)
            lines.append(
                f"{name:<40}{scheme:<13}{one['rounds']:>7}{one['seconds']:>9.2f}{one['even_seconds']:>8.2f}"
                f"{one['seconds_ratio']:>6.2f}{cells}"
            )
    lines += ["", *(f"{'met' if met else 'MISSED':<8}{goal}: {text}" for goal, text, met in goals(report))]
    return "\n".join(lines)
