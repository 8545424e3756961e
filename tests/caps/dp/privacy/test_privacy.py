"""Charges against exact divergences of the laws, pinned vectors, refusals and the printed statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fractions import Fraction as F
from typing import Any

import mpmath
import pytest

from caps.dp.privacy import (
    BOUNDED,
    ETA_MAX,
    NOTHING,
    UNBOUNDED,
    AimSchedule,
    Allowance,
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
    Step,
    calibrate,
    cdp_delta,
    cdp_eps,
    cdp_rho,
    folded_epsilon,
    pure_rho,
)
from caps.dp.privacy.rational import decode_ratio, encode_ratio, exact, grid_down, grid_up
from caps.dp.privacy.statement import shown
from caps.errors import DomainError, LocalError


@pytest.fixture(autouse=True, scope="module")
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(100):
        yield


NANO = F(1, 10**9)
THRICE = Neighbouring(Relation.UNBOUNDED, 3)
SWAPPED_THRICE = Neighbouring(Relation.BOUNDED, 3)
MOVED = Neighbouring(Relation.UNBOUNDED, moves=True)
MOVED_THRICE = Neighbouring(Relation.BOUNDED, 3, moves=True)
CHANGES = {UNBOUNDED: [1], BOUNDED: [1, 1], THRICE: [3], SWAPPED_THRICE: [3, 3], MOVED: [1, 1], MOVED_THRICE: [6, 6]}
every_relation = pytest.mark.parametrize(
    "relation", CHANGES, ids=lambda n: f"{n.relation}-{n.multiplicity}-{'moves' if n.moves else 'goes'}"
)


def test_vectors() -> None:
    assert float(cdp_eps(F("0.0149731"), NANO)) == pytest.approx(1, abs=1e-5)
    assert float(cdp_eps(F(1, 2), F("1e-6"))) == pytest.approx(5.22153, abs=1e-5)
    assert float(cdp_rho(F("0.1"), NANO)) == pytest.approx(1.7714e-4, rel=1e-4)
    assert float(cdp_rho(1, NANO)) == pytest.approx(0.014973, rel=1e-4)
    assert float(cdp_rho(10, NANO)) == pytest.approx(1.0908, rel=1e-4)


def test_every_machine_computes_the_same_digits() -> None:
    assert cdp_rho(1, NANO) == F(PINNED["cdp_rho"])
    assert cdp_eps(F(1, 2), NANO) == F(PINNED["cdp_eps"])
    assert calibrate(10, NANO) == F(PINNED["calibrate"])
    schedule = AimSchedule.start(F(PINNED["calibrate"]), BOUNDED, initial=9, rounds=144)
    assert schedule.measure.sigma_squared == F(PINNED["sigma"])


PINNED = {
    "cdp_rho": "1273766876303105995787967912159639861/85070591730234615865843651857942052864",
    "cdp_eps": "2203011870264697841306882653272340582679/340282366920938463463374607431768211456",
    "calibrate": "371174541316164385114735119069266379275/340282366920938463463374607431768211456",
    "sigma": "5582101519958019001/36028797018963968",
}


def test_nothing_spent_is_nothing_lost() -> None:
    assert cdp_delta(0, 1) == cdp_eps(0, NANO) == pure_rho(0) == folded_epsilon(0, NOTHING, NANO) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: cdp_delta(-1, 1),
        lambda: cdp_delta(1, -1),
        lambda: cdp_delta(1, 1001),
        lambda: cdp_eps(1, 0),
        lambda: cdp_eps(1, 1),
        lambda: cdp_eps(1.0, NANO),  # type: ignore[arg-type]
        lambda: cdp_rho(0, NANO),
        lambda: cdp_rho(True, NANO),
        lambda: calibrate(50, NANO),
        lambda: folded_epsilon(1, Allowance(F(1, 10**8)), NANO),
        lambda: folded_epsilon(1, Allowance(F(1, 10**13)), NANO),
        lambda: exact(0.5),  # type: ignore[arg-type]
        lambda: Gaussian(F(0)),
        lambda: Laplace(F(-1)),
        lambda: NoisyMax(F(0), F(0)),
        lambda: NoisyMax(F(1), F(-1)),
        lambda: PermuteAndFlip(F(0)),
        lambda: Neighbouring(Relation.BOUNDED, 0),
        lambda: Neighbouring("bounded", 1),  # type: ignore[arg-type]
        lambda: Filter(F(0), UNBOUNDED),
        lambda: Filter(F(1), UNBOUNDED, allowance=NOTHING),
        lambda: AimSchedule.start(F(1), UNBOUNDED, initial=0, rounds=9),
        lambda: AimSchedule.start(F(1), UNBOUNDED, initial=9, rounds=0),
        lambda: AimSchedule.start(F(1, 2**79), UNBOUNDED, initial=1, rounds=16),
        lambda: AimSchedule.start(F(1, 2**79), UNBOUNDED, initial=16, rounds=1),
        lambda: AimSchedule.start(F(1), UNBOUNDED, initial=9, rounds=9).after(Choice.ANNEAL),
        lambda: AimSchedule.start(F(1), UNBOUNDED, initial=9, rounds=9).after(Choice.SETTLE),
        lambda: MwemSchedule.gaussian(F(1), UNBOUNDED, rounds=0, columns=1),
        lambda: MwemSchedule.laplace(F(0), UNBOUNDED, rounds=1),
        lambda: MwemSchedule.gaussian(F(1), UNBOUNDED, rounds=1, columns=1).after(Choice.ANNEAL),
        lambda: MwemSchedule.gaussian(F(1), UNBOUNDED, rounds=1, columns=1).after(Choice.SETTLE),
        lambda: MstSchedule.start(F(1), UNBOUNDED, columns=1),
    ],
)
def test_refused(call: Callable[[], object]) -> None:
    with pytest.raises(DomainError):
        call()


def test_values_round_to_the_grid_outwards() -> None:
    third = F(1, 3)
    assert grid_down(third) < third < grid_up(third) == grid_down(third) + F(1, 2**128)
    assert grid_up(F(3, 4)) == grid_down(F(3, 4)) == F(3, 4)


def kl_after_shift(weight: Callable[[int], Any], shift: int) -> Any:
    """KL divergence between an integer law and its shift, by summation."""
    support = range(-400, 401)
    total = mpmath.fsum(weight(x) for x in support)
    return mpmath.fsum(weight(x) / total * mpmath.log(weight(x) / weight(x - shift)) for x in support)


@every_relation
@pytest.mark.parametrize("sigma_squared", [F(1, 2), F(7), F(137)])
def test_gaussian_charge_is_the_divergence_of_what_one_person_changes(relation: Neighbouring, sigma_squared: F) -> None:
    def weight(x: int) -> Any:
        return mpmath.exp(-mpmath.mpf(x * x) / (2 * mpmath.mpf(sigma_squared.numerator) / sigma_squared.denominator))

    kl = sum(kl_after_shift(weight, shift) for shift in CHANGES[relation])
    assert float(Gaussian(sigma_squared).rho(relation)) == pytest.approx(float(kl), rel=1e-12)


@every_relation
@pytest.mark.parametrize("scale", [1, 3, 12])
def test_laplace_charge_covers_the_divergence_of_what_one_person_changes(relation: Neighbouring, scale: int) -> None:
    kl = sum(kl_after_shift(lambda x: mpmath.exp(-mpmath.mpf(abs(x)) / scale), s) for s in CHANGES[relation])
    noise = Laplace(F(scale))
    assert noise.epsilon(relation) == F(sum(CHANGES[relation]), scale)
    assert float(kl) <= float(noise.rho(relation)) * (1 + 1e-12)
    assert (float(noise.rho(relation)) == pytest.approx(float(kl), rel=1e-12)) == (relation is UNBOUNDED)


def test_the_bound_for_continuous_laplace_noise_would_under_count() -> None:
    kl = kl_after_shift(lambda x: mpmath.exp(-abs(x)), 1)
    assert kl > 1 + mpmath.exp(-1) - 1
    assert float(pure_rho(1)) == pytest.approx(float(kl), rel=1e-12)


def test_noise_is_calibrated_to_a_charge_from_below() -> None:
    for rho in (F(1, 3), F(1, 10**7), F(40)):
        for relation in CHANGES:
            for mechanism in (Gaussian.costing(rho, relation), NoisyMax.costing(rho)):
                assert rho * (1 - F(1, 2**60)) <= mechanism.rho(relation) <= rho + F(1, 2**128)


def test_a_selection_has_room_for_its_rounding() -> None:
    select = NoisyMax.of_star(F(8, 9))
    assert select.kappa == select.epsilon_star / 32
    assert select.rho(UNBOUNDED) == F(1, 8)
    assert select.epsilon(UNBOUNDED) == 1
    assert select.scale(7, UNBOUNDED) == F(63, 4)
    assert PermuteAndFlip(F(1, 4)).scale(7, BOUNDED) == 112


def test_aim_divides_its_budget() -> None:
    """144 rounds and 9 columns, which cost nine tenths of a round each; a tenth selects: epsilon = sqrt(8 rho)."""
    rho = cdp_rho(1, NANO)
    schedule, each = AimSchedule.start(rho, UNBOUNDED, initial=9, rounds=144), float(rho) / (144 + 8.1)
    assert schedule.first == schedule.measure
    assert float(schedule.measure.sigma_squared) == pytest.approx(1 / (2 * 0.9 * each))
    assert float(schedule.after().spent) == pytest.approx(8.1 * each)
    assert float(schedule.select.epsilon_star) * 1.125 == pytest.approx((8 * each / 10) ** 0.5)


def test_aims_last_round_takes_what_is_left() -> None:
    schedule = AimSchedule.start(F(1), UNBOUNDED, initial=1, rounds=1)
    schedule = schedule.after()
    assert schedule.last
    assert float(schedule.spent) == pytest.approx(0.9 / 1.9)
    assert float(schedule.select.rho(UNBOUNDED)) == pytest.approx(0.1 / 1.9)
    assert float(schedule.measure.rho(UNBOUNDED)) == pytest.approx(0.9 / 1.9)
    end = schedule.after().after()
    assert end.step is None
    for choice in (Choice.ANNEAL, Choice.SETTLE):
        with pytest.raises(DomainError, match="does not allow"):
            schedule.after().after(choice)


def test_aim_runs_as_many_rounds_as_it_can_pay() -> None:
    """Rounding down leaves the last of 45 rounds a little more than one; annealed once, 44 rounds become 22."""
    for once, expected in ((Choice.GO_ON, 45), (Choice.ANNEAL, 23)):
        schedule = AimSchedule.start(F(1), UNBOUNDED, initial=1, rounds=45)
        measured = 0
        while schedule.step is not None:
            measured += schedule.role is Role.MEASURE
            schedule = schedule.after(once if measured == 1 and schedule.role is Role.MEASURE else Choice.GO_ON)
        assert measured == expected


def test_annealing_doubles_what_a_round_costs() -> None:
    before = AimSchedule.start(F(1), UNBOUNDED, initial=9, rounds=144).after().after()
    after = before.after(Choice.ANNEAL)
    assert before.role is Role.MEASURE
    assert float(before.measure.sigma_squared / after.measure.sigma_squared) == pytest.approx(2)
    assert float(after.select.epsilon_star / before.select.epsilon_star) == pytest.approx(2**0.5)
    assert after.first == before.first


@pytest.mark.parametrize(
    ("initial", "rounds", "annealed", "columns", "edges"),
    [
        (5, 10, 0, 4.5, 4),  # columns get as much as before, which is more than a third of nine
        (3, 40, 2, 11, 2),  # a third of 33; the rest would be enough for five edges, but a tree has two
        (10, 160, 4, 43, 5),  # a third of 129; the rest, shared by as many as can cost 16 each
        (9, 7, 0, 6, 0),  # less is left than columns had
        (1, 6, 0, 5, 0),  # one column makes no tree
    ],
)
def test_settling_divides_what_is_left_between_columns_and_a_tree(
    initial: int, rounds: int, annealed: int, columns: float, edges: int
) -> None:
    """Costs are given in first rounds."""
    schedule = AimSchedule.start(F(1), UNBOUNDED, initial=initial, rounds=rounds).after().after()
    unit = float(schedule.round_cost)
    for _ in range(annealed):
        schedule = schedule.after(Choice.ANNEAL).after()
    settled = schedule.after(Choice.SETTLE)
    left = 1 - float(settled.spent)
    assert left / unit == pytest.approx(rounds - 2 ** (annealed + 1) + 1)
    assert settled.step == Step(Role.INITIAL, settled.first, initial)
    assert initial * float(settled.first.rho(UNBOUNDED)) / unit == pytest.approx(columns)
    ahead = settled.after()
    for _ in range(edges):
        select, ahead = ahead.step, ahead.after()
        measure, ahead = ahead.step, ahead.after()
        assert (select.role, measure.role) == (Role.SELECT, Role.MEASURE)
        each = float(select.rho(UNBOUNDED) + measure.rho(UNBOUNDED)) / unit
        assert each == pytest.approx((left / unit - columns) / edges)
        assert each >= 2**annealed
    assert ahead.step is None
    assert float(ahead.spent) == pytest.approx(1)


def test_only_dear_rounds_are_given_up() -> None:
    """Of 10 rounds and 5 columns, a round costs a fourteenth and a half; of 12, too little."""
    AimSchedule.start(F(1), UNBOUNDED, initial=5, rounds=10).after().after().after(Choice.SETTLE)
    cheap = AimSchedule.start(F(1), UNBOUNDED, initial=5, rounds=12).after().after()
    with pytest.raises(DomainError, match="does not allow to settle"):
        cheap.after(Choice.SETTLE)
    cheap.after(Choice.ANNEAL).after().after(Choice.SETTLE)


def entry(**changes: Any) -> Entry:
    plain: dict[str, Any] = {
        "step": "run/1/measure",
        "mechanism": Gaussian(F(50)),
        "count": 9,
        "sampler": "dgauss-mpc",
        "draws": 450,
        "distance": F(1, 2**81),
        "certified": True,
    }
    return Entry(**plain | changes)


def test_a_filter_stops_at_its_last_unit() -> None:
    spent = Filter(9 * Gaussian(F(50)).rho(UNBOUNDED), UNBOUNDED)
    spent.charge(entry())
    assert spent.left == 0
    with pytest.raises(BudgetExceeded, match="rho") as refusal:
        spent.charge(entry(mechanism=Gaussian(F(10**30))))
    assert isinstance(refusal.value, LocalError)
    assert spent.entries == (entry(),)
    assert repr(spent) == "Filter(0.09 of 0.09 rho, 1 entries)"


def test_a_filter_stops_at_the_limit_of_statistical_distance() -> None:
    spent = Filter(F(1), UNBOUNDED)
    spent.charge(entry(draws=2**20, distance=F(1, 2**80)))
    assert spent.eta == ETA_MAX
    with pytest.raises(BudgetExceeded, match="distance"):
        spent.charge(entry(draws=1, distance=F(1, 10**50)))


def test_a_pure_filter_takes_pure_mechanisms_only() -> None:
    spent = Filter(F(10), BOUNDED, pure_epsilon=F(1))
    with pytest.raises(BudgetExceeded, match="not pure"):
        spent.charge(entry())
    spent.charge(entry(mechanism=Laplace(F(36))))
    spent.charge(entry(mechanism=PermuteAndFlip(F(1, 18))))
    with pytest.raises(BudgetExceeded, match="epsilon"):
        spent.charge(entry(mechanism=PermuteAndFlip(F(1, 10**9))))


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 0},
        {"draws": 0},
        {"draws": 2**53},
        {"count": True},
        {"distance": F(-1)},
        {"distance": 0.0},
        {"certified": 1},
        {"sampler": "paper:irwin-hall"},
    ],
    ids=str,
)
def test_entries_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DomainError):
        entry(**changes)


def test_a_table_distance_with_a_long_denominator_is_kept_rounded_up() -> None:
    distance = F(3**50, 7**150)
    assert distance < entry(distance=distance).distance < distance + F(1, 2**127)


def test_the_wire_form() -> None:
    spent = Filter(F(1, 3), THRICE, entries=[entry(mechanism=NoisyMax(F(1, 10), F(0)), distance=F(0))])
    assert json.loads(spent.to_json()) == {
        "budget": "1/3",
        "entries": [
            {
                "certified": True,
                "count": 9,
                "distance": "0/1",
                "draws": 450,
                "mechanism": {"kind": "noisy-max", "epsilon_star": "1/10", "kappa": "0/1"},
                "rho": encode_ratio(9 * grid_up(F(1, 800))),
                "sampler": "dgauss-mpc",
                "step": "run/1/measure",
            }
        ],
        "allowance": {"eta": f"1/{2**60}", "nu": f"1/{2**60}", "soundness": "0/1"},
        "neighbouring": {"moves": False, "multiplicity": 3, "relation": "unbounded"},
        "pure_epsilon": None,
        "version": 1,
    }


@pytest.mark.parametrize(
    "text",
    ["", "1", "1/0", "2/4", "01/2", "1/-2", "-0/1", "+1/2", " 1/2", "1/2\n", "١/٢", 1, None, "1/" + "3" * 1100],
)
def test_other_spellings_of_rationals_are_refused(text: object) -> None:
    with pytest.raises(DomainError):
        decode_ratio(text)


def test_rationals_too_long_for_the_wire_are_refused_before_they_are_written() -> None:
    with pytest.raises(DomainError):
        encode_ratio(F(1, 3**3000))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":2'),
        (b'"version":1', b'"version":true'),
        (b'"version":1', b'"version": 1'),
        (b'"version":1', b'"version":1,"x":1'),
        (b'"count":9', b'"count":8'),
        (b'"count":9', b'"count":9.0'),
        (b'"count":9', b'"count":NaN'),
        (b'"sigma_squared":"50/1"', b'"sigma_squared":"51/1"'),
        (b'"kind":"gaussian"', b'"kind":"none"'),
        (b'"kind":"gaussian"', b'"kind":"laplace"'),
        (b'"relation":"unbounded"', b'"relation":"bounded"'),
        (b'"relation":"unbounded"', b'"relation":"both"'),
        (b'"step":"run/1/measure"', b'"step":"\\ud800"'),
        (b'"certified":true', b'"certified":"true"'),
        (b'"budget":"1/1"', b'"budget":"2/2"'),
        (b"{", b""),
    ],
)
def test_a_ledger_tampered_with_is_refused(old: bytes, new: bytes) -> None:
    data = Filter(F(1), UNBOUNDED, entries=[entry()]).to_json()
    assert old in data
    with pytest.raises(DomainError):
        Filter.from_json(data.replace(old, new, 1))


def test_a_ledger_that_exceeds_its_budget_is_refused() -> None:
    data = Filter(F(1), UNBOUNDED, entries=[entry()]).to_json()
    with pytest.raises(BudgetExceeded):
        Filter.from_json(data.replace(b'"budget":"1/1"', b'"budget":"1/100"'))


def statement(relation: Neighbouring = UNBOUNDED, *more: Entry) -> PrivacyStatement:
    spent = Filter(calibrate(2, NANO), relation)
    selection = entry(mechanism=NoisyMax.of_star(F(1, 10)), count=1, draws=45, sampler="gumbel-rnm")
    for charged in (entry(mechanism=Gaussian(F(5000))), selection, *more):
        spent.charge(charged)
    return PrivacyStatement.of(spent, NANO)


PARAGRAPH = (
    "This release is differentially private with epsilon = 2 and delta = 1e-9: whether a person takes part changes the "
    "probability of any result by a factor of at most e^epsilon = 7.39, apart from an allowance of delta. "
    "The protected unit is one person, who is one row of the joined table; a unit may be added or removed, and the row "
    "count is secret. "
    "Who sees what: what is published is covered by the stated epsilon and delta. "
    "A budget of rho = 0.05614 (zero-concentrated differential privacy) was fixed beforehand, and 9 tables with "
    "Gaussian noise (sampler dgauss-mpc) and 1 private selection (sampler gumbel-rnm) spent 0.002483 of it. "
    "The noise as drawn may differ from the ideal by a statistical distance of 2.048e-22. delta is the sum of 1e-9 "
    "from rho, 7.277e-18 for using pseudorandom in place of random functions and 7.277e-18 for the distance of the "
    "noise as drawn from the ideal. "
    "The assumptions are: (1) AES-128 "
    "and keyed BLAKE2b are indistinguishable from random functions apart from the term of delta for this; "
    "HKDF-SHA256, Ed25519, and X25519 or ML-KEM-768 are secure, and TLS 1.3 protects the connections; (2) honest "
    "servers and holders draw random numbers from generators that nobody else can predict; (3) whether the "
    "study accepts an honest holder's table does not depend on any one person, because a refusal is seen; (4) nothing "
    "else computed from these persons' data is released; anything that is adds to the privacy loss stated here."
)


def test_the_paragraph() -> None:
    assert statement().paragraph() == PARAGRAPH


def test_the_paragraph_names_the_relation_and_the_multiplicity() -> None:
    text = statement(SWAPPED_THRICE).paragraph()
    assert "replacing a person's record" in text
    assert "row count is public" in text
    assert "up to 3 rows" in text


def test_one_uncertified_entry_withholds_the_certificate() -> None:
    uncertified = statement(UNBOUNDED, entry(sampler="paper:irwin-hall", certified=False, mechanism=Gaussian(F(5000))))
    assert statement().certified
    assert not uncertified.certified
    text = uncertified.paragraph()
    assert text.startswith("NOT CERTIFIED: this release carries no proven privacy guarantee")
    assert "paper:irwin-hall" in text
    assert "is differentially private" not in text


def test_the_guarantee_is_the_budget_not_what_was_spent() -> None:
    early = statement()
    assert early.rho_spent < early.rho / 10
    assert F("1.999") < early.epsilon <= 2


def test_a_pure_run_is_stated_at_its_epsilon_when_that_is_less() -> None:
    for rounds, pure in ((1, True), (100, False)):
        schedule = MwemSchedule.laplace(F(1), UNBOUNDED, rounds=rounds)
        spent = Filter(schedule.rho, UNBOUNDED, pure_epsilon=schedule.pure_epsilon)
        stated = PrivacyStatement.of(spent, NANO)
        assert (stated.epsilon == 1) == pure
        assert stated.epsilon <= 1
        assert PrivacyStatement.from_json(stated.to_json()) == stated


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"certified":true,"delta"', b'"certified":false,"delta"'),
        (b'"count":9', b'"count":0'),
        (b'"kind":"gaussian"', b'"kind":"none"'),
        (b'"delta":"1/1000000000"', b'"delta":"1/2000000000"'),
        (b'"releases":[', b'"releases":[1,'),
        (b'"version":1', b'"version":0'),
        (b"This release", b"Any release"),
    ],
)
def test_an_untrue_statement_is_refused(old: bytes, new: bytes) -> None:
    data = statement().to_json()
    assert old in data
    with pytest.raises(DomainError):
        PrivacyStatement.from_json(data.replace(old, new))


def test_a_statement_cannot_claim_less_than_its_budgets() -> None:
    from dataclasses import replace

    with pytest.raises(DomainError, match="do not follow"):
        replace(statement(), epsilon=F("1.99"))
    with pytest.raises(DomainError, match="do not follow"):
        replace(statement(), epsilon=F(1, 2), pure_epsilon=F(1))
    with pytest.raises(DomainError, match="more was spent"):
        replace(statement(), rho_spent=F(1))


@pytest.mark.parametrize(
    ("x", "text"),
    [(F(1), "1"), (F(10), "10"), (F(1, 3), "0.3334"), (NANO, "1e-9"), (F(10**7 + 1), "1.001e+7"), (F(0), "0")],
)
def test_shown_rounds_up(x: F, text: str) -> None:
    assert shown(x) == text
