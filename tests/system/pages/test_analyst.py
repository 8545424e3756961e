"""An analyst at the coordinator's pages: the catalogue, a release, its certificate, its figures, a count, a sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from caps.federation.local import LocalFederation
from tests.kit.browser import Visit, Visitor
from tests.kit.released import HOSTILE, Released, person

pytestmark = pytest.mark.e2e
FIGURES = ("columns", "pairs", "correlations", "residuals", "rounds", "count", "samples")


@pytest.fixture
def analyst(federation: LocalFederation, visit: Visit) -> Visitor:
    visitor = visit(federation.places["coordinator"].url)
    visitor.sign_in(federation.token("coordinator", "analyst"))
    return visitor


def test_from_the_catalogue_to_a_verified_release(analyst: Visitor, released: Released) -> None:
    page = analyst.page
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Releases").click()
    page.get_by_label("Search").fill("smoking, DIAGNOSES")
    page.keyboard.press("Enter")
    page.wait_for_url("**search=*")
    analyst.check()
    analyst.picture("analyst-releases")
    with page.expect_download() as download:
        page.get_by_role("link", name="as csv").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[0] == "age,smoker,region,diagnosis,visits,insured"
    page.get_by_role("link", name=released.manifest.title, exact=True).click()
    page.locator("#verdict[data-verdict=good]").wait_for()
    said = page.locator("#verdict").inner_text()
    assert said.count("✓") == 8, said
    assert "This release is differentially private with epsilon" in page.locator("main").inner_text()
    page.get_by_text("Is a file that I have").click()
    page.locator("#own-file").set_input_files(download.value.path())
    page.get_by_text("This file is data.csv of this release").wait_for()
    analyst.check()
    analyst.picture("analyst-release")


def test_a_certificate_that_was_changed_is_shown_as_such(analyst: Visitor, released: Released) -> None:
    told = {
        "statement": "the attestation of S2 does not have a valid signature of S2's key",
        "rows": "the release of coordinator does not have a valid signature of coordinator's key",
        "signer": "the release of S1 is signed by no coordinator of this study",
        "server": "the attestations are not one of each server",
        "holder": "there is no approval of",
        "key": "the agreement in the certificate is not this study's",
        "spelling": "the certificate is not in canonical form",
        "nothing": "the certificate does not have the form of one",
    }
    what = ""

    def changed(route: Route) -> None:
        text = route.fetch().text()
        found = json.loads(text)
        match what:
            case "statement":
                found["attestations"][1]["document"]["statement"]["epsilon"] = "1/10"
            case "rows":
                found["release"]["document"]["rows"] += 1
            case "signer":
                found["release"]["signer"] = "S1"
            case "server":
                found["attestations"][2] = found["attestations"][1]
            case "holder":
                del found["approvals"][-1]
            case "key":
                found["manifest"]["servers"][0]["signing_key"] = "0" * 64
            case "nothing":
                found = {"manifest": found["manifest"]}
        spelled = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        route.fulfill(body=f" {text}" if what == "spelling" else spelled, content_type="application/json")

    analyst.page.route("**/certificate", changed)
    for what, words in told.items():
        page = analyst.go(released.path)
        page.locator("#verdict[data-verdict=bad]").wait_for()
        said = page.locator("#verdict").inner_text()
        assert "Do not trust this release" in said
        assert f"✗ {words}" in said, (what, said)


def test_a_browser_without_ed25519_says_so(analyst: Visitor, released: Released) -> None:
    lacking = "crypto.subtle.importKey = () => Promise.reject(new DOMException('', 'NotSupportedError'));"
    analyst.page.add_init_script(lacking)
    page = analyst.go(released.path)
    page.locator("#verdict[data-verdict=warn]").wait_for()
    assert "Nothing was checked" in page.locator("#verdict").inner_text()


def test_the_figures(analyst: Visitor, released: Released) -> None:
    page = analyst.page
    for name in FIGURES:
        analyst.go(f"{released.path}/{name}")
        assert page.locator("nav.tabs [aria-current=page]").count() == 1
        analyst.check()
        if name == "pairs":
            analyst.picture("analyst-pairs")
        if name in ("columns", "count", "samples"):
            assert page.get_by_text(HOSTILE).count() + page.get_by_label(HOSTILE).count() > 0
        assert page.locator("main img, main script").count() == 0
    analyst.go(f"{released.path}/columns")
    page.get_by_role("link", name="Shares").click()
    page.wait_for_url("**show=shares*")
    page.locator("summary").first.click()
    expect(page.locator("figure").first).to_contain_text("synthetic (%)")
    analyst.go(f"{released.path}/pairs")
    page.locator("svg a").first.click()
    page.wait_for_url("**/pairs/0/1")
    assert page.locator("table.cells tbody tr").count() == 4
    analyst.check()


def test_the_slider_goes_through_the_rounds_by_keyboard(analyst: Visitor, released: Released) -> None:
    page = analyst.go(f"{released.path}/rounds")
    slider = page.get_by_label("After round")
    edges, later = page.locator("#graph line.edge"), page.locator("#graph line.edge.later")
    assert later.count() == 0
    slider.focus()
    page.keyboard.press("Home")
    assert later.count() == edges.count() > 0
    page.keyboard.press("ArrowRight")
    assert page.locator("#round-words").inner_text().startswith("Round 1: ")
    assert later.count() < edges.count()


def test_a_count_and_a_sample(analyst: Visitor, released: Released) -> None:
    page = analyst.go(f"{released.path}/count")
    page.get_by_text("smoker", exact=True).first.click()
    page.get_by_label("yes").first.check()
    page.get_by_label("Group by").select_option(label="diagnosis")
    page.get_by_role("button", name="Count").click()
    page.wait_for_url("**by=*")
    assert page.get_by_role("heading", name="Persons with smoker yes, by diagnosis").is_visible()
    assert page.locator("section.card tbody tr").count() >= 3
    assert "smoker" not in page.url
    analyst.check()
    analyst.picture("analyst-count")
    analyst.go(f"{released.path}/samples")
    page.get_by_label("Rows").fill("7")
    page.locator("summary").filter(has_text="region").click()
    page.get_by_label(HOSTILE).check()
    page.get_by_role("button", name="Draw the sample").click()
    page.get_by_role("heading", name="7 rows").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="as ndjson").first.click()
    rows = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert [row["region"] for row in rows] == [HOSTILE] * 7
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete").click()
    page.get_by_text("There are none yet").wait_for()
    page.get_by_label("Rows").fill("9000000")
    page.get_by_role("button", name="Draw the sample").click()
    page.get_by_text("A sample has 1 to 1000000 rows").wait_for()


def test_the_report_is_one_file_without_a_script(
    federation: LocalFederation, analyst: Visitor, visit: Visit, released: Released, tmp_path: Path
) -> None:
    with person(federation, "coordinator", "analyst") as client:
        assert client.report_page(released.release).startswith(b"<!doctype html>")
    page = analyst.go(f"{released.path}/report")
    analyst.check()
    assert page.locator("main img, script, link").count() == 0
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderTopWidth") == "1px"
    (tmp_path / "report.html").write_text(page.content())
    reader = visit("")
    reader.page.goto((tmp_path / "report.html").as_uri())  # as a file it has its style, and no complaint is heard
    assert reader.page.evaluate("getComputedStyle(document.querySelector('.card')).borderTopWidth") == "1px"


@pytest.mark.parametrize("choice", [{"dark": True}, {"narrow": True}])
def test_light_and_dark_and_small(
    federation: LocalFederation, visit: Visit, released: Released, choice: dict[str, bool]
) -> None:
    visitor = visit(federation.places["coordinator"].url, **choice)
    visitor.sign_in(federation.token("coordinator", "auditor"))
    for name in ("", "/pairs", "/columns", "/samples"):
        page = visitor.go(released.path + name)
        if not name:
            page.locator("#verdict[data-verdict=good]").wait_for()
        visitor.check()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    assert page.get_by_role("button", name="Draw the sample").count() == 0  # auditors draw none
