"""The holder's pages when something is wrong: too large, too late, not allowed, out of reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from caps.service.tokens import Scope
from services.holder.store import Store
from tests.kit.browser import Visit, Visitor, browser, visit  # noqa: F401
from tests.kit.holder import HolderBench

pytestmark = pytest.mark.integration

MOST = 20_000
GOOD = "age,smoker,region,diagnosis\n30,yes,north,A\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HolderBench]:
    made = HolderBench(tmp_path_factory.mktemp("holder"), "clinic-a")
    yield made
    for one in made.sockets.values():
        one.close()


@pytest.fixture(scope="module")
def rest(bench: HolderBench) -> Iterator[httpx.Client]:
    """The owner, at the holder's REST interface. The servers are out of reach."""
    with bench.client(max_upload=MOST) as client:
        store = Store(bench.site("holder", "holder").settings.database)
        store.add_study(bench.manifest)  # as if it had been fetched
        store.close()
        yield client


def owner(bench: HolderBench, visit: Visit, path: str = "/ui") -> tuple[Visitor, Page]:
    ada = visit(bench.urls["holder"])
    return ada, ada.sign_in(bench.tokens[Scope.OWNER], path)


def test_servers_out_of_reach_are_named_and_do_not_keep_the_page(
    bench: HolderBench, rest: httpx.Client, visit: Visit
) -> None:
    ada, page = owner(bench, visit, f"/ui/studies/{bench.study}")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    expect(page.locator("main")).to_contain_text("S1 does not say")
    page.get_by_text("Decline it").click()
    page.get_by_label("Why").fill("Our ethics board <b>meets</b> in May.")
    page.get_by_role("button", name="Decline").click()
    expect(page.get_by_text("You have declined this study")).to_be_visible()
    expect(page.locator("main")).to_contain_text("<b>meets</b>")
    ada.check()
    ada.go("/ui")
    expect(page.get_by_role("region", name="Done")).to_contain_text("declined")
    page.go_back()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("main")).to_contain_text(re.compile("does not have it yet|is on its way"))


def test_a_file_beyond_the_limit_is_refused_by_the_page_and_by_the_service(
    bench: HolderBench, rest: httpx.Client, visit: Visit, tmp_path: Path
) -> None:
    rest.post(f"/v1/studies/{bench.study}/approval")
    ada, page = owner(bench, visit, f"/ui/studies/{bench.study}/table")
    path = tmp_path / "huge.csv"
    path.write_text(GOOD + "30,yes,north,A\n" * 2000)
    page.locator(".drop[data-ready] input[type=file]").set_input_files(path)
    expect(page.locator(".drop")).to_contain_text("takes files of up to 20 KB")
    page.evaluate("document.querySelector('.drop').dataset.most = '1e9'")
    page.locator(".drop[data-ready] input[type=file]").set_input_files(path)
    expect(page.locator("main")).to_contain_text(re.compile("larger than the 20000 bytes|refused it midway"))
    answer = rest.put(f"/ui/studies/{bench.study}/table", content=path.read_bytes())
    assert answer.status_code == 413
    assert answer.headers["content-type"].startswith("text/html")
    assert bench.files() == []
    ada.check()


def test_a_session_that_ends_during_an_upload_leads_to_signing_in(
    bench: HolderBench, rest: httpx.Client, visit: Visit, tmp_path: Path
) -> None:
    rest.post(f"/v1/studies/{bench.study}/approval")
    _, page = owner(bench, visit, f"/ui/studies/{bench.study}/table")
    page.context.clear_cookies()
    path = tmp_path / "good.csv"
    path.write_text(GOOD)
    page.locator(".drop[data-ready] input[type=file]").set_input_files(path)
    page.wait_for_url(lambda found: "/ui/sign-in?" in found)
    assert bench.files() == []
    page.get_by_label("Token").fill(bench.tokens[Scope.OWNER])
    page.keyboard.press("Enter")
    page.wait_for_url(lambda found: found.endswith("/table"))  # back where it was


def test_what_is_the_owners_is_not_the_operators(bench: HolderBench, rest: httpx.Client, visit: Visit) -> None:
    eve = visit(bench.urls["holder"])
    page = eve.sign_in(bench.tokens[Scope.OPERATOR])
    assert page.get_by_role("link", name="Ledger").count() == 0
    page = eve.go(f"/ui/studies/{bench.study}/table")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    expect(page.locator("main")).to_contain_text("Only owners may do this, not person/operator.")
    eve.check()


@pytest.mark.parametrize(
    ("coordinator", "study"), [("", ""), ("http://x", "0" * 64), ("https://127.0.0.1:1", "0" * 64), ("x" * 9000, "<b>")]
)
def test_a_study_that_cannot_be_fetched(rest: httpx.Client, coordinator: str, study: str) -> None:
    answer = rest.post("/ui/fetch", data={"coordinator": coordinator, "study": study})
    assert answer.status_code in (422, 503)
    assert "<h1>" in answer.text
    assert "<b>" not in answer.text
