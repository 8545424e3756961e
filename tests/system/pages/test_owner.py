"""A data owner takes a study from the invitation to the comparison with its release, with mouse and keyboard only."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Page, expect

from caps.client import Client
from caps.federation.local import LocalFederation
from caps.federation.sample import SCHEMA, table
from caps.study import Manifest
from tests.kit.browser import Visit, Visitor

pytestmark = pytest.mark.e2e

SCRIPT = "<script>alert(1)</script>"
CANARY = "Ottilie-Canary-1927"


@dataclass
class Case:
    """A study of one test."""

    federation: LocalFederation
    study: str
    manifest: Manifest

    def client(self, site: str) -> Client:
        return Client.from_site(site, config=self.federation.config)

    def at(self, page: str = "") -> str:
        return f"/ui/studies/{self.study}{page}"


def proposed(federation: LocalFederation, **changes: Any) -> Case:
    """The sample with these changes, proposed, and approved by the servers."""
    text = yaml.safe_load((federation.directory / "sample" / "study.yaml").read_text()) | changes
    manifest = Manifest.from_json(text)
    made = Case(federation, manifest.study_id, manifest)
    with made.client("coordinator") as coordinator:
        coordinator.propose(manifest)
    for name in federation.scheme.server_names:
        with made.client(name) as server:
            server.approve(made.study)
    return made


def owner(case: Case, visit: Visit, name: str = "north", **choices: bool) -> Visitor:
    found = visit(case.federation.places[name].url, **choices)
    found.sign_in(case.federation.token(name, "owner"))
    return found


def fetched(case: Case, page: Page) -> None:
    """Invited by somebody who told the coordinator's address and the study's id."""
    page.get_by_label("Address of the coordinator").fill(case.federation.places["coordinator"].url)
    page.get_by_label("Id of the study").fill(case.study)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(case.manifest.title)


def test_text_of_others_is_shown_as_text(federation: LocalFederation, visit: Visit, tmp_path: Path) -> None:
    schema = copy.deepcopy(SCHEMA)
    schema["columns"][1]["categories"] = ["no", "former", "yes", "<b>?</b>"]
    image = "<img src=x onerror=alert(2)>"
    case = proposed(federation, title=f"Smoking {SCRIPT}", purpose=f"To learn. {image}", schema=schema)
    ada = owner(case, visit, narrow=True)
    page = ada.page
    fetched(case, page)
    expect(page.locator("main")).to_contain_text(image)
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("link", name="Load the table").click()
    named = tmp_path / "<img src=x onerror=alert(3)>.csv"
    named.write_text(f"age,smoker,region,diagnosis\n40,{SCRIPT},north,none\n")
    ada.drop(named)
    expect(page.locator("#found")).to_contain_text("no, former, yes, <b>?</b>")
    expect(page.locator("#found tbody td").first).to_have_css("display", "block")  # one below the other, titled
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator(".drop")).to_contain_text(named.name)
    assert SCRIPT not in page.content()
    named.write_text("age,smoker,region,diagnosis\n40,<b>?</b>,north,none\n")
    ada.drop(named)
    expect(page.locator("#found svg").nth(1)).to_contain_text("<b>?</b>")
    ada.check()
    ada.go("/ui")
    expect(page.locator("main")).to_contain_text(SCRIPT)


def test_from_the_invitation_to_the_comparison(federation: LocalFederation, visit: Visit, tmp_path: Path) -> None:
    case = proposed(
        federation,
        title="Smoking and diagnoses in the county",
        purpose="To learn how diagnoses depend on smoking and age, without showing anybody a patient's record.",
    )
    ada = owner(case, visit)
    page = ada.page
    fetched(case, page)
    expect(page.locator("main")).to_contain_text("2.72 times")
    expect(page.locator("main")).to_contain_text("S3: epsilon")  # the servers were asked
    ada.check()
    ada.picture("owner-agreement")

    # A table before the approval is not even asked for, and is refused.
    page.get_by_role("link", name="Table").click()
    expect(page.locator("main")).to_contain_text("Approve the study first")
    page.go_back()
    page.get_by_role("button", name="Approve").dblclick()
    expect(page.get_by_text("You have approved this study")).to_be_visible()
    page.go_back()
    page.go_forward()
    expect(page.get_by_text("You have approved this study")).to_be_visible()
    page.get_by_role("link", name="Load the table").click()

    # Wrong files: a column that is misspelt, values that are not admitted, and what is no table at all.
    good = table("north")
    wrong = tmp_path / "patients.csv"
    wrong.write_text(good.replace("smoker", "Smoker ", 1))
    ada.drop(wrong)
    expect(page.locator("#found")).to_contain_text("is it Smoker")
    lines = good.splitlines()
    lines[3] = f"{CANARY},no,north,none"
    lines[7], lines[9] = f"40,{CANARY},north,none", f"40,{CANARY},{SCRIPT},none"
    wrong.write_text("\n".join(lines))
    ada.drop(wrong)
    rows = page.locator("#found tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text(re.compile("smoker.*2 not among the categories.*8, 10", re.DOTALL))
    expect(page.locator("#found")).to_contain_text("1 unreadable")
    assert CANARY not in page.content()
    ada.check()
    ada.picture("owner-table-refused")
    path = tmp_path / "empty.csv"
    path.write_text("")
    ada.drop(path)
    expect(page.locator("#found")).to_contain_text("empty")

    # The right one, chosen instead of dropped.
    path = tmp_path / "north.csv"
    path.write_text(good)
    page.locator(".drop[data-ready] input[type=file]").set_input_files(path)
    expect(page.get_by_text("Your table fits the study")).to_be_visible()
    expect(page.locator("#found")).to_contain_text("400 rows")
    expect(page.locator("#found svg").first).to_be_visible()
    ada.check()
    ada.picture("owner-table")
    page.get_by_role("link", name="Look at what leaves").click()
    expect(page.locator("main")).to_contain_text("No row, no count and no value leaves the site in the clear")
    ada.check()
    ada.picture("owner-leaves")
    page.get_by_role("button", name="Contribute").dblclick()
    expect(page.get_by_text("All 3 servers have signed for your data")).to_be_visible()
    ada.check()

    # Taken back, and given again; the back button gives nothing twice.
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Withdraw").click()
    expect(page.get_by_text("Your contribution is withdrawn")).to_be_visible()
    page.get_by_role("link", name="Contribute again").click()
    page.get_by_role("button", name="Contribute").click()
    expect(page.get_by_text("All 3 servers have signed for your data")).to_be_visible()
    ada.picture("owner-receipts")
    page.go_back()
    expect(page.get_by_role("button", name="Contribute")).to_have_count(0)
    with case.client("north") as north:
        given = [entry for entry in north.table_ledger().entries if entry.study == case.study]
        assert [entry.counted for entry in given] == [False, True]
    page.get_by_role("link", name="Ledger").click()
    expect(page.get_by_role("row", name="invented-patients").first).to_contain_text("epsilon")
    ada.check()

    page = ada.go(case.at("/release"))
    page.get_by_role("button", name="Compare with the release").click()
    expect(page.get_by_text("There is no release yet")).to_be_visible()
    page.get_by_text("I have its file").click()
    ada.drop(path)  # one's own table is the same as itself
    expect(page.locator("#compared figure").first).to_contain_text("0.0 % differ")
    other = tmp_path / "synthetic.csv"
    other.write_text(table("south"))
    ada.drop(other)
    expect(page.locator("#compared figure")).to_have_count(4)
    expect(page.locator("#compared figure").first).not_to_contain_text("0.0 % differ")
    said = [
        float(text.split(": ")[1].split(" %")[0]) for text in page.locator("#compared figcaption").all_inner_texts()
    ]
    assert said == sorted(said, reverse=True)
    ada.check()
    ada.drop(wrong)
    expect(page.locator("#compared")).to_contain_text("not a release of this study")
    assert CANARY not in page.content()
    studies = case.federation.places["north"].home / "state" / "studies" / case.study
    assert {one.name.partition("-")[0] for one in studies.iterdir()} == {"table"}  # nothing else is left
