"""What studies of one population cost together: as group privacy says, and never less than what they cost apart."""

from __future__ import annotations

from fractions import Fraction as F
from math import ceil, exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.dp.privacy import (
    ALLOWANCE,
    BOUNDED,
    NOTHING,
    UNBOUNDED,
    Allowance,
    Neighbouring,
    PopulationBudget,
    Relation,
    Reservation,
    calibrate,
    folded_epsilon,
    pure_rho,
    satisfies,
    together,
)
from caps.errors import DomainError

pytestmark = pytest.mark.property

BUDGET = PopulationBudget(F(3), F(1, 10**6))
relations = st.builds(Neighbouring, st.sampled_from(Relation), st.integers(1, 7))
rhos = st.fractions(0, 1, max_denominator=10**4)
allowances = st.builds(Allowance, *[st.fractions(0, F(1, 10**9), max_denominator=10**12)] * 3)
studies = st.builds(Reservation, rhos, relations, allowances)
many = st.lists(studies, max_size=6)


@given(many, studies)
def test_one_more_study_never_costs_less(taken: list[Reservation], one: Reservation) -> None:
    before, after = together(taken), together([*taken, one])
    assert after.rho >= before.rho + one.rho
    assert after.allowance == before.allowance + one.allowance
    assert after.neighbouring.multiplicity >= before.neighbouring.multiplicity
    assert BUDGET.admits(taken) or not BUDGET.admits([*taken, one])
    assert BUDGET.left([*taken, one], UNBOUNDED) <= BUDGET.left(taken, UNBOUNDED)


@given(st.permutations(range(6)), st.lists(studies, min_size=6, max_size=6))
def test_the_order_does_not_matter(order: list[int], taken: list[Reservation]) -> None:
    assert together([taken[i] for i in order]) == together(taken)


@given(relations, st.lists(st.tuples(rhos, allowances), min_size=1, max_size=6))
def test_budgets_of_one_relation_and_multiplicity_are_simply_added(
    relation: Neighbouring, taken: list[tuple[F, Allowance]]
) -> None:
    total = together(Reservation(rho, relation, allowance) for rho, allowance in taken)
    assert total.rho == sum(rho for rho, _ in taken)
    assert total.neighbouring == relation
    assert total.allowance.eta == sum(allowance.eta for _, allowance in taken)


def test_nothing_costs_nothing() -> None:
    assert together([]) == Reservation(F(0), UNBOUNDED, NOTHING)
    assert BUDGET.admits([])


@pytest.mark.parametrize(
    ("first", "second", "factors", "worst"),
    [
        (UNBOUNDED, UNBOUNDED, (1, 1), UNBOUNDED),
        (UNBOUNDED, BOUNDED, (4, 1), BOUNDED),
        (UNBOUNDED, Neighbouring(Relation.UNBOUNDED, 3), (9, 1), Neighbouring(Relation.UNBOUNDED, 3)),
        (UNBOUNDED, Neighbouring(Relation.BOUNDED, 3), (36, 1), Neighbouring(Relation.BOUNDED, 3)),
        (BOUNDED, Neighbouring(Relation.UNBOUNDED, 3), (9, 4), Neighbouring(Relation.BOUNDED, 3)),
        (
            Neighbouring(Relation.UNBOUNDED, 2),
            Neighbouring(Relation.UNBOUNDED, 5),
            (9, 1),
            Neighbouring(Relation.UNBOUNDED, 5),
        ),
    ],
)
def test_the_factors(first: Neighbouring, second: Neighbouring, factors: tuple[int, int], worst: Neighbouring) -> None:
    total = together([Reservation(F(1, 8), first), Reservation(F(1, 7), second)])
    assert total.rho == F(factors[0], 8) + F(factors[1], 7)
    assert total.neighbouring == worst


def test_a_budget_is_not_restated_for_a_weaker_relation() -> None:
    for own, weaker in ((BOUNDED, UNBOUNDED), (Neighbouring(Relation.UNBOUNDED, 2), UNBOUNDED)):
        with pytest.raises(DomainError, match="weaker"):
            Reservation(F(1), own).under(weaker)


def divergence(sigma2: F, shift: int, order: float) -> float:
    """Renyi divergence of a discrete Gaussian and itself shifted, by summation."""
    reach = ceil(12 * float(sigma2) ** 0.5) + (int(order) + 2) * shift
    logs = [-x * x / (2 * float(sigma2)) for x in range(-reach, reach + 1)]
    norm = log(sum(map(exp, logs)))
    terms = [
        order * (-x * x / (2 * float(sigma2))) + (1 - order) * (-((x - shift) ** 2) / (2 * float(sigma2))) - norm
        for x in range(-reach, reach + 1)
    ]
    top = max(terms)
    return (top + log(sum(exp(term - top) for term in terms))) / (order - 1)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
    st.fractions(F(1, 2), 30, max_denominator=20),
    st.sampled_from([1.01, 1.5, 2, 4, 9]),
)
@settings(deadline=None, max_examples=60)
def test_group_privacy_of_discrete_gaussians(k: int, worst: int, replaced: bool, sigma2: F, order: float) -> None:
    """A count with noise for k rows, of a person with K rows that vanishes, or moves from one cell to another."""
    worst = max(k, worst)
    study = Reservation(F(k * k) / (2 * sigma2), Neighbouring(Relation.UNBOUNDED, k))
    under = Neighbouring(Relation.BOUNDED if replaced else Relation.UNBOUNDED, worst)
    stated = float(study.under(under)) * order
    # Replacing K rows by K others moves two cells by K each.
    true = (2 if replaced else 1) * divergence(sigma2, worst, order)
    assert true <= stated * (1 + 1e-9) + 1e-12
    # In one cell of g shifts of k, which is a group of that size, it is attained.
    g = -(-worst // k) * (2 if replaced else 1)
    assert divergence(sigma2, g * k, order) <= stated * (1 + 1e-9) + 1e-12
    if sigma2 >= 4:
        assert divergence(sigma2, g * k, order) >= stated * (1 - 1e-6)


@given(many)
def test_what_is_admitted_is_what_can_be_stated(taken: list[Reservation]) -> None:
    total = together(taken)
    assert BUDGET.admits(taken) == satisfies(total.rho, total.allowance, BUDGET.epsilon, BUDGET.delta)


@given(many, relations)
@settings(deadline=None)
def test_what_is_left_is_admitted_and_hardly_more(taken: list[Reservation], relation: Neighbouring) -> None:
    left = BUDGET.left(taken, relation)
    assert not left or BUDGET.admits([*taken, Reservation(left, relation)])
    assert not BUDGET.admits([*taken, Reservation(left * F(1001, 1000) + F(1, 10**9), relation)])


def test_a_study_that_is_the_whole_budget_is_admitted_alone() -> None:
    for epsilon in (F(3), F(1, 10)):
        budget = PopulationBudget(epsilon, F(1, 10**6))
        whole = Reservation(calibrate(epsilon, F(1, 10**6)), UNBOUNDED)
        assert budget.admits([whole])
        assert not budget.admits([whole, Reservation(F(1, 10**12), UNBOUNDED)])
    assert BUDGET.admits([Reservation(pure_rho(F(1, 2)), UNBOUNDED)])


def test_many_tiny_studies_are_refused_once_their_distances_exceed_delta() -> None:
    """At epsilon 20, a study's allowance takes 8e-10 of delta: twelve hundred take more than there is."""
    budget, tiny = PopulationBudget(F(20), F(1, 10**6)), Reservation(F(1, 10**12), UNBOUNDED)
    assert budget.admits([tiny] * 1100)
    assert not budget.admits([tiny] * 1200)
    assert budget.left([tiny] * 1200, UNBOUNDED) == 0
    assert "rho 0 left" in budget.refusal([tiny] * 1200, tiny, F(1, 10**6))
    exact = Reservation(F(1, 10**12), UNBOUNDED, NOTHING)
    assert budget.admits([exact] * 1200)


def test_an_enormous_factor_is_refused_and_no_error() -> None:
    wide = Reservation(F(1, 10**6), Neighbouring(Relation.BOUNDED, 1000))
    assert not BUDGET.admits([Reservation(F(1, 100), UNBOUNDED), wide])
    assert BUDGET.left([Reservation(F(1, 100), UNBOUNDED)], wide.neighbouring) == 0
    assert "bounded with up to 1000 rows" in BUDGET.refusal([Reservation(F(1, 100), UNBOUNDED)], wide, F(1, 10**6))


def test_a_refusal_tells_what_is_left_for_such_a_study() -> None:
    taken = [Reservation(calibrate(F(2), F(1, 10**6)), UNBOUNDED)]
    study = Reservation(calibrate(F(2), F(1, 10**9)), BOUNDED)
    assert not BUDGET.admits([*taken, study])
    left = BUDGET.left(taken, BOUNDED)
    epsilon = folded_epsilon(left, ALLOWANCE, F(1, 10**9))
    words = BUDGET.refusal(taken, study, F(1, 10**9))
    assert f"rho {float(left):.4g} left" in words
    assert f"epsilon {float(epsilon):.3g} at" in words


@given(studies)
def test_reservations_are_written_and_read(study: Reservation) -> None:
    assert Reservation.from_json(study.to_json()) == study


@pytest.mark.parametrize("change", [{"rho": "-1/2"}, {"rho": 1}, {"neighbouring": {}}, {"allowance": None}, {"x": 1}])
def test_what_is_no_reservation_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DomainError):
        Reservation.from_json(Reservation(F(1), UNBOUNDED).to_json() | change)


@pytest.mark.parametrize(("epsilon", "delta"), [(F(0), F(1, 2)), (F(3), F(0)), (F(3), F(1)), (F(30), F(1, 10**6))])
def test_budgets_without_room_are_refused(epsilon: F, delta: F) -> None:
    with pytest.raises(DomainError):
        PopulationBudget(epsilon, delta)
