"""Operators and auditors: a study is started and watched with a mouse, and no page outside a holder shows its data."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from caps.client import Client
from caps.federation.local import LocalFederation
from caps.federation.parties import COORDINATOR, POPULATIONS, manifest_parties
from caps.service.tokens import Scope, Tokens
from caps.study import Manifest
from caps.trust.home import TOKENS
from caps.trust.tls import client_context
from tests.kit.browser import Visit

pytestmark = pytest.mark.e2e

TITLE = "Wards & what they cost"
ROWS = 300
HOLDERS = ("north", "south")
"""Of the federation that all tests of pages share."""
_LINKS = re.compile(r'(?:href|hx-get)="(/ui[^"#]*)"')
PEOPLE = {COORDINATOR: ("operator", "analyst", "auditor", "owner"), "S1": ("operator", "auditor"), "S2": ("auditor",)}
SCHEMA = {
    "name": "wards",
    "columns": [
        {"name": "income", "kind": "numeric", "integer": True, "bin_edges": [0, 300_000_000, 600_000_000, 999_999_999]},
        {"name": "ward", "kind": "categorical", "categories": ["A", "<i>B</i>", "C"]},
        {"name": "ill", "kind": "categorical", "categories": ["no", "yes"]},
    ],
}


def private(holder: str) -> list[str]:
    """Incomes that nobody would write by chance: nine digits, each once."""
    return [str(100_000_007 + 2_999_983 * (2 * row + (holder == "south")) % 899_000_000) for row in range(ROWS)]


@pytest.fixture(scope="module")
def manifest(federation: LocalFederation) -> Manifest:
    holders = [{"name": name, "brings": "rows"} for name in HOLDERS]
    return Manifest.from_json(
        {
            "title": TITLE,
            "purpose": "To see that pages show none of it. <script>alert('x')</script>",
            "schema": SCHEMA,
            "algorithm": {"name": "aim", "parameters": {"rounds": 4}},
            "privacy": {"epsilon": "1", "delta": "1e-9", "population": list(POPULATIONS)[-1]},
            **manifest_parties(federation.places, federation.scheme, holders),
        }
    )


def person(federation: LocalFederation, name: str, scope: str) -> Client:
    return Client(federation.places[name].url, token=federation.token(name, scope), authority=federation.authority)


def crawled(federation: LocalFederation, name: str, scope: str) -> Iterator[tuple[str, httpx.Response]]:
    """Every page that a person finds by following links and parts from the first one."""
    tokens = Tokens(federation.places[name].home / TOKENS)
    token = tokens.create("reader", [Scope(scope)], expires=datetime.now(UTC) + timedelta(hours=1))
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/html"}
    context = client_context(federation.authority)
    with httpx.Client(base_url=federation.places[name].url, verify=context, headers=headers, timeout=60) as http:
        waiting, seen = ["/ui"], {"/ui"}
        while waiting:
            path = waiting.pop()
            answer = http.get(path)
            assert answer.status_code == 200, (name, scope, path, answer.text[-500:])
            yield path, answer
            found = {one.replace("&amp;", "&") for one in _LINKS.findall(answer.text)}
            more = {one for one in found if not one.startswith("/ui/static")} - seen
            seen |= more
            waiting += sorted(more)


def read_everything(federation: LocalFederation, secret: re.Pattern[str]) -> set[str]:
    """Reads all pages of coordinator and servers as everybody; returns the kinds of pages that were read."""
    kinds = set()
    for name, scopes in PEOPLE.items():
        for scope in scopes:
            for path, answer in crawled(federation, name, scope):
                if "/data/" not in path:  # synthetic incomes may be somebody's by chance
                    assert not secret.search(answer.text), (name, scope, path)
                if answer.headers["content-type"].startswith("text/html"):
                    assert "<script>alert" not in answer.text, (name, scope, path)
                kinds.add(re.sub(r"[0-9a-f]{32,64}", "ID", path.partition("?")[0]))
    return kinds


def test_a_study_is_watched_and_no_page_has_its_values(
    federation: LocalFederation, manifest: Manifest, visit: Visit, tmp_path: Path
) -> None:
    values = {holder: private(holder) for holder in HOLDERS}
    secret = re.compile("|".join(value for found in values.values() for value in found))
    study, coordinator = manifest.study_id, federation.places[COORDINATOR]
    with person(federation, COORDINATOR, "operator") as operator:
        operator.propose(manifest)
    for holder in HOLDERS:
        table = tmp_path / f"{holder}.csv"
        lines = [f"{one},{'AC'[int(one) % 2]},{'no' if int(one) % 3 else 'yes'}" for one in values[holder]]
        table.write_text("income,ward,ill\n" + "\n".join(lines) + "\n")
        assert secret.search(table.read_text())
        with person(federation, holder, "operator") as operator:
            operator.fetch(coordinator.url, study)
        with person(federation, holder, "owner") as owner:
            owner.approve(study)
            owner.put_table(study, table)
            owner.contribute(study)
            while not all(server.receipt for server in owner.contribution(study).servers):
                time.sleep(0.1)

    somebody = visit(coordinator.url)
    page = somebody.sign_in(federation.token(COORDINATOR, "operator"), f"/ui/studies/{study}")
    assert page.locator("h1").inner_text() == TITLE
    page.get_by_text("contributed", exact=True).nth(1).wait_for()
    somebody.check()
    somebody.picture("operator-study")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Start a run").click()
    page.wait_for_url("**/ui/runs/*")
    kinds = read_everything(federation, secret)
    page.get_by_text("Released", exact=True).wait_for(timeout=240_000)
    page.get_by_role("table").first.wait_for(state="attached")
    assert page.locator("svg rect.span-work").count() >= 3 * 4
    page.get_by_role("cell", name="ended", exact=True).nth(2).wait_for()
    somebody.check()
    somebody.picture("operator-run")
    for path in ("studies", "runs", "ledgers"):
        somebody.go(f"/ui/{path}")
        somebody.check()
        somebody.picture(f"operator-{path}")
    somebody.go("/ui/federation")
    page.get_by_role("region", name="The other parties").wait_for()
    somebody.check()
    somebody.picture("operator-federation")

    kinds |= read_everything(federation, secret)
    assert {"/ui/studies/ID", "/ui/runs/ID", "/ui/runs/ID/servers", "/ui/ledger/verified", "/ui/budgets"} <= kinds


@pytest.mark.parametrize("dark", [False, True])
def test_an_auditor_compares_the_ledgers(federation: LocalFederation, visit: Visit, dark: bool) -> None:
    auditor = visit(federation.places["S2"].url, dark=dark, narrow=dark)
    page = auditor.sign_in(federation.token("S2", "auditor"), "/ui/ledger")
    page.get_by_text("The chain holds").wait_for()
    look = "dark" if dark else "light"
    auditor.check()
    auditor.picture("auditor-ledger-narrow" if dark else "auditor-ledger")
    if page.get_by_role("region", name="Heads of ledgers").count():
        assert page.get_by_text("in this ledger as signed").count()
        assert page.get_by_text("signature holds").count() >= 2
    for path in ("budgets", "studies", "runs"):
        auditor.go(f"/ui/{path}")
        auditor.check()
        auditor.picture(f"auditor-{path}-{look}")
    if page.locator("tbody th a").count():
        page.locator("tbody th a").first.click()
        page.wait_for_url("**/ui/runs/*")
        auditor.check()
        auditor.picture(f"auditor-run-{look}")
    assert auditor.go("/ui/studies").get_by_role("button", name="Approve").count() == 0
