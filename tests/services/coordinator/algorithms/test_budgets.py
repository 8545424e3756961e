"""Whatever the data, the noise and the model: budgets hold, and servers that walk the schedule accept every request."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caps.data.domain import Workload
from caps.dp.privacy import BOUNDED, UNBOUNDED, Neighbouring
from services.coordinator.algorithms import algorithm, names
from tests.kit.algorithms import (
    BruteForce,
    Stub,
    clear_oracle,
    domain_of,
    inferred,
    pairs_of,
    replay,
    rows_of,
    run,
    task_of,
    whimsical,
)

pytestmark = pytest.mark.property

WITHIN = F(1, 10**9)
seeds = st.integers(0, 2**32)
relations = st.sampled_from([UNBOUNDED, BOUNDED])
sizes = st.lists(st.integers(1, 4), min_size=2, max_size=5)


@given(
    st.sampled_from(names()),
    st.booleans(),
    relations,
    sizes,
    seeds,
    st.floats(-4, 1),
    st.sampled_from([0, 0.1, 0.5, 1]),
)
@example("mwem", False, UNBOUNDED, [1, 1], 0, -4.0, 0)  # settles
@settings(deadline=None, max_examples=120)
def test_budgets_hold_whatever_is_answered(
    name: str, pure: bool, relation: Neighbouring, shape: list[int], seed: int, size: float, move: float
) -> None:
    generator, domain = np.random.default_rng(seed), domain_of(*shape)
    pairs = pairs_of(domain)
    kept = [pair for pair in pairs if generator.random() < 0.7] or pairs
    workload = Workload(tuple(kept), tuple(int(w) for w in generator.integers(1, 9, len(kept))))
    amount = F(10**size)
    budget = {"pure_epsilon": amount} if pure and name == "mwem" else {"rho": amount}
    task, chosen = task_of(domain, relation, workload=workload, **budget), algorithm(name)
    oracle = whimsical(chosen, task, seed)
    done = run(chosen, task, oracle, Stub(domain, move, generator))
    assert oracle.budget.budget * (1 - WITHIN) <= oracle.budget.spent <= oracle.budget.budget
    assert done.outcome.rho_spent == done.events[-1].rho_spent == oracle.budget.spent
    schedule = chosen.schedule(task)
    assert replay(schedule, done.requests, done.events).spent == oracle.budget.spent
    assert inferred(schedule, done.requests).spent == oracle.budget.spent
    assert len({request.step for request in done.requests}) == len(done.requests)


@given(seeds, st.lists(st.integers(2, 4), min_size=2, max_size=3), st.integers(0, 400))
@settings(deadline=None, max_examples=15)
def test_aim_spends_its_budget_on_real_tables(seed: int, shape: list[int], rows: int) -> None:
    domain = domain_of(*shape)
    task, chosen = task_of(domain, UNBOUNDED, rho=F(1, 2)), algorithm("aim", {"rounds": 12})
    oracle = clear_oracle(chosen, task, rows_of(domain, seed, rows), seed)
    done = run(chosen, task, oracle, BruteForce(domain, steps=20))
    assert task.rho * (1 - WITHIN) <= oracle.budget.spent <= task.rho
    assert replay(chosen.schedule(task), done.requests, done.events).spent == oracle.budget.spent
