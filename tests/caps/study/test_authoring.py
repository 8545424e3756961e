"""Writing a manifest: the template, every error with its line, warnings, cards, and what the plan foretells."""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from caps.basics import canonical
from caps.data.schema import Schema
from caps.dp.oracle import Measurement, Selection
from caps.dp.privacy import ETA_MAX, Gaussian, Laplace, Role
from caps.dp.privacy.schedule import step_name
from caps.errors import DomainError
from caps.shares.ring import Z16, Z32
from caps.study import memory
from caps.study.authoring import MAX_TEXT, ManifestRefused, Remark, check, load, template
from caps.study.manifest import Manifest
from caps.study.planning import Costs, SpendCost, StepCost, plan_study
from caps.trust import pki
from caps.trust.cards import Card, read_bundle
from services.mpc_server.costs import answers_sizes_of, costs_of
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, answers_sizes
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.steps import Steps
from services.mpc_server.testing.world import World
from tests.kit.study import COLUMNS, MIXED, NOW, ROWS, SCHEMA, example_json, example_manifest, make_keys, write_site

DOCS = Path(__file__).parents[3] / "docs"


def text_of(**choices: Any) -> str:
    return yaml.safe_dump(example_json(**choices)[0], sort_keys=False)


def errors(text: str) -> dict[str, Remark]:
    return {finding.place: finding for finding in check(text) if finding.severity == "error"}


def warnings(text: str) -> dict[str, Remark]:
    findings = check(text)
    assert all(finding.severity == "warning" for finding in findings), findings
    return {finding.place: finding for finding in findings}


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip(" -").startswith(start))


@pytest.mark.parametrize("holders", [ROWS, COLUMNS, MIXED])
def test_a_sound_file_is_loaded(holders: Any) -> None:
    document, _ = example_json(holders=holders)
    for text in (
        yaml.safe_dump(document),
        json.dumps(document),
        json.dumps(document, indent="\t"),
        f"\ufeff{json.dumps(document)}",
    ):
        assert load(text) == Manifest.from_json(document)
        assert errors(text) == {}


def test_every_error_is_told_with_its_line() -> None:
    document, _ = example_json(holders=MIXED)
    document = deepcopy(document)
    document["unknown"] = 1
    document["servers"][0]["pin"] = "zz"
    document["servers"][1]["more"] = 1
    del document["servers"][2]["mesh"]
    document["privacy"] |= {"epsilon": -1, "rows": "7"}
    document["holders"][2]["columns"] = ["region", "nope"]
    document["schema"]["columns"][0]["bin_edges"] = [3, 1]
    document["schema"]["columns"][2]["categories"] = []
    document["workload"] = [{"attributes": ["age", "x"]}, {"attributes": ["age"], "weight": "a"}]
    document["algorithm"] = {"name": "aimm", "parameters": {"rounds": 1.5}}
    document["coordinator"]["url"] = "http://insecure"
    document["publication"] = {"rows": 0}
    expected = {
        "unknown": "unknown:",
        "servers[0].pin": "pin: zz",
        "servers[1].more": "more:",
        "servers[2].mesh": "name: S3",
        "privacy.epsilon": "epsilon:",
        "privacy.rows": "rows: '7'",
        "holders[2].columns": "columns:\n",
        "schema.columns[0].bin_edges[1]": "bin_edges:",
        "schema.columns[2].categories": "categories: []",
        "workload[1].weight": "weight: a",
        "algorithm.name": "name: aimm",
        "algorithm.parameters.rounds": "rounds: 1.5",
        "coordinator.url": "url: http://",
        "publication.rows": "rows: 0",
    }
    text = yaml.safe_dump(document, sort_keys=False)
    found = errors(text)
    assert set(expected) <= set(found), set(expected) - set(found)
    assert set(found) - set(expected) <= {"schema"}  # nobody brings the column replaced above
    for place, start in expected.items():
        line = text.splitlines()[found[place].line - 1]
        if "\n" not in start and not start.startswith(("name: S3", "bin_edges")):
            assert start in line, (place, line)
            assert line[found[place].column - 1 :].startswith(start.partition(":")[0])
    assert found["schema.columns[0].bin_edges[1]"].line == line_of(text, "bin_edges:") + 2
    assert "name, pin, signing_key, url, mesh" in found["servers[1].more"].hint
    as_json = errors(json.dumps(document, indent=2))
    assert set(as_json) == set(found)
    assert all(finding.line > 0 for finding in as_json.values())
    with pytest.raises(ManifestRefused) as caught:
        load(text, "study.yaml")
    assert {finding.place for finding in caught.value.remarks} == set(found)
    assert str(caught.value).count("study.yaml:") == len(found)


def test_findings_come_in_the_order_of_the_file() -> None:
    text = template(Schema.from_json(SCHEMA))
    lines = [finding.line for finding in check(text)]
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("", "a manifest must be a list of members", 1),
        ("just words", "a manifest must be a list of members", 1),
        ("- a", "a manifest must be a list of members", 1),
        ("title: [a", "not YAML", 1),
        ("title: a\n\tpurpose: b", "not YAML", 2),
        ("title: a: b", "not YAML", 1),
        ("{\n  'title': 1}", "not JSON", 2),
        ('{"title": NaN}', "NaN", 0),
        ('{"title": 1, "title": 2}', "repeated member", 0),
        ("title: a\ntitle: b", "is given twice; first in line 1", 2),
        ("title: a\nprivacy:\n  epsilon: 1\n  epsilon: 2", "is given twice", 4),
        ("title: &a x\npurpose: *a", "anchors", 1),
        ("title: 2030-01-01", "is a date", 1),
        ("yes: 1", "whose name is not text", 1),
        ("title: !!binary aGVsbG8=", "bytes", 1),
        ("title: !!python/object:os.system x", "not YAML", 1),
        ("\0", "neither YAML nor JSON", 0),
        ("title: .nan", "NaN|nan", 1),
        ("retention_days: 99999999999999999999", "2\\*\\*53", 1),
    ],
)
def test_files_that_are_no_manifest(text: str, message: str, line: int) -> None:
    findings = check(text, "f.yaml")
    assert re.search(message, findings[0].message), findings
    assert findings[0].line == line
    assert str(findings[0]).startswith(f"f.yaml:{line}:")


def test_long_files_are_not_read() -> None:
    assert "million characters" in check("#" * (MAX_TEXT + 1))[0].message


@pytest.mark.parametrize(
    ("choices", "place", "words"),
    [
        ({"epsilon": "4"}, "privacy.epsilon", "weak"),
        ({"holders": COLUMNS, "slots": 2000, "delta": "0.001"}, "privacy.delta", "1 / 2000 rows"),
        ({"delta": "0.001"}, "privacy.delta", "large"),
        ({"algorithm": {"name": "aim", "noise": "paper:irwin-hall"}}, "algorithm.noise", "no proven guarantee"),
        ({"holders": [("alone", None)]}, "holders", "one holder"),
        ({"schema": SCHEMA | {"rows": 500}}, "schema.rows", "number of rows"),
        ({"holders": COLUMNS}, "alignment", "order"),
        ({"inputs": {"refused": "leave-out"}}, "inputs.refused", "left out"),
        ({"holders": COLUMNS, "schema": SCHEMA | {"rows": 64}}, "alignment.slots", "hides nothing"),
        (
            {"privacy": {"epsilon": 1, "delta": 1e-6, "neighbouring": "bounded", "population": "p"}},
            "publication",
            "a noisy total",
        ),
    ],
)
def test_warnings(choices: dict[str, Any], place: str, words: str) -> None:
    text = text_of(**choices)
    finding = warnings(text)[place]
    assert words in finding.message
    assert ": warning: " in str(finding)
    assert load(text)  # a warning is no refusal


def test_many_cells_are_warned_of() -> None:
    columns = [{"name": f"c{i}", "kind": "categorical", "categories": [str(j) for j in range(1500)]} for i in range(3)]
    text = text_of(schema={"columns": columns}, algorithm={"name": "mwem", "parameters": {"rounds": 1}})
    assert "6,754,500 cells" in warnings(text)["schema"].message


def test_a_plain_example_has_no_warnings() -> None:
    twice = {"epsilon": "1", "delta": "1e-6", "population": "p", "multiplicity": 2}
    assert check(text_of(privacy=twice)) == []
    assert check(text_of(holders=COLUMNS, alignment={"slots": 64, "column": "number"})) == []


@pytest.mark.parametrize("holders", [ROWS, MIXED])
def test_persons_who_may_be_at_several_holders_of_rows_are_warned_of(holders: Any) -> None:
    found = warnings(
        text_of(holders=holders, **({} if holders is ROWS else {"alignment": {"slots": 9, "column": "n"}}))
    )
    assert list(found) == ["privacy.multiplicity"]
    assert "a person may have rows at several holders" in found["privacy.multiplicity"].message


def test_columns_that_several_holders_bring_are_warned_of() -> None:
    shared = (("registry", ("age", "smoker", "region")), ("lab", ("region", "diagnosis")))
    found = warnings(text_of(holders=shared, alignment={"slots": 64, "column": "number"}))
    assert found["holders"].message.startswith("column region comes from several holders")


def cards_of(names: dict[str, str]) -> list[Card]:
    keys = make_keys(list(names))
    where = {
        "mpc-server": {"url": "https://s.example:8443", "mesh": "s.example:9443"},
        "coordinator": {"url": "https://c.example"},
        "holder": {},
    }
    return [Card.model_validate(keys[name].party() | {"role": role} | where[role]) for name, role in names.items()]


PARTIES = {
    "S1": "mpc-server",
    "S2": "mpc-server",
    "S3": "mpc-server",
    "publisher": "coordinator",
    "clinic-a": "holder",
    "clinic-b": "holder",
}


def test_a_template_from_all_cards_is_a_manifest() -> None:
    text = template(Schema.from_json(SCHEMA), cards_of(PARTIES), title='Smoking: "now" # and then', population="p")
    manifest = load(text)
    assert manifest.title == 'Smoking: "now" # and then'
    assert [holder.name for holder in manifest.holders] == ["clinic-a", "clinic-b"]
    assert manifest.schema_ == Schema.from_json(SCHEMA)
    assert manifest.coordinator.name == "publisher"


def test_what_nobody_told_is_a_placeholder_that_check_finds() -> None:
    text = template(Schema.from_json(SCHEMA), holders=["clinic-a"])
    found = errors(text)
    assert all("placeholder" in finding.message for finding in found.values())
    assert {"title", "privacy.population", "servers[0].pin", "coordinator.name", "holders[0].signing_key"} <= set(found)
    for place, finding in found.items():
        assert place.rpartition(".")[2] in text.splitlines()[finding.line - 1]
    assert "holders[0].name" in errors(template(Schema.from_json(SCHEMA)))


def test_templates_refuse_cards_that_do_not_go_together() -> None:
    schema = Schema.from_json(SCHEMA)
    with pytest.raises(DomainError, match="S9"):
        template(schema, cards_of({"S9": "mpc-server"}))
    with pytest.raises(DomainError, match="one coordinator"):
        template(schema, cards_of({"a": "coordinator", "b": "coordinator"}))


def test_a_card_is_that_of_its_site(tmp_path: Path) -> None:
    authority = pki.Authority.create("test", not_before=NOW, not_after=NOW.replace(year=2031))
    keys = make_keys(["S1"])["S1"]
    write_site(tmp_path / "s1", authority, keys, "mpc-server")
    card = Card.of_site(tmp_path / "s1", url="https://s1.example:8443", mesh="s1.example:9443")
    assert (card.role, card.name, card.pin, card.signing_key) == ("mpc-server", "S1", keys.pin, keys.signing_key)
    card.write(tmp_path / "s1" / "card.json")
    assert read_bundle(tmp_path) == [card]
    with pytest.raises(DomainError, match="url: is required"):
        Card.of_site(tmp_path / "s1")
    with pytest.raises(DomainError, match="mesh"):
        Card.of_site(tmp_path / "s1", url="https://s1.example", mesh="nowhere")
    pki.write_pem(tmp_path / "s1" / "certificate.pem", authority.certificate)
    with pytest.raises(DomainError, match="one role"):
        Card.of_site(tmp_path / "s1", url="https://s1.example", mesh="a:1")


def test_bundles(tmp_path: Path) -> None:
    with pytest.raises(DomainError, match="no party cards"):
        read_bundle(tmp_path)
    cards = cards_of(dict(reversed(PARTIES.items())))
    for card in cards:
        card.write(tmp_path / f"{card.name}.json")
    assert [card.name for card in read_bundle(tmp_path)] == list(PARTIES)
    cards[0].write(tmp_path / "again.json")
    with pytest.raises(DomainError, match="two cards"):
        read_bundle(tmp_path)
    (tmp_path / "again.json").write_text("{}")
    with pytest.raises(DomainError, match=r"again.json: role"):
        read_bundle(tmp_path)
    with pytest.raises(DomainError, match="cannot be read"):
        Card.read(tmp_path / "absent.json")
    holder = cards_of({"x": "holder"})[0].to_json()
    (tmp_path / "again.json").write_bytes(canonical.dump(holder | {"url": "https://x.example"}))
    with pytest.raises(DomainError, match="url: must be left out for role holder"):
        Card.read(tmp_path / "again.json")


@pytest.mark.parametrize("holders", [ROWS, COLUMNS, MIXED])
@pytest.mark.parametrize("algorithm", ["aim", "mwem", "mst", "gaussian"])
def test_a_plan_spends_the_budget_and_says_so(holders: Any, algorithm: str) -> None:
    manifest, _ = example_manifest(holders=holders, algorithm=algorithm)
    found = plan_study(manifest, costs_of(manifest))
    assert sum(spend.share for spend in found.spends) == pytest.approx(1)
    assert sum(spend.rho for spend in found.spends) == pytest.approx(found.rho, rel=1e-6)
    again = sum(manifest.domain.sizes) if algorithm in ("aim", "mwem") else 0  # columns, in place of rounds
    assert sum(spend.draws for spend in found.spends) + again == found.draws
    assert found.eta <= found.eta_max == ETA_MAX
    assert [upload.holder for upload in found.uploads] == [holder.name for holder in manifest.holders]
    value = json.loads(json.dumps(found.to_json()))
    assert value["words"] == found.words()
    assert value["costs"]["total"]["rounds"] == found.costs.total.rounds if found.costs else False
    assert plan_study(manifest).to_json()["costs"] is None


def test_expected_errors_of_the_gaussian_program() -> None:
    """One stage, so everything can be computed by hand: rho / 6 each, sigma^2 = 3 / rho."""
    manifest, _ = example_manifest(algorithm="gaussian")
    found = plan_study(manifest)
    sigma = sqrt(3 / found.rho)
    assert [spend.scale for spend in found.spends] == [pytest.approx(sigma)]
    pair = next(marginal for marginal in found.marginals if marginal.attributes == ("age", "diagnosis"))
    assert (pair.cells, pair.measured) == (16, "always")
    assert pair.deviation == pytest.approx(sigma)
    assert pair.error == pytest.approx(16 * sigma * 0.7978845608)
    assert found.draws == 62


def test_expected_errors_of_laplace_noise() -> None:
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "p"}
    manifest, _ = example_manifest(algorithm="mwem", privacy=privacy)
    found = plan_study(manifest, costs_of(manifest))
    scale = found.spends[1].scale
    assert scale == pytest.approx(8 / 0.9)
    x = np.arange(-2000, 2001)
    law = np.exp(-abs(x) / scale)
    law /= law.sum()
    marginal = found.marginals[0]
    assert marginal.deviation == pytest.approx(sqrt((law * x * x).sum()))
    assert marginal.error == pytest.approx(marginal.cells * (law * abs(x)).sum())


@pytest.mark.parametrize(("accounting", "settles"), [("zcdp", True), ("pure", False)])
def test_a_plan_speaks_of_columns_in_place_of_rounds_only_where_the_schedule_allows_them(
    accounting: str, settles: bool
) -> None:
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": accounting, "population": "p"}
    manifest, _ = example_manifest(algorithm="mwem", privacy=privacy)
    assert (manifest.program.schedule(manifest.task).widest_again is not None) == settles
    found = [line for line in plan_study(manifest).words() if "the rest is spent on the columns" in line]
    assert len(found) == settles


def test_uploads_are_those_of_contributions() -> None:
    manifest, _ = example_manifest(holders=MIXED, slots=1000)
    by_name = {upload.holder: upload for upload in plan_study(manifest).uploads}
    assert by_name["clinic-a"].shape == (75,)
    assert by_name["lab"].shape == (1000, 7)
    small, large, same = by_name["lab"].sent
    assert large - small == 1000 * 7 * 2
    assert large == same


def test_memory_grows_with_the_slots() -> None:
    few, some, many = (
        plan_study(example_manifest(holders=COLUMNS, slots=slots)[0]).memory for slots in (1000, 65_000, 1_000_000)
    )
    assert some.inputs == 65 * few.inputs == 2 * 2 * 65_000 * 13
    assert many.inputs == 2 * 4 * 1_000_000 * 13  # words of 24 bits are held in 32
    assert many.total > some.total > few.total


def test_of_columns_too_long_for_memory_only_those_that_holders_share_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """13 columns of two holders, of which the wider has 7; smoker, of 2, is brought twice and so merged."""
    monkeypatch.setattr(memory, "MOST_HELD", 4 * 7 * 100_000)
    shared = (("registry", ("age", "smoker")), ("lab", ("smoker", "region", "diagnosis")))
    held, long, merged = (
        plan_study(example_manifest(holders=holders, slots=slots)[0]).memory
        for holders, slots in ((COLUMNS, 100_000), (COLUMNS, 200_000), (shared, 200_000))
    )
    assert held.inputs == 2 * 4 * 100_000 * 13
    assert long.inputs == 0
    assert merged.inputs == 2 * 4 * 200_000 * (2 + 2)


def test_uploads_of_many_slots_have_three_bytes_an_entry() -> None:
    manifest, _ = example_manifest(holders=COLUMNS, slots=1_000_000)
    small, large, same = plan_study(manifest).uploads[1].sent
    assert large - small == same - small == 3 * 1_000_000 * 7


def test_what_servers_send_to_count_is_the_same_for_any_large_number_of_slots() -> None:
    costs = [costs_of(example_manifest(holders=COLUMNS, slots=slots)[0]).compute for slots in (65_536, 2_000_000)]
    assert costs[0] == costs[1]
    small = costs_of(example_manifest(holders=COLUMNS, slots=65_535)[0]).compute
    assert max(small.sent) < max(costs[0].sent) < 2.5 * max(small.sent)


def test_costs_add_up() -> None:
    one = StepCost(2, (1, 2, 3))
    assert one + one == one.times(2) == StepCost(4, (2, 4, 6))
    assert Costs(one, one, (SpendCost(one, one),)).total == one.times(4)


@pytest.mark.parametrize("slots", [100, 65_536])
@pytest.mark.parametrize("holders", [ROWS, COLUMNS, MIXED, [("a", ["age", "smoker", "region"]), *COLUMNS]])
def test_sizes_are_those_of_the_engine(holders: Any, slots: int) -> None:
    """`answers_sizes_of` needs no shares; given shares of those shapes, the engine says the same."""
    manifest, _ = example_manifest(holders=holders, slots=slots)
    inputs: list[HorizontalInput | ColumnsInput] = []
    for holder in manifest.holders:
        if holder.brings == "rows":
            words = np.zeros(manifest.layout.cells, Z32.dtype)
            inputs.append(HorizontalInput(holder.name, AShare(object(), words, words.copy())))  # type: ignore[arg-type]
        else:
            own = manifest.columns_of(holder).domain()
            columns = np.zeros((slots, own.width), Z16.dtype if slots == 100 else Z32.dtype)
            share = AShare(object(), columns, columns.copy())  # type: ignore[arg-type]
            inputs.append(ColumnsInput(holder.name, own.names, share))
    assert answers_sizes_of(manifest) == answers_sizes(inputs, manifest.layout)


@pytest.mark.parametrize(
    ("algorithm", "accounting"), [("gaussian", "zcdp"), ("mwem", "zcdp"), ("mwem", "pure"), ("mst", "zcdp")]
)
def test_the_costs_are_those_of_a_run(algorithm: str, accounting: str) -> None:
    """A run in which every choice is the dearest costs exactly what was foretold; the count comes apart from it."""
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": accounting, "population": "p"}
    manifest, _ = example_manifest(algorithm=algorithm, privacy=privacy)
    task, program, layout = manifest.task, manifest.program, manifest.layout
    candidates, initial = program.candidates(task), program.initial(task)
    largest = max(candidates, key=manifest.domain.cells, default=())
    estimate = np.zeros(sum(map(manifest.domain.cells, candidates)), np.int64)

    async def run(ctx: Context, counts: AShare) -> AShare:
        steps = Steps(ctx.step("run"), layout, task.neighbouring, counts)
        if candidates:
            await steps.prepare()
        schedule, numbers = program.schedule(task), Counter[Role]()
        while (step := schedule.step) is not None:
            for _ in range(step.count):
                numbers[step.role] += 1
                name = step_name(step.role, numbers[step.role])
                if isinstance(step.mechanism, Gaussian | Laplace):
                    first = step.role is Role.INITIAL
                    clique = initial[numbers[step.role] - 1] if first else largest
                    await steps.measure(
                        Measurement(name, clique, step.mechanism, None if first else program.draws(task))
                    )
                else:
                    bias, weights = np.zeros(len(candidates), np.int64), np.array([*candidates.values()], np.int64)
                    await steps.select(Selection(name, (*candidates,), estimate, bias, weights, step.mechanism))
            schedule = schedule.after()
        if (widest := program.schedule(task).widest_again) is not None:  # besides: they come in place of rounds
            for number, clique in enumerate(initial, 1):
                await steps.measure(Measurement(f"initial{number}", clique, widest))
        return counts

    outcome = World(3).run(run, np.zeros(layout.cells, np.uint64))
    costs = costs_of(manifest)
    foretold = replace(costs, compute=StepCost()).total
    assert (outcome.rounds, outcome.sent) == (foretold.rounds, foretold.sent)


def test_costs_of_unproven_noise_are_not_planned() -> None:
    manifest, _ = example_manifest(algorithm={"name": "aim", "noise": "paper:irwin-hall"})
    with pytest.raises(DomainError, match="joint"):
        costs_of(manifest)


def test_the_documented_example_is_a_manifest() -> None:
    page = (DOCS / "study.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert examples
    manifest = load(examples[0], "docs/study.md")
    assert check(examples[0]) == []
    for name, field in Manifest.model_fields.items():
        assert f"`{field.alias or name}`" in page, name
    for part in (
        manifest.privacy,
        manifest.holders[0],
        manifest.inputs,
        manifest.publication,
        manifest.servers[0],
        manifest.algorithm,
    ):
        for name in type(part).model_fields:
            assert f"`{name}`" in page, name
