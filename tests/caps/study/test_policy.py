"""A server's own rules: each objection, and files that are none."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from caps.dp.privacy import PopulationBudget, pure_rho
from caps.errors import DomainError
from caps.study.policy import Policy
from tests.kit.study import COLUMNS, POPULATIONS, example_manifest

PURE = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}


def test_a_careful_operators_defaults_accept_the_example() -> None:
    policy = Policy(populations=POPULATIONS)
    assert policy.judge(example_manifest()[0]) == []
    assert policy.judge(example_manifest(holders=COLUMNS)[0]) == []
    assert policy.approval == "manual"


@pytest.mark.parametrize(
    ("study", "policy", "objection"),
    [
        ({"epsilon": "1.001"}, {}, "epsilon 1.001 exceeds this server's limit of 1"),
        ({"epsilon": "1"}, {"largest_epsilon": 0.5}, "epsilon 1 exceeds"),
        ({"delta": "0.00001"}, {}, "delta 0.00001 exceeds this server's limit of 1e-06"),
        ({"population": "others"}, {"default_population_epsilon": 0.5}, "budget of population others"),
        ({"population": "patients2"}, {}, "privacy.population: patients2 is not registered on this server"),
        ({"population": "others"}, {}, "can add it to `populations` in policy.yaml"),
        ({"population": "Patients"}, {}, "Patients looks like patients, which is registered"),
        ({"population": "patlents"}, {"populations": {"patIents": 9}}, "patlents looks like patIents"),
        ({"population": "Patients"}, {"default_population_epsilon": 5}, "Patients looks like patients"),
        ({}, {"populations": {"patients": 0.9}}, "budget of population patients"),
        ({"holders": [("a", None)]}, {}, "the study has 1 holders; this server requires at least 2"),
        ({}, {"largest_domain": 74}, "75 cells exceed this server's limit of 74"),
        ({"holders": COLUMNS}, {"largest_slots": 63}, "64 slots exceed this server's limit of 63"),
        (
            {"holders": COLUMNS, "slots": 1_000_000},
            {"largest_memory": 100_000_000},
            "memory exceed this server's limit",
        ),
        ({}, {"algorithms": ["mst"]}, "does not allow the algorithm aim"),
        ({"algorithm": {"name": "aim", "noise": "paper:box-muller"}}, {}, "paper:box-muller has no proven guarantee"),
        ({}, {"coordinators": ["other"]}, "does not work with the coordinator coordinator"),
    ],
)
def test_each_objection(study: dict[str, Any], policy: dict[str, Any], objection: str) -> None:
    objections = Policy.model_validate({"populations": POPULATIONS} | policy).judge(example_manifest(**study)[0])
    assert len(objections) == 1
    assert objection in objections[0]


def test_all_objections_are_told() -> None:
    manifest, _ = example_manifest(epsilon="5", holders=[("a", None)], delta="0.001")
    assert len(Policy(algorithms=(), coordinators=("x",), populations=POPULATIONS).judge(manifest)) == 6


def test_limits_are_met_exactly() -> None:
    """0.1 in a file is a tenth, whatever a float makes of it."""
    policy = Policy(largest_epsilon=0.1, populations={"patients": 0.1})
    assert policy.judge(example_manifest(epsilon="0.1")[0]) == []
    assert len(policy.judge(example_manifest(epsilon="0.1000000000000000001")[0])) == 2


def test_populations_have_the_budgets_they_are_registered_with() -> None:
    policy = Policy(populations={"patients": 2.0})
    assert policy.population_budget("patients") == PopulationBudget(Fraction(2), Fraction(1, 10**6))
    assert policy.population_budget("others") is None
    lavish = Policy(populations={"patients": 2.0}, default_population_epsilon=3.0)
    assert lavish.population_budget("patients") == policy.population_budget("patients")
    assert lavish.population_budget("others") == PopulationBudget(Fraction(3), Fraction(1, 10**6))
    assert example_manifest()[0].budget == example_manifest()[0].task.zcdp
    assert example_manifest(algorithm="mwem", privacy=PURE)[0].budget == pure_rho(Fraction(1))


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("approval: automatic\nlargest_epsilon: 2\npopulations: {patients: 4.5}\nalgorithms: [aim]\n")
    policy = Policy.read(path)
    assert (policy.approval, policy.largest_epsilon, policy.algorithms) == ("automatic", 2.0, ("aim",))
    path.write_text("# nothing but the defaults\n")
    assert Policy.read(path) == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: not YAML|line 2: not YAML"),
        ("- a", "a policy must be a list of members"),
        ("text", "a policy must be a list of members"),
        ("approval: never", "approval: "),
        ("largest_epsilon: -1", "largest_epsilon: "),
        ("largest_epsilon: .inf", "largest_epsilon: "),
        ("largest_delta: 1", "largest_delta: "),
        ("populations: {patients: .nan}", "populations.patients: "),
        ("populations: {patients: 30}", "populations.patients: delta must exceed"),
        ("default_population_epsilon: 30", "default_population_epsilon: delta must exceed"),
        ("least_holders: 0", "least_holders: "),
        ("unknown: 1", "unknown: "),
        ("unknown: 1\nlargest_delta: 7\n", "largest_delta: .*; unknown: "),
    ],
)
def test_what_is_no_policy_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(DomainError, match=message) as caught:
        Policy.read(path)
    assert str(caught.value).startswith(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="cannot be read"):
        Policy.read(tmp_path / "absent.yaml")
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DomainError, match="not YAML"):
        Policy.read(path)
