"""The loops ask for what their schedules and papers say, and nothing of theirs comes from unnoised data."""

from __future__ import annotations

import pkgutil
import re
from fractions import Fraction as F
from itertools import combinations, pairwise
from math import pi, sqrt

import numpy as np
import pytest

import caps.dp.programs as programs
import services.coordinator.algorithms as package
from caps.data.domain import Layout, Workload
from caps.dp.effort import PRIOR_FITS, fit_seconds
from caps.dp.oracle import Batch, Comparison, Measurement, Selection
from caps.dp.privacy import (
    BOUNDED,
    UNBOUNDED,
    AimSchedule,
    Choice,
    Gaussian,
    GaussianBatch,
    Laplace,
    MstSchedule,
    MwemSchedule,
    Neighbouring,
    NoisyMax,
    PermuteAndFlip,
    Role,
    calibrate,
)
from caps.dp.programs.base import MAX_POOLED
from caps.errors import DomainError, LocalError
from services.coordinator.algorithms import Stage, Task, aim, algorithm, all_pairs, mwem, names
from services.coordinator.algorithms.aim import Aim
from services.coordinator.algorithms.base import Algorithm, Walk, magnitude, register
from services.coordinator.algorithms.gaussian import FixedGaussian
from services.coordinator.algorithms.mst import Mst
from services.coordinator.algorithms.mwem import Mwem
from services.coordinator.algorithms.swift import Swift
from services.coordinator.generate import create_estimator
from tests.kit.algorithms import (
    BruteForce,
    Joint,
    Recorded,
    Stub,
    choices_of,
    clear_oracle,
    domain_of,
    inferred,
    model_error,
    replay,
    rows_of,
    run,
    task_of,
    tree_bytes,
    whimsical,
)

DOMAIN = domain_of(4, 3, 3, 2)
ALL = {
    "aim": (Aim(), {"rho": F(1, 2)}),
    "gaussian": (FixedGaussian(), {"rho": F(1, 2)}),
    "mst": (Mst(), {"rho": F(1, 2)}),
    "mwem": (Mwem(), {"rho": F(1, 2)}),
    "mwem, pure": (Mwem(), {"pure_epsilon": F(2)}),
    "swift": (Swift(), {"rho": F(1, 2)}),
}
every = pytest.mark.parametrize("case", ALL)


def selections(requests: list) -> list[Selection]:
    return [request for request in requests if isinstance(request, Selection)]


def measurements(requests: list, relation: Neighbouring = UNBOUNDED) -> list[Measurement]:
    found = []
    for request in requests:
        if isinstance(request, Batch):
            found += request.measurements(relation)
        elif isinstance(request, Measurement):
            found.append(request)
    return found


# Names and parameters


def test_all_modules_of_algorithms_are_found() -> None:
    for found in (package, programs):
        modules = {module.name for module in pkgutil.iter_modules(found.__path__)} - {"base", "division"}
        assert set(found.names()) == {"aim", "gaussian", "mst", "mwem", "swift"} == modules


def test_unknown_names_and_parameters_are_refused_clearly() -> None:
    with pytest.raises(DomainError, match="no algorithm 'privbayes' here; choose one of aim, gaussian, mst, mwem"):
        algorithm("privbayes")
    with pytest.raises(DomainError, match="aim has no parameter 'epsilon'; it takes rounds, max_model_bytes, pooled"):
        algorithm("aim", {"epsilon": 1})
    with pytest.raises(DomainError, match="gaussian has no parameter 'rounds'; it takes none"):
        algorithm("gaussian", {"rounds": 1})


@pytest.mark.parametrize(
    "bad", [{"rounds": 0}, {"rounds": True}, {"rounds": 1.5}, {"pooled": 1}, {"max_model_bytes": None}, {"rounds": "3"}]
)
def test_parameters_of_a_wrong_kind_are_refused(bad: dict) -> None:
    with pytest.raises(DomainError, match=f"aim: {next(iter(bad))}"):
        algorithm("aim", bad)


def test_an_algorithm_has_the_parameters_chosen() -> None:
    assert algorithm("mwem", {"rounds": 7, "pooled": False}) == Mwem(rounds=7, pooled=False)


def test_a_name_is_taken_once() -> None:
    with pytest.raises(LocalError, match="two algorithms"):
        register(type("Other", (FixedGaussian,), {}))
    assert algorithm("gaussian") == FixedGaussian()


def test_an_algorithm_without_a_program_that_servers_know_is_refused() -> None:
    class Unknown(FixedGaussian):
        name = "unknown"

    class Pretender(Mwem):
        name = "gaussian"

    for cls in (Unknown, Pretender):
        with pytest.raises(LocalError, match=r"is not in caps\.dp\.programs, so servers do not know it"):
            register(cls)
    assert names() == programs.names()


def test_programs_are_named_once_and_are_no_algorithms() -> None:
    with pytest.raises(LocalError, match="two programs"):
        programs.base.register(type("Other", (programs.base.registered("aim"),), {}))
    for name in programs.names():
        chosen = programs.program(name)
        assert not isinstance(chosen, Algorithm)
        with pytest.raises(DomainError, match=f"{name} has no parameter 'epsilon'"):
            programs.program(name, {"epsilon": 1})
    with pytest.raises(DomainError, match="no algorithm 'privbayes' here; choose one of aim, gaussian, mst, mwem"):
        programs.program("privbayes")


@every
def test_a_program_counts_all_that_it_may_ask_about(case: str) -> None:
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, UNBOUNDED, **budget)
    counted = set(chosen.cliques(task))
    assert {*chosen.initial(task), *chosen.candidates(task)} == counted
    schedule = chosen.schedule(task)
    first = schedule.step
    expected = first.count if first.role is Role.INITIAL else 0 if schedule.widest_again is None else 4
    at_once = isinstance(first.mechanism, GaussianBatch)
    assert (min(1, len(chosen.initial(task))) if at_once else len(chosen.initial(task))) == expected


def test_tasks_that_make_no_sense_are_refused() -> None:
    workload = all_pairs(DOMAIN)
    for budget in ({}, {"rho": F(1), "pure_epsilon": F(1)}, {"rho": F(0)}, {"rho": 0.5}):
        with pytest.raises(DomainError):
            Task(DOMAIN, workload, UNBOUNDED, **budget)
    with pytest.raises(DomainError, match="not public"):
        Task(DOMAIN, workload, UNBOUNDED, rho=F(1), total=100)
    for case in ("aim", "gaussian", "mst", "swift"):
        with pytest.raises(DomainError, match="not pure"):
            ALL[case][0].schedule(Task(DOMAIN, workload, UNBOUNDED, pure_epsilon=F(1)))


# Budgets


@every
@pytest.mark.parametrize("relation", [UNBOUNDED, BOUNDED])
def test_the_budget_is_spent_and_servers_that_walk_the_schedule_agree(case: str, relation) -> None:
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, relation, **budget)
    for seed in range(3):
        oracle = clear_oracle(chosen, task, rows_of(DOMAIN, seed, 300), seed)
        done = run(chosen, task, oracle, BruteForce(DOMAIN, steps=30))
        assert oracle.budget.budget * (1 - F(1, 10**9)) <= oracle.budget.spent <= oracle.budget.budget
        assert done.outcome.rho_spent == oracle.budget.spent
        if budget.keys() == {"rho"}:
            assert budget["rho"] * (1 - F(1, 10**9)) <= oracle.budget.spent <= budget["rho"]
        assert replay(chosen.schedule(task), done.requests, done.events).spent == oracle.budget.spent
        assert inferred(chosen.schedule(task), done.requests).spent == oracle.budget.spent
        steps = [request.step for request in done.requests]
        assert len(set(steps)) == len(steps)
        assert all(re.fullmatch(r"[a-z]+[0-9]+(-[a-z]+)?", step) for step in steps)


def test_schedules_are_the_librarys() -> None:
    task, pure = task_of(DOMAIN, BOUNDED, rho=F(1, 3)), task_of(DOMAIN, BOUNDED, pure_epsilon=F(2))
    assert Aim().schedule(task) == AimSchedule.start(F(1, 3), BOUNDED, initial=4, rounds=64)  # 4 columns
    assert Aim(rounds=9).schedule(task) == AimSchedule.start(F(1, 3), BOUNDED, initial=4, rounds=9)
    assert Mwem().schedule(task) == MwemSchedule.gaussian(F(1, 3), BOUNDED, rounds=8, columns=4)
    assert Mwem(rounds=3).schedule(pure) == MwemSchedule.laplace(F(2), BOUNDED, rounds=3)
    assert Mst().schedule(task) == MstSchedule.start(F(1, 3), BOUNDED, columns=4)


@every
def test_bounded_neighbours_get_wider_noise_in_every_step(case: str) -> None:
    """Upstream MWEM+PGM selects with the unbounded sensitivity in the bounded case too."""
    chosen, budget = ALL[case]
    few, many = (
        run(chosen, task, whimsical(chosen, task), Stub(DOMAIN)).requests
        for task in (task_of(DOMAIN, relation, **budget) for relation in (UNBOUNDED, BOUNDED))
    )
    assert len(few) == len(many)
    for one, two in zip(few, many, strict=True):
        if isinstance(one, Selection):
            assert two.mechanism == one.mechanism
            assert two.mechanism.scale(5, BOUNDED) == 2 * one.mechanism.scale(5, UNBOUNDED)
            assert two.plan(BOUNDED).digest != two.plan(UNBOUNDED).digest
        elif isinstance(one, Batch):
            assert two.mechanism.rho(BOUNDED) == one.mechanism.rho(UNBOUNDED)
            for wide, narrow in zip(two.measurements(BOUNDED), two.measurements(UNBOUNDED), strict=True):
                assert wide.mechanism.sigma_squared == 2 * narrow.mechanism.sigma_squared
        elif isinstance(one, Comparison):
            assert two.mechanism.sigma_squared == 4 * one.mechanism.sigma_squared
        elif isinstance(one.mechanism, Gaussian):
            assert two.mechanism.sigma_squared == 2 * one.mechanism.sigma_squared
        else:
            assert two.mechanism.scale == 2 * one.mechanism.scale


def test_pure_budgets_take_pure_mechanisms() -> None:
    for case, select, measure in (("mwem", NoisyMax, Gaussian), ("mwem, pure", PermuteAndFlip, Laplace)):
        chosen, budget = ALL[case]
        task = task_of(DOMAIN, UNBOUNDED, **budget)
        done = run(chosen, task, whimsical(chosen, task), Stub(DOMAIN))
        assert {type(request.mechanism) for request in selections(done.requests)} == {select}
        assert {type(request.mechanism) for request in measurements(done.requests)} == {measure}
        assert done.outcome.rounds == 8


@pytest.mark.parametrize("scale", [F(1, 2), F(3), F(70)])
def test_the_estimator_is_told_the_deviation_of_the_noise(scale: F) -> None:
    """Upstream MWEM+PGM leaves it out."""
    x = np.arange(-4000, 4001)
    law = np.exp(-np.abs(x) / float(scale))
    law /= law.sum()
    assert Laplace(scale).deviation == pytest.approx(sqrt(law @ x**2))
    assert magnitude(Laplace(scale)) == pytest.approx(law @ np.abs(x))
    assert Gaussian(scale**2).deviation == pytest.approx(float(scale))
    with pytest.raises(LocalError):
        magnitude(PermuteAndFlip(F(1)))


@every
def test_measurements_carry_answers_and_deviations_as_they_were(case: str) -> None:
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, UNBOUNDED, **budget)
    done = run(chosen, task, whimsical(chosen, task), BruteForce(DOMAIN, steps=2))
    asked = measurements(done.requests)
    kinds = (Measurement, Batch)
    flat = [r for r, request in zip(done.results, done.requests, strict=True) if isinstance(request, kinds)]
    ends = np.cumsum([DOMAIN.cells(request.clique) for request in asked])[:-1]
    answers = np.split(np.concatenate(flat), ends)
    for request, answer, measured in zip(asked, answers, done.outcome.measurements, strict=True):
        assert (measured.clique, measured.sigma) == (request.clique, request.mechanism.deviation)
        assert measured.values.dtype == np.float64
        assert np.array_equal(measured.values, answer)
    assert all(m.sigma > 0 for fit, _ in done.estimator.fits for m in fit)
    assert done.estimator.fits[-1][0] == done.outcome.measurements  # to all that was opened, as it was
    assert done.estimator.smoothings[-1] == done.outcome.measurements
    assert chosen.name == "mwem" or len(done.estimator.smoothings) == 1
    assert done.estimator.rough == [True] * (len(done.estimator.fits) - 1) + [False]


@every
def test_what_the_oracle_cannot_answer_is_refused_before_anything_is_charged(case: str) -> None:
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, UNBOUNDED, **budget)
    oracle = whimsical(chosen, task)
    for layout in (Layout(DOMAIN, (("a0",),)), Layout(domain_of(4, 3, 3), (("a0",),))):
        oracle.layout = layout
        with pytest.raises(DomainError):
            chosen.run(task, oracle, Stub(DOMAIN))
    assert oracle.budget.entries == ()


def test_a_loop_that_strays_from_its_schedule_is_stopped() -> None:
    task = task_of(DOMAIN, UNBOUNDED)
    walk = Walk(task, Mwem().schedule(task), whimsical(Mwem(), task), Stub(DOMAIN))
    with pytest.raises(LocalError, match="no measure is due"):
        walk.measure(("a0", "a1"), np.zeros(12))
    with pytest.raises(LocalError, match="charged"):
        walk.choose(Choice.ANNEAL)
    walk = Walk(task, Mst().schedule(task), whimsical(Mst(), task), Stub(DOMAIN))
    with pytest.raises(LocalError, match="4 measurements are due, not 1"):
        walk.measure_all([("a0",)])
    with pytest.raises(LocalError, match="no select is due"):
        walk.select([("a0",)], [np.zeros(4)], bias=[0], weights=[1])

    class Lazy(FixedGaussian):
        def loop(self, walk: Walk):
            return walk.fit()

    with pytest.raises(LocalError, match="ended before its schedule"):
        Lazy().run(task, whimsical(Lazy(), task), Stub(DOMAIN))


# AIM


def test_aim_starts_with_every_column_and_charges_each() -> None:
    """Upstream charges for the number of columns whatever it measured, and leaves out those outside the workload."""
    task = task_of(DOMAIN, UNBOUNDED, workload=Workload((("a0", "a1"),), (1,)))
    done = run(Aim(), task, whimsical(Aim(), task), Stub(DOMAIN))
    initial = done.requests[:4]
    assert all(request.step.startswith("initial") for request in initial)
    assert [request.clique for request in initial] == [("a0",), ("a1",), ("a2",), ("a3",)]
    after = next(event for event in done.events if event.stage is Stage.GENERATE)
    assert after.rho_spent == 4 * Aim().schedule(task).first.rho(UNBOUNDED)
    assert {c for s in selections(done.requests) for c in s.candidates} == {("a0",), ("a1",), ("a0", "a1")}


def test_aim_plans_sixteen_rounds_for_each_column() -> None:
    """Upstream's budget is negative, and its noise NaN, with fewer than 0.9 for each."""
    task = task_of(DOMAIN, UNBOUNDED)
    for chosen, expected in ((Aim(), 64), (Aim(rounds=3), 3), (Aim(rounds=1), 1)):
        assert run(chosen, task, whimsical(chosen, task), Stub(DOMAIN, move=1)).outcome.rounds == expected


def test_aim_weights_count_overlaps_with_the_workload() -> None:
    task = task_of(DOMAIN, UNBOUNDED, workload=Workload((("a0", "a1"), ("a1", "a2", "a3")), (4, 6)))
    expected = {
        ("a0",): 4, ("a1",): 10, ("a2",): 6, ("a3",): 6,
        ("a0", "a1"): 14, ("a1", "a2"): 16, ("a1", "a3"): 16, ("a2", "a3"): 12, ("a1", "a2", "a3"): 22,
    }  # fmt: skip
    assert Aim().candidates(task) == {clique: weight // 2 for clique, weight in expected.items()}
    done = run(Aim(), task, whimsical(Aim(), task), Stub(DOMAIN))
    for selection in selections(done.requests):
        assert [expected[c] // 2 for c in selection.candidates] == selection.weights.tolist()
    heavy = task_of(DOMAIN, UNBOUNDED, workload=Workload((("a0",), ("a1",)), (2**30, 1)))
    oracle = whimsical(Aim(), heavy)
    with pytest.raises(DomainError, match="coarser"):
        Aim().run(heavy, oracle, Stub(DOMAIN))
    assert oracle.budget.entries == ()


def test_weights_decide_where_errors_are_alike() -> None:
    codes = np.repeat([[0, 0, 0, 0], [1, 1, 1, 1]], 2000, axis=0)
    for favourite in (("a0", "a1"), ("a2", "a3")):
        workload = Workload(
            (("a0", "a1"), ("a2", "a3")), tuple(1 + 9 * (c == favourite) for c in (("a0", "a1"), ("a2", "a3")))
        )
        for chosen in (Aim(rounds=8), Mwem(rounds=2)):
            task = task_of(DOMAIN, BOUNDED, workload=workload, rho=F(5), total=4000)
            done = run(chosen, task, clear_oracle(chosen, task, codes), BruteForce(DOMAIN, steps=60))
            first = next(event for event in done.events if event.stage is Stage.SELECT)
            assert first.clique == favourite


def test_aim_subtracts_most_of_what_the_noise_would_explain() -> None:
    task = task_of(DOMAIN, UNBOUNDED)
    done = run(Aim(), task, whimsical(Aim(), task), Stub(DOMAIN, move=1))
    rounds = [one for one in measurements(done.requests) if not one.step.startswith("initial")]
    asked = list(zip(selections(done.requests), rounds, strict=True))
    assert len(asked) == done.outcome.rounds
    for selection, measurement in asked:
        sigma = sqrt(measurement.mechanism.sigma_squared)
        cells = np.array([DOMAIN.cells(c) for c in selection.candidates])
        assert np.abs(selection.bias - 0.8 * 256 * sqrt(2 / pi) * sigma * cells).max() <= 0.51
        assert measurement.clique in selection.candidates


@pytest.mark.parametrize(("share", "off"), [(aim.NOISE, 2.0), (mwem.NOISE, 0.15)])
def test_what_scores_subtract_is_where_the_slope_of_the_gain_meets_zero(share: float, off: float) -> None:
    """A marginal that is off by D, in units of the noise, is off by D / sqrt(1 + D^2) once it is measured."""

    def gain(distance: float) -> float:
        return distance - distance / sqrt(1 + distance**2)

    slope = (gain(off + 1e-5) - gain(off - 1e-5)) / 2e-5
    assert off - gain(off) / slope == pytest.approx(share, rel=0.03)


def test_aims_edges_join_what_nothing_measured_connects_and_subtract_the_noise_of_columns() -> None:
    domain = domain_of(2, 3, 2, 4, 2, 3)
    chosen, task, joining = Aim(), task_of(domain, UNBOUNDED), 0
    for seed in range(5):
        done = run(chosen, task, whimsical(chosen, task, seed), Stub(domain, move=0))
        names = [request.step for request in done.requests]
        again = names.index("initial7")
        measured = [one for one in done.requests[:again] if isinstance(one, Measurement)]
        measured += done.requests[again : again + 6]
        edges = done.requests[again + 6 :]
        assert len(edges) >= 4
        for select, edge in zip(edges[::2], edges[1::2], strict=True):
            parts = {name: {name} for name in domain.names}
            for one in measured:
                joined = set.union(*(parts[name] for name in one.clique))
                parts |= dict.fromkeys(joined, joined)
            apart = {pair for pair in combinations(domain.names, 2) if parts[pair[0]] is not parts[pair[1]]}
            if not apart:  # of a tree that rounds before had begun
                break
            joining += 1
            assert set(select.candidates) == apart
            precision = {
                name: sum(1 / one.mechanism.sigma_squared for one in measured if one.clique == (name,))
                for name in domain.names
            }
            errors = {name: domain.cells((name,)) * sqrt(2 / pi / float(known)) for name, known in precision.items()}
            expected = np.array([sqrt(errors[a] ** 2 + errors[b] ** 2) for a, b in select.candidates])
            assert np.abs(select.bias - 256 * expected).max() <= 0.51
            measured.append(edge)
    assert joining >= 2 * 5  # two a run, at least


def test_estimates_are_the_models() -> None:
    task = task_of(DOMAIN, UNBOUNDED)
    done = run(Aim(), task, whimsical(Aim(), task), Stub(DOMAIN, move=0))
    model = done.outcome.model  # never moved since the start
    for selection in selections(done.requests):
        expected = np.concatenate([model.marginal(c).ravel() for c in selection.candidates])
        assert np.array_equal(selection.estimate, np.rint(expected * 256))


def test_aim_anneals_then_settles_when_a_round_taught_nothing_and_only_then() -> None:
    chosen, task = Aim(rounds=60), task_of(DOMAIN, UNBOUNDED)
    still, moving = (run(chosen, task, whimsical(chosen, task), Stub(DOMAIN, move=move)) for move in (0, 1))
    first, second, third, *rest = (m.mechanism.sigma_squared for m in measurements(still.requests)[4:])
    columns, edges = rest[:4], rest[4:]
    assert [float(first / one) for one in (second, third)] == pytest.approx([2, 4])
    chosen_ones = [Choice.ANNEAL, Choice.ANNEAL, Choice.SETTLE]  # 4 / 63.6 of rho is a sixteenth
    assert choices_of(still.events) == [*chosen_ones, Choice.GO_ON, Choice.GO_ON, Choice.GO_ON]
    assert float(first / columns[0]) == pytest.approx((60 - 7) / 3 / 4 / 0.9)
    assert columns == [columns[0]] * 4
    assert [m.clique for m in measurements(still.requests)[7:11]] == [("a0",), ("a1",), ("a2",), ("a3",)]
    assert float(first / edges[0]) == pytest.approx((60 - 7) * 2 / 3 / 3)
    assert edges == [edges[0]] * 3
    assert still.outcome.rounds == 6
    again = [(event.stage, event.round, event.clique) for event in still.events if event.round == 3][-2:]
    assert again == [(Stage.INITIAL, 3, ("a3",)), (Stage.GENERATE, 3, None)]
    assert set(choices_of(moving.events)) == {Choice.GO_ON}
    sigmas = [m.mechanism.sigma_squared for m in measurements(moving.requests)[4:]]
    assert len(sigmas) == 60
    assert set(sigmas[:-1]) == {sigmas[0]}


class OneMove(Stub):
    """Each fit moves `by` people between two cells of every marginal over a0."""

    by = 0.0

    def fit(self, measurements, *, total=None, warm_start=None, rough=False):
        model = super().fit(measurements, total=total) if warm_start is None else warm_start
        table = np.zeros_like(model.table)
        table[0, 0, 0, 0], table[1, 0, 0, 0] = 500 + self.by * (len(measurements) % 2) / 2, 500.0
        table[1, 0, 0, 0] -= self.by * (len(measurements) % 2) / 2
        return type(model)(self.domain, table, 1000.0)


def test_aims_threshold_is_the_expected_l1_norm_of_the_noise() -> None:
    chosen, task = Aim(rounds=50), task_of(DOMAIN, UNBOUNDED, workload=Workload((("a0",),), (1,)))
    threshold = sqrt(2 / pi) * sqrt(chosen.schedule(task).measure.sigma_squared) * 4
    for factor, expected in ((0.999, True), (1.001, False)):
        estimator = OneMove(DOMAIN)
        estimator.by = factor * threshold
        done = run(chosen, task, whimsical(chosen, task), estimator)
        first = next(event for event in done.events if event.stage is Stage.GENERATE and event.round == 1)
        assert first.annealed is expected


def test_aim_keeps_the_model_within_its_share_of_the_limit() -> None:
    limit, task = 600, task_of(DOMAIN, UNBOUNDED, workload=Workload((("a0", "a1", "a2"), ("a2", "a3")), (1, 1)))
    chosen = Aim(max_model_bytes=limit, rounds=20)
    done = run(chosen, task, whimsical(chosen, task), Stub(DOMAIN, move=1))
    cliques, offered = [("a0",), ("a1",), ("a2",), ("a3",)], []
    spent = {event.round: event.rho_spent for event in done.events if event.stage is Stage.MEASURE}
    for number, selection in enumerate(selections(done.requests), 1):
        allowed = limit * spent[number] / task.rho
        for clique in Aim().candidates(task):
            part = any(set(clique) <= set(other) for other in cliques)
            assert (clique in selection.candidates) == (part or tree_bytes(DOMAIN, [*cliques, clique]) <= allowed)
        offered.append(set(selection.candidates))
        cliques.append(next(e.clique for e in done.events if e.round == number and e.stage is Stage.SELECT))
    assert offered[0] < offered[-1]
    assert max(event.model_bytes or 0 for event in done.events) <= limit
    assert not any(("a0", "a1", "a2") in candidates for candidates in offered[:5])


def test_aim_keeps_its_fits_within_their_time() -> None:
    domain = domain_of(12, 12, 12, 12)
    task, made = task_of(domain, UNBOUNDED), []
    for seconds in (1, 100):
        chosen = Aim(fit_seconds=seconds, rounds=200)
        done = run(chosen, task, whimsical(chosen, task), Stub(domain, move=1))
        cliques, offered = list(task.one_ways), 0
        worked = fit_seconds(domain.width, domain.width)
        for number, selection in enumerate(selections(done.requests), 1):
            cells = sum(domain.cells_of(dict.fromkeys(cliques)))
            room = chosen.room(task, F(201 - number), worked, cells)
            for clique in chosen.candidates(task):
                part = any(set(clique) <= set(other) for other in cliques)
                allowed = part or tree_bytes(domain, [*cliques, clique]) <= room
                assert (clique in selection.candidates) == allowed
            offered += len(selection.candidates)
            cliques.append(next(e.clique for e in done.events if e.round == number and e.stage is Stage.SELECT))
            measured = sum(domain.cells_of(dict.fromkeys(cliques)))
            worked += fit_seconds(tree_bytes(domain, cliques) // 8, measured)
        last = fit_seconds(tree_bytes(domain, cliques) // 8, sum(domain.cells_of(dict.fromkeys(cliques))))
        assert worked + PRIOR_FITS * last <= 1.05 * seconds  # cells of the table that comes are not counted before
        made.append((offered, tree_bytes(domain, cliques)))
    assert made[0][0] < made[1][0] == 200 * 10  # with enough time, all is offered
    assert made[0][1] < made[1][1] == 8 * 6 * 144


def test_a_candidate_alone_has_room_however_little_time_there_is() -> None:
    domain = domain_of(100, 90, 2)
    task = task_of(domain, UNBOUNDED)
    chosen = Aim(fit_seconds=1)
    done = run(chosen, task, whimsical(chosen, task), Stub(domain, move=1))
    assert {("a0", "a1"), ("a0", "a2"), ("a1", "a2")} <= set(selections(done.requests)[0].candidates)
    assert chosen.fits(task).seconds > 1


# MWEM+PGM


def test_mwem_scores_ignore_a_tenth_of_the_noise() -> None:
    task = task_of(DOMAIN, BOUNDED, total=600, rho=F(1))
    done = run(Mwem(), task, whimsical(Mwem(), task), BruteForce(DOMAIN, steps=3))
    first = selections(done.requests)[0]
    assert first.candidates == all_pairs(DOMAIN).cliques
    sigma = sqrt(measurements(done.requests)[0].mechanism.sigma_squared)
    cells = np.array([DOMAIN.cells(c) for c in first.candidates])
    assert np.abs(first.bias - 256 / 10 * sqrt(2 / pi) * sigma * cells).max() <= 0.51
    assert first.weights.tolist() == [1] * 6
    starts = first.starts(Layout(DOMAIN, first.candidates))
    assert np.allclose(np.add.reduceat(first.estimate, starts), 600 * 256, atol=20)  # uniform, before anything is known
    assert {total for _, total in done.estimator.fits} == {600}
    unknown = task_of(DOMAIN, UNBOUNDED, rho=F(1))
    done = run(Mwem(), unknown, whimsical(Mwem(), unknown), BruteForce(DOMAIN, steps=3))
    assert not selections(done.requests)[0].estimate.any()
    assert {total for _, total in done.estimator.fits} == {None}


def test_mwem_lets_the_model_grow_in_proportion_to_rounds() -> None:
    chosen, task = Mwem(max_model_bytes=480, rounds=4), task_of(DOMAIN, UNBOUNDED)
    done = run(chosen, task, whimsical(chosen, task), Stub(DOMAIN))
    cliques: list = []
    for number, selection in enumerate(selections(done.requests), 1):
        for clique in task.workload.cliques:
            within = tree_bytes(DOMAIN, [*cliques, clique]) <= 480 * number / 4
            assert (clique in selection.candidates) == (within or clique in cliques)
        cliques.append(next(e.clique for e in done.events if e.round == number and e.stage is Stage.SELECT))
    assert len(selections(done.requests)[0].candidates) < 6
    small = Mwem(max_model_bytes=100, rounds=4)
    oracle = whimsical(small, task)
    with pytest.raises(DomainError, match="at most 25 bytes"):
        small.run(task, oracle, Stub(DOMAIN))
    assert oracle.budget.entries == ()


# MST


def test_mst_measures_a_spanning_tree() -> None:
    domain = domain_of(2, 3, 2, 4, 2, 3)
    task = task_of(domain, UNBOUNDED)
    for seed in range(10):
        done = run(Mst(), task, whimsical(Mst(), task, seed), Stub(domain))
        edges = [request.clique for request in measurements(done.requests)[6:]]
        parts = [{name} for name in domain.names]
        sigma = sqrt(measurements(done.requests)[0].mechanism.sigma_squared)  # of each column
        for selection, edge in zip(selections(done.requests), edges, strict=True):
            closing = {pair for part in parts for pair in combinations(sorted(part), 2)}
            assert set(selection.candidates) == set(combinations(domain.names, 2)) - closing
            assert selection.weights.tolist() == [1] * len(selection.candidates)
            off = [sqrt(sum(domain.cells((name,)) ** 2 for name in pair)) for pair in selection.candidates]
            assert np.abs(selection.bias - 256 * sqrt(2 / pi) * sigma * np.array(off)).max() <= 0.51
            joined = [part for part in parts if part & set(edge)]
            parts = [part for part in parts if part not in joined] + [set.union(*joined)]
        assert parts == [set(domain.names)]


def test_mst_finds_the_strong_edges() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.integers(0, 3, (2, 4000))
    codes = np.stack([a, b, a, b, (a + b) % 3], axis=1)  # a-a2, b-a3 determine each other; all else is independent
    domain = domain_of(3, 3, 3, 3, 3)
    task = task_of(domain, UNBOUNDED, rho=F(1))
    done = run(Mst(), task, clear_oracle(Mst(), task, codes), BruteForce(domain, steps=40))
    assert {request.clique for request in measurements(done.requests)[5:]} > {("a0", "a2"), ("a1", "a3")}


# Pools


@pytest.mark.parametrize("case", ["aim", "mwem", "mst"])
def test_noise_is_drawn_for_the_largest_candidate_if_pooled(case: str) -> None:
    task = task_of(DOMAIN, UNBOUNDED)
    for pooled, expected in ((True, {12}), (False, {None})):
        chosen = algorithm(case, {"pooled": pooled})
        done = run(chosen, task, whimsical(chosen, task), Stub(DOMAIN))
        rounds = [r for r in measurements(done.requests) if r.step.startswith("round")]
        assert {request.draws for request in rounds} == expected
        assert {r.draws for r in measurements(done.requests) if r not in rounds} <= {None}


def test_a_pool_that_would_cost_too_much_statistical_distance_is_not_asked_for() -> None:
    assert MAX_POOLED * F(1, 2**80) <= F(1, 2**61)
    domain = domain_of(256, 256)
    task = task_of(domain, UNBOUNDED)
    for rounds, expected in ((8, 2**16), (9, None)):
        chosen = Aim(rounds=rounds)
        done = run(chosen, task, whimsical(chosen, task), Stub(domain))
        initial, later = (
            [m for m in measurements(done.requests) if m.step.startswith(p)] for p in ("initial", "round")
        )
        assert {m.draws for m in later} == {expected}
        assert {m.draws for m in initial} == {None}


# Progress


@every
def test_progress_and_requests_follow_from_opened_values_alone(case: str) -> None:
    """Fed only the record of noisy answers, without any data, a loop asks and reports the same."""
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, UNBOUNDED, **budget)
    oracle = clear_oracle(chosen, task, rows_of(DOMAIN, 5, 200), 7)
    done = run(chosen, task, oracle, BruteForce(DOMAIN, steps=30))
    again = run(chosen, task, Recorded(oracle.layout, list(done.results)), BruteForce(DOMAIN, steps=30))
    assert again.events == done.events
    for one, two in zip(done.requests, again.requests, strict=True):
        assert (one.step, one.mechanism) == (two.step, two.mechanism)
        if isinstance(one, Selection | Comparison):
            assert np.array_equal(one.estimate, two.estimate)
        if isinstance(one, Batch):
            assert (one.cliques, one.parts.tolist()) == (two.cliques, two.parts.tolist())
    assert np.array_equal(done.outcome.model.table, again.outcome.model.table)


@every
def test_progress_tells_each_step_and_what_it_cost(case: str) -> None:
    chosen, budget = ALL[case]
    task = task_of(DOMAIN, UNBOUNDED, **budget)
    done = run(chosen, task, whimsical(chosen, task), Stub(DOMAIN))
    steps = [event for event in done.events if event.stage is not Stage.GENERATE]
    assert [event.rho_spent for event in steps] == sorted({event.rho_spent for event in steps})
    assert all(b.rho_spent >= a.rho_spent for a, b in pairwise(done.events))
    assert done.events[-1].rho_spent == done.outcome.rho_spent <= done.events[-1].rho
    asked = [part for request in done.requests for part in (measurements([request]) or [request])]
    for event, request in zip(steps, asked, strict=True):
        assert request.step.startswith(("initial", f"round{event.round}-"))
        assert request.step.startswith("initial") == (event.stage is Stage.INITIAL) >= (event.round == 0)
        if isinstance(request, Measurement):
            assert event.clique == request.clique
    assert done.events[-1].stage is Stage.GENERATE
    assert all((event.model_bytes is not None) == (event.stage is Stage.GENERATE) for event in done.events)
    for event, following in zip(done.events, [*done.events[1:], None], strict=True):
        fits = following is None or following.stage is Stage.GENERATE  # after the last of all, with the prior
        if (
            chosen.name != "mwem" or fits or following.stage is not Stage.SELECT
        ):  # MWEM smooths as long as noise is large
            assert (event.fit_seconds is not None) == fits
    allowed = {"round", "stage", "clique", "rho_spent", "rho", "model_bytes", "error", "annealed", "fit_seconds"}
    assert {name for event in done.events for name in event.view().model_dump(exclude={"at"})} == allowed


@pytest.mark.parametrize(("rows", "smooths"), [(100, True), (10**7, False)])
def test_mwem_selects_by_what_would_be_released_as_long_as_noise_is_large(rows: int, smooths: bool) -> None:
    """If it is smoothed to nothing, selections see nothing; where there is no noise, they see the plain fit."""

    class Smoothing(BruteForce):
        def smoothed(self, model, measurements):
            super().smoothed(model, measurements)
            return Joint(self.domain, np.zeros(self.domain.sizes), 0.0)

    task, chosen = task_of(DOMAIN, UNBOUNDED), Mwem(rounds=3)
    oracle = whimsical(chosen, task)
    answer = oracle.measure
    oracle.measure = lambda request: answer(request) + rows
    done = run(chosen, task, oracle, Smoothing(DOMAIN, steps=2))
    estimates = [request.estimate for request in done.requests if isinstance(request, Selection)]
    assert len(estimates) == 3
    assert [bool(estimate.any()) for estimate in estimates[1:]] == [not smooths] * 2
    told = [event.fit_seconds for event in done.events if event.stage is Stage.GENERATE]
    assert [seconds is not None for seconds in told] == [smooths, smooths, True]


def test_the_error_reported_is_that_of_the_model_before_less_the_noises_part() -> None:
    task = task_of(DOMAIN, UNBOUNDED)
    done = run(Aim(), task, whimsical(Aim(), task), Stub(DOMAIN, move=0))
    measured = iter(done.outcome.measurements)
    for event in done.events:
        assert (event.error is not None) == (event.stage is Stage.MEASURE)
        m = next(measured) if event.stage in (Stage.INITIAL, Stage.MEASURE) else None
        if event.error is not None:
            distance = np.abs(m.values - done.outcome.model.marginal(m.clique).ravel()).sum()
            assert event.error == pytest.approx(max(0, distance - sqrt(2 / pi) * m.sigma * m.values.size))


# Quality


@every
def test_a_larger_budget_gives_a_smaller_error(case: str) -> None:
    chosen, budget = ALL[case]
    errors = []
    for epsilon in (F(1, 10), F(1), F(10)):
        spend = {"rho": calibrate(epsilon, F(1, 10**9))} if "rho" in budget else {"pure_epsilon": epsilon}
        task = task_of(DOMAIN, UNBOUNDED, **spend)
        codes = [rows_of(DOMAIN, seed, 1000) for seed in range(3)]
        done = [run(chosen, task, clear_oracle(chosen, task, c, i), BruteForce(DOMAIN)) for i, c in enumerate(codes)]
        errors.append(np.mean([model_error(task, c, d.outcome.model) for c, d in zip(codes, done, strict=True)]))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03


@pytest.mark.parametrize("case", ["aim", "mwem", "mst"])
def test_a_hundredth_of_epsilon_says_more_about_many_persons_than_uniform_rows(case: str) -> None:
    domain = domain_of(*[2] * 10)
    task, chosen = task_of(domain, UNBOUNDED, rho=calibrate(F(1, 100), F(1, 10**9))), algorithm(case)
    codes = rows_of(domain, 1, 50_000)
    done = run(chosen, task, clear_oracle(chosen, task, codes, 1), create_estimator("kernel", domain))
    uniform = Joint(domain, np.full(domain.sizes, len(codes) / 2**10), len(codes))
    assert model_error(task, codes, done.outcome.model) < model_error(task, codes, uniform) * 3 / 4


def test_the_example_spends_equal_parts() -> None:
    task = task_of(DOMAIN, BOUNDED)
    schedule = FixedGaussian().schedule(task)
    assert schedule.step is not None
    assert (schedule.step.role, schedule.step.count) == (Role.INITIAL, 6)
    assert isinstance(schedule.step.mechanism, Gaussian)
    assert float(schedule.step.mechanism.sigma_squared) == pytest.approx(2 * 6 / (2 * 0.5))
    for bad in (
        lambda: schedule.after(Choice.ANNEAL),
        lambda: schedule.after(Choice.SETTLE),
        lambda: schedule.after().after(),
    ):
        with pytest.raises(DomainError):
            bad()
