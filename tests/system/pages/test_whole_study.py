"""A whole study by five people at their browsers: from the author's empty draft to a file at the analyst's desk.

Nothing between the first page and the last is done by REST. One of the servers is killed in the middle, and comes back.
"""

from __future__ import annotations

import csv
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import pytest
from playwright.sync_api import Response, expect

from caps.federation.local import CARDS, LocalFederation
from caps.federation.parties import COORDINATOR
from caps.service.tokens import Scope, Tokens
from caps.study import Manifest, authoring
from caps.trust.home import TOKENS
from caps.trust.tls import client_context
from services.coordinator.pages.author import PATH
from tests.kit.browser import Visit, Visitor

pytestmark = pytest.mark.e2e

SCRIPT = "<img src=x onerror=alert(1)>"
TITLE = "Wards & what they cost"
BOOK = f'column,code\nward,surgery\nward,"{SCRIPT}"\nward,other\nbed,yes\nbed,no\n'
PERSONS = {"north": range(300), "south": range(150, 450)}
"""Whom each holder has: 150 each by itself, and 150 in common."""
AWAY = "S2"
"""The server that is killed."""
MEANWHILE = {COORDINATOR: ("operator",), "S1": ("operator",)}
"""Who read all pages while the run waits: those who see the most."""
AFTERWARDS = {COORDINATOR: ("operator", "analyst", "auditor", "owner"), "S1": ("operator",), AWAY: ("auditor",)}
_LINKS = re.compile(r'(?:href|hx-get)="(/ui[^"#]*)"')


def test_five_people_take_a_study_to_its_release(federation: LocalFederation, visit: Visit, tmp_path: Path) -> None:
    def person(name: str, scope: str, path: str = "/ui") -> Visitor:
        visitor = visit(federation.places[name].url)
        visitor.sign_in(federation.token(name, scope), path)
        return visitor

    manifest = _author(federation, person(COORDINATOR, "operator", PATH))
    columns = {"north": ("age", "ward"), "south": ("smoker",)}
    tables = {name: _table(tmp_path / f"{name}.csv", PERSONS[name], found) for name, found in columns.items()}
    secret = re.compile("|".join(_key(number) for persons in PERSONS.values() for number in persons))
    assert all(len(secret.findall(table.read_text())) == 300 for table in tables.values())
    owners = [person(name, "owner") for name in tables]
    for owner, table in zip(owners, tables.values(), strict=True):
        _owner(owner, manifest, table)
    _operator(federation, person(COORDINATOR, "operator"), manifest, secret)
    _analyst(person(COORDINATOR, "analyst"), tmp_path)
    _compared(owners[0], tmp_path / "released.csv")
    kinds = read_everything(federation, secret, AFTERWARDS)
    assert {"/ui/studies/ID", "/ui/runs/ID", "/ui/runs/ID/servers", "/ui/ledger/verified", "/ui/budgets"} <= kinds


def _author(federation: LocalFederation, author: Visitor) -> Manifest:
    """Writes the study in seven steps, and proposes it."""
    page = author.page
    author.check()
    page.get_by_role("button", name="Begin a study").click()
    page.get_by_label("Title").focus()
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Give the study a title.").wait_for()
    author.check()

    page.get_by_label("Title").focus()
    page.keyboard.type(TITLE)
    page.keyboard.press("Tab")
    # On a busy machine a part of it may be kept before the rest is typed.
    with page.expect_response(lambda answer: _kept(answer, "purpose") == "To plan beds."):
        page.keyboard.type("To plan beds.")
    page.reload()  # nothing was sent but what is kept as it is typed
    assert page.get_by_label("Purpose").input_value() == "To plan beds."
    step = page.url
    page.context.clear_cookies()  # as if the session had ended
    page.get_by_label("Population").focus()
    page.keyboard.type("i")
    page.get_by_label("Token").fill(federation.token(COORDINATOR, "operator"))
    page.keyboard.press("Enter")
    page.wait_for_url(step)
    assert page.get_by_label("Purpose").input_value() == "To plan beds."
    page.get_by_label("Population").fill("invented-patients")
    page.keyboard.press("Enter")
    page.wait_for_url("**/columns")

    page.get_by_label("Name").fill("age")
    page.get_by_label("What it is").fill("ages")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("The name suggests age.").wait_for()
    page.get_by_label("What it is").fill("age:20")
    page.keyboard.press("Enter")
    page.get_by_role("cell", name="0 to 120 in 5 bins").wait_for()
    page.locator("#new_name:focus").wait_for()
    page.keyboard.type("smoker")
    page.keyboard.press("Tab")
    page.keyboard.type("yes-no")
    page.keyboard.press("Enter")
    page.get_by_role("cell", name="yes or no", exact=True).first.wait_for()
    page.get_by_text("Take columns from a public code book").click()
    book = {"name": "book.csv", "mimeType": "text/csv", "buffer": BOOK.encode()}
    page.get_by_label("File").set_input_files(files=[book])
    page.get_by_text("Read. Look at it below").wait_for()
    author.check()
    page.get_by_role("button", name="Add its columns").click()
    page.get_by_role("cell", name=SCRIPT).wait_for()
    author.check()
    author.picture("author-columns")
    page.get_by_role("button", name="Remove bed").click()
    page.get_by_role("link", name="bed").wait_for(state="detached")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url("**/parties")

    cards = sorted((federation.directory / CARDS).glob("*.json"))
    page.get_by_label("Files").set_input_files(cards)
    page.get_by_text("Read. Look at it below").wait_for()
    page.get_by_role("button", name="Add the cards").click()
    for holder, columns in (("north", ("age", "ward")), ("south", ("smoker",))):
        page.get_by_role("group", name=holder).get_by_role("radio", name="some columns").check()
        for column in columns:
            page.get_by_role("group", name=holder).get_by_role("checkbox", name=column).check()
    author.check()
    author.picture("author-parties")
    page.get_by_role("button", name="Save and go on").click()
    page.wait_for_url("**/matching")

    page.get_by_label("by a key").check()
    page.get_by_role("button", name="Add a column to the key").click()
    page.get_by_label("Name in the files").fill("insurance")
    page.get_by_label("Marks to drop (text)").fill("-")
    for name in ("north", "south"):
        page.get_by_label(name, exact=True).fill("1,000")
    page.get_by_role("textbox", name="one spelling").fill("A-12")
    page.get_by_role("textbox", name="another").fill("a12")
    page.get_by_role("button", name="Try them").click()
    page.get_by_text("They meet:").wait_for()
    author.check()
    author.picture("author-matching")
    page.get_by_role("button", name="Save and go on").click()
    page.wait_for_url("**/question")
    author.check()
    author.picture("author-question")
    page.get_by_role("button", name="Save and go on").click()
    page.wait_for_url("**/privacy")

    page.get_by_label("Persons, about").fill("20000")
    page.get_by_label("Wished error").fill("1")
    page.get_by_role("button", name="Work it out").click()
    use = page.get_by_role("button", name="Use epsilon")
    use.wait_for()
    author.check()
    author.picture("author-privacy")
    epsilon = use.inner_text().rpartition(" ")[2]
    use.click()
    page.locator(f'#epsilon[value="{epsilon}"]').wait_for()
    page.get_by_role("button", name="Save and go on").click()
    page.wait_for_url("**/review")
    author.check()
    author.picture("author-review")
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download as YAML").click()
    manifest = authoring.load(downloading.value.path().read_text())
    assert (manifest.privacy.epsilon, manifest.title) == (epsilon, TITLE)

    page.once("dialog", lambda question: question.accept())
    page.get_by_role("button", name="Propose the study").click()
    page.wait_for_url(f"**/proposals/{manifest.study_id}")
    page.get_by_role("heading", name=TITLE).wait_for()
    assert page.locator("img[onerror]").count() == 0
    page.get_by_role("cell", name="nobody").first.wait_for()
    approvals = page.get_by_role("region", name="Who has approved").get_by_text("approved", exact=True)
    assert approvals.count() == len(manifest.servers)
    author.check()
    author.picture("author-proposal")
    page.go_back()
    page.get_by_role("link", name="who has approved it").wait_for()
    return manifest


def _kept(answer: Response, field: str) -> str:
    """What a field had that was kept as it was typed."""
    sent = parse_qs(answer.request.post_data or "") if answer.url.endswith("/keep") else {}
    return sent.get(field, [""])[0]


def _owner(owner: Visitor, manifest: Manifest, table: Path) -> None:
    """Was told the coordinator's address and the study's id; approves, loads a table, and contributes it."""
    page = owner.page
    page.get_by_label("Address of the coordinator").fill(manifest.coordinator.url)
    page.get_by_label("Id of the study").fill(manifest.study_id)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(TITLE)
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("link", name="Load the table").click()
    owner.drop(table)
    expect(page.get_by_text("Your table fits the study")).to_be_visible()
    page.get_by_role("link", name="Look at what leaves").click()
    page.get_by_role("button", name="Contribute").click()
    expect(page.get_by_text("All 3 servers have signed for your data")).to_be_visible()
    owner.check()


def _operator(federation: LocalFederation, operator: Visitor, manifest: Manifest, secret: re.Pattern[str]) -> None:
    """Starts the run, sees whom it waits for, has the server started again, and sees the run end."""
    page = operator.page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Studies").click()
    page.get_by_role("link", name=TITLE, exact=True).click()
    expect(page.get_by_text("contributed", exact=True)).to_have_count(len(manifest.holders))
    operator.check()
    operator.picture("operator-study")
    page.on("dialog", lambda dialog: dialog.accept())
    with page.expect_response("**/ui/runs/*/events?*") as events:
        page.get_by_role("button", name="Start a run").click()
        page.wait_for_url("**/ui/runs/*")
    assert events.value.headers["content-type"].startswith("text/event-stream")

    process = federation.process(AWAY)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    expect(page.get_by_text(f"Waiting for {AWAY}", exact=True)).to_be_visible()
    expect(page.locator("svg rect.span-blamed")).not_to_have_count(0)
    operator.picture("operator-run-waiting")
    read_everything(federation, secret, MEANWHILE)
    assert federation.start(now=lambda: datetime.now(UTC)) == [AWAY]
    expect(page.get_by_text("Released", exact=True)).to_be_visible(timeout=240_000)
    assert page.locator("svg rect.span-work").count() >= 3 * 4
    expect(page.get_by_role("cell", name="ended", exact=True)).to_have_count(3)
    expect(page.locator("[hx-trigger*=sse]")).to_have_count(0)  # nothing on the page changes any more
    operator.check()
    operator.picture("operator-run")
    for path in ("studies", "runs", "ledgers"):
        operator.go(f"/ui/{path}")
        operator.check()
        operator.picture(f"operator-{path}")
    operator.go("/ui/federation")
    page.get_by_role("region", name="The other parties").wait_for()
    operator.check()
    operator.picture("operator-federation")


def _compared(owner: Visitor, released: Path) -> None:
    """The owner sees how the release, which the holder fetches, compares with the own table; or drops its file."""
    page = owner.page
    page.get_by_role("link", name="Release", exact=True).click()
    page.get_by_role("button", name="Compare with the release").click()
    expect(page.locator("#compared figure")).to_have_count(2)
    expect(page.locator("#compared")).to_contain_text("300 rows of yours")
    expect(page.locator("#compared")).to_contain_text(SCRIPT)
    owner.check()
    owner.picture("owner-release")
    header, *rows = released.read_text().splitlines()
    rows.append(",".join("yes" if name == "smoker" else "" for name in header.split(",")))  # whom north does not have
    released.write_text("\n".join([header, *rows]))
    page.get_by_text("I have its file").click()
    owner.drop(released)
    expect(page.locator("#compared")).to_contain_text(f"beside {len(rows)} synthetic ones")


def _analyst(analyst: Visitor, folder: Path) -> None:
    """Opens the release, sees that its certificate holds, and takes its rows home."""
    page = analyst.page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Releases").click()
    page.get_by_role("link", name=TITLE, exact=True).click()
    page.locator("#verdict[data-verdict=good]").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="as csv").click()
    download.value.save_as(folder / "released.csv")
    with (folder / "released.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = [row for row in rows if row["age"]]
    assert known
    assert set(rows[0]) == {"age", "smoker", "ward"}
    assert all((row["age"] == "") == (row["ward"] == "") for row in rows)  # of a person whom north does not have
    assert all(0 <= float(row["age"]) <= 120 for row in known)
    assert {row["ward"] for row in known} <= {"surgery", SCRIPT, "other"}
    assert {row["smoker"] for row in rows} <= {"yes", "no", ""}


def _key(number: int) -> str:
    """Nine digits that nobody would write by chance."""
    return str(100_000_007 + 2_999_983 * number % 899_000_000)


def _table(path: Path, persons: range, columns: Sequence[str]) -> Path:
    """A holder's file, with its own spelling of the key."""
    lines = [",".join(["insurance", *columns])]
    for number in persons:
        values = {
            "age": str(7 * number % 95),
            "ward": ("surgery", "other", SCRIPT)[number % 3],
            "smoker": "yes" if number % 3 else "no",
        }
        key = f"A-{_key(number)}" if "age" in columns else f"a{_key(number)}"
        lines.append(",".join([key, *(values[column] for column in columns)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def read_everything(
    federation: LocalFederation, secret: re.Pattern[str], readers: Mapping[str, Sequence[str]]
) -> set[str]:
    """What everybody else could see: all pages of coordinator and servers; returns the kinds of pages.

    None of them has a value of the tables, or text of others as markup.
    """
    kinds = set()
    for name, scopes in readers.items():
        for scope in scopes:
            for path, answer in _crawled(federation, name, scope):
                if "/data/" not in path:  # synthetic values may be somebody's by chance
                    assert not secret.search(answer.text), (name, scope, path)
                if answer.headers["content-type"].startswith("text/html"):
                    assert "<img src=x" not in answer.text, (name, scope, path)
                kinds.add(re.sub(r"[0-9a-f]{32,64}", "ID", path.partition("?")[0]))
    return kinds


def _crawled(federation: LocalFederation, name: str, scope: str) -> Iterator[tuple[str, httpx.Response]]:
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
