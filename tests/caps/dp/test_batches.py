"""Comparisons and batches: what they cost, what a server refuses of them, and that no division exceeds its budget."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Layout, Workload
from caps.dp.bounds import MOST_COUNTED, UNIT_BITS
from caps.dp.enforce import Enforcer
from caps.dp.oracle import MOST_PLANS, Batch, Comparison, Measurement, comparison_plan, sendable
from caps.dp.privacy import (
    BOUNDED,
    UNBOUNDED,
    Filter,
    Gaussian,
    GaussianBatch,
    GaussianErrors,
    Neighbouring,
    Relation,
    Role,
)
from caps.dp.privacy.rational import grid_down
from caps.dp.programs import program
from caps.errors import DomainError, NotDue
from services.coordinator.algorithms import algorithm
from tests.kit.algorithms import BruteForce, clear_oracle, domain_of, rows_of, run, task_of

DOMAIN = domain_of(3, 2, 4)
WORKLOAD = Workload((("a0", "a1"), ("a1", "a2"), ("a0", "a2")), (2, 4, 6))
TASK = task_of(DOMAIN, UNBOUNDED, workload=WORKLOAD, rho=F(1, 2))
SWIFT = program("swift")
LAYOUT = Layout(DOMAIN, SWIFT.cliques(TASK))
RELATIONS = [Neighbouring(relation, k, moves) for relation in Relation for k in (1, 3) for moves in (False, True)]


def legitimate() -> list:
    chosen = algorithm("swift")
    oracle = clear_oracle(chosen, TASK, rows_of(DOMAIN, 3, 400), 3)
    return run(chosen, TASK, oracle, BruteForce(DOMAIN, steps=20)).requests


INITIAL, COMPARE, MEASURE = legitimate()


def before(request: object) -> Enforcer:
    """The enforcer when this one of the legitimate requests is due."""
    enforcer = Enforcer.start(SWIFT, TASK, LAYOUT)
    for one in (INITIAL, COMPARE, MEASURE):
        if one is request:
            return enforcer
        enforcer = enforcer.after(one)
    raise AssertionError


def test_a_run_has_three_requests_which_spend_all_of_rho() -> None:
    enforcer, ledger = Enforcer.start(SWIFT, TASK, LAYOUT), Filter(TASK.zcdp, UNBOUNDED)
    for request in (INITIAL, COMPARE, MEASURE):
        assert request.step in enforcer.due()
        admitted = enforcer.admit(request)
        ledger.charge(admitted.entry)
        enforcer = admitted.enforcer
    assert enforcer.ended
    assert TASK.zcdp * (1 - F(1, 10**9)) <= ledger.spent <= TASK.zcdp
    assert [entry.count for entry in ledger.entries] == [1, 3, 1]  # an error for each candidate is a release
    assert [type(request) for request in (INITIAL, COMPARE, MEASURE)] == [Batch, Comparison, Batch]


def test_the_noise_of_a_run_is_foreseen_as_far_as_it_is_known() -> None:
    assert before(INITIAL).left == 2  # the comparison follows, whatever is measured
    assert before(INITIAL).upcoming(2) == [*before(INITIAL).upcoming(), *before(COMPARE).upcoming()]
    (soon,) = before(INITIAL).upcoming()
    ((plan, cells),) = INITIAL.noise(LAYOUT, UNBOUNDED)
    assert (soon.step, soon.plan(UNBOUNDED), soon.draws, soon.selects) == ("initial1", plan, len(cells), False)
    (soon,) = before(COMPARE).upcoming()
    assert (soon.step, soon.plan(UNBOUNDED), soon.draws) == ("round1-compare", COMPARE.plan(), 3)
    assert before(MEASURE).upcoming() == []  # it depends on how the budget is divided
    assert all(before(request).left == 1 for request in (COMPARE, MEASURE))


@pytest.mark.parametrize("relation", RELATIONS, ids=str)
def test_errors_cost_what_one_person_can_change_of_all_of_them(relation: Neighbouring) -> None:
    """The charge of m errors is that of one Gaussian release of a vector of sensitivity sqrt(m) l1."""
    mechanism = GaussianErrors.costing(grid_down(F(1, 700)), relation)
    assert F(1, 700) * (1 - F(1, 10**9)) <= mechanism.rho(relation) <= F(1, 700)
    squared = F(3 * relation.l1**2)  # of three candidates, each of which changes by l1
    entry = replace(COMPARE, mechanism=mechanism).entry()
    assert entry.rho(relation) >= squared / (2 * mechanism.sigma_squared)
    assert entry.rho(relation) - squared / (2 * mechanism.sigma_squared) <= F(3, 2**128)
    assert comparison_plan(mechanism).sigma2 == mechanism.sigma_squared * (1 << 2 * UNIT_BITS)


@given(
    st.fractions(F(1, 10**6), F(10)),
    st.lists(st.integers(1, GaussianBatch.PARTS), min_size=1, max_size=40),
    st.sampled_from(RELATIONS),
)
@settings(deadline=None, max_examples=150)
def test_the_parts_of_a_batch_never_cost_more_than_it(rho: F, weights: list[int], relation: Neighbouring) -> None:
    batch = GaussianBatch(grid_down(rho))
    parts = [max(1, weight * batch.PARTS // (2 * sum(weights))) for weight in weights]
    cost = sum(batch.part(part, relation).rho(relation) for part in parts)
    assert cost <= batch.total * sum(parts) / batch.PARTS <= batch.rho(relation)
    whole = batch.part(batch.PARTS, relation)
    assert batch.total * (1 - F(1, 10**9)) <= whole.rho(relation) <= batch.total


@pytest.mark.parametrize("parts", [0, -1, GaussianBatch.PARTS + 1])
def test_a_part_that_a_batch_does_not_have_is_refused(parts: int) -> None:
    with pytest.raises(DomainError, match="parts of a batch's budget"):
        GaussianBatch(F(1, 2)).part(parts, UNBOUNDED)


def test_the_budget_of_a_batch_is_on_the_grid() -> None:
    with pytest.raises(DomainError, match="grid"):
        GaussianBatch(F(1, 3))
    with pytest.raises(DomainError):
        GaussianBatch(F(0))


def refused(request: object, changed: object, reason: str, error: type[Exception]) -> None:
    enforcer = before(request)
    enforcer.admit(request)  # as it was, it is admitted
    for ask in (enforcer.after, enforcer.admit):
        with pytest.raises(error, match=reason):
            ask(changed)


ones = np.ones(3, np.int64)
PARTS = GaussianBatch.PARTS


@pytest.mark.parametrize(
    ("changed", "reason", "error"),
    [
        ({"parts": MEASURE.parts + 1}, "more than the 4096 parts", DomainError),
        ({"parts": MEASURE.parts * 0}, "at least one part", DomainError),
        ({"parts": MEASURE.parts * 0 - 5}, "at least one part", DomainError),
        ({"parts": MEASURE.parts[:-1]}, "at least one part", DomainError),
        ({"parts": np.full(len(MEASURE.parts), 1 << 52)}, "more than the 4096 parts", DomainError),
        ({"cliques": (), "parts": ones[:0]}, "must have marginals", DomainError),
        ({"cliques": (("a0",), ("a0",), ("a1",)), "parts": ones}, "each once", DomainError),
        ({"cliques": (("a0", "a1", "a2"),), "parts": ones[:1]}, "no such clique", DomainError),
        ({"mechanism": GaussianBatch(MEASURE.mechanism.total * 2)}, "is not due", NotDue),
        ({"step": "round2-measure"}, "is not due", NotDue),
    ],
)
def test_a_batch_that_would_spend_more_or_measure_something_else_is_refused(changed, reason, error) -> None:
    refused(MEASURE, replace(MEASURE, **changed), reason, error)


@pytest.mark.parametrize(
    ("changed", "reason", "error"),
    [
        ({"parts": ones}, "other than the initial marginals", NotDue),
        ({"parts": np.array([PARTS - 2, 1, 1])}, "other than the initial marginals", NotDue),
        ({"cliques": INITIAL.cliques[::-1]}, "other than the initial marginals", NotDue),
        ({"cliques": INITIAL.cliques[:2], "parts": INITIAL.parts[:2]}, "other than the initial marginals", NotDue),
        ({"cliques": (("a0", "a1"), ("a1",), ("a2",))}, "other than the initial marginals", NotDue),
        ({"mechanism": MEASURE.mechanism}, "is not due", NotDue),
    ],
)
def test_the_first_batch_is_fixed(changed, reason, error) -> None:
    """Its noise is drawn before it is asked for."""
    refused(INITIAL, replace(INITIAL, **changed), reason, error)


MOST = MOST_COUNTED << UNIT_BITS


@pytest.mark.parametrize(
    ("changed", "reason", "error"),
    [
        ({"candidates": COMPARE.candidates[:2], "estimate": COMPARE.estimate[:14]}, "not all the program's", NotDue),
        ({"candidates": COMPARE.candidates[::-1]}, "not all the program's", NotDue),
        ({"candidates": (*COMPARE.candidates, COMPARE.candidates[0])}, "not all the program's", NotDue),
        ({"candidates": (("a0",), *COMPARE.candidates[1:])}, "not all the program's", NotDue),
        ({"estimate": COMPARE.estimate[:-1]}, "as many estimates", DomainError),
        ({"estimate": COMPARE.estimate * 0 - 1}, "not a number of people", DomainError),
        ({"estimate": COMPARE.estimate * 0 + MOST + 1}, "not a number of people", DomainError),
        ({"estimate": COMPARE.estimate * 0 + MOST}, "more people than there can be", DomainError),
        ({"estimate": COMPARE.estimate.astype(np.float64)}, "64-bit integers", DomainError),
        ({"mechanism": GaussianErrors(COMPARE.mechanism.sigma_squared / 2)}, "is not due", NotDue),
        ({"step": "round1-select"}, "is not due", NotDue),
    ],
)
def test_a_comparison_of_something_else_or_with_less_noise_is_refused(changed, reason, error) -> None:
    refused(COMPARE, replace(COMPARE, **changed), reason, error)


def test_other_kinds_of_requests_are_not_due() -> None:
    measured = Measurement("round1-measure", ("a0",), Gaussian(F(10)))
    for request in (INITIAL, COMPARE, MEASURE):
        refused(request, measured, "a measure is not due", NotDue)
    refused(COMPARE, INITIAL, "a batch is not due", NotDue)
    refused(MEASURE, COMPARE, "a compare is not due", NotDue)
    with pytest.raises(NotDue):
        before(MEASURE).after(MEASURE).after(MEASURE)


def test_a_batch_has_few_kinds_of_noise() -> None:
    """A coordinator cannot have servers build a table for every marginal."""
    domain = domain_of(*[2] * 14)
    pairs = tuple(combinations(domain.names, 2))[: MOST_PLANS + 1]
    layout, parts = Layout(domain, pairs), np.arange(1, MOST_PLANS + 2)
    mechanism = GaussianBatch(F(1))
    Batch("b", pairs[:-1], parts[:-1], mechanism).check(layout)
    with pytest.raises(DomainError, match="different kinds of noise"):
        Batch("b", pairs, parts, mechanism).check(layout)


def test_noise_of_a_batch_covers_every_cell_once() -> None:
    sizes = MEASURE.sizes(LAYOUT)
    kinds = MEASURE.noise(LAYOUT, UNBOUNDED)
    assert sorted(np.concatenate([cells for _, cells in kinds]).tolist()) == list(range(sum(sizes)))
    each = np.repeat(MEASURE.parts, sizes)
    for plan, cells in kinds:
        (parts,) = set(each[cells].tolist())
        assert plan.sigma2 == MEASURE.mechanism.part(parts, UNBOUNDED).sigma_squared
    for asked, parts in zip(MEASURE.measurements(BOUNDED), MEASURE.parts.tolist(), strict=True):
        assert asked.mechanism == MEASURE.mechanism.part(parts, BOUNDED)


def test_errors_beyond_what_json_carries_are_cut_off() -> None:
    opened = np.array([0, -5, (1 << 61) - 1, -(1 << 61)])
    assert sendable(opened).tolist() == [0, -5, (1 << 53) - 1, -(1 << 53) + 1]


def test_a_table_of_one_column_is_measured_at_once() -> None:
    domain = domain_of(5)
    task = task_of(domain, UNBOUNDED, workload=Workload((("a0",),), (1,)), rho=F(1, 2))
    (cycle,) = SWIFT.schedule(task).cycles
    assert [step.role for step in cycle.steps] == [Role.INITIAL]
    chosen = algorithm("swift")
    done = run(chosen, task, clear_oracle(chosen, task, rows_of(domain, 1, 200)), BruteForce(domain))
    assert [request.step for request in done.requests] == ["initial1"]
    assert done.outcome.rho_spent == F(1, 2)
