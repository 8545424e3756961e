"""A server admits what the loops ask for, to the end, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from fractions import Fraction as F
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.domain import Layout, Workload
from caps.dp.bounds import MOST_BIAS, MOST_COUNTED, UNIT_BITS
from caps.dp.enforce import Enforcer, Upcoming
from caps.dp.oracle import Measurement, Request, Selection
from caps.dp.privacy import (
    BOUNDED,
    UNBOUNDED,
    Choice,
    Filter,
    Gaussian,
    Laplace,
    Neighbouring,
    NoisyMax,
    PermuteAndFlip,
)
from caps.dp.privacy.rational import grid_down
from caps.dp.privacy.schedule import Cycle, FixedSchedule, Schedule
from caps.dp.programs import Program, Task, names, program
from caps.dp.programs.mst import MstProgram
from caps.errors import DomainError, NotDue
from services.coordinator.algorithms import algorithm
from tests.kit.algorithms import (
    BruteForce,
    Run,
    Stub,
    choices_of,
    clear_oracle,
    domain_of,
    pairs_of,
    rows_of,
    run,
    task_of,
    whimsical,
)

pytestmark = pytest.mark.property

DOMAIN = domain_of(3, 2, 4)
WORKLOAD = Workload((("a0", "a1"), ("a1", "a2"), ("a0", "a2")), (2, 4, 6))
CASES = {
    "aim": ("aim", {"rounds": 40}, {"rho": F(1, 2)}),
    "aim, not pooled": ("aim", {"rounds": 8, "pooled": False}, {"rho": F(1, 2)}),
    "aim, settled": ("aim", {"rounds": 40}, {"rho": F(1, 2)}),
    "gaussian": ("gaussian", {}, {"rho": F(1, 2)}),
    "mst": ("mst", {}, {"rho": F(1, 2)}),
    "mwem": ("mwem", {"rounds": 4}, {"rho": F(1, 2)}),
    "mwem, pure": ("mwem", {"rounds": 4}, {"pure_epsilon": F(2)}),
}
every = pytest.mark.parametrize("case", CASES)
seeds = st.integers(0, 2**32)


def of(case: str, relation: Neighbouring = UNBOUNDED) -> tuple[Program, Task, Layout]:
    name, parameters, budget = CASES[case]
    task, chosen = task_of(DOMAIN, relation, workload=WORKLOAD, **budget), program(name, parameters)
    return chosen, task, Layout(DOMAIN, chosen.cliques(task))


@cache
def legitimate(case: str, move: float | None = None) -> Run:
    """move: how often a model moves; if it never does, AIM anneals as soon as it may, and then settles."""
    name, parameters, _ = CASES[case]
    move = (0 if case == "aim, settled" else 0.5) if move is None else move
    _, task, _ = of(case)
    chosen = algorithm(name, parameters)
    return run(chosen, task, whimsical(chosen, task, 1), Stub(DOMAIN, move))


def start(case: str) -> Enforcer:
    return Enforcer.start(*of(case))


def at(case: str, step: str) -> tuple[Enforcer, Request]:
    """Where the legitimate run asks for a step, and the request."""
    enforcer = start(case)
    for request in legitimate(case).requests:
        if request.step == step:
            return enforcer, request
        enforcer = enforcer.after(request)
    raise AssertionError(step)


# What the loops ask for


@given(st.sampled_from(sorted(CASES)), st.sampled_from([UNBOUNDED, BOUNDED]), seeds, st.integers(0, 300))
@settings(deadline=None, max_examples=25)
def test_all_that_a_run_on_real_tables_asks_is_admitted(
    case: str, relation: Neighbouring, seed: int, rows: int
) -> None:
    chosen, task, layout = of(case, relation)
    algorithm_ = algorithm(chosen.name, asdict(chosen))
    oracle = clear_oracle(algorithm_, task, rows_of(DOMAIN, seed, rows), seed)
    done = run(algorithm_, task, oracle, BruteForce(DOMAIN, steps=20))
    enforcer, ledger = Enforcer.start(chosen, task, layout), Filter(oracle.budget.budget, relation)
    for number, (request, result) in enumerate(zip(done.requests, done.results, strict=True)):
        assert not enforcer.ended
        assert enforcer.position == number
        assert request.step in enforcer.due()
        admitted = enforcer.admit(request)
        ledger.charge(admitted.entry)
        enforcer = admitted.enforcer
        if isinstance(request, Selection):
            enforcer = enforcer.answered(result)
    assert enforcer.ended
    assert enforcer.due() == "nothing"
    assert enforcer.upcoming() == []
    assert enforcer.left == 0
    assert ledger.entries == oracle.budget.entries


@given(
    st.sampled_from([name for name in names() if name != "swift"]),  # its noise is foreseen in test_batches.py
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(1, 4), min_size=2, max_size=5),
    seeds,
    st.sampled_from([0, 0.1, 0.5, 1]),
)
@settings(deadline=None, max_examples=80)
def test_all_that_a_run_asks_is_admitted_and_was_foreseen(
    name: str, pure: bool, pooled: bool, shape: list[int], seed: int, move: float
) -> None:
    generator, domain = np.random.default_rng(seed), domain_of(*shape)
    pairs = pairs_of(domain)
    kept = [pair for pair in pairs if generator.random() < 0.7] or pairs
    workload = Workload(tuple(kept), tuple(int(w) for w in generator.integers(1, 9, len(kept))))
    budget = {"pure_epsilon": F(1)} if pure and name == "mwem" else {"rho": F(1)}
    task = task_of(domain, UNBOUNDED, workload=workload, **budget)
    chosen = algorithm(name, {} if name == "gaussian" else {"pooled": pooled})
    oracle = whimsical(chosen, task, seed)
    done = run(chosen, task, oracle, Stub(domain, move, generator))
    enforcer = Enforcer.start(program(name, asdict(chosen)), task, oracle.layout)
    expected: list = []
    for request, result in zip(done.requests, done.results, strict=True):
        soon, sooner = enforcer.upcoming(2), enforcer.upcoming()
        assert soon[: len(sooner)] == sooner
        assert enforcer.left == (len(enforcer.upcoming(enforcer.left)) if len(sooner) == 1 else 1) > 0
        for foreseen in (sooner, expected or soon):
            (step,) = [u for u in foreseen if (u.step, u.mechanism) == (request.step, request.mechanism)]
            if isinstance(request, Selection):
                assert step.selects
                assert step.weight >= request.weights.max()
                assert step.draws >= len(request.candidates)
            else:
                assert not step.selects
                assert step.draws >= request.noise_values(oracle.layout)
        enforcer, expected = enforcer.after(request), soon
        if isinstance(request, Selection):
            enforcer = enforcer.answered(result)
    assert enforcer.ended


def test_noise_foreseen_is_the_noise_asked_for() -> None:
    for case in CASES:
        enforcer, (chosen, task, _) = start(case), of(case)
        largest = max(chosen.candidates(task).values(), default=0)
        for request in legitimate(case).requests:
            asked = request.plan(task.neighbouring) if isinstance(request, Selection) else request.plan()
            plans = [u.plan(task.neighbouring) for u in enforcer.upcoming() if u.mechanism == request.mechanism]
            if not isinstance(request, Selection) or request.weights.max() == largest:
                assert plans == [asked]
            enforcer = enforcer.after(request)


@pytest.mark.parametrize("move", [0, 0.5, 1])
def test_choices_are_inferred(move: float) -> None:
    done = legitimate("aim", move)
    enforcer, open_choices = start("aim"), set()
    for request in done.requests:
        open_choices.add(len(enforcer.upcoming()))
        enforcer = enforcer.after(request)
    assert enforcer.ended
    assert open_choices == ({1, 2, 3} if move < 1 else {1, 2})
    assert (Choice.ANNEAL in choices_of(done.events)) == (move < 1)
    assert (Choice.SETTLE in choices_of(done.events)) == ("initial6" in [request.step for request in done.requests])
    assert move > 0 or Choice.SETTLE in choices_of(done.events)


def walked(enforcer: Enforcer, pick: Callable[[list[Upcoming]], Upcoming]) -> Iterator[tuple[Enforcer, Request]]:
    """A run that takes any branch there is, as servers admit it and no loop decides: every request, and before it."""
    rules = enforcer._rules
    while not enforcer.ended:
        due = pick(enforcer.upcoming())
        if due.selects:
            clique, weight = next(iter(rules.candidates.items()))
            cells = np.zeros(rules.layout.domain.cells(clique), np.int64)
            request: Request = Selection(
                due.step, (clique,), cells, cells[:1], np.array([weight], np.int64), due.mechanism, due.draws
            )
        elif due.step.startswith("initial"):
            number = int(due.step.removeprefix("initial")) - 1
            request = Measurement(due.step, rules.initial[number % len(rules.initial)], due.mechanism)
        else:
            request = Measurement(due.step, clique, due.mechanism, rules.draws)
        yield enforcer, request
        enforcer = enforcer.after(request)


def at_random(seed: int) -> Callable[[list[Upcoming]], Upcoming]:
    generator = np.random.default_rng(seed)
    return lambda due: due[generator.integers(len(due))]


def test_what_is_known_ahead_does_not_branch() -> None:
    """Where all columns may be measured again, the rounds that may come instead are not looked at as far ahead."""
    domain = domain_of(*[2] * 60)
    chosen, task = program("aim"), task_of(domain, UNBOUNDED)
    start = Enforcer.start(chosen, task, Layout(domain, chosen.cliques(task)))
    known = [
        (enforcer.left, len(enforcer.upcoming(enforcer.left)))
        for enforcer, _ in walked(start, lambda due: due[-1])  # anneal; settle as soon as it may
    ]
    columns = [(left, left) for left in range(60, 0, -1)]
    assert known[:60] == columns
    again = known.index((1, 3))
    assert known[again + 1 : again + 60] == columns[1:]
    assert {left for left, _ in (*known[60:again], *known[again + 60 :])} == {1}
    assert {ahead for _, ahead in known[again + 60 :]} == {1}  # edges leave no choice


def test_an_enforcer_is_a_value() -> None:
    enforcer, request = at("mwem", "round2-select")
    before = (enforcer.position, enforcer.due())
    assert enforcer.after(request).position == enforcer.position + 1
    assert (enforcer.position, enforcer.due()) == before
    assert enforcer.after(request).due() == enforcer.after(request).due()
    assert before[1] in repr(enforcer)


def test_the_layout_must_count_what_the_program_asks_about() -> None:
    chosen, task, layout = of("aim")
    with pytest.raises(DomainError, match="no such clique"):
        Enforcer.start(chosen, task, Layout(DOMAIN, layout.cliques[1:]))
    other = domain_of(3, 2, 5)
    with pytest.raises(DomainError, match="different domains"):
        Enforcer.start(chosen, task, Layout(other, layout.cliques))


# What is refused


def refused(enforcer: Enforcer, request: Request, reason: str, error: type[Exception] = NotDue) -> None:
    for ask in (enforcer.after, enforcer.admit):
        with pytest.raises(error, match=reason) as caught:
            ask(request)
        if error is NotDue:
            assert enforcer.due() in str(caught.value)


@every
def test_a_request_is_admitted_once_and_in_its_place(case: str) -> None:
    requests, enforcer = legitimate(case).requests, start(case)
    for number, request in enumerate(requests):
        for other in requests[:number] + requests[number + 1 :]:
            refused(enforcer, other, "is not due")
        enforcer = enforcer.after(request)
    for request in requests:
        refused(enforcer, request, "due now: nothing")


@pytest.mark.parametrize("step", ["round1-select", "round2-measure"])
@pytest.mark.parametrize("case", ["aim", "mst", "mwem", "mwem, pure"])
def test_another_role_is_refused(case: str, step: str) -> None:
    enforcer, request = at(case, step)
    if isinstance(request, Selection):
        other: Request = Measurement(step, request.candidates[0], request.mechanism)  # type: ignore[arg-type]
        refused(enforcer, other, "a measure is not due")
    else:
        ones = np.ones(1, np.int64)
        estimate = np.zeros(DOMAIN.cells(request.clique), np.int64)
        other = Selection(step, (request.clique,), estimate, ones, ones, request.mechanism)  # type: ignore[arg-type]
        refused(enforcer, other, "a select is not due")


@every
def test_other_names_are_refused(case: str) -> None:
    enforcer = start(case)
    for request in legitimate(case).requests:
        for name in ("", "round1", request.step + " ", request.step.upper(), "x" * 10_000, "initial9"):
            refused(enforcer, replace(request, step=name), "a step '")
        enforcer = enforcer.after(request)


def weaker(mechanism) -> list:
    """The same with less and with more noise, and others."""
    off = F(1, 2**100)
    match mechanism:
        case Gaussian():
            sigma = mechanism.sigma_squared
            return [Gaussian(sigma - off), Gaussian(sigma + off), Gaussian(sigma / 16), Laplace(sigma)]
        case Laplace():
            return [Laplace(mechanism.scale - off), Laplace(2 * mechanism.scale), Gaussian(mechanism.scale)]
        case NoisyMax():
            epsilon, kappa = mechanism.epsilon_star, mechanism.kappa
            others = [(epsilon + off, kappa), (epsilon - off, kappa), (epsilon, kappa + off), (epsilon, kappa - off)]
            return [*(NoisyMax(*other) for other in others), NoisyMax(4 * epsilon, 4 * kappa), PermuteAndFlip(epsilon)]
    return [PermuteAndFlip(mechanism.epsilon_star + off), NoisyMax.of_star(mechanism.epsilon_star)]


@every
def test_other_noise_is_refused(case: str) -> None:
    enforcer = start(case)
    for request in legitimate(case).requests:
        for mechanism in weaker(request.mechanism):
            refused(enforcer, replace(request, mechanism=mechanism), f"{mechanism.kind} \\(.* is not due")
        enforcer = enforcer.after(request)


def test_a_branch_not_taken_is_gone() -> None:
    """Once a round was requested without annealing, its measurement cannot be the annealed one; and the reverse.
    Nor can columns be measured again once a round was requested, whether or not it was annealed."""
    settles = 0
    for move in (0, 1):
        enforcer = start("aim")
        for request in legitimate("aim", move).requests:
            now, branches = enforcer.upcoming(), enforcer.upcoming(2)
            following = enforcer.after(request)
            if len(now) > 1 and isinstance(request, Selection):
                taken = following.upcoming()
                assert len(taken) == 1
                (other,) = [u for u in branches[len(now) :] if u != taken[0] and not u.step.startswith("initial")]
                clique = request.candidates[0]
                measure = Measurement(other.step, clique, other.mechanism, other.draws)
                refused(following, measure, "gaussian")
                following.after(replace(measure, mechanism=taken[0].mechanism))
                settles += any(u.step.startswith("initial") for u in now)
            enforcer = following
    assert settles == 0  # these runs settle as soon as they may
    for seed in range(10):
        for enforcer, request in walked(start("aim"), at_random(seed)):
            again = [one for one in enforcer.upcoming() if one.step.startswith("initial")]
            if isinstance(request, Selection) and again:
                settles += 1
                other = Measurement(again[0].step, ("a0",), again[0].mechanism)
                refused(enforcer.after(request), other, "a step 'initial4'")
    assert settles > 0


def settling() -> tuple[Enforcer, list[Request], list[Measurement], list[Request]]:
    """Where a run begins to measure columns again; what it asked before, what it asks then, and after that."""
    requests = legitimate("aim, settled").requests
    begin = [request.step for request in requests].index("initial4")
    enforcer = start("aim, settled")
    for request in requests[:begin]:
        enforcer = enforcer.after(request)
    return enforcer, requests[:begin], requests[begin : begin + 3], requests[begin + 3 :]


def test_columns_are_measured_again_only_once_rounds_are_dear() -> None:
    _, requests, (first, *_), _ = settling()
    schedule = of("aim, settled")[0].schedule(of("aim, settled")[1])
    enforcer, measured = start("aim, settled"), 0
    for number, request in enumerate(requests):
        if number >= 3:
            refused(enforcer, first, "a measure is not due|a step 'initial4' is not due")
        if isinstance(request, Measurement) and number >= 3:
            measured += 1
            cost = request.mechanism.rho(UNBOUNDED) / schedule.MEASURE_SHARE
            assert (cost * 16 >= schedule.rho) == (number == len(requests) - 1)
        enforcer = enforcer.after(request)
    assert measured >= 2
    enforcer.after(first)


def test_who_settles_measures_every_column_in_order_then_edges_and_nothing_else() -> None:
    enforcer, before, asked, edges = settling()
    assert [(one.step, one.clique) for one in asked] == [
        ("initial4", ("a0",)),
        ("initial5", ("a1",)),
        ("initial6", ("a2",)),
    ]
    _, _, layout = of("aim, settled")
    select, measure = before[-2:]
    for number, request in enumerate(asked):
        for other in layout.cliques:
            if other != request.clique:
                refused(enforcer, replace(request, clique=other), "clique that is not due")
        refused(enforcer, replace(request, mechanism=legitimate("aim, settled").requests[0].mechanism), "gaussian")
        enforcer = enforcer.after(request)
        for again in (select, replace(select, step="round4-select")):
            refused(enforcer, again, "is not due; due now: " + ("initial" if number < 2 else "round4-select"))
    refused(enforcer, replace(asked[0], step="initial7"), "due now: round4-select")
    assert [request.step for request in edges] == [
        f"round{number}-{kind}" for number in (4, 5) for kind in ("select", "measure")
    ]
    for request in edges:
        known = before[-2:][isinstance(request, Measurement)].mechanism  # of a round before: cheaper than an edge
        refused(enforcer, replace(request, mechanism=known), "is not due; due now: round")
        refused(enforcer, replace(asked[0], step="initial7"), "due now: round")
        enforcer = enforcer.after(request)
    assert enforcer.ended
    refused(enforcer, replace(measure, step="round6-measure"), "due now: nothing")


@given(seeds)
@settings(deadline=None, max_examples=25)
def test_every_path_that_is_admitted_ends_within_the_budget(seed: int) -> None:
    _, task, _ = of("aim")
    ledger = Filter(task.zcdp, UNBOUNDED)
    for enforcer, request in walked(start("aim"), at_random(seed)):
        ledger.charge(enforcer.admit(request).entry)
    assert task.zcdp * (1 - F(1, 10**9)) <= ledger.spent <= task.zcdp


@pytest.mark.parametrize("case", ["aim", "gaussian", "mst"])
def test_initial_measurements_are_those_of_the_program_in_its_order(case: str) -> None:
    chosen, task, layout = of(case)
    enforcer = start(case)
    for number, clique in enumerate(chosen.initial(task)):
        request = legitimate(case).requests[number]
        assert request.clique == clique
        for other in layout.cliques:
            if other != clique:
                refused(enforcer, replace(request, clique=other), "clique that is not due")
        enforcer = enforcer.after(request)
    more = replace(request, step=f"initial{number + 2}")
    refused(enforcer, more, "is not due")


def selection_of(case: str) -> tuple[Enforcer, Selection]:
    enforcer, request = at(case, "round1-select")
    assert isinstance(request, Selection)
    return enforcer, request


def among(request: Selection, candidates, weights=None) -> Selection:
    """A selection among other candidates that is in order otherwise."""
    cells = sum(DOMAIN.cells(c) for c in candidates)
    known = dict(zip(request.candidates, request.weights.tolist(), strict=True))
    weights = [known.get(c, 1) for c in candidates] if weights is None else weights
    return replace(
        request,
        candidates=tuple(candidates),
        estimate=np.zeros(cells, np.int64),
        bias=np.zeros(len(candidates), np.int64),
        weights=np.array(weights, np.int64),
    )


@pytest.mark.parametrize("case", ["aim", "mst", "mwem", "mwem, pure"])
def test_candidates_are_some_of_the_programs_with_its_weights(case: str) -> None:
    enforcer, request = selection_of(case)
    assert len(request.candidates) >= 3
    for kept in (request.candidates[1:], request.candidates[-1:], request.candidates[::-1]):
        assert enforcer.after(among(request, kept)).position == enforcer.position + 1
    one, two = request.candidates[:2]
    refused(enforcer, among(request, [one, one]), "given twice")
    refused(enforcer, among(request, [one, two, one]), "given twice")
    refused(enforcer, among(request, []), "not the program's candidates")
    foreign = [DOMAIN.names, two[::-1] if len(two) > 1 else ("a9",), ("a9",)]
    foreign += [] if case == "aim" else [("a0",)]
    for other in foreign:
        given = replace(request, candidates=(other, *request.candidates[1:]))
        refused(enforcer, given, "not the program's candidates")
    weights = request.weights.tolist()
    for number, weight in enumerate(weights):
        for wrong in (weight + 1, -weight, 0, 2 * weight):
            changed = [*weights[:number], wrong, *weights[number + 1 :]]
            if any(changed):
                refused(enforcer, replace(request, weights=np.array(changed, np.int64)), "weights other than")
    refused(enforcer, replace(request, weights=2 * request.weights), "weights other than")


@pytest.mark.parametrize("case", ["aim", "mst", "mwem", "mwem, pure"])
def test_selections_that_do_not_fit_the_layout_are_refused(case: str) -> None:
    enforcer, request = selection_of(case)
    for change in (
        {"estimate": request.estimate[1:]},
        {"bias": request.bias[1:]},
        {"weights": request.weights[1:]},
        {"weights": request.weights.astype(float)},
    ):
        refused(enforcer, replace(request, **change), "estimates|every candidate|64-bit", DomainError)


@pytest.mark.parametrize("case", ["aim", "mst", "mwem", "mwem, pure"])
def test_numbers_that_no_honest_model_comes_to_are_refused(case: str) -> None:
    enforcer, request = selection_of(case)
    largest, cells = MOST_COUNTED << UNIT_BITS, request.estimate.size
    one = np.arange(cells) == 0

    def asked(**change: object) -> Selection:
        return replace(request, **{name: np.asarray(value, np.int64) for name, value in change.items()})

    assert enforcer.after(asked(estimate=np.where(one, largest, 0)))
    for wrong in (-1, largest + 1, 2**61, -(2**63), 2**63 - 1):
        refused(enforcer, asked(estimate=np.where(one, wrong, 0)), "not a number of people", DomainError)
    refused(enforcer, asked(estimate=np.full(cells, largest)), "more people than there can be", DomainError)
    most = MOST_BIAS * np.array([DOMAIN.cells(clique) for clique in request.candidates])
    assert enforcer.after(asked(bias=most))
    for wrong_bias in (most + 1, np.full(len(most), -1), np.full(len(most), 2**63 - 1)):
        refused(enforcer, asked(bias=wrong_bias), "not what noise could come to", DomainError)


@pytest.mark.parametrize("case", ["aim", "mst", "mwem", "mwem, pure"])
def test_only_a_candidate_of_the_rounds_selection_is_measured(case: str) -> None:
    enforcer, request = selection_of(case)
    one, two, *_ = [c for c in request.candidates if len(c) == 2]
    enforcer = enforcer.after(among(request, [one]))
    measure = next(r for r in legitimate(case).requests if r.step == "round1-measure")
    enforcer.after(replace(measure, clique=one))
    for other in (two, one[::-1], one[:1], (), ("a9",)):
        refused(enforcer, replace(measure, clique=other), "clique that is not due")


def test_once_answered_only_what_was_selected_is_measured() -> None:
    enforcer, request = selection_of("mwem")
    measure = next(r for r in legitimate("mwem").requests if r.step == "round1-measure")
    answered = enforcer.after(request).answered(1)
    for number, clique in enumerate(request.candidates):
        if number == 1:
            answered.after(replace(measure, clique=clique))
        else:
            refused(answered, replace(measure, clique=clique), "clique that is not due")
    for position in (-1, len(request.candidates)):
        with pytest.raises(DomainError, match="no such candidate"):
            enforcer.after(request).answered(position)
    with pytest.raises(DomainError, match="no such candidate"):
        enforcer.answered(0)


class TwoAtOnce(MstProgram):
    """Selects two edges, and then measures both in one step, as a mechanism of another package may."""

    def schedule(self, task: Task) -> FixedSchedule:
        tree = super().schedule(task)
        columns, rounds = tree.cycles
        select, edge = rounds.steps
        both = Cycle((replace(edge, count=2),))
        return FixedSchedule(tree.rho, tree.neighbouring, (columns, Cycle((select,), 2), both))


def test_no_clique_is_measured_twice_in_one_step() -> None:
    """Two edges of a step are two; but a later round may select what an earlier one measured."""
    _, task, layout = of("mst")
    enforcer, width = Enforcer.start(TwoAtOnce(), task, layout), len(DOMAIN.names)
    *columns, select, edge = legitimate("mst").requests[: width + 2]
    assert isinstance(select, Selection)
    for column in columns:
        enforcer = enforcer.after(column)
    every_pair = [c for c in select.candidates if len(c) == 2]
    for step in ("round1-select", "round2-select"):
        enforcer = enforcer.after(among(replace(select, step=step), every_pair))
    enforcer = enforcer.after(replace(edge, clique=every_pair[0]))
    second = replace(edge, step="round2-measure")
    refused(enforcer, replace(second, clique=every_pair[0]), "second measurement")
    assert enforcer.after(replace(second, clique=every_pair[1])).ended


def test_edges_never_give_way_to_columns() -> None:
    """A coordinator that asks MST's servers for columns again, whatever of the budget is left, is refused."""
    chosen, task, _ = of("mst")
    columns, enforcer, spent = chosen.initial(task), start("mst"), F(0)
    asked = 0
    for number, request in enumerate(legitimate("mst").requests, 1):
        enforcer = enforcer.after(request)
        spent += request.mechanism.rho(task.neighbouring)
        if number < len(columns) or enforcer.ended:
            continue
        again = Gaussian.costing(grid_down((task.zcdp - spent) / len(columns)), task.neighbouring)
        for step in ("initial1", f"initial{len(columns) + 1}"):
            refused(enforcer, Measurement(step, columns[0], again), "is not due")
            asked += 1
    assert asked >= 2 * (len(columns) - 1)


def test_rounds_give_way_to_columns_while_enough_is_left_and_to_nothing_else() -> None:
    chosen, task, _ = of("mwem")
    columns, enforcer, spent = chosen.initial(task), start("mwem"), F(0)
    schedule: Schedule = chosen.schedule(task)
    for number, request in enumerate(legitimate("mwem", 1).requests):
        enforcer, schedule = enforcer.after(request), schedule.after()
        spent += request.mechanism.rho(task.neighbouring)
        if number % 2 == 0 or enforcer.ended:
            continue
        again = Gaussian.costing(grid_down((task.zcdp - spent) / len(columns)), task.neighbouring)
        first = Measurement("initial1", columns[0], again)
        if number > 1:  # of four rounds, with three columns: what two leave is too little
            refused(enforcer, first, "is not due")
            continue
        refused(enforcer, replace(first, clique=columns[1]), "clique that is not due")
        dearer = Gaussian.costing(grid_down((task.zcdp - spent) / 2), task.neighbouring)
        refused(enforcer, replace(first, mechanism=dearer), "is not due")
        settled = enforcer
        for place, column in enumerate(columns, 1):
            settled = settled.after(replace(first, step=f"initial{place}", clique=column))
        assert settled.ended


def test_a_later_round_may_measure_what_an_earlier_one_did() -> None:
    rounds, enforcer = iter(legitimate("mwem").requests), start("mwem")
    for select, measure in zip(rounds, rounds, strict=True):
        enforcer = enforcer.after(among(select, [("a0", "a1")], [1])).after(replace(measure, clique=("a0", "a1")))
    assert enforcer.ended


@every
def test_other_numbers_of_draws_are_refused(case: str) -> None:
    enforcer, (_, _, layout) = start(case), of(case)
    for request in legitimate(case).requests:
        if isinstance(request, Measurement):
            due = request.noise_values(layout)
            for draws in (due + 1, due - 1, 0, -due, 2 * due):
                refused(enforcer, replace(request, draws=draws), "noise values")
            if DOMAIN.cells(request.clique) != due:
                refused(enforcer, replace(request, draws=None), "noise values")
            assert enforcer.after(replace(request, draws=due)).position == enforcer.position + 1
        enforcer = enforcer.after(request)


def test_pooled_draws_are_not_those_of_the_marginal_alone() -> None:
    """The cases above have a measurement for which the two differ."""
    drawn = {(r.draws, DOMAIN.cells(r.clique)) for r in legitimate("aim").requests if isinstance(r, Measurement)}
    assert {draws for draws, _ in drawn} == {None, 12}
    assert any(draws == 12 and cells < 12 for draws, cells in drawn)
