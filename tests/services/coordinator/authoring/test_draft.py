"""Drafts: what is typed becomes a manifest that `caps study check` accepts, or remarks beside what was typed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caps.data.schema import Schema
from caps.data.schema.codebooks import read_codebook
from caps.errors import DomainError
from caps.study import authoring
from caps.trust.cards import Card, Party
from services.coordinator.authoring.columns import KINDS, by_name_and_template, described, typed
from services.coordinator.authoring.draft import (
    STEPS,
    Draft,
    TypedColumn,
    TypedHolder,
    TypedKey,
    TypedQuery,
    judged,
    read_cards,
    step_of,
    tried,
)
from services.coordinator.authoring.drafts import KEPT, MOST, MOST_CHARACTERS, Drafts
from tests.kit.study import example_manifest

SCRIPT = "<script>alert(1)</script>"


def parties() -> tuple[list[Card], Party, str]:
    """The cards of an example's servers and holders; and its coordinator."""
    manifest, _ = example_manifest()
    cards = []
    for role, members in (("mpc-server", manifest.servers), ("holder", manifest.holders)):
        for one in members:
            known = {name: value for name, value in one.to_json().items() if name in Card.model_fields}
            cards.append(Card.of_json({"role": role, **known}, "test"))
    return cards, manifest.coordinator, manifest.coordinator.url


def whole(**choices: Any) -> Draft:
    """A draft with which nothing is wrong."""
    cards, _, url = parties()
    draft = Draft(title="A title", population="persons", url=url)
    draft.add_cards(cards)
    for name, template in (("age", "age:20"), ("smoker", "yes-no"), ("ward", "list-other:surgery,cardiology")):
        column = by_name_and_template(name, template)
        assert isinstance(column, TypedColumn)
        draft.add_columns([column])
    return draft.model_copy(update=choices)


def judge(draft: Draft) -> Any:
    return judged(draft, parties()[1])


def test_a_whole_draft_is_the_manifest_that_study_check_accepts() -> None:
    draft = whole(purpose=f"Why: {SCRIPT} # and 'so'", neighbouring="bounded", rows="1 000")
    found = judge(draft)
    assert found.errors == []
    remarks, manifest = authoring.examined(found.text)
    assert [(one.place, one.message) for one in remarks] == [(one.place, one.message) for one in found.warnings]
    assert manifest is not None
    assert manifest.study_id == found.manifest.study_id
    assert manifest.privacy.rows == 1000
    assert manifest.purpose == draft.purpose


def test_a_draft_is_kept_as_it_is() -> None:
    draft = whole(wished="a lot", epsilon="one")
    assert Draft.model_validate_json(draft.model_dump_json()) == draft


def test_an_empty_draft_says_at_each_step_what_is_missing() -> None:
    found = judge(Draft())
    assert found.manifest is None
    steps = {step_of(one.place) for one in found.errors}
    assert steps == {"about", "columns", "parties"}
    assert [one.place for one in found.of_step("about")] == ["title", "privacy.population"]
    assert all(one in STEPS for one in steps)


@pytest.mark.parametrize(
    ("change", "place", "step"),
    [
        ({"title": "x" * 201}, "title", "about"),
        ({"population": "our patients"}, "privacy.population", "about"),
        ({"epsilon": "one"}, "privacy.epsilon", "privacy"),
        ({"epsilon": "0.0000001"}, "privacy.epsilon", "privacy"),
        ({"delta": "2"}, "privacy.delta", "privacy"),
        ({"multiplicity": "several"}, "privacy.multiplicity", "privacy"),
        ({"workload": "label"}, "workload.label", "question"),
        ({"workload": "label", "label": "height"}, "workload.label", "question"),
        ({"workload": "queries"}, "workload", "question"),
        ({"workload": "queries", "queries": [TypedQuery()]}, "workload[0].attributes", "question"),
        ({"algorithm": "magic"}, "algorithm.name", "question"),
        ({"scheme": "rep4"}, "servers", "parties"),
        ({"url": "http://here"}, "coordinator.url", "parties"),
        ({"cards": []}, "holders", "parties"),
        ({"columns": [TypedColumn(name="age", kind="integer", values="10, 5")]}, "schema.columns[0]", "columns"),
        ({"columns": [TypedColumn(name="", kind="yes-no", values="y, n")]}, "schema.columns[0]", "columns"),
    ],
)
def test_a_mistake_stands_at_its_step_and_place(change: dict[str, Any], place: str, step: str) -> None:
    found = judge(whole(**change))
    assert found.manifest is None
    assert place in [one.place for one in found.of_step(step) if one.severity == "error"]


def spread(**choices: Any) -> Draft:
    """A draft in which persons have their columns at two holders."""
    draft = whole(**choices)
    one, two = (card.name for card in draft.cards_of("holder"))
    draft.holders = {
        one: TypedHolder(brings="columns", columns=["ward", "age"], capacity="60,000"),
        two: TypedHolder(brings="columns", columns=["smoker"], capacity="20000"),
    }
    return draft


def test_columns_of_several_holders_need_a_way_to_match() -> None:
    assert [one.place for one in judge(spread()).of_step("matching")] == ["alignment"]
    key = TypedKey(name="insurance", whitespace="remove", remove="-")
    joined = judge(spread(matching="join", keys=[key]))
    assert joined.errors == []
    assert joined.manifest.holders[0].columns == ("age", "ward")  # in the schema's order
    assert joined.manifest.holders[0].capacity == 60_000
    aligned = judge(spread(matching="alignment", slots="1000", slot_column="number"))
    assert aligned.manifest.alignment.slots == 1000
    wrong = spread(matching="join", keys=[key])
    wrong.holders[wrong.cards_of("holder")[0].name].capacity = "many"
    assert [one.place for one in judge(wrong).of_step("matching")] == ["holders[0].capacity"]
    assert judge(spread(matching="alignment", slots="")).of_step("matching")[0].place == "alignment.slots"


def test_two_spellings_meet_or_not() -> None:
    draft = spread(
        matching="join", keys=[TypedKey(name="name"), TypedKey(name="born", kind="date", formats="%d.%m.%Y")]
    )
    straight, other = {"name": " Straße ", "born": "01.02.1990"}, {"name": "STRASSE", "born": "1.2.1990"}
    trial = tried(draft, [straight, other])
    assert trial.meet
    assert trial.first.normal == {"name": "strasse", "born": "1990-02-01"}
    assert not tried(draft, [straight, other | {"born": "02.02.1990"}]).meet
    unread = tried(draft, [straight | {"born": "1990-02-01"}] * 2)
    assert not unread.meet
    assert unread.first.normal["born"] is None
    with pytest.raises(DomainError):
        tried(spread(), [straight, other])


BOOK = """column,code,ordered,min,max,missing
ward,surgery,,,,
ward,"cardio, east",,,,
ward,?,,,,1
stage,I,1,,,
stage,II,1,,,
age,,,0,120,
admitted,,,2020-01-01,2025-12-31,
"""


def test_columns_survive_being_typed() -> None:
    columns = read_codebook(BOOK.encode()).columns
    rich = [
        {
            "name": "bmi",
            "kind": "numeric",
            "decimals": 1,
            "side": "left",
            "bin_edges": [10, 18.5, 60],
            "missing": "null",
        },
        {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes", "missing_values": ["?", "NA"]},
        {
            "name": "on",
            "kind": "date",
            "bin_edges": ["2020-01-01", "2021-01-01"],
            "format": "%d.%m.%Y",
            "publish": "bin",
        },
        {"name": SCRIPT, "kind": "categorical", "categories": [SCRIPT, "b"], "other": "b", "note": "x"},
    ]
    for column in [*columns, *rich]:
        again = described(typed(column))
        one, two = (Schema.from_json({"columns": [each]}).to_json() for each in (column, again))
        assert one == two, column
    assert {one["name"] for one in columns} == {"ward", "stage", "age", "admitted"}


def test_what_identifies_persons_is_left_out_with_a_reason() -> None:
    assert "identifies" in str(by_name_and_template("patient_id", "id"))
    with pytest.raises(DomainError, match="templates are"):
        by_name_and_template("age", "years")


ANYTHING = st.text(max_size=12) | st.sampled_from(
    ["1e999", "nan", "9" * 40, "..", "0..1/0", "2020..2019/day", "-1", "%"]
)


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_typed_is_judged_and_kept(data: st.DataObject) -> None:
    texts = {name for name, field in Draft.model_fields.items() if field.annotation is str}
    changes: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(sorted(texts)), ANYTHING, max_size=4))
    kinds = st.sampled_from([*KINDS, "magic"])
    column = st.builds(TypedColumn, name=ANYTHING, kind=kinds, values=ANYTHING, other=ANYTHING, missing=ANYTHING)
    key = st.builds(TypedKey, name=ANYTHING, kind=ANYTHING, remove=ANYTHING, formats=ANYTHING)
    draft = spread(**changes, keys=data.draw(st.lists(key, max_size=2)))
    draft.add_columns(data.draw(st.lists(column, max_size=2)))
    found = judge(draft)
    assert (found.manifest is None) == bool(found.errors)
    assert all(step_of(one.place) in STEPS for one in found.remarks)
    assert found.text
    assert Draft.model_validate_json(draft.model_dump_json()) == draft


def test_cards_come_one_after_another_or_in_a_list() -> None:
    cards, _, _ = parties()
    texts = [json.dumps({name: value for name, value in card.to_json().items() if value is not None}) for card in cards]
    assert read_cards("\n".join(texts)) == read_cards(f"[{','.join(texts)}]") == cards
    for wrong in ("", "age,smoker\n1,yes", "[1]", "{}", "[[" * 5000, texts[0].replace("https", "ftp")):
        with pytest.raises(DomainError):
            read_cards(wrong)


def test_drafts_are_a_persons_own_few_small_and_forgotten(tmp_path: Path) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    drafts = Drafts(tmp_path / "drafts.db", lambda: now[0])
    made = drafts.new("ada")

    def retitle(draft: Draft) -> None:
        draft.title = "Mine"

    assert drafts.change("bob", made, retitle) is None
    assert drafts.find("bob", made) is None
    drafts.remove("bob", made)
    assert drafts.change("ada", made, retitle) is not None
    assert [one.title for one in drafts.of("ada")] == ["Mine"]
    assert drafts.of("bob") == []

    def swell(draft: Draft) -> None:
        draft.title = "x" * MOST_CHARACTERS

    with pytest.raises(DomainError):
        drafts.change("ada", made, swell)
    kept = drafts.find("ada", made)
    assert kept is not None
    assert kept.title == "Mine"
    for _ in range(MOST - 1):
        drafts.new("ada")
    with pytest.raises(DomainError):
        drafts.new("ada")
    drafts.new("bob")
    now[0] += KEPT + timedelta(days=1)
    assert drafts.find("ada", made) is None
    assert drafts.of("ada") == []
    drafts.new("ada")
    drafts.dispose()
