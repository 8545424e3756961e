"""How many rows a release has: one for each person if their number is known, else enough."""

from __future__ import annotations

import numpy as np
import pytest

from caps.data.domain import MISSING, Attribute, Clique, Domain
from services.coordinator.estimation import Measured
from services.coordinator.generate import Size, create_estimator, size_of
from tests.kit.algorithms import domain_of

pytestmark = pytest.mark.statistical


def noisy_columns(domain: Domain, persons: int, sigma: float, seed: int) -> list[Measured]:
    generator = np.random.default_rng(seed)
    found = []
    for attribute in domain.attributes:
        counts = np.full(attribute.size, persons / attribute.size)
        found.append(Measured((attribute.name,), counts + generator.normal(0, sigma, attribute.size), sigma))
    return found


@pytest.mark.parametrize("sigma", [1.0, 20.0, 200.0])
def test_the_deviation_is_that_of_the_estimate(sigma: float) -> None:
    domain = domain_of(4, 3, 6)
    sizes = [size_of(domain, noisy_columns(domain, 100_000, sigma, seed)) for seed in range(300)]
    found = np.array([size.persons for size in sizes])
    assert found.std() == pytest.approx(sizes[0].deviation, rel=0.12)
    assert found.mean() == pytest.approx(100_000, abs=5 * sizes[0].deviation / 17)


@pytest.mark.parametrize("groups", [(("a0", "a1"), ("a2", "a3")), (("a2", "a3"),)])
def test_the_deviation_is_that_of_the_estimate_where_persons_lack_groups(groups: tuple[Clique, ...]) -> None:
    """Of 10,000 persons who have the first two columns, 4,000 have the others; if both are groups, 2,000 more do."""
    domain, alone = domain_of(4, 3, 2, 5), 2000 if len(groups) == 2 else 0
    sizes = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        measured = []
        for clique, having in (
            (("a0",), 10_000),
            (("a1",), 10_000),
            (("a2",), 4000 + alone),
            (("a3",), 4000 + alone),
            (("a0", "a2"), 4000),
            (("a1", "a3"), 4000),
        ):
            cells = domain.cells(clique)
            measured.append(Measured(clique, having / cells + generator.normal(0, 20, cells), 20.0))
        sizes.append(size_of(domain, measured, groups=groups))
    found = np.array([size.persons for size in sizes])
    assert found.mean() == pytest.approx(10_000 + alone, rel=0.005)
    assert found.std() == pytest.approx(np.mean([size.deviation for size in sizes]), rel=0.2)


def test_a_number_that_is_known_is_the_number_of_rows() -> None:
    domain = domain_of(4, 3)
    assert size_of(domain, noisy_columns(domain, 500, 300.0, 1), total=500) == Size(500, 0.0)
    assert Size(500, 0.0).rows == 500
    for persons in (1000.4, 7421.0, 48_842.0):
        assert Size(persons, persons / 40).rows == round(persons)  # two deviations are a twentieth


def test_there_are_seldom_fewer_rows_than_persons_less_a_twentieth() -> None:
    domain, few, widths = domain_of(5, 5, 5), 0, []
    for seed in range(400):
        size = size_of(domain, noisy_columns(domain, 229, 150.0, seed))
        assert size.persons >= 1
        assert size.rows >= size.persons
        few += size.rows < 229 / 1.05
        widths.append(size.rows)
    assert few / 400 < 0.05
    assert np.median(widths) < 4 * 229 + 2 * 150 * 5**0.5  # but not as many as anybody likes
    assert Size(1.0, 0.0).rows == 1


def test_where_every_column_may_be_missing_the_largest_sum_counts() -> None:
    domain = Domain((Attribute("a", 4, nullable=True), Attribute("b", 9, nullable=True)))
    measured = [Measured(("a",), np.full(4, 100.0), 5.0), Measured(("b",), np.full(9, 60.0), 5.0)]
    assert size_of(domain, measured) == Size(540.0, 15.0)
    assert size_of(domain, measured, total=700) == Size(700, 0.0)


def test_few_rows_would_be_worse_than_the_model() -> None:
    """A total of 38 for 229 persons: rows by the rule are as close to the model as any; 38 are not."""
    domain = domain_of(5, 4, 6, 3)
    truth = np.random.default_rng(3).dirichlet(np.ones(5)) * 38
    measured = [Measured(("a0",), truth, 60.0), Measured(("a0", "a1"), np.outer(truth, np.ones(4) / 4).ravel(), 60.0)]
    size = size_of(domain, measured)
    model = create_estimator("kernel", domain).fit(measured)
    assert size.rows > 229

    def apart(rows: int) -> float:
        """From the model's pairs, on average over draws."""
        found = []
        for seed in range(20):
            codes = model.sample(rows, seed=seed)
            assert (codes != MISSING).all()
            for pair in domain.pairs:
                cells = np.ravel_multi_index(
                    tuple(codes[:, [domain.position(name) for name in pair]].T), domain.shape(pair)
                )
                shares = np.bincount(cells, minlength=domain.cells(pair)) / rows
                found.append(np.abs(shares - model.marginal(pair).ravel() / model.total).sum() / 2)
        return float(np.mean(found))

    assert apart(size.rows) < 0.4 * apart(38)
