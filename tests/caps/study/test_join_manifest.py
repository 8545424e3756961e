"""Studies that join rows by a key: what the manifest admits, what it says of contributions and leaks, what it costs,
and the help for whoever writes one."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from caps.audit.verification import verify
from caps.basics import canonical
from caps.data.joinkey import JoinKey
from caps.data.linkage import ID_BYTES, RowFormat
from caps.data.schema import Schema
from caps.dp.oracle import overlaps_plan
from caps.dp.privacy import RELEASE
from caps.errors import DomainError
from caps.study import manifest as manifests
from caps.study import memory
from caps.study.authoring import check, load, template
from caps.study.manifest import MAX_SLOTS, MAX_TABLES, MISTAKES, Form, Join, Manifest
from caps.study.planning import plan_study
from caps.study.policy import Policy
from services.mpc_server.costs import costs_of
from services.mpc_server.engine import alignment, counting
from services.mpc_server.engine import join as engine
from services.mpc_server.engine.alignment import Dummies
from services.mpc_server.engine.compute import HorizontalInput
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.rep3_active import claims
from services.mpc_server.engine.steps import draw_noise
from services.mpc_server.testing.world import World
from tests.kit.cases.join import dealt, received
from tests.kit.study import (
    COLUMNS,
    KEY,
    MIXED,
    NOW,
    POPULATIONS,
    ROWS,
    SCHEMA,
    SHARED,
    Edit,
    contribution_of,
    example_json,
    example_release,
    honest_walk,
    joined_json,
    joined_manifest,
    put,
)

DOCS = Path(__file__).parents[3] / "docs"


PURE = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}


def problems(document: dict[str, Any]) -> list[str]:
    found: list[str] = []
    Manifest.model_validate_json(canonical.dump(document), strict=True, context={MISTAKES: found})
    return found


def no_capacity(document: dict[str, Any]) -> None:
    del document["holders"][1]["capacity"]


PROBLEM_CASES: list[tuple[str, Any, Edit, list[str]]] = [
    (
        "both",
        SHARED,
        put("alignment", value={"slots": 9}),
        ["alignment: a study in which holders bring columns must have either this or a join"],
    ),
    ("neither", SHARED, lambda d: d.pop("join"), ["alignment: a study in", *[f"holders[{i}].cap" for i in range(3)]]),
    ("nobody to join", ROWS, lambda _: None, ["join: must be left out because no holder brings columns"]),
    ("no capacity", SHARED, no_capacity, ["holders[1].capacity: is required where rows are joined"]),
    ("capacity of rows", MIXED, put("holders", 0, "capacity", value=9), ["holders[0].capacity: is only for holders"]),
    (
        "too many rows",
        SHARED,
        lambda d: [put("holders", i, "capacity", value=MAX_SLOTS // 2)(d) for i in range(3)],
        ["holders: capacities add up to more than"],
    ),
    (
        "inner by tags",
        SHARED,
        put("join", value={"key": KEY, "protocol": "oprf", "mode": "inner"}),
        ["join.mode: oprf only supports a union"],
    ),
    (
        "nobody's column",
        SHARED,
        put("holders", 2, "columns", value=["region"]),
        ["schema: no holder brings column diag"],
    ),
]


@pytest.mark.parametrize(
    ("holders", "edit", "expected"), [case[1:] for case in PROBLEM_CASES], ids=[case[0] for case in PROBLEM_CASES]
)
def test_every_problem_is_reported_with_its_place(holders: Any, edit: Edit, expected: list[str]) -> None:
    document = joined_json(holders=holders)
    edit(document)
    found = problems(document)
    assert len(found) == len(expected), found
    for problem, start in zip(found, expected, strict=True):
        assert problem.startswith(start), found
    with pytest.raises(ValidationError, match="Value error"):
        Manifest.from_json(document)


def test_capacity_needs_a_join() -> None:
    document, _ = example_json(holders=COLUMNS)
    document["holders"][0]["capacity"] = 9
    assert problems(document) == ["holders[0].capacity: is only for holders whose rows are joined"]


def test_limits_are_met_exactly() -> None:
    dummies = joined_manifest().dummies
    sizes = [MAX_SLOTS - 20 - 3 * 3 * dummies, 10, 10]  # each of three tables is in three sets
    document = joined_json()
    for holder, capacity in zip(document["holders"], sizes, strict=True):
        holder["capacity"] = capacity
    assert problems(document) == []
    document["holders"][1]["capacity"] += 1
    (problem,) = problems(document)
    assert problem.startswith(f"holders: capacities, with {dummies:,} dummies for each of 4 sets of holders, add up to")


def test_as_many_tables_as_dummies_can_be_planted_for() -> None:
    assert MAX_TABLES <= alignment.MAX_TABLES
    assert joined_manifest().overlap_sets == len(alignment.sets_of(3)) == 4
    many = [(f"h{i}", [column["name"] for column in SCHEMA["columns"]]) for i in range(MAX_TABLES + 1)]
    document = joined_json(holders=many)
    (problem,) = problems(document)
    assert problem.startswith(
        f"holders: the rows of at most {MAX_TABLES} holders can be joined on shares, not of {MAX_TABLES + 1}"
    )
    document["holders"].pop()
    assert problems(document) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("join",), {}),
        (("join", "extra"), 1),
        (("join", "mode"), "left"),
        (("join", "protocol"), "psi"),
        (("join", "key", "columns"), []),
        (("join", "key", "columns", 0, "kind"), "name"),
        (("join", "key", "columns", 0, "extra"), 1),
        (("join", "key", "columns", 1, "formats"), []),
        (("join", "key", "columns", 1, "formats"), ["%d.%m.%Y", "%m.%d.%Y"]),
        (("join", "key", "columns", 1, "name"), "number"),
        (("join", "key", "duplicates"), "drop"),
        (("holders", 0, "capacity"), 0),
        (("holders", 0, "capacity"), MAX_SLOTS + 1),
        (("holders", 0, "capacity"), "200"),
    ],
)
def test_what_is_not_of_the_form_is_refused(place: tuple[str | int, ...], value: object) -> None:
    document = joined_json()
    put(*place, value=value)(document)
    with pytest.raises(ValidationError) as caught:
        Manifest.from_json(document)
    assert caught.value.errors()[0]["loc"][0] == place[0]


def test_the_canonical_form_does_not_depend_on_spelling() -> None:
    document = joined_json()
    manifest = Manifest.from_json(document)
    explicit = deepcopy(document)
    explicit["join"] |= {"mode": "union", "protocol": "shuffle"}
    explicit["join"]["key"] |= {"version": 1, "duplicates": "refuse", "missing": "refuse", "unparsable": "refuse"}
    explicit["join"]["key"]["columns"][0] |= {"case": "fold", "missing_values": []}
    for other in (explicit, dict(reversed(document.items())), yaml.safe_load(yaml.safe_dump(document))):
        again = Manifest.from_json(other)
        assert again.canonical_bytes() == manifest.canonical_bytes()
        assert again.study_id == manifest.study_id
    assert canonical.load(manifest.canonical_bytes()) == manifest.to_json()
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.join is not None
    assert manifest.join.key.digest == JoinKey.from_json(KEY).digest


@pytest.mark.parametrize(
    "edit",
    [
        put("join", "mode", value="inner"),
        put("join", "protocol", value="oprf"),
        put("join", "key", "missing", value="drop"),
        put("join", "key", "columns", 0, "remove", value="/"),
        put("holders", 0, "capacity", value=201),
    ],
)
def test_another_join_is_another_study(edit: Edit) -> None:
    document = joined_json()
    before = Manifest.from_json(document).study_id
    edit(document)
    assert Manifest.from_json(document).study_id != before


def test_forms_of_all_kinds_of_holders() -> None:
    manifest = joined_manifest(holders=MIXED, capacity=150)
    clinic, registry, lab = manifest.holders
    assert manifest.form_of(clinic) == Form("marginals", 32, (manifest.layout.cells,))
    # age has 4 values and the missing one, smoker 2: 3 + 2 bits; region 3, diagnosis 4: 2 + 3 bits
    assert manifest.form_of(registry) == Form("records", 8, (150, ID_BYTES + 1))
    assert manifest.form_of(lab) == Form("records", 8, (150, RowFormat(manifest.columns_of(lab).domain()).row_bytes))
    assert manifest.form_of(lab).bytes == 150 * 17
    assert manifest.slots is None
    tagged = joined_manifest(holders=MIXED, capacity=150, join={"protocol": "oprf"})
    assert tagged.slots == 300
    assert tagged.form_of(tagged.holders[1]) == Form("columns", 16, (300, 6))
    assert tagged.form_of(tagged.holders[0]).form == "marginals"
    aligned = Manifest.from_json(example_json(holders=COLUMNS, slots=64)[0])
    assert aligned.form_of(aligned.holders[1]) == Form("columns", 16, (64, 7))
    large = joined_manifest(holders=MIXED, capacity=40_000, join={"protocol": "oprf"})
    assert large.form_of(large.holders[1]) == Form("columns", 24, (80_000, 6))


def test_a_contribution_must_have_the_form() -> None:
    manifest = joined_manifest()
    holder = manifest.holders[2]
    form = manifest.form_of(holder)._asdict()
    contribution_of(manifest, holder, **form).check(manifest)
    for changes in ({"form": "columns"}, {"bits": 16}, {"shape": (199, 17)}, {"shape": (200, 18)}, {"shape": (3400,)}):
        with pytest.raises(DomainError, match="expects records of shape 200x17 in 8 bits from insurer"):
            contribution_of(manifest, holder, **form | changes).check(manifest)


def test_views_say_what_is_covered_and_what_is_not() -> None:
    plain, shuffle = Manifest.from_json(example_json()[0]), joined_manifest()
    tags = joined_manifest(join={"protocol": "oprf"})
    assert plain.leaks == shuffle.leaks == ()
    assert plain.views[0] == shuffle.views[0] == tags.views[0] == RELEASE
    assert "any one server, with the coordinator and any holders, sees" in plain.views[1]
    assert "4 sets of holders" in shuffle.views[1]
    assert f"up to {shuffle.dummies:,} dummies" in shuffle.views[1]
    assert all(leak in tags.views[1] for leak in tags.leaks)
    assert "NOT differentially private" in tags.views[1]
    assert "against S1 together with a holder, nothing hides" in tags.views[1]


def test_a_certificate_that_conceals_what_is_not_covered_fails() -> None:
    document, keys = example_json(holders=COLUMNS)
    manifest = Manifest.from_json(joined_json(holders=COLUMNS, keys=keys, join={"protocol": "oprf"}))
    assert document["holders"][0]["name"] == manifest.holders[0].name
    honest = honest_walk(manifest)[0].statement()
    said = {
        "sound": honest,
        "omits an assumption": replace(honest, assumptions=honest.assumptions[:-1]),
        "does not say correctly what the guarantee covers": replace(honest, views=honest.views[:1]),
        "delta is not divided as": replace(honest, allowance=replace(honest.allowance, soundness=F(0))),
    }
    for reason, statement in said.items():
        checks = verify(example_release(manifest, keys, statement=statement).certificate, now=NOW)
        told = [one.passed for one in checks if reason in one.explanation]
        assert told == ([] if reason == "sound" else [False])


def test_what_servers_see_of_a_join_is_part_of_the_budget() -> None:
    manifest = joined_manifest()
    entry = manifest.overlaps_entry
    assert entry is not None
    charge = entry.rho(manifest.neighbouring)
    assert manifest.budget / 20 * (1 - F(1, 2**50)) < charge <= manifest.budget / 20
    assert manifest.task.zcdp == manifest.budget - charge
    assert (entry.draws, entry.certified, entry.step) == (4, True, "compute")
    pure = joined_manifest(algorithm="mwem", privacy=PURE)
    assert pure.overlaps_entry is not None
    assert pure.overlaps_entry.epsilon(pure.neighbouring) <= F(1, 20)
    assert pure.task.pure_epsilon == 1 - pure.overlaps_entry.epsilon(pure.neighbouring)
    for other in (joined_manifest(join={"protocol": "oprf"}), Manifest.from_json(example_json(holders=COLUMNS)[0])):
        assert (other.overlaps, other.dummies, other.overlap_sets) == (None, 0, 0)
        assert other.task.zcdp == other.budget


def test_an_epsilon_too_small_to_hide_overlaps_is_refused() -> None:
    document = joined_json(epsilon="0.01", delta="1e-9", algorithm="gaussian")
    (problem,) = problems(document)
    assert re.match(r"privacy.epsilon: a set of tables would need [0-9,]+ dummies; it can have at most 65,534", problem)


@pytest.mark.parametrize(
    ("study", "policy", "objection"),
    [
        ({"capacity": 99}, {}, "{} has a capacity of 99 rows; this server requires at least 100"),
        (
            {"capacity": 100},
            {"least_capacity": 101},
            "{} has a capacity of 100 rows; this server requires at least 101",
        ),
    ],
)
def test_small_tables_are_objected_to_by_name(study: dict[str, Any], policy: dict[str, Any], objection: str) -> None:
    """A table of few persons turns overlaps into answers about each of them."""
    manifest = joined_manifest(**study)
    assert Policy.model_validate({"populations": POPULATIONS} | policy).judge(manifest) == [
        objection.format(one.name) for one in manifest.holders
    ]


def test_a_policy_may_refuse_the_light_protocol() -> None:
    manifest = joined_manifest(capacity=100, join={"protocol": "oprf"})
    strict = Policy(populations=POPULATIONS, joins=("shuffle",))
    assert strict.judge(manifest) == ["this server does not allow joining by oprf"]
    assert Policy(populations=POPULATIONS).judge(manifest) == []


def test_policies_limit_the_rows_of_all_tables() -> None:
    manifest = joined_manifest(capacity=100)
    assert Policy(populations=POPULATIONS).judge(manifest) == []
    assert Policy(populations=POPULATIONS, largest_slots=300).judge(manifest) == []
    strict = Policy(populations=POPULATIONS, largest_slots=299)
    assert strict.judge(manifest) == ["300 rows exceed this server's limit of 299"]
    tags = joined_manifest(capacity=100, join={"protocol": "oprf"})
    assert strict.judge(tags) == ["300 rows exceed this server's limit of 299"]


def test_plans_say_what_rows_cost() -> None:
    manifest = joined_manifest(capacity=1000)
    found = plan_study(manifest, costs_of(manifest))
    assert [upload.form for upload in found.uploads] == ["records"] * 3
    small, large, same = found.uploads[0].sent
    assert large - small == 1000 * 17
    assert large == same
    assert any("north uploads records (1,000 x 17): 19 kB to each" in line for line in found.words())
    assert found.words()[-1] == f"Who sees what: {'; '.join(manifest.views)}."
    assert found.words()[1].startswith(
        "5% for 1 noisy count by the servers of the persons that holders have in common by gaussian-overlaps"
    )
    assert any("the same persons" in line for line in found.words())
    wider = joined_manifest(capacity=100_000)
    many = plan_study(wider, costs_of(wider))
    assert many.memory.inputs == 100 * found.memory.inputs == 2 * 3 * 100_000 * 17
    assert many.memory.working > found.memory.working > 0
    assert many.costs is not None
    assert found.costs is not None
    assert many.costs.compute.sent[0] > 30 * found.costs.compute.sent[0]  # beside as many dummies
    assert memory._JOINED_WORDS == engine.GROUP_WORDS
    assert memory._PROVED == 6 * claims.BUDGET
    assert (memory._GROUP_ROWS, memory._WIDE_GROUP_ROWS) == (counting.GROUP_ROWS, counting.WIDE_GROUP_ROWS)
    assert (memory._BLOCK_ROWS, memory._BLOCK_WORDS) == (counting.BLOCK_ROWS, counting.BLOCK_WORDS)


@pytest.mark.parametrize("holders", [SHARED, COLUMNS, MIXED])
def test_costs_are_those_measured_if_all_tables_have_the_same_persons(holders: Any) -> None:
    manifest = joined_manifest(holders=holders, capacity=100, algorithm="gaussian")
    draws = np.random.default_rng(1)
    ids = draws.integers(0, 256, (100, ID_BYTES), np.uint8)
    shares: list[Any] = []
    joint = np.full((100, len(manifest.domain.names)), -1)
    counted = np.zeros(manifest.layout.cells, np.int64)
    for holder in manifest.holders:
        if holder.brings == "rows":
            own = draws.integers(0, manifest.domain.sizes, (30, len(manifest.domain.sizes)))
            counted += manifest.layout.marginals(own)
            shares.append(manifest.layout.marginals(own).astype(np.uint32))
            continue
        domain = manifest.columns_of(holder).domain()
        codes, order = draws.integers(0, domain.sizes, (100, len(domain.sizes))), draws.permutation(100)
        for place, name in enumerate(domain.names):
            column = joint[:, manifest.domain.names.index(name)]
            column[...] = np.where(column < 0, codes[:, place], column)
        shares.append(dealt(RowFormat(domain).pack(ids[order], codes[order])))

    async def compute(ctx: Context, *brought: Any) -> Any:
        inputs: list[HorizontalInput | JoinInput] = [
            HorizontalInput(holder.name, share)
            if holder.brings == "rows"
            else JoinInput(holder.name, manifest.columns_of(holder).domain().names, received(ctx, share))
            for holder, share in zip(manifest.holders, brought, strict=True)
        ]
        assert manifest.overlaps is not None
        plan_ = overlaps_plan(manifest.overlaps)
        await draw_noise(ctx.step("noise"), plan_.noise, manifest.overlap_sets)  # costs what it costs; here it is 0
        dummies = Dummies(ctx.public(np.zeros(manifest.overlap_sets, np.uint64)), plan_.reach)
        kwargs: Any = {"layout": manifest.layout, "mode": Mode.UNION, "bits": manifest.counted_bits, "dummies": dummies}
        return tuple(await compute_joined_answers(ctx, inputs, **kwargs))

    outcome = World(5).run(compute, *shares)
    answers, accepted = outcome.value
    assert accepted.all()
    assert np.array_equal(answers, counted + manifest.layout.marginals(joint))
    foretold = costs_of(manifest).compute
    assert (outcome.rounds, outcome.sent) == (foretold.rounds, foretold.sent)


def text_of(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)


def test_errors_of_a_file_stand_at_their_lines() -> None:
    document = joined_json()
    del document["holders"][0]["capacity"]
    document["join"] |= {"mode": "left", "more": 1}
    document["join"]["key"]["columns"][0] |= {"kind": "name"}
    document["join"]["key"]["columns"][1] |= {"thousand": ","}
    document["join"]["key"]["columns"].append({"name": "x"})
    text = text_of(document)
    found = {one.place: one for one in check(text)}
    lines = text.splitlines()
    expected = {
        "join.mode": ("mode: left", "must be 'union' or 'inner'"),
        "join.more": ("more: 1", "is not a known member"),
        "join.key.columns[0]": ("name: number", "its 'kind' must be one of 'text', 'integer', 'number', 'date'"),
        "join.key.columns[1].thousand": ("thousand:", "is not a known member"),
        "join.key.columns[2]": ("name: x", "must have the member 'kind'"),
    }
    assert set(found) == set(expected), found
    for place, (start, message) in expected.items():
        assert start in lines[found[place].line - 1], (place, lines[found[place].line - 1])
        assert message in found[place].message, found[place]
    assert "key, mode, protocol" in found["join.more"].hint
    assert "formats" in found["join.key.columns[1].thousand"].hint
    document = joined_json()
    del document["holders"][0]["capacity"]
    document["alignment"] = {"slots": 5}
    text = text_of(document)
    places = {one.place: one.line for one in check(text)}
    assert set(places) == {"alignment", "holders[0].capacity"}
    assert text.splitlines()[places["alignment"] - 1].startswith("alignment:")
    assert "north" in text.splitlines()[places["holders[0].capacity"] - 1]


@pytest.mark.parametrize(
    ("choices", "place", "words"),
    [
        ({"capacity": 99}, "holders[0].capacity", "refuse a table"),
        ({"schema": SCHEMA | {"rows": 200}}, "holders[0].capacity", "hides nothing"),
        ({"join": {"protocol": "oprf"}}, "join.protocol", "same pseudonym"),
        ({"join": {"key": KEY | {"missing": "alone"}}}, "join.key.missing", "counts twice"),
        ({"join": {"key": KEY | {"unparsable": "alone"}}}, "join.key.unparsable", "counts twice"),
        ({"delta": "0.002"}, "privacy.delta", "not below 1 / 600 rows"),
    ],
)
def test_warnings(choices: dict[str, Any], place: str, words: str) -> None:
    text = text_of(joined_json(**choices))
    findings = {finding.place: finding for finding in check(text)}
    assert all(finding.severity == "warning" for finding in findings.values())
    assert words in findings[place].message
    assert load(text)


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"holders": COLUMNS, "join": {"key": KEY | {"missing": "alone"}}},  # no column is at two holders
        {
            "join": {"key": KEY | {"missing": "alone"}},
            "privacy": {"epsilon": 1, "delta": 1e-6, "multiplicity": 2, "population": "p"},
        },
    ],
)
def test_sound_joins_have_no_warnings(choices: dict[str, Any]) -> None:
    shared = [] if "holders" in choices else ["holders"]  # that two bring the same columns is told, and no fault
    assert [one.place for one in check(text_of(joined_json(**choices)))] == shared


def test_the_template_shows_a_join_that_is_one() -> None:
    text = template(Schema.from_json(SCHEMA))
    commented = re.search(r"^# join:\n(?:#   .*\n)+", text, re.M)
    assert commented is not None
    value = yaml.safe_load(re.sub(r"^# ?", "", commented.group(), flags=re.M))["join"]
    assert Join.model_validate(value).protocol == "shuffle"
    assert "# capacity: " in text
    assert "docs/joining.md" in text


def test_the_documented_examples_are_studies() -> None:
    page = (DOCS / "study.md").read_text()
    examples = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.S) if "\njoin:" in f"\n{text}"]
    assert examples
    whole = re.findall(r"```yaml\n(.*?)```", page, re.S)[0]
    for example in examples:
        document = yaml.safe_load(whole)
        del document["alignment"]
        parties = {holder["name"]: holder for holder in document["holders"]}
        part = yaml.safe_load(example)
        for holder in part["holders"]:
            holder |= {name: parties[holder["name"]][name] for name in ("pin", "signing_key")}
        assert check(text_of(document | part)) == []
    for name in (*Join.model_fields, "capacity"):
        assert f"`{name}`" in page, name
    assert str(manifests.MAX_TABLES) in page


def test_the_documented_key_is_one() -> None:
    page = (DOCS / "joining.md").read_text()
    examples = re.findall(r"```json\n(.*?)```", page, re.S)
    assert examples
    for example in examples:
        JoinKey.from_json(example)
