"""What is found out about a run before it begins: whether every step it may come to has noise."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Attribute, Domain, Workload
from caps.dp.noise.plans import LARGEST_BETA
from caps.dp.oracle import drawable
from caps.dp.privacy import BOUNDED, UNBOUNDED, Gaussian, Laplace, Neighbouring, calibrate
from caps.dp.privacy.schedule import Schedule
from caps.dp.programs import Program, Task, all_pairs, program
from caps.study.forecast import MOST_HIDDEN, obstacle

pytestmark = pytest.mark.property

DELTA = Fraction(1, 10**9)


def task_of(
    epsilon: Fraction, columns: int, neighbouring: Neighbouring = UNBOUNDED, weights: Random | None = None
) -> Task:
    domain = Domain(tuple(Attribute(f"c{i}", 2) for i in range(columns)))
    pairs = all_pairs(domain).cliques
    queries = Workload(pairs, tuple(1 if weights is None else weights.randint(1, 99) for _ in pairs), domain)
    return Task(domain, queries, neighbouring, rho=calibrate(epsilon, DELTA))


def found(chosen: Program, task: Task) -> str | None:
    return obstacle(chosen, task, set(chosen.candidates(task).values()))


@given(
    st.sampled_from(["aim", "mwem", "mst"]),
    st.floats(-4, 1.3).map(lambda power: Fraction(10**power).limit_denominator(10**6)),
    st.integers(2, 60),
    st.sampled_from([UNBOUNDED, BOUNDED, Neighbouring(BOUNDED.relation, 100)]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=15, deadline=None)
def test_a_study_that_is_not_refused_has_noise_for_every_step_of_every_path(
    name: str, epsilon: Fraction, columns: int, neighbouring: Neighbouring, chance: Random
) -> None:
    """Whatever is chosen, and whichever candidates are offered: the largest weight among them decides."""
    chosen, task = program(name), task_of(epsilon, columns, neighbouring, chance)
    weights = sorted(set(chosen.candidates(task).values()))
    refused = found(chosen, task)
    schedule: Schedule = chosen.schedule(task)
    widest, drawn = Fraction(0), True
    while (step := schedule.step) is not None:
        if isinstance(step.mechanism, Gaussian):
            widest = max(widest, step.mechanism.sigma_squared / neighbouring.l2_squared)
        offered = {weights[0], weights[-1], chance.choice(weights)}
        drawn &= all(drawable(step.mechanism, weight, neighbouring) for weight in offered)
        schedule = chance.choice(schedule.following())
    assert (refused is None) == (drawn and widest <= MOST_HIDDEN**2)
    assert (refused is not None and "persons" in refused) == (widest > MOST_HIDDEN**2)


@pytest.mark.parametrize("name", ["aim", "mwem", "mst"])
def test_ten_columns_can_have_a_thousandth_but_not_a_tenth_of_it(name: str) -> None:
    assert found(program(name), task_of(Fraction(1, 1000), 10)) is None
    problem = found(program(name), task_of(Fraction(1, 10**4), 10))
    assert problem is not None
    assert problem.endswith(" persons; a count with noise of more than 100,000 is not worth a budget")


def test_aim_is_refused_for_noise_that_columns_may_have_when_they_are_measured_again() -> None:
    """Of few rounds, those that are dear may leave columns less than they had at first; of two, none is given up."""
    example = task_of(Fraction(1), 40)
    for rounds, settles in ((60, True), (2, False)):
        chosen = program("aim", {"rounds": rounds})
        schedule: Schedule = chosen.schedule(Task(example.domain, example.workload, UNBOUNDED, rho=Fraction(1)))
        first = schedule.step.mechanism.sigma_squared
        budget = Task(example.domain, example.workload, UNBOUNDED, rho=first / (MOST_HIDDEN**2 * Fraction(9, 10)))
        schedule, again = chosen.schedule(budget), []
        while schedule.step is not None:  # anneal until rounds may be given up, then go on as long as there are any
            paths = schedule.following()
            again += [paths[2].step.mechanism.sigma_squared] if len(paths) > 2 else []
            schedule = paths[1] if len(paths) == 2 else paths[0]
        assert bool(again) == settles
        assert (max(again, default=0) > MOST_HIDDEN**2) == settles == (found(chosen, budget) is not None)


def test_noise_that_hides_as_many_persons_as_it_may_is_not_refused() -> None:
    """In persons, not in rows: a person of a hundred rows needs a hundred times the noise."""
    chosen, task = program("gaussian"), task_of(Fraction(1), 2)
    (query,) = task.workload.cliques
    for neighbouring in (UNBOUNDED, Neighbouring(UNBOUNDED.relation, 100), BOUNDED):
        for rho, refused in (
            (Fraction(1, 2 * (MOST_HIDDEN - 1) ** 2), False),
            (Fraction(1, 2 * (MOST_HIDDEN + 1) ** 2), True),
        ):
            budget = Task(task.domain, Workload((query,), (1,), task.domain), neighbouring, rho=rho)
            assert (found(chosen, budget) is not None) == refused
    pure = program("mwem", {"rounds": 1})  # of which nine tenths measure
    for epsilon, refused in ((Fraction(10, 9 * MOST_HIDDEN - 9), False), (Fraction(10, 9 * MOST_HIDDEN + 9), True)):
        budget = Task(task.domain, task.workload, UNBOUNDED, pure_epsilon=epsilon)
        assert isinstance(pure.schedule(budget).extremes()[-1], Laplace)
        assert (found(pure, budget) is not None) == refused


def test_weights_that_no_noise_has_the_scale_for_are_an_obstacle() -> None:
    chosen, task = program("aim"), task_of(Fraction(1, 1000), 10, Neighbouring(BOUNDED.relation, 100))
    select = chosen.schedule(task).select
    assert obstacle(chosen, task, {1, 1 << 30}) == "is wider or narrower than servers can draw"
    assert select.scale(1 << 38, task.neighbouring) > LARGEST_BETA
    assert obstacle(chosen, task, {1}) is None
