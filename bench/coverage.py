"""How often the intervals of `client.estimate` contain the truth: over many runs in the clear, on invented rows.

Every cell of every table of one, two and three columns is asked for, and unions of cells. Nominal level: 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.judge import document
from caps.audit.measurements import noisy_marginals
from caps.basics.uniform import Uniform
from caps.client.estimates import Estimate, Release
from caps.data.domain import Codes, Layout
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Batch, Integers, Measurement
from caps.dp.privacy import Filter
from caps.study import Manifest
from caps.study.simulation import invented_rows
from caps.wire.releases import Measurements, NoisyMarginal
from services.coordinator.algorithms import algorithm
from services.coordinator.generate import create_estimator

SIZES = (4, 3, 5, 2, 6)
PERSONS = 2_000
STUDIES: dict[str, dict[str, Any]] = {
    "aim, epsilon 1": {"algorithm": {"name": "aim", "parameters": {"rounds": 6}}},
    "aim, epsilon 0.2": {"algorithm": {"name": "aim", "parameters": {"rounds": 6}}, "epsilon": "0.2"},
    "mst, epsilon 1": {"algorithm": {"name": "mst"}},
    "swift, epsilon 1": {"algorithm": {"name": "swift"}},
    "mwem, pure epsilon 1 (Laplace)": {
        "algorithm": {"name": "mwem", "parameters": {"rounds": 4}},
        "accounting": "pure",
    },
}


class Recording(ClearOracle):
    """The clear twin, which keeps the measurements as a release publishes them."""

    manifest: Manifest
    found: list[NoisyMarginal]

    def measure(self, measurement: Measurement) -> Integers:
        """See Oracle.measure."""
        return self._kept(measurement, super().measure(measurement))

    def measure_batch(self, batch: Batch) -> Integers:
        """See Oracle.measure_batch."""
        return self._kept(batch, super().measure_batch(batch))

    def _kept(self, asked: Measurement | Batch, values: Integers) -> Integers:
        self.found += noisy_marginals(self.manifest, len(self.found), asked, tuple(values.tolist()))
        return values


def manifest_of(*, algorithm: Mapping[str, Any], epsilon: str = "1", accounting: str = "zcdp") -> Manifest:
    """A study of all pairs of a few columns."""
    value = document(columns=len(SIZES))
    for column, size in zip(value["schema"]["columns"], SIZES, strict=True):
        column["categories"] = [f"v{number}" for number in range(size)]
    privacy = {"epsilon": epsilon, "delta": "1e-6", "population": "persons", "accounting": accounting}
    return Manifest.from_json({**value, "algorithm": dict(algorithm), "privacy": privacy})


def released(manifest: Manifest, rows: Codes) -> Release:
    """A whole run in the clear, with fresh noise, and what an analyst gets of it."""
    task, choice = manifest.task, manifest.algorithm
    chosen = algorithm(choice.name, choice.parameters)
    schedule = chosen.schedule(task)
    budget = Filter(schedule.rho, task.neighbouring, pure_epsilon=schedule.pure_epsilon)
    oracle = Recording(rows, Layout(task.domain, chosen.cliques(task)), task.neighbouring, budget)
    oracle.manifest, oracle.found = manifest, []
    model = chosen.run(task, oracle, create_estimator("kernel", task.domain)).model
    published = Measurements(study=manifest.study_id, run="0" * 32, measurements=tuple(oracle.found))
    return Release(manifest, published, model.sample(max(1, round(model.total))), persons=model.total)


def questions(manifest: Manifest, release: Release, rows: Codes, draws: Uniform) -> list[tuple[int, Estimate, int]]:
    """Every cell of up to three columns, and for each pair a union of cells: columns asked for, answer, truth."""
    names = manifest.domain.names
    labels = {name: [f"v{number}" for number in range(size)] for name, size in zip(names, SIZES, strict=True)}
    found = []
    for count in (1, 2, 3):
        for chosen in combinations(names, count):
            columns = [names.index(name) for name in chosen]
            for one in release.estimate(group_by=chosen):
                codes = [labels[name].index(one.group[name]) for name in chosen]
                found.append((count, one, int((rows[:, columns] == codes).all(axis=1).sum())))
            some = {name: [*np.flatnonzero(draws.words(len(labels[name])) & np.uint64(1)), 0] for name in chosen}
            (one,) = release.estimate({name: [labels[name][code] for code in codes] for name, codes in some.items()})
            inside = [np.isin(rows[:, names.index(name)], codes) for name, codes in some.items()]
            found.append((count, one, int(np.logical_and.reduce(inside).sum())))
    return found


def covered(choices: Mapping[str, Any], runs: int, *, persons: int = PERSONS) -> dict[str, dict[str, float]]:
    """By the basis of the answers: how many, the part that contains the truth, typical widths and errors."""
    manifest = manifest_of(**choices)
    rows, draws = invented_rows(manifest.domain, persons), Uniform("caps/bench/coverage")
    found: dict[str, list[tuple[Estimate, int]]] = {}
    for _ in range(runs):
        for count, one, truth in questions(manifest, released(manifest, rows), rows, draws):
            found.setdefault(f"{one.basis}, {count} column{'s'[: count > 1]}", []).append((one, truth))
    return {basis: _figures(answers) for basis, answers in sorted(found.items())}


def _figures(answers: list[tuple[Estimate, int]]) -> dict[str, float]:
    bounded = [(one, truth, one.low or 0.0, np.inf if one.high is None else one.high) for one, truth in answers]
    return {
        "answers": len(answers),
        "covered": fmean(low <= truth <= high for _, truth, low, high in bounded),
        "width": median(high - low for _, _, low, high in bounded),
        "error": median(abs(one.count - truth) for one, truth, _, _ in bounded),
        "rows_error": median(abs((one.rows or 0.0) - truth) for one, truth, _, _ in bounded),
    }


def measure(*, repeats: int, peers: bool) -> dict[str, Any]:
    """Every study, in so many runs each."""
    return {name: covered(choices, repeats) for name, choices in STUDIES.items()}


def table(report: Mapping[str, Any]) -> str:
    """What a person reads."""
    lines = [f"{'':<22}{'answers':>9}{'covered':>9}{'width':>8}{'error':>8}{'of rows':>9}"]
    for study, parts in report.items():
        lines.append(study)
        lines += [
            f"  {basis:<20}{row['answers']:>9,.0f}{row['covered']:>9.1%}{row['width']:>8.0f}{row['error']:>8.1f}"
            f"{row['rows_error']:>9.1f}"
            for basis, row in parts.items()
        ]
    return "\n".join(lines)
