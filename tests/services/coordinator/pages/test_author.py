"""The author's pages without a browser and without scripts: plain forms, from an empty draft to a proposed study."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from html import escape
from pathlib import Path

import httpx
import pytest

from caps.service.tokens import Scope
from caps.study import authoring
from services.coordinator.authoring.draft import STEPS
from services.coordinator.pages.author import PATH
from services.coordinator.service import Coordinator
from tests.kit.coordinator_servers import Bench
from tests.kit.study import NOW

pytestmark = pytest.mark.integration

SCRIPT = "<script>alert('x')</script>"
BOOK = f'column,code,min,max\nward,surgery,,\nward,"{SCRIPT}",,\nage,,0,120\nremark,,,\n'


class Author:
    """An operator, named Ada or so, who sends forms as a browser without scripts does."""

    def __init__(self, coordinator: Coordinator, name: str = "ada") -> None:
        self.coordinator = coordinator
        self._app = coordinator.app()
        token = coordinator.site.tokens.create(name, [Scope.OPERATOR], expires=NOW + timedelta(days=1))
        self._headers = {"Authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, form: Mapping[str, object] | None = None) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="https://caps.test:8443") as client:
                return await client.request(method, path, data=form, headers=self._headers)

        return asyncio.run(exchange())

    def page(self, path: str) -> str:
        found = self.call("GET", path)
        assert found.status_code == 200, (path, found.status_code, found.text)
        return found.text

    def sends(self, path: str, **fields: object) -> str:
        """Where the form leads."""
        found = self.call("POST", path, {name.replace("__", ":"): value for name, value in fields.items()})
        assert found.status_code == 303, (path, found.status_code, found.text)
        return found.headers["location"]

    def begins(self) -> str:
        return self.sends(f"{PATH}/new").removesuffix("/about")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def author(bench: Bench) -> Iterator[Author]:
    with closing(bench.agreed()) as coordinator:
        yield Author(coordinator)


def cards_of(bench: Bench) -> str:
    found = []
    for role, parties in (("mpc-server", bench.manifest.servers), ("holder", bench.manifest.holders)):
        for one in parties:
            known = ("name", "pin", "signing_key", "url", "mesh")
            found.append({"role": role, **{name: value for name, value in one.to_json().items() if name in known}})
    return "\n".join(map(json.dumps, found))


def test_from_an_empty_draft_to_a_proposed_study(bench: Bench, author: Author) -> None:
    draft = author.begins()
    assert author.sends(f"{draft}/about/save", title="", do="go") == f"{draft}/about"
    assert "Give the study a title." in author.page(f"{draft}/about")
    about = {"title": f"Wards {SCRIPT}", "purpose": "To plan.", "population": "patients"}
    assert author.sends(f"{draft}/about/save", **about, do="go") == f"{draft}/columns"

    assert author.sends(f"{draft}/columns/save", codebook=BOOK, do="codebook") == f"{draft}/columns"
    assert author.sends(f"{draft}/columns/save", new_name="smoker", new_asked="yes-no", do="add") == f"{draft}/columns"
    author.sends(f"{draft}/columns/save", new_name="patient_id", new_asked="id", do="add")
    shown = author.page(f"{draft}/columns")
    assert SCRIPT not in shown
    assert escape(SCRIPT, quote=True).replace("&#x27;", "&#39;") in shown
    assert "it identifies persons" in shown
    assert author.sends(f"{draft}/columns/save", do="go") == f"{draft}/parties"

    assert author.sends(f"{draft}/parties/save", cards=cards_of(bench), do="cards") == f"{draft}/parties"
    assert author.sends(f"{draft}/parties/save", do="go") == f"{draft}/matching"
    assert "Nothing to match" in author.page(f"{draft}/matching")
    assert author.sends(f"{draft}/matching/save", do="go") == f"{draft}/question"
    assert author.sends(f"{draft}/question/save", workload="label", label="ward", do="go") == f"{draft}/privacy"

    author.sends(f"{draft}/privacy/save", epsilon="1", delta="1e-6", persons="20,000", wished="5", do="stay")
    shown = author.page(f"{draft}/privacy")
    assert "needs epsilon" in shown
    needed = shown.partition('value="use:')[2].partition('"')[0]
    author.sends(f"{draft}/privacy/save", do=f"use:{needed}")
    assert author.sends(f"{draft}/privacy/save", do="go") == f"{draft}/review"

    assert SCRIPT not in author.page(f"{draft}/review")
    file = author.call("GET", f"{draft}/download")
    assert file.headers["content-disposition"] == 'attachment; filename="wards-script-alert-x-script.yaml"'
    manifest = authoring.load(file.text)
    assert manifest.privacy.epsilon == needed
    assert manifest.title == f"Wards {SCRIPT}"
    for _ in range(2):  # a second time changes nothing
        assert author.sends(f"{draft}/review/propose") == f"/ui/proposals/{manifest.study_id}"
    assert author.coordinator.store.studies().count(manifest.study_id) == 1
    assert manifest.study_id in author.page(PATH)
    shown = author.page(f"/ui/proposals/{manifest.study_id}")
    assert SCRIPT not in shown
    assert "not yet" in shown
    author.page(f"/ui/proposals/{manifest.study_id}/contributions")
    no = bench.federation.decline("clinic-a", f"Not {SCRIPT}", study=manifest.study_id)
    author.coordinator.studies.decline(manifest.study_id, manifest.holder("clinic-a"), no)
    shown = author.page(f"/ui/proposals/{manifest.study_id}")
    assert "clinic-a says no." in shown
    assert "Not &lt;script&gt;" in shown
    assert author.sends(f"/ui/proposals/{manifest.study_id}/refresh") == f"/ui/proposals/{manifest.study_id}"


def test_what_is_typed_stays_and_what_should_not_have_been_sent_does_not(author: Author) -> None:
    draft = author.begins()
    table = "patient,age\nMeyer,33\n"
    for step, fields in (
        ("columns", {"codebook": table, "do": "codebook"}),
        ("parties", {"cards": table, "do": "cards"}),
    ):
        found = author.call("POST", f"{draft}/{step}/save", fields)
        assert found.status_code == 422
        assert "Meyer,33" in found.text  # in the field, as it was typed
        assert "Meyer" not in author.page(f"{draft}/{step}")
    saved = author.page(f"{draft}/privacy").partition('name="saved" value="')[2].partition('"')[0]
    typed = {"epsilon": "one half", "saved": saved}
    assert author.call("POST", f"{draft}/privacy/keep", typed).status_code == 204
    assert 'value="one half"' in author.page(f"{draft}/privacy")
    author.sends(f"{draft}/privacy/save", epsilon="0.7", do="stay")
    author.call("POST", f"{draft}/privacy/keep", typed)  # was on its way when the form was sent
    assert 'value="0.7"' in author.page(f"{draft}/privacy")
    author.sends(f"{draft}/columns/save", new_name="age", new_asked="years", do="add")
    shown = author.page(f"{draft}/columns")
    assert 'value="years"' in shown
    assert "The name suggests age." in shown
    key = author.sends(f"{draft}/columns/save", new_name="age", do="type").rpartition("/")[2]
    kept = [*author.coordinator.site.settings.data.glob("drafts.db*")]
    assert kept
    assert not any(b"Meyer" in path.read_bytes() for path in kept)
    wrong = {"name": "age", "kind": "integer", "values": "10, 5"}
    assert author.sends(f"{draft}/columns/{key}/save", **wrong) == f"{draft}/columns/{key}"
    assert "10, 5" in author.page(f"{draft}/columns/{key}")
    assert author.sends(f"{draft}/columns/{key}/save", **wrong | {"values": "0..100/20"}) == f"{draft}/columns"
    assert "0 to 120 in 6 bins" in author.page(f"{draft}/columns")  # 100 included
    author.sends(f"{draft}/columns/save", do=f"remove:{key}")
    assert "bins</td>" not in author.page(f"{draft}/columns")


def test_spellings_are_tried_with_the_rules_of_the_key(bench: Bench, author: Author) -> None:
    draft = author.begins()
    author.sends(f"{draft}/columns/save", new_name="age", new_asked="age", do="add")
    author.sends(f"{draft}/columns/save", new_name="smoker", new_asked="yes-no", do="add")
    author.sends(f"{draft}/parties/save", do=f"take:{bench.manifest.study_id}")
    one, two = (holder.name for holder in bench.manifest.holders)
    brings = {
        f"brings:{one}": "columns",
        f"columns:{one}": "age",
        f"brings:{two}": "columns",
        f"columns:{two}": "smoker",
    }
    author.sends(f"{draft}/parties/save", **brings)
    author.sends(f"{draft}/matching/save", matching="join", do="add")
    key = author.page(f"{draft}/matching").partition('name="name:')[2].partition('"')[0]
    rules = {f"name:{key}": "insurance", f"remove:{key}": "-", f"whitespace:{key}": "remove"}
    for spelling, words in (("a12 3", "They meet"), ("A-124", "They do not meet")):
        found = author.call(
            "POST", f"{draft}/matching/save", rules | {f"one:{key}": "A-123", f"two:{key}": spelling, "do": "try"}
        )
        assert found.status_code == 200
        assert words in found.text
    author.sends(f"{draft}/matching/save", do="go")
    assert "say how many rows it sends" in author.page(f"{draft}/matching").lower()
    capacities = {f"capacity:{name}": "1000" for name in (one, two)}
    assert author.sends(f"{draft}/matching/save", **capacities, do="go") == f"{draft}/question"


def test_a_draft_is_its_authors(author: Author) -> None:
    draft, other = author.begins(), Author(author.coordinator, "bob")
    for path in (draft, f"{draft}/about", f"{draft}/download", f"{draft}/columns/1"):
        assert other.call("GET", path).status_code == 404
    assert other.call("POST", f"{draft}/about/save", {"title": "Bob's"}).status_code == 404
    other.sends(f"{draft}/remove")
    assert all(author.page(f"{draft}/{step}") for step in STEPS)
    author.sends(f"{draft}/remove")
    assert author.call("GET", draft).status_code == 404
