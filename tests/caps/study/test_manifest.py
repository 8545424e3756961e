"""The manifest: one spelling, a digest that covers everything, and a refusal with its place for all that is wrong."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from caps.basics import canonical
from caps.dp.enforce import Enforcer
from caps.dp.noise.plans import WIDEST
from caps.dp.noise.tables import LIMIT
from caps.dp.oracle import drawable
from caps.dp.privacy import ETA_MAX, Gaussian, Role
from caps.dp.programs import names
from caps.errors import DomainError
from caps.study.account import Account
from caps.study.manifest import MAX_DEGREE, MISTAKES, Manifest
from services.mpc_server.engine import recipe
from services.mpc_server.runs import steps as run_steps
from tests.kit.study import COLUMNS, MIXED, ROWS, SCHEMA, Edit, example_json, example_manifest, put


def problems(document: dict[str, Any]) -> list[str]:
    found: list[str] = []
    Manifest.model_validate_json(canonical.dump(document), strict=True, context={MISTAKES: found})
    return found


@pytest.mark.parametrize("holders", [ROWS, COLUMNS, MIXED])
@pytest.mark.parametrize("algorithm", ["aim", "mwem", "mst", "gaussian"])
def test_examples_are_sound(holders: Any, algorithm: str) -> None:
    manifest, keys = example_manifest(holders=holders, algorithm=algorithm)
    assert manifest.mistakes() == []
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.server("S2").signing_key == keys["S2"].signing_key
    assert manifest.holder(holders[0][0]).pin == keys[holders[0][0]].pin
    with pytest.raises(DomainError):
        manifest.holder("nobody")
    with pytest.raises(DomainError):
        manifest.server("S4")


def test_the_canonical_form_does_not_depend_on_spelling() -> None:
    document, _ = example_json(holders=MIXED)
    manifest = Manifest.from_json(document)
    upside_down = dict(reversed(list(document.items())))
    from_yaml = yaml.safe_load(yaml.safe_dump(document))
    from_json = json.loads(json.dumps(document, indent=3))
    for other in (upside_down, from_yaml, from_json, canonical.load(manifest.canonical_bytes())):
        again = Manifest.from_json(other)
        assert again.canonical_bytes() == manifest.canonical_bytes()
        assert again.study_id == manifest.study_id
    assert canonical.load(manifest.canonical_bytes()) == manifest.to_json()


def test_defaults_written_out_are_the_same_study() -> None:
    document, _ = example_json()
    explicit = document | {"workload": "all-pairs", "retention_days": 30, "alignment": None, "scheme": "rep3"}
    assert Manifest.from_json(explicit).study_id == Manifest.from_json(document).study_id


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [("1", "1"), (1, "1"), (1.0, "1"), ("1.0", "1"), (0.5, "0.5"), ("5e-1", "0.5"), ("0.10", "0.1"), ("10", "10")],
)
def test_numbers_of_epsilon_have_one_spelling(epsilon: object, text: str) -> None:
    document, keys = example_json(epsilon=epsilon)  # type: ignore[arg-type]
    manifest = Manifest.from_json(document)
    assert manifest.privacy.epsilon == text
    assert manifest.privacy.exact_epsilon == Fraction(text)
    assert manifest.study_id == Manifest.from_json(example_json(epsilon=text, keys=keys)[0]).study_id


def test_numbers_of_yaml_are_taken_as_written() -> None:
    document, _ = example_json()
    text = yaml.safe_dump(document | {"privacy": {"population": "p"}})
    for delta in ("1e-6", "1.0e-6", "0.000001", "'0.000001'"):
        value = yaml.safe_load(text.replace("population: p", f"population: p\n  epsilon: 0.3\n  delta: {delta}"))
        privacy = Manifest.from_json(value).privacy
        assert (privacy.exact_epsilon, privacy.exact_delta) == (Fraction(3, 10), Fraction(1, 10**6))


@pytest.mark.parametrize("epsilon", [0, -1, "x", True, None, "nan", "inf", 1000, "1e-31", "0." + "1" * 40, [1]])
def test_other_epsilons_are_refused(epsilon: object) -> None:
    document, _ = example_json(epsilon=epsilon)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="epsilon"):
        Manifest.from_json(document)


def _leaves(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [leaf for name, item in value.items() for leaf in _leaves(item, (*place, name))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, (*place, i))]
    return [place]


def test_the_study_id_covers_every_field() -> None:
    manifest, _ = example_manifest(
        holders=COLUMNS,
        workload=[{"attributes": ["age", "smoker"], "weight": 2}, {"attributes": ["region", "diagnosis"]}],
        algorithm={"name": "mwem", "parameters": {"rounds": 3}},
        publication={"rows": 10},
    )
    document = manifest.to_json()
    seen = {manifest.study_id}
    for place in _leaves(document):
        changed = deepcopy(document)
        inner = changed
        for step in place[:-1]:
            inner = inner[step]
        old = inner[place[-1]]
        inner[place[-1]] = not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else f"{old}0"
        digest = canonical.digest("manifest", changed).hex()
        assert digest not in seen, place
        seen.add(digest)
    assert canonical.digest("manifest", document).hex() == manifest.study_id


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("extra",), 1),
        (("privacy", "extra"), 1),
        (("holders", 0, "extra"), 1),
        (("servers", 1, "extra"), 1),
        (("publication",), {"extra": 1}),
        (("retention_days",), 1.5),
        (("retention_days",), "30"),
        (("retention_days",), True),
        (("retention_days",), 0),
        (("alignment",), {"slots": 1.5}),
        (("alignment",), {"slots": "5"}),
        (("privacy", "multiplicity"), 1.5),
        (("privacy", "rows"), "5"),
        (("algorithm", "parameters"), {"rounds": 1.5}),
        (("algorithm", "parameters"), {"rounds": "100"}),
        (("workload",), [{"attributes": ["age"], "weight": 1.5}]),
        (("workload",), [{"attributes": "age"}]),
        (("workload",), "some-pairs"),
        (("workload",), {"label": ["age"]}),
        (("workload",), {"label": "age", "weight": 2}),
        (("publication",), {"measurements": "yes"}),
        (("version",), 2),
        (("scheme",), "semi2k"),
        (("title",), ""),
        (("title",), 5),
        (("title",), "innocent\x1b[2J"),
        (("title",), "innocent\u202e"),
        (("title",), "e\u0301"),
        (("purpose",), "a\nb\u200b"),
        (("alignment",), {"slots": 5, "column": "slot\u200b"}),
        (("servers", 0, "url"), "http://s1.example"),
        (("servers", 0, "url"), "https://s1.example/path"),
        (("servers", 0, "mesh"), "s1.example"),
        (("servers", 0, "pin"), "AB" * 32),
        (("servers", 0, "signing_key"), "ab" * 31),
        (("holders", 0, "name"), "a b"),
        (("holders", 0, "brings"), "cells"),
        (("holders",), []),
        (("servers",), []),
    ],
)
def test_what_is_not_of_the_form_is_refused(place: tuple[str | int, ...], value: object) -> None:
    document, _ = example_json()
    inner: Any = document
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(ValidationError) as caught:
        Manifest.from_json(document)
    assert caught.value.errors()[0]["loc"][0] == place[0]


def test_a_manifest_cannot_be_changed() -> None:
    manifest, _ = example_manifest()
    with pytest.raises(ValidationError):
        manifest.title = "another"  # type: ignore[misc]


def _same_key(document: dict[str, Any]) -> None:
    document["holders"][1]["pin"] = document["servers"][0]["pin"]


def _two_alike(document: dict[str, Any]) -> None:
    document["holders"][1]["name"] = document["holders"][0]["name"]


WIDE = {
    "columns": [{"name": f"c{i}", "kind": "categorical", "categories": [str(j) for j in range(300)]} for i in range(20)]
}
BINARY = {"columns": [{"name": f"c{i}", "kind": "boolean"} for i in range(9)]}

PROBLEM_CASES: list[tuple[str, Any, Edit, list[str]]] = [
    ("server names", ROWS, put("servers", 0, "name", value="S9"), ["servers: "]),
    ("a holder twice", ROWS, _two_alike, ["holders[1].name: "]),
    ("one key, two roles", ROWS, _same_key, ["holders[1]: has the same key as servers[0]"]),
    (
        "unknown column",
        COLUMNS,
        put("holders", 0, "columns", value=["age", "x"]),
        ["holders[0].columns: ", "schema: "],
    ),
    ("no column", COLUMNS, put("holders", 0, "columns", value=[]), ["holders[0].columns: "]),
    ("order of columns", COLUMNS, put("holders", 0, "columns", value=["smoker", "age"]), ["holders[0].columns: "]),
    (
        "column twice",
        COLUMNS,
        put("holders", 0, "columns", value=["age", "age"]),
        ["holders[0].columns: ", "schema: "],
    ),
    ("rows without a column", ROWS, put("holders", 0, "columns", value=["age"]), ["holders[0].columns: a holder that"]),
    (
        "no alignment",
        COLUMNS,
        lambda d: d.pop("alignment"),
        ["alignment: a study in which holders bring columns must have either this or a join"],
    ),
    ("needless alignment", ROWS, put("alignment", value={"slots": 5}), ["alignment: must be left out"]),
    ("slot is a column", COLUMNS, put("alignment", "column", value="age"), ["alignment.column: "]),
    (
        "nobody's column",
        COLUMNS,
        put("holders", 1, "columns", value=["region"]),
        ["schema: no holder brings column diag"],
    ),
    ("secret rows", ROWS, put("privacy", "rows", value=5), ["privacy.rows: "]),
    ("delta of 1", ROWS, put("privacy", "delta", value="1"), ["privacy.delta: "]),
    ("bad column", ROWS, put("schema", "columns", 0, "bin_edges", value=[3, 1]), ["schema.columns[0].bin_edges"]),
    ("column of no kind", ROWS, put("schema", "columns", 1, value=7), ["schema.columns[1]: "]),
    ("name twice", ROWS, put("schema", "columns", 1, "name", value="age"), ["schema.columns[1].name: "]),
    ("schema's version", ROWS, put("schema", "version", value=9), ["schema.version: "]),
    ("schema without columns", ROWS, put("schema", value={}), ["schema.columns: "]),
    ("unknown attribute", ROWS, put("workload", value=[{"attributes": ["x"]}]), ["workload[0].attributes: "]),
    ("no attribute", ROWS, put("workload", value=[{"attributes": []}]), ["workload[0].attributes: "]),
    ("attribute twice", ROWS, put("workload", value=[{"attributes": ["age", "age"]}]), ["workload[0].attributes: "]),
    ("no weight", ROWS, put("workload", value=[{"attributes": ["age"], "weight": 0}]), ["workload[0].weight: "]),
    ("no query", ROWS, put("workload", value=[]), ["workload: "]),
    ("unknown label", ROWS, put("workload", value={"label": "x"}), ["workload.label: the schema has no column 'x'"]),
    (
        "query twice",
        ROWS,
        put("workload", value=[{"attributes": ["age", "smoker"]}, {"attributes": ["smoker", "age"]}]),
        ["workload[1]: asks for the same attributes as workload[0]"],
    ),
    ("unknown algorithm", ROWS, put("algorithm", value={"name": "x"}), ["algorithm.name: "]),
    (
        "unknown parameter",
        ROWS,
        put("algorithm", value={"name": "aim", "parameters": {"x": 1}}),
        ["algorithm.parameters: "],
    ),
    (
        "no rounds",
        ROWS,
        put("algorithm", value={"name": "aim", "parameters": {"rounds": 0}}),
        ["algorithm.parameters: "],
    ),
    ("pure Gaussian", ROWS, put("privacy", "accounting", value="pure"), ["privacy.accounting: "]),
    ("too many cells", ROWS, put("schema", value=WIDE), ["workload: "]),
    (
        "marginals too wide for columns",
        [("a", [f"c{i}" for i in range(9)])],
        lambda d: d.update(
            schema=BINARY, workload=[{"attributes": [f"c{i}" for i in range(9)]}], algorithm={"name": "gaussian"}
        ),
        ["workload: a query has 9 attributes"],
    ),
]


@pytest.mark.parametrize(
    ("holders", "edit", "expected"), [case[1:] for case in PROBLEM_CASES], ids=[case[0] for case in PROBLEM_CASES]
)
def test_every_problem_is_reported_with_its_place(holders: Any, edit: Edit, expected: list[str]) -> None:
    document, _ = example_json(holders=holders)
    document = deepcopy(document)
    edit(document)
    found = problems(document)
    assert len(found) >= len(expected)
    for start in expected:
        assert any(problem.startswith(start) for problem in found), found
    with pytest.raises(ValidationError, match="Value error"):
        Manifest.from_json(document)


SEEN = [{"name": "age", "kind": "boolean"}]
LOOK_ALIKES: dict[str, tuple[Edit, str]] = {
    "parties": (lambda document: document["holders"][1].update(name="clinic-A"), "holders: clinic-a and clinic-A look"),
    "columns": (
        lambda document: document.update(schema={"columns": [*SEEN, {"name": "аge", "kind": "boolean"}]}),
        "schema.columns: has names that look alike: age and аge",
    ),
    "categories": (
        lambda document: document.update(
            schema={"columns": [{"name": "x", "kind": "categorical", "categories": ["cat", "сat"]}]}
        ),
        "schema.columns[0].categories: has texts that look alike: cat and сat",
    ),
    "a value and a missing one": (
        lambda document: document.update(
            schema={"columns": [{"name": "x", "kind": "categorical", "categories": ["o"], "missing_values": ["ο"]}]}
        ),
        "schema.columns[0].categories: has texts that look alike",
    ),
    "an unseen letter": (
        lambda document: document.update(schema={"columns": [{"name": "a\u00adge", "kind": "boolean"}]}),
        "schema.columns[0].name: ",
    ),
    "a category that moves others": (
        lambda document: document.update(
            schema={"columns": [{"name": "x", "kind": "categorical", "categories": ["a", "\u2066b"]}]}
        ),
        "schema.columns[0].categories[1]: must not contain U+2066",
    ),
    "a category in another normal form": (
        lambda document: document.update(
            schema={"columns": [{"name": "x", "kind": "categorical", "categories": ["a", "u\u0308"]}]}
        ),
        "schema.columns[0].categories[1]: must be in Unicode's normal form C",
    ),
    "a note": (
        lambda document: document.update(schema={"columns": [SEEN[0] | {"note": "\x1b]0;title\x07"}]}),
        "schema.columns[0].note: must not contain U+001B",
    ),
}


@pytest.mark.parametrize(("edit", "expected"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_names_that_people_cannot_tell_apart_are_refused(edit: Edit, expected: str) -> None:
    document = deepcopy(example_json()[0])
    edit(document)
    assert any(problem.startswith(expected) for problem in problems(document)), problems(document)
    with pytest.raises(ValidationError):
        Manifest.from_json(document)


def test_a_column_that_looks_like_the_one_of_slots_is_refused() -> None:
    document, _ = example_json(holders=COLUMNS, alignment={"slots": 8, "column": "аge"})
    assert "schema: columns age and аge look alike" in problems(document)


TEN = {"columns": [{"name": f"c{i}", "kind": "boolean"} for i in range(10)]}


def test_a_delta_below_what_checks_of_inputs_may_err_is_refused() -> None:
    """Each holder of columns adds 2^-47."""
    (found,) = problems(example_json(holders=COLUMNS, delta="1e-14")[0])
    assert found.startswith("privacy.delta: delta must exceed 1.4e-14, which covers the distance of noise")
    assert problems(example_json(holders=COLUMNS, delta="1.5e-14")[0]) == []
    assert problems(example_json(delta="1e-14")[0]) == []  # holders of rows add nothing


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        (
            {"epsilon": "0.0001", "delta": "1e-9"},
            "privacy.epsilon: 0.0001 is too small for aim over 10 columns with 160 rounds: a single step would get so "
            "little of it that its noise is as wide as 539,241 persons; a count with noise of more than 100,000 is not "
            "worth a budget. 0.00060 is enough for that; fewer rounds, queries or columns need less",
        ),
        (
            {"epsilon": "0.0001", "delta": "1e-9", "algorithm": "mst"},
            "privacy.epsilon: 0.0001 is too small for mst over 10 columns with 9",
        ),
        (
            {"epsilon": "0.0001", "delta": "1e-9", "algorithm": "mwem"},
            "privacy.epsilon: 0.0001 is too small for mwem over 10 columns with 20",
        ),
        (
            {"epsilon": "1e-7", "delta": "1e-12", "algorithm": "gaussian"},
            "privacy.epsilon: 0.0000001 is too small for gaussian over 10 columns: ",
        ),
        (
            {"algorithm": "mwem", "privacy": {"epsilon": "0.0001", "accounting": "pure"}},
            "privacy.epsilon: 0.0001 is too small for mwem over 10 columns with 20 rounds: ",
        ),
        (
            {
                "algorithm": {"name": "mwem", "parameters": {"rounds": 1}},
                "privacy": {"epsilon": "200", "delta": "0.5", "accounting": "pure"},
            },
            "privacy.delta: delta must exceed 1.3e+69, ",
        ),
        (
            {"algorithm": "mwem", "privacy": {"epsilon": "8", "delta": "1e-15", "accounting": "pure"}},
            "privacy.delta: delta must exceed 5.2e-15, which covers the distance of noise and of pseudorandom",
        ),
        (
            {"algorithm": {"name": "mwem", "noise": "paper:irwin-hall"}, "privacy": {"accounting": "pure"}},
            "algorithm.noise: paper:irwin-hall is Gaussian",
        ),
    ],
)
def test_what_could_only_fail_later_is_refused_now(choices: dict[str, Any], problem: str) -> None:
    privacy = {"epsilon": "1", "delta": "1e-6", "population": "p"}
    choices = choices | ({"privacy": privacy | choices["privacy"]} if "privacy" in choices else {})
    (found,) = problems(example_json(schema=TEN, **choices)[0])
    assert found.startswith(problem)


@pytest.mark.parametrize("algorithm", ["aim", "mwem", "mst"])
@pytest.mark.parametrize("accounting", ["zcdp", "pure"])
def test_the_epsilon_told_is_enough_and_hardly_less_is_and_fewer_rounds_need_less(
    algorithm: str, accounting: str
) -> None:
    def refusals(epsilon: object, choice: object = algorithm) -> list[str]:
        privacy = {"epsilon": str(epsilon), "delta": "1e-9", "population": "p", "accounting": accounting}
        return problems(example_json(schema=TEN, privacy=privacy, algorithm=choice)[0])

    if accounting == "pure" and algorithm != "mwem":
        assert refusals("1") == ["privacy.accounting: Gaussian noise is not pure DP and needs a budget in rho"]
        return
    (problem,) = refusals("0.00004")
    (told,) = re.findall(r"\. ([0-9.]+) is enough for that; ", problem)
    assert refusals(told) == []
    assert refusals(Decimal(told) * Decimal("0.9"))[0].endswith(problem[problem.index(" is enough") :])
    if algorithm != "mst":
        assert refusals(Decimal(told) * Decimal("0.9"), {"name": algorithm, "parameters": {"rounds": 5}}) == []


THREE = {"columns": [{"name": f"c{i}", "kind": "boolean"} for i in range(3)]}


@pytest.mark.parametrize("epsilon", ["0.0004", "0.02", "1", "9"])
@pytest.mark.parametrize("neighbouring", ["unbounded", "bounded"])
@pytest.mark.parametrize("accounting", ["zcdp", "pure"])
@pytest.mark.parametrize("algorithm", names())
def test_every_choice_is_refused_or_can_be_run_to_its_end(
    algorithm: str, accounting: str, neighbouring: str, epsilon: str
) -> None:
    """What servers may be asked, whatever is annealed or offered: all of it has noise, before anything is charged."""
    parameters = {"rounds": 3} if algorithm in ("aim", "mwem") else {}
    privacy = {"epsilon": epsilon, "delta": "1e-6", "population": "p"}
    privacy |= {"accounting": accounting, "neighbouring": neighbouring}
    for noise in ("joint", "paper:irwin-hall", "paper:box-muller"):
        choice = {"name": algorithm, "parameters": parameters, "noise": noise}
        document, _ = example_json(schema=THREE, algorithm=choice, privacy=privacy)
        found = problems(document)
        if found:
            assert all(problem.startswith(("privacy.", "algorithm.")) for problem in found)
            batched = algorithm == "swift" and noise != "joint"
            assert epsilon != "1" or accounting == "pure" or batched
            continue
        manifest = Manifest.from_json(document)
        enforcer = Enforcer.start(manifest.program, manifest.task, manifest.layout)
        steps = enforcer.upcoming(1000)
        assert len({step.step for step in steps}) > (1 if algorithm == "swift" else 2)
        for widest in manifest.program.schedule(manifest.task).extremes():  # of a batch too, which is not foreseen
            assert drawable(widest, 1, manifest.task.neighbouring)
        for step in steps:
            assert step.plan(manifest.task.neighbouring).distance <= LIMIT
            lightest = replace(step, weight=min(manifest.program.candidates(manifest.task).values(), default=0))
            if step.selects:
                assert lightest.plan(manifest.task.neighbouring).distance <= LIMIT
            elif noise != "joint":
                assert isinstance(step.mechanism, Gaussian)
                assert (
                    step.mechanism.sigma_squared
                    <= WIDEST**2
                    < (2.0 ** (62 - 2 * run_steps._FRAC) / run_steps._FRAC) ** 2
                )
        Account(manifest, []).statement()


def test_all_problems_are_reported_at_once() -> None:
    document, _ = example_json(holders=COLUMNS)
    document = deepcopy(document)
    for edit in (
        _same_key,
        put("holders", 0, "columns", value=["smoker", "age"]),
        put("privacy", "rows", value=5),
        put("schema", "columns", 0, "bin_edges", value=[1]),
        put("schema", "columns", 2, "categories", value=[]),
        put("workload", value=[{"attributes": ["x"]}, {"attributes": ["y"]}]),
        put("algorithm", value={"name": "x"}),
    ):
        edit(document)
    places = [problem.partition(":")[0] for problem in problems(document)]
    assert places == [
        "schema.columns[0].bin_edges",
        "schema.columns[2].categories",
        "holders[1]",
        "holders[0].columns",
        "privacy.rows",
        "workload[0].attributes",
        "workload[1].attributes",
        "algorithm.name",
    ]
    with pytest.raises(ValidationError) as caught:
        Manifest.from_json(document)
    assert all(place in str(caught.value) for place in places)


def test_a_run_that_would_be_stopped_halfway_is_refused() -> None:
    schema = {
        "columns": [
            {"name": f"c{i}", "kind": "categorical", "categories": [str(j) for j in range(250)]} for i in range(12)
        ]
    }
    document, keys = example_json(schema=schema)
    assert [problem for problem in problems(document) if "noise values" in problem] == problems(document) != []
    fewer, _ = example_json(schema=schema, keys=keys, algorithm={"name": "aim", "parameters": {"rounds": 20}})
    assert problems(fewer) == []


@pytest.mark.parametrize("rounds", [12, 61])
def test_the_forecast_bounds_every_path(rounds: int) -> None:
    """Walk the schedule with any choices: never more draws, nor more distance, than foretold."""
    manifest, _ = example_manifest(algorithm={"name": "aim", "parameters": {"rounds": rounds}})
    forecast, task, program = manifest.forecast, manifest.task, manifest.program
    assert forecast.eta() == forecast.draws * Fraction(1, 2**80) < ETA_MAX
    per = {
        Role.INITIAL: sum(manifest.domain.cells(c) for c in program.initial(task)),
        Role.SELECT: len(program.candidates(task)),
        Role.MEASURE: program.draws(task),
    }
    assert forecast.again is not None
    columns = per[Role.INITIAL]
    exact = sum((forecast._strays(spend) for spend in forecast.spends), columns * Fraction(1, 2**80))
    settled = []
    for annealing, settling in product((0, 1, 2, 99), (False, True)):
        schedule, draws, distance, level = program.schedule(task), 0, Fraction(0), 0
        settled.append(False)
        while (step := schedule.step) is not None:
            count = per[step.role]
            assert count is not None
            draws += count
            distance += count * forecast._distance(step.mechanism)
            choices = schedule.following()  # go on, anneal, settle
            anneals = len(choices) > 1 and level < annealing
            level += anneals
            settles = settling and len(choices) > 2
            settled[-1] |= settles
            schedule = choices[-1] if settles else choices[1] if anneals else choices[0]
        assert draws <= forecast.draws
        assert distance <= exact
        assert (draws == forecast.draws - columns) == (annealing == 0 and not settled[-1])
    assert any(settled)


def test_the_degree_is_the_engines() -> None:
    assert MAX_DEGREE == recipe.MAX_DEGREE


def test_columns_of_a_holder() -> None:
    manifest, _ = example_manifest(holders=MIXED)
    assert manifest.columns_of(manifest.holder("lab")).domain().names == ("region", "diagnosis")
    assert manifest.columns_of(manifest.holder("clinic-a")).domain().names == manifest.domain.names
    assert [column["name"] for column in SCHEMA["columns"]] == list(manifest.domain.names)


def test_roles() -> None:
    manifest, _ = example_manifest()
    assert manifest.servers[0].role == "caps:mpc-server/S1"
    assert manifest.coordinator.role == "caps:coordinator/coordinator"
    assert manifest.holders[0].role == "caps:holder/clinic-a"


@pytest.mark.parametrize("columns", [2, 3, 4, 11, 40])
def test_the_pairs_of_a_label_count_as_much_as_all_others_together(columns: int) -> None:
    document, _ = example_json(holders=ROWS)
    document["schema"] = {"columns": [{"name": f"c{i}", "kind": "boolean"} for i in range(columns)]}
    document["workload"] = {"label": "c1"}
    queries = Manifest.from_json(document).queries
    assert set(queries.cliques) == set(combinations([f"c{i}" for i in range(columns)], 2))
    weights = dict(zip(queries.cliques, queries.weights, strict=True))
    label = [weight for clique, weight in weights.items() if "c1" in clique]
    others = [weight for clique, weight in weights.items() if "c1" not in clique]
    assert set(others) <= {1}
    assert len(set(label)) == 1
    assert sum(others) <= sum(label) < sum(others) + columns
