"""A study's algorithm with any oracle, from the first step to the rows: for simulations (`caps.study.simulation`)."""

from __future__ import annotations

from caps.dp.oracle import Oracle
from caps.study import Manifest
from caps.study.planning import Performed
from services.coordinator.algorithms import algorithm
from services.coordinator.generate import create_estimator, size_of


def perform(manifest: Manifest, oracle: Oracle) -> Performed:
    """Spend the study's budget on the oracle's answers, fit, and draw as many rows as a release would have."""
    choice, task = manifest.algorithm, manifest.task
    estimator = create_estimator("kernel", task.domain, groups=manifest.absent_together)
    outcome = algorithm(choice.name, choice.parameters).run(task, oracle, estimator)
    measured = frozenset(one.clique for one in outcome.measurements)
    size = size_of(task.domain, outcome.measurements, groups=manifest.absent_together, total=task.total)
    rows = outcome.model.sample(manifest.publication.rows or size.rows)
    return Performed(rows, measured, outcome.rounds, estimator.model_bytes(measured))
