"""A study's algorithm with any oracle, from the first step to the rows: for simulations (`caps.study.simulation`)."""

from __future__ import annotations

from caps.dp.oracle import Oracle
from caps.study import Manifest
from caps.study.planning import Performed
from services.coordinator.algorithms import algorithm
from services.coordinator.generate import create_estimator


def perform(manifest: Manifest, oracle: Oracle) -> Performed:
    """Spend the study's budget on the oracle's answers, fit, and draw as many rows as the model stands for."""
    choice, task = manifest.algorithm, manifest.task
    estimator = create_estimator("kernel", task.domain, groups=manifest.absent_together)
    outcome = algorithm(choice.name, choice.parameters).run(task, oracle, estimator)
    measured = frozenset(one.clique for one in outcome.measurements)
    rows = outcome.model.sample(max(1, round(outcome.model.total)))
    return Performed(rows, measured, outcome.rounds, estimator.model_bytes(measured))
