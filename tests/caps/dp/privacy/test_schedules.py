"""Budgets under arbitrary decisions, and ledgers that come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction as F
from itertools import pairwise
from random import Random

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caps.dp.privacy import (
    BOUNDED,
    UNBOUNDED,
    AimSchedule,
    BudgetExceeded,
    Choice,
    Entry,
    Filter,
    Gaussian,
    Laplace,
    MstSchedule,
    MwemSchedule,
    Neighbouring,
    NoisyMax,
    PermuteAndFlip,
    PrivacyStatement,
    Relation,
    Role,
    Schedule,
    Step,
)
from caps.errors import DomainError

pytestmark = pytest.mark.property

WITHIN = F(1, 10**9)


@pytest.fixture(autouse=True, scope="module")
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(100):
        yield


relations = st.builds(Neighbouring, st.sampled_from(Relation), st.integers(1, 5))
budgets = st.floats(-12, 2).map(lambda e: F(10**e))
ratios = st.fractions(min_value=F(1, 10**6), max_value=10**6, max_denominator=10**9)
mechanisms = st.one_of(
    st.builds(Gaussian, ratios), st.builds(Laplace, ratios.map(lambda x: x + 1)),
    st.builds(NoisyMax, ratios, ratios), st.builds(PermuteAndFlip, ratios.map(lambda x: min(x, F(900)))),
)  # fmt: skip
entries = st.builds(
    Entry,
    step=st.text(st.characters(codec="utf-8"), max_size=20),
    mechanism=mechanisms,
    count=st.integers(1, 100),
    sampler=st.sampled_from(["dgauss-mpc", "gumbel-rnm"]),
    draws=st.integers(1, 10**6),
    distance=st.integers(1, 2**60).map(lambda n: F(n, 3 * 2**140)),
    certified=st.booleans(),
)


def entry_of(step: Step, name: str = "step") -> Entry:
    sampler = "gumbel-rnm" if step.role is Role.SELECT else "dgauss-mpc"
    return Entry(name, step.mechanism, step.count, sampler, step.count, F(1, 2**81), certified=True)


def walk(schedule: Schedule, decide: Callable[[], Choice] = lambda: Choice.GO_ON) -> list[Step]:
    """Run a schedule to its end against a filter of the same budget, which never refuses; return the steps."""
    kept = Filter(schedule.rho, schedule.neighbouring, pure_epsilon=schedule.pure_epsilon)
    steps: list[Step] = []
    while (step := schedule.step) is not None:
        steps.append(step)
        kept.charge(entry_of(step))
        choice = decide()
        schedule = schedule.after(choice if choice in schedule.choices else Choice.GO_ON)
        assert kept.spent == schedule.spent <= schedule.rho
    assert schedule.spent >= schedule.rho * (1 - WITHIN)
    with pytest.raises(DomainError):
        schedule.after()
    return steps


@given(st.data(), budgets, st.integers(1, 40), relations)
@settings(max_examples=150, deadline=None)
def test_aim_never_exceeds_and_ends_at_its_budget_whatever_is_chosen(
    data: st.DataObject, rho: F, initial: int, relation: Neighbouring
) -> None:
    rounds = data.draw(st.integers(1, 16 * initial + 20))
    calmly = data.draw(st.sampled_from([0, 1, 4, 40]))
    decisions = st.sampled_from([Choice.GO_ON] * calmly + [Choice.ANNEAL] * 2 + [Choice.SETTLE])
    schedule = AimSchedule.start(rho, relation, initial=initial, rounds=rounds)
    steps = walk(schedule, lambda: data.draw(decisions))

    first, *again = [number for number, step in enumerate(steps) if step.role is Role.INITIAL]
    assert first == 0
    assert steps[0].count == initial
    between, tree = steps[1 : again[0] if again else None], steps[again[0] + 1 :] if again else []
    for some in (between, tree):
        assert [step.role for step in some] == [Role.SELECT, Role.MEASURE] * (len(some) // 2)
    charges, edges = ([step.rho(relation) for step in some if step.role is Role.MEASURE] for some in (between, tree))
    assert len(charges) >= 1
    assert len(charges) + len(edges) <= rounds
    whole = charges if again else charges[:-1]  # the last round takes what is left
    for before, after in pairwise(whole):
        assert after == before or 2 * before * (1 - WITHIN) <= after <= 2 * before
    if again:
        (columns,) = (steps[number] for number in again)
        assert columns.count == initial
        assert whole[-1] >= schedule.MEASURE_SHARE * rho / 16 * (1 - WITHIN)
        assert len(edges) <= initial - 1
        assert len(set(edges)) <= 1
        assert not edges or edges[0] >= whole[-1] * (1 - WITHIN)
        assert columns.rho(relation) >= (steps[0].rho(relation) * (1 - WITHIN) if edges else whole[-1])


@given(budgets, st.integers(1, 20), st.integers(1, 400), relations, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_aim_settles_exactly_once_a_round_costs_a_sixteenth(
    rho: F, initial: int, rounds: int, relation: Neighbouring, chance: Random
) -> None:
    schedule = AimSchedule.start(rho, relation, initial=initial, rounds=rounds)
    while schedule.step is not None:
        free = schedule.role is Role.MEASURE and not schedule.last
        cost = schedule.select.rho(relation) + schedule.measure.rho(relation)
        may = {Choice.GO_ON: True, Choice.ANNEAL: free, Choice.SETTLE: free and 16 * cost >= schedule.rho}
        for choice, allowed in may.items():
            if allowed:
                assert schedule.after(choice) in schedule.following()
            else:
                with pytest.raises(DomainError, match=f"does not allow to {choice}"):
                    schedule.after(choice)
        assert schedule.choices == tuple(choice for choice, allowed in may.items() if allowed)
        assert len(schedule.following()) == len(schedule.choices)
        schedule = schedule.after(chance.choice([Choice.GO_ON, Choice.ANNEAL if free else Choice.GO_ON]))


@given(budgets, st.integers(1, 30), st.integers(1, 500), relations)
@settings(max_examples=60, deadline=None)
def test_aim_says_whether_any_path_settles(rho: F, initial: int, rounds: int, relation: Neighbouring) -> None:
    schedule = AimSchedule.start(rho, relation, initial=initial, rounds=rounds)
    widest, ahead = schedule.widest_again, schedule
    while ahead.step is not None and Choice.SETTLE not in ahead.choices:
        ahead = ahead.after(ahead.choices[-1])
    assert (widest is None) == (ahead.step is None)
    if widest is not None:
        most = ahead.after().spent
        while Choice.SETTLE in ahead.choices:  # as long as it can, so that least is left
            most, ahead = ahead.after().spent, ahead.after().after()
        again = Gaussian.costing((schedule.rho - most) / initial, relation)
        assert again.sigma_squared <= widest.sigma_squared
        assert widest.sigma_squared <= max(2 * again.sigma_squared, schedule.first.sigma_squared * (1 + WITHIN))


@given(budgets, st.integers(1, 20), st.integers(3, 400), relations)
@settings(max_examples=40, deadline=None)
def test_once_aim_has_settled_there_are_columns_and_edges_and_no_choice(
    rho: F, initial: int, rounds: int, relation: Neighbouring
) -> None:
    start = AimSchedule.start(rho, relation, initial=initial, rounds=rounds)
    schedule = start.after().after()
    while Choice.SETTLE not in schedule.choices and not schedule.last:
        schedule = schedule.after(Choice.ANNEAL).after()
    if schedule.last:
        return
    settled = schedule.after(Choice.SETTLE)
    assert settled.step is not None
    assert (settled.step.role, settled.step.count) == (Role.INITIAL, initial)
    assert start.widest_again is not None
    assert settled.step.mechanism.sigma_squared <= start.widest_again.sigma_squared
    while settled.step is not None:
        assert settled.choices == (Choice.GO_ON,)
        for choice in (Choice.ANNEAL, Choice.SETTLE):
            with pytest.raises(DomainError, match="does not allow"):
                settled.after(choice)
        settled = settled.after()


@given(budgets, st.integers(1, 20), st.integers(1, 100), relations, st.randoms(use_true_random=False))
@example(F(6173508293103381, 9671406556917033397649408), 1, 12, UNBOUNDED, Random(0))
@settings(deadline=None)
def test_no_path_of_aim_leaves_its_extremes(rho: F, initial: int, rounds: int, relation: Neighbouring, chance) -> None:
    schedule = AimSchedule.start(rho, relation, initial=initial, rounds=rounds)
    sizes = {
        kind: [size(found) for found in schedule.extremes() if isinstance(found, kind)]
        for kind, size in ((Gaussian, lambda m: m.sigma_squared), (NoisyMax, lambda m: m.epsilon_star))
    }
    for step in walk(schedule, lambda: chance.choice([Choice.GO_ON, Choice.ANNEAL, Choice.ANNEAL, Choice.SETTLE])):
        mechanism = step.mechanism
        value = mechanism.sigma_squared if isinstance(mechanism, Gaussian) else mechanism.epsilon_star
        assert min(sizes[type(mechanism)]) <= value <= max(sizes[type(mechanism)])


@given(budgets, st.integers(1, 200), relations)
@settings(max_examples=60, deadline=None)
def test_mwem_spends_what_it_was_given(rho: F, rounds: int, relation: Neighbouring) -> None:
    assert len(walk(MwemSchedule.gaussian(rho, relation, rounds=rounds, columns=3))) == 2 * rounds


@given(budgets, st.integers(1, 60), st.integers(2, 20), relations, st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_equal_rounds_may_give_way_to_columns_while_enough_is_left(
    rho: F, rounds: int, columns: int, relation: Neighbouring, patience: int
) -> None:
    """Whenever it settles, the budget is spent to its end, and the noise of columns is within what was forecast."""
    schedule = MwemSchedule.gaussian(rho, relation, rounds=rounds, columns=columns)
    here: Schedule = schedule
    may = 0
    while (due := here.step) is not None:
        measures, left = due.role is Role.MEASURE, schedule.rho - here.after().spent
        enough = measures and left >= columns * due.mechanism.rho(relation)
        assert here.choices == ((Choice.GO_ON, Choice.SETTLE) if enough else (Choice.GO_ON,))
        may += enough
        if may == patience:
            break
        here = here.after()
    assert (schedule.widest_again is None) == (may == 0)
    if may < patience:
        return
    settled = here.after(Choice.SETTLE)
    assert settled in here.following()
    step = settled.step
    assert step is not None
    assert (step.role, step.count) == (Role.INITIAL, columns)
    ended = settled.after()
    assert ended.step is None
    assert schedule.rho * (1 - WITHIN) <= ended.spent <= schedule.rho
    assert isinstance(step.mechanism, Gaussian)
    known = [one.sigma_squared for one in schedule.extremes() if isinstance(one, Gaussian)]
    assert min(known) <= step.mechanism.sigma_squared <= max(known)
    assert schedule.widest_again is not None
    assert step.mechanism.sigma_squared <= schedule.widest_again.sigma_squared


def test_pure_mwem_and_a_single_round_cannot_settle() -> None:
    for schedule in (
        MwemSchedule.laplace(F(1), UNBOUNDED, rounds=4),
        MwemSchedule.gaussian(F(1), UNBOUNDED, rounds=1, columns=3),
        MstSchedule.start(F(1), UNBOUNDED, columns=2),
    ):
        here: Schedule = schedule
        while here.step is not None:
            assert here.choices == (Choice.GO_ON,)
            with pytest.raises(DomainError, match="does not allow to settle"):
                here.after(Choice.SETTLE)
            here = here.after()
        assert schedule.widest_again is None


@given(st.fractions(min_value=F(1, 1000), max_value=20), st.integers(1, 200), relations)
@settings(max_examples=60, deadline=None)
def test_pure_mwem_spends_its_epsilon(epsilon: F, rounds: int, relation: Neighbouring) -> None:
    schedule = MwemSchedule.laplace(epsilon, relation, rounds=rounds)
    steps = walk(schedule)
    total = sum(step.count * (step.mechanism.epsilon(relation) or 0) for step in steps)
    assert epsilon * (1 - WITHIN) <= total <= epsilon


@given(budgets, st.integers(2, 100), relations)
@settings(max_examples=60, deadline=None)
def test_mst_spends_a_tenth_on_choosing_edges_and_as_much_on_columns_as_on_edges(
    rho: F, columns: int, relation: Neighbouring
) -> None:
    schedule = MstSchedule.start(rho, relation, columns=columns)
    assert schedule.widest_again is None  # it never settles
    steps = walk(schedule)
    for role, releases, share in (
        (Role.INITIAL, columns, F(9, 20)),
        (Role.SELECT, columns - 1, F(1, 10)),
        (Role.MEASURE, columns - 1, F(9, 20)),
    ):
        part = [step for step in steps if step.role is role]
        assert sum(step.count for step in part) == releases
        assert share * rho * (1 - WITHIN) <= sum(step.rho(relation) for step in part) <= share * rho


@given(budgets, st.integers(1, 30), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_bounded_neighbours_need_noise_wider_by_root_two_and_two(rho: F, initial: int, k: int) -> None:
    few = AimSchedule.start(rho, Neighbouring(Relation.UNBOUNDED, k), initial=initial, rounds=2 * initial)
    many = AimSchedule.start(rho, Neighbouring(Relation.BOUNDED, k), initial=initial, rounds=2 * initial)
    assert many.measure.sigma_squared == 2 * few.measure.sigma_squared
    assert many.select.scale(3, many.neighbouring) == 2 * few.select.scale(3, few.neighbouring)
    assert few.select.scale(3, few.neighbouring) == 6 * k / few.select.epsilon_star


@given(st.lists(entries, max_size=12), relations, st.floats(-3, 9), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_filter_refuses_without_a_trace_and_replays_to_an_equal_one(
    offered: list[Entry], relation: Neighbouring, size: float, pure: bool
) -> None:
    budget = F(10**size)
    kept = Filter(budget, relation, pure_epsilon=3 * budget if pure else None)
    accepted: list[Entry] = []
    for entry in offered:
        before = kept.to_json()
        epsilon = sum((e.epsilon(relation) or F(0) for e in [*accepted, entry]), F(0))
        fits = (
            sum(e.rho(relation) for e in [*accepted, entry]) <= budget
            and sum(e.eta for e in [*accepted, entry]) <= kept.allowance.eta
            and not (pure and (isinstance(entry.mechanism, Gaussian) or epsilon > 3 * budget))
        )
        if fits:
            kept.charge(entry)
            accepted.append(entry)
        else:
            with pytest.raises(BudgetExceeded):
                kept.charge(entry)
            assert kept.to_json() == before
    assert kept.entries == tuple(accepted)
    assert kept.spent == sum(entry.rho(relation) for entry in accepted)
    assert kept.left == budget - kept.spent
    again = Filter.from_json(kept.to_json())
    assert again == kept
    assert (again.spent, again.eta, again.entries) == (kept.spent, kept.eta, kept.entries)


@given(st.lists(entries, max_size=5), relations)
@settings(max_examples=40, deadline=None)
def test_statements_survive_json_and_are_certified_only_if_all_entries_are(
    offered: list[Entry], relation: Neighbouring
) -> None:
    kept = Filter(F(1, 2), relation)
    for entry in offered:
        with suppress(BudgetExceeded):
            kept.charge(entry)
    statement = PrivacyStatement.of(kept, F(1, 10**6))
    assert PrivacyStatement.from_json(statement.to_json()) == statement
    assert statement.certified == all(entry.certified for entry in kept.entries)
    assert statement.paragraph().startswith("NOT CERTIFIED") != statement.certified


def kl_of_range(width: mpmath.mpf) -> mpmath.mpf:
    """The largest KL divergence of two laws on two outcomes whose log-ratios differ by `width`."""

    def kl(high: mpmath.mpf) -> mpmath.mpf:
        low = high - width
        p = (1 - mpmath.exp(-low)) / (mpmath.exp(-high) - mpmath.exp(-low))
        return p * high + (1 - p) * low

    return max(kl(width * i / 200) for i in range(1, 200))


@given(st.fractions(min_value=F(1, 1000), max_value=2))
@settings(max_examples=40, deadline=None)
def test_the_charge_of_a_selection_covers_its_rounding_and_would_not_without_it(epsilon: F) -> None:
    select = NoisyMax.of_star(epsilon)
    width = mpmath.mpf(epsilon.numerator) / epsilon.denominator * mpmath.mpf("1.125")
    assert epsilon**2 / 8 < kl_of_range(width) <= select.rho(UNBOUNDED)
    assert select.rho(UNBOUNDED) == select.rho(BOUNDED)


@settings(deadline=None, max_examples=40)
@given(budgets, relations, st.integers(1, 12), st.integers(1, 60))
def test_totals_are_what_a_walk_comes_to(rho: F, relation: Neighbouring, initial: int, rounds: int) -> None:
    for schedule in (
        AimSchedule.start(rho, relation, initial=initial, rounds=rounds),
        MwemSchedule.gaussian(rho, relation, rounds=rounds, columns=3),
        MwemSchedule.laplace(min(rho, F(100)), relation, rounds=rounds),
        MstSchedule.start(rho, relation, columns=initial + 1),
    ):
        walked: dict[object, int] = {}
        here: Schedule = schedule
        while (step := here.step) is not None:
            key = step.role, step.mechanism, isinstance(here, AimSchedule) and here.last
            walked[key] = walked.get(key, 0) + step.count
            here = here.after()
        totals = schedule.totals()
        assert {(one.role, one.mechanism, one.last): one.releases for one in totals} == walked
        assert list(walked) == [(one.role, one.mechanism, one.last) for one in totals]
        assert sum((one.releases * one.mechanism.rho(relation) for one in totals), F(0)) == here.spent <= here.rho
