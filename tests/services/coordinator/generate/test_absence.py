"""Values that persons do not have: what is fitted to marginals that miss different persons, and rows drawn from it."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from caps.data.domain import MISSING, Attribute, Codes, Domain, Layout
from caps.errors import DomainError
from services.coordinator.estimation import Estimator, Floats, Measured, Model
from services.coordinator.generate import create_estimator, load_model
from services.coordinator.generate.absence import Absence

PERSONS = 20_000
PLAIN = Domain(tuple(Attribute(name, size) for name, size in zip("abcdef", (3, 2, 4, 3, 2, 3), strict=True)))
GROUPS = (("a", "b", "c"), ("d", "e", "f"))
PAIRS = tuple(combinations(PLAIN.names, 2))


def nullable(*names: str) -> Domain:
    return Domain(tuple(Attribute(one.name, one.size, one.name in names) for one in PLAIN.attributes))


def people(seed: int = 5) -> Codes:
    """Each column depends on the one before."""
    generator = np.random.default_rng(seed)
    columns = [generator.integers(0, PLAIN.sizes[0], PERSONS)]
    for size in PLAIN.sizes[1:]:
        copied = generator.random(PERSONS) < 0.6
        columns.append(np.where(copied, columns[-1] % size, generator.integers(0, size, PERSONS)))
    return np.stack(columns, axis=1)


def measured(domain: Domain, codes: Codes, sigma: float = 20.0, seed: int = 6) -> list[Measured]:
    """Every column and every pair, with noise."""
    generator = np.random.default_rng(seed)
    cliques = [*((name,) for name in domain.names), *PAIRS]
    layout = Layout(domain, tuple(cliques))
    counts = layout.marginals(codes)
    return [
        Measured(clique, counts[layout.positions([clique])] + generator.normal(0, sigma, domain.cells(clique)), sigma)
        for clique in cliques
    ]


def fitted(domain: Domain, codes: Codes, groups: tuple[tuple[str, ...], ...] = ()) -> tuple[Model, Codes]:
    estimator: Estimator = create_estimator("kernel", domain, groups=groups)
    noisy = measured(domain, codes)
    model = estimator.smoothed(estimator.fit(noisy), noisy)
    return model, model.sample(seed=1)


def shares(codes: Codes, clique: tuple[str, ...]) -> Floats:
    """Of all persons, those who have all attributes of a clique, by cell."""
    return Layout(PLAIN, (clique,)).marginals(codes) / len(codes)


def close(rows: Codes, truth: Codes, most: float = 0.02) -> None:
    """Every pair counts the same part of all persons."""
    for pair in PAIRS:
        assert np.abs(shares(rows, pair) - shares(truth, pair)).sum() < most, pair


def without(codes: Codes, part: float, columns: range, seed: int = 7) -> Codes:
    generator = np.random.default_rng(seed)
    lost = codes.copy()
    for column in columns:
        lost[generator.random(PERSONS) < part, column] = MISSING
    return lost


@pytest.mark.parametrize("part", [0.2, 0.5])
def test_what_is_missing_biases_neither_the_number_of_rows_nor_the_pairs(part: float) -> None:
    truth = without(people(), part, range(0, 6, 2))
    model, rows = fitted(nullable("a", "c", "e"), truth)
    assert model.total == pytest.approx(PERSONS, rel=0.01)
    close(rows, truth)
    gone = (rows == MISSING).mean(axis=0)
    assert gone == pytest.approx((truth == MISSING).mean(axis=0), abs=0.02)
    assert not gone[[1, 3, 5]].any()


def test_a_model_without_absence_would_be_biased() -> None:
    """The same data to an estimator that is told that nothing is missing: what this is for."""
    truth = without(people(), 0.5, range(0, 6, 2))
    estimator = create_estimator("kernel", PLAIN)
    model = estimator.fit(measured(PLAIN, truth))
    assert model.total < 0.8 * PERSONS


def test_nullable_columns_in_which_nothing_is_missing_stay_whole() -> None:
    truth = people()
    model, rows = fitted(nullable("a", "c", "e"), truth)
    assert model.total == pytest.approx(PERSONS, rel=0.01)
    assert (rows == MISSING).mean() < 0.01
    close(rows, truth)


@pytest.mark.parametrize(
    ("only_first", "only_second"), [(0.85, 0.0), (0.3, 0.3), (0.5, 0.5)], ids=["few in common", "some", "none"]
)
def test_persons_of_a_union_have_a_holders_columns_together(only_first: float, only_second: float) -> None:
    drawn = np.random.default_rng(8).random(PERSONS)
    truth = people()
    truth[np.ix_(drawn < only_first, range(3, 6))] = MISSING
    truth[np.ix_(drawn > 1 - only_second, range(3))] = MISSING
    model, rows = fitted(PLAIN, truth, GROUPS)
    assert model.total == pytest.approx(PERSONS, rel=0.02)
    has = [(rows[:, columns] != MISSING) for columns in (range(3), range(3, 6))]
    for one in has:
        assert (one.all(axis=1) == one.any(axis=1)).all(), "a person has all of a holder's columns or none"
    assert (has[0].any(axis=1) | has[1].any(axis=1)).all(), "nobody has nothing"
    assert (~has[1].any(axis=1)).mean() == pytest.approx(only_first, abs=0.02)
    assert (~has[0].any(axis=1)).mean() == pytest.approx(only_second, abs=0.02)
    close(rows, truth, 0.03)


def test_if_everybody_is_in_every_table_nobody_is_made_up() -> None:
    truth = people()
    _, rows = fitted(PLAIN, truth, GROUPS)
    assert (rows == MISSING).mean() < 0.005
    close(rows, truth)


@pytest.mark.parametrize(("has_both", "has_first", "everybody"), [(1.0, 0.0, 0.75), (0.9, 0.1, 0.05), (0.4, 0.3, 0.02)])
def test_who_has_what_is_told_from_noise(has_both: float, has_first: float, everybody: float) -> None:
    """How often the sums are taken for those of a table in which everybody has everything."""
    generator = np.random.default_rng(9)
    absence, has_second = Absence(PLAIN, GROUPS), 1 - has_both - has_first if has_both < 0.5 else 0.0
    found = []
    for _ in range(200):
        noisy = []
        for clique in [*((name,) for name in PLAIN.names), ("a", "d"), ("b", "c"), ("c", "f"), ("e", "f")]:
            of = {name in GROUPS[0] for name in clique}
            part = has_both if len(of) == 2 else has_both + (has_first if True in of else has_second)
            values = np.full(PLAIN.cells(clique), 1000 * part / PLAIN.cells(clique))
            noisy.append(Measured(clique, values + generator.normal(0, 15, values.size), 15.0))
        found.append(absence.persons(noisy))
    alarms = np.mean([one.everybody for one in found])
    assert alarms >= everybody if has_both == 1.0 else alarms <= everybody
    assert np.mean([one.total for one in found]) == pytest.approx(1000, rel=0.03)


def test_a_public_number_of_persons_is_kept() -> None:
    truth = people()
    truth[: PERSONS // 2, 3:] = MISSING
    estimator = create_estimator("kernel", PLAIN, groups=GROUPS)
    model = estimator.fit(measured(PLAIN, truth), total=PERSONS)
    assert model.total == PERSONS
    assert model.marginal(["d"]).sum() == pytest.approx(PERSONS / 2, rel=0.02)


@pytest.mark.parametrize("persons", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("sigma", [0.1, 3.0, 20.0])
def test_who_lacks_a_group_is_seen_whether_or_not_the_number_of_persons_is_public(persons: float, sigma: float) -> None:
    absence, generator = Absence(PLAIN, (GROUPS[1],)), np.random.default_rng(7)
    noisy = []
    for clique in [("a",), ("b",), ("d",), ("a", "d"), ("d", "e")]:
        having = persons if "d" not in clique else 0.6 * persons
        values = np.full(PLAIN.cells(clique), having / PLAIN.cells(clique))
        noisy.append(Measured(clique, values + generator.normal(0, sigma, values.size), sigma))
    for total in (persons, None):
        found = absence.persons(noisy, total)
        assert not found.everybody
        assert found.total == pytest.approx(persons, abs=0 if total else 20 * sigma)


def test_if_every_column_may_be_missing_the_largest_is_what_is_known() -> None:
    truth = without(people(), 0.3, range(5))
    model, _ = fitted(nullable(*PLAIN.names), truth)
    assert model.total == pytest.approx(PERSONS, rel=0.02)


def test_a_condition_may_ask_for_missing_values() -> None:
    truth = without(people(), 0.3, range(1))
    model, _ = fitted(nullable("a"), truth)
    assert (model.sample(500, seed=2, where={"a": MISSING})[:, 0] == MISSING).all()
    assert set(model.sample(500, seed=2, where={"a": [0, MISSING]})[:, 0]) == {0, MISSING}
    for name, code in (("a", 3), ("b", MISSING)):
        with pytest.raises(DomainError, match="has codes"):
            model.sample(10, where={name: code})


def test_a_saved_model_draws_the_same_rows(tmp_path: Path) -> None:
    truth = people()
    truth[: PERSONS // 2, 3:] = MISSING
    model, rows = fitted(PLAIN, truth, GROUPS)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.sample(seed=1), rows)
    text = (tmp_path / "model").read_bytes()
    for groups in (b'"groups":[["a","b","c"],["c","e","f"]]', b'"groups":[["a","b","x"],["d","e","f"]]'):
        (tmp_path / "model").write_bytes(text.replace(b'"groups":[["a","b","c"],["d","e","f"]]', groups))
        with pytest.raises(DomainError, match="header cannot be read"):
            load_model(tmp_path / "model")


def test_names_of_groups_are_none_of_the_domains() -> None:
    odd = Domain((Attribute("has group 1", 2), Attribute("b", 2)))
    absence = Absence(odd, (("b",),))
    assert absence.presences == ("has group 1'",)
    assert absence.wide.sizes == (2, 3, 2)


def test_the_reference_has_no_model_of_absence() -> None:
    with pytest.raises(DomainError, match="missing values"):
        create_estimator("mbi", nullable("a")).fit([])
