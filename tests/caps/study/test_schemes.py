"""A manifest's scheme: how many servers it needs, what it refuses, what it states, and what policies say to it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from caps.basics.schemes import SCHEMES
from caps.data.schema import Schema
from caps.dp.bounds import DEVIATION_SOUNDNESS
from caps.errors import DomainError
from caps.study import Manifest, Policy
from caps.study.authoring import check, template
from caps.study.memory import memory_of
from caps.study.planning import Costs, StepCost, network_seconds, plan_study
from caps.wire.documents import Evidence
from tests.kit.study import AT, COLUMNS, POPULATIONS, RUN, SCHEMA, example_json, example_manifest, joined_json

ALL = pytest.mark.parametrize("scheme", SCHEMES)
ACTIVE = pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if scheme.active])


@ALL
def test_the_servers_follow_from_the_scheme(scheme: str) -> None:
    manifest, _ = example_manifest(scheme=scheme)
    assert tuple(server.name for server in manifest.servers) == SCHEMES[scheme].server_names
    assert manifest.sharing is SCHEMES[scheme]
    assert Manifest.from_json(manifest.to_json()).study_id == manifest.study_id


def test_a_manifest_that_names_no_scheme_is_in_rep3() -> None:
    document, _ = example_json()
    del document["scheme"]
    assert Manifest.from_json(document).scheme == "rep3"


def test_each_scheme_is_another_study() -> None:
    document, _ = example_json()
    assert Manifest.from_json(document).study_id != Manifest.from_json(document | {"scheme": "rep3-active"}).study_id


@pytest.mark.parametrize(
    ("servers", "scheme", "said"),
    [
        ("rep3", "rep4", "servers: rep4 needs 4 servers, S1, S2, S3 and S4, not 3"),
        ("rep4", "rep3", "servers: rep3 needs 3 servers, S1, S2 and S3, not 4"),
        ("rep4", "rep3-active", "servers: rep3-active needs 3 servers, S1, S2 and S3, not 4"),
    ],
)
def test_the_wrong_number_of_servers_is_refused(servers: str, scheme: str, said: str) -> None:
    document, _ = example_json(scheme=servers)
    with pytest.raises(ValidationError, match=said):
        Manifest.from_json(document | {"scheme": scheme})


def test_a_scheme_that_is_not_known_is_refused() -> None:
    document, _ = example_json()
    with pytest.raises(ValidationError, match="rep3-active"):
        Manifest.from_json(document | {"scheme": "shamir"})


def test_servers_with_other_names_are_refused() -> None:
    document, _ = example_json(scheme="rep4")
    servers = [document["servers"][i] for i in (0, 1, 3, 2)]
    with pytest.raises(ValidationError, match="must be called S1, S2, S3 and S4, in this order"):
        Manifest.from_json(document | {"servers": servers})


@ACTIVE
def test_a_join_that_trusts_servers_is_refused_where_they_are_not_trusted(scheme: str) -> None:
    Manifest.from_json(joined_json(join={"protocol": "oprf"}))
    Manifest.from_json(joined_json(scheme=scheme))
    with pytest.raises(ValidationError, match=f"join.protocol: oprf trusts servers .* which {scheme} does not"):
        Manifest.from_json(joined_json(scheme=scheme, join={"protocol": "oprf"}))


@ACTIVE
def test_the_papers_samplers_exist_in_rep3_only(scheme: str) -> None:
    algorithm = {"name": "aim", "noise": "paper:irwin-hall"}
    example_manifest(algorithm=algorithm)
    with pytest.raises(ValidationError, match=r"algorithm\.noise: paper:irwin-hall .* exists in rep3 only"):
        example_manifest(algorithm=algorithm, scheme=scheme)


@ALL
def test_the_statement_says_what_is_assumed_of_servers(scheme: str) -> None:
    manifest, _ = example_manifest(scheme=scheme)
    said = manifest.premises[0]
    assert f"in the scheme {scheme}, at most one of the {len(manifest.servers)} servers is corrupted" in said
    assert ("follows the protocol" in said) != SCHEMES[scheme].active
    assert ("may send anything too" in said) == SCHEMES[scheme].active


@pytest.mark.parametrize("holders", [{}, {"holders": COLUMNS}])
@ACTIVE
def test_delta_covers_the_checks_of_servers(scheme: str, holders: dict[str, Any]) -> None:
    trusting, checking = (example_manifest(scheme=name, **holders)[0].allowance for name in ("rep3", scheme))
    assert checking.soundness - trusting.soundness == DEVIATION_SOUNDNESS < Fraction(1, 10**12)


@ACTIVE
def test_a_delta_that_does_not_cover_them_is_refused(scheme: str) -> None:
    example_manifest(delta="1e-13")
    with pytest.raises(ValidationError, match=r"privacy\.delta"):
        example_manifest(delta="1e-13", scheme=scheme)


@ALL
def test_a_policy_admits_every_scheme_unless_it_says_otherwise(scheme: str) -> None:
    manifest, _ = example_manifest(scheme=scheme)
    assert Policy(populations=POPULATIONS).judge(manifest) == []
    others = tuple(name for name in SCHEMES if name != scheme)
    (objection,) = Policy(populations=POPULATIONS, schemes=others).judge(manifest)
    assert objection == f"this server does not compute in the scheme {scheme}, only in {' or '.join(others)}"


@pytest.mark.parametrize("schemes", [(), ("rep5",)])
def test_a_policy_names_schemes_that_exist(schemes: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Policy(schemes=schemes)


@ALL
def test_a_plan_lists_what_each_server_gets(scheme: str) -> None:
    manifest, _ = example_manifest(scheme=scheme)
    plan = plan_study(manifest)
    sharing = manifest.sharing
    for upload in plan.uploads:
        got = [sent > min(upload.sent) for sent in upload.sent]
        assert got == [sharing.vector in held for held in sharing.held]
    lacking = sharing.server_names[[sharing.vector in held for held in sharing.held].index(False)]
    assert any(f"to {lacking}." in sentence for sentence in plan.words())
    assert plan.scheme == scheme


def test_servers_that_hold_more_need_more_memory() -> None:
    three, four = (memory_of(example_manifest(scheme=name, holders=COLUMNS)[0]) for name in ("rep3", "rep4"))
    assert four.inputs * 2 == three.inputs * 3
    assert four.total > three.total


def test_checks_are_part_of_what_a_run_costs() -> None:
    costs = Costs(StepCost(2, (10, 10)), StepCost(), (), StepCost(3, (5, 7)))
    assert costs.total == StepCost(5, (15, 17))
    manifest, _ = example_manifest(scheme="rep4")
    assert any("3 of the rounds" in sentence for sentence in plan_study(manifest, costs).words())
    assert not any(
        "of the rounds" in sentence
        for sentence in plan_study(manifest, Costs(StepCost(2, (10,)), StepCost(), ())).words()
    )
    assert network_seconds(StepCost(10, (100, 50)), latency=0.5, rate=100) == 6.0


@ALL
def test_the_template_has_the_servers_of_its_scheme(scheme: str) -> None:
    text = template(Schema.from_json(SCHEMA), scheme=scheme)
    assert f"\nscheme: {scheme}\n" in text
    assert [line.split('"')[1] for line in text.splitlines() if 'name: "S' in line] == list(
        SCHEMES[scheme].server_names
    )
    assert {remark.place for remark in check(text) if remark.place.startswith("servers")} >= {
        f"servers[{i}].pin" for i in range(SCHEMES[scheme].parties)
    }


def test_the_template_refuses_a_scheme_that_there_is_not() -> None:
    with pytest.raises(DomainError, match="there is no scheme 'rep5'; choose rep3, rep3-active, rep4"):
        template(Schema.from_json(SCHEMA), scheme="rep5")


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "f" * 32},
        {"study": "0" * 64},
        {"scheme": "rep3"},
        {"pair": ("S1", "S1")},
        {"pair": ("S1", "S5")},
        {"server": "coordinator"},
    ],
)
def test_evidence_is_about_two_servers_of_the_run(changes: dict[str, Any]) -> None:
    manifest, _ = example_manifest(scheme="rep4")
    good: dict[str, Any] = {
        "study": manifest.study_id,
        "run": RUN,
        "step": 0,
        "scheme": "rep4",
        "pair": ("S1", "S4"),
        "check": "messages",
        "server": "S3",
        "at": AT,
    }
    Evidence(**good).matches(manifest, RUN)
    assert Evidence(**good).words == "S3 found that S1 or S4 deviates from the protocol"
    own = Evidence(**good | {"pair": ("S1", "S3")})
    own.matches(manifest, RUN)
    assert own.words == "S3 found that S1 deviates from the protocol, so that S1 or S3 does"
    with pytest.raises(DomainError, match="the evidence"):
        Evidence(**good | changes).matches(manifest, RUN)
