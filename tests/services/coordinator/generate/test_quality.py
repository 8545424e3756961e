"""Synthetic data from the clear twin on the paper's tables is as good as other implementations' of the same."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from caps.basics.uniform import Uniform
from caps.data.domain import Layout
from caps.data.quality import workload_error
from caps.data.schema import Schema
from caps.dp.clear import ClearOracle
from caps.dp.privacy import UNBOUNDED, Filter, calibrate
from services.coordinator.algorithms import Task, algorithm, all_pairs
from services.coordinator.generate import create_estimator
from tests.kit.datasets import DATA, REFERENCE

pytestmark = pytest.mark.statistical

EPSILON, DELTA = Fraction(1), Fraction(1, 10**9)
SEEDS = 10


def train_rows(name: str, seed: int) -> tuple[Schema, np.ndarray]:
    schema = Schema.from_json((DATA / f"{name}.schema.json").read_text())
    codes, _ = schema.encode(DATA / f"{name.removesuffix('.caps')}.csv", extra="ignore")
    if name == "compas-caps":
        return schema, codes[:4120]
    return schema, codes[Uniform(seed).permutation(len(codes))[: round(0.8 * len(codes))]]


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason="the paper's tables are not here: set CAPS_DATA")
@pytest.mark.parametrize(("name", "kind"), REFERENCE, ids=str)
def test_workload_error_is_the_references(name: str, kind: str) -> None:
    errors = []
    for seed in range(SEEDS):
        schema, codes = train_rows(name, seed)
        domain = schema.domain()
        task = Task(domain, all_pairs(domain), UNBOUNDED, rho=calibrate(EPSILON, DELTA))
        chosen = algorithm(kind)
        oracle = ClearOracle(codes, Layout(domain, chosen.cliques(task)), UNBOUNDED, Filter(task.zcdp, UNBOUNDED))
        outcome = chosen.run(task, oracle, create_estimator("kernel", domain))
        synthetic = outcome.model.sample(round(outcome.model.total), seed=seed)
        errors.append(workload_error(all_pairs(domain).layout(domain), codes, synthetic))
    mean, spread = REFERENCE[name, kind]
    print(f"{name} {kind}: {np.mean(errors):.4f} +- {np.std(errors, ddof=1):.4f}, reference {mean} +- {spread}")
    # Both are means of ten: their difference has a standard deviation of sqrt(2 / 10) spreads, and three are allowed.
    assert np.mean(errors) <= mean + 3 * (2 / SEEDS) ** 0.5 * spread
