"""A simulation is the study's own algorithm on invented rows, and says what it is."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest

from caps.data.domain import Attribute, Domain
from caps.errors import DomainError
from caps.study import simulation
from caps.study.simulation import MOST_PERSONS, invented_rows, simulate
from services.coordinator.central import perform
from tests.kit.study import example_manifest


@pytest.fixture(autouse=True)
def _coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the coordinator were installed, whatever was when these tests began."""
    own = EntryPoint("coordinator", "services.coordinator.central:perform", simulation.SIMULATIONS)
    monkeypatch.setattr(simulation, "entry_points", lambda **asked: EntryPoints([own]).select(**asked))


def test_an_installation_knows_the_coordinators_part() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (declared,) = project["entry-points"][simulation.SIMULATIONS].values()
    assert EntryPoint("coordinator", declared, simulation.SIMULATIONS).load() is perform


def test_invented_rows_are_of_the_domain_and_depend_on_each_other() -> None:
    domain = Domain((Attribute("a", 4), Attribute("b", 3), Attribute("c", 2)))
    rows = invented_rows(domain, 5_000)
    assert rows.shape == (5_000, 3)
    assert (rows >= 0).all()
    assert (rows < np.array(domain.sizes)).all()
    assert np.array_equal(rows, invented_rows(domain, 5_000))
    joint = np.histogram2d(rows[:, 0], rows[:, 1], bins=(4, 3))[0] / 5_000
    apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    assert np.abs(joint - apart).sum() > 0.2


def test_more_budget_and_more_persons_make_better_rows() -> None:
    poor, _ = example_manifest(algorithm="mst", epsilon="0.1")
    rich, _ = example_manifest(algorithm="mst", epsilon="10")
    bad, good = simulate(poor, 500), simulate(rich, 5_000)
    assert good.error < bad.error
    assert good.error < 0.1
    assert (good.persons, len(good.errors)) == (5_000, len(rich.queries.cliques))
    assert 4_500 < good.rows < 5_500
    assert {one.measured for one in good.errors} == {True, False}
    assert good.error == pytest.approx(np.mean([one.misplaced for one in good.errors]))


def test_the_budget_is_the_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, _ = example_manifest(algorithm="mst")
    filters = []

    class Watched(simulation.Filter):  # type: ignore[misc]
        def __init__(self, *arguments: object, **more: object) -> None:
            super().__init__(*arguments, **more)  # type: ignore[arg-type]
            filters.append(self)

    monkeypatch.setattr(simulation, "Filter", Watched)
    simulate(manifest, 100)
    (found,) = filters
    assert Fraction(9, 10) * manifest.budget < found.spent <= manifest.budget


@pytest.mark.parametrize("persons", [0, -1, MOST_PERSONS + 1])
def test_numbers_of_persons_are_bounded(persons: int) -> None:
    manifest, _ = example_manifest()
    with pytest.raises(DomainError, match="1 to 1,000,000 persons"):
        simulate(manifest, persons)


def test_what_cannot_be_simulated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    paper, _ = example_manifest(algorithm={"name": "aim", "noise": "paper:irwin-hall"})
    with pytest.raises(DomainError, match="only certified noise"):
        simulate(paper, 100)
    privacy = {"epsilon": "1", "delta": "1e-6", "population": "patients", "neighbouring": "bounded", "rows": 300}
    fixed, _ = example_manifest(algorithm="mst", privacy=privacy)
    with pytest.raises(DomainError, match=r"300 rows .* not 200"):
        simulate(fixed, 200)
    monkeypatch.setattr(simulation, "entry_points", lambda **_: EntryPoints())
    manifest, _ = example_manifest()
    with pytest.raises(DomainError, match="with the coordinator"):
        simulate(manifest, 100)
