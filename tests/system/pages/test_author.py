"""An author at a browser, with keyboard and mouse: from an empty draft to a study that servers have approved."""

from __future__ import annotations

import os

import pytest

from caps.federation.local import CARDS, LocalFederation
from caps.study import authoring
from services.coordinator.pages.author import PATH
from tests.kit.browser import Visit

pytestmark = pytest.mark.e2e

SCRIPT = "<img src=x onerror=alert(1)>"
BOOK = f'column,code\nward,surgery\nward,"{SCRIPT}"\nward,other\n'


def test_an_author_writes_and_proposes_a_study(federation: LocalFederation, visit: Visit) -> None:
    author = visit(federation.places["coordinator"].url)
    page = author.sign_in(federation.token("coordinator", "operator"), PATH)
    author.check()
    page.get_by_role("button", name="Begin a study").click()
    page.get_by_label("Title").focus()
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("Give the study a title.").wait_for()
    author.check()

    page.get_by_label("Title").focus()
    page.keyboard.type(f"Wards {SCRIPT}")
    page.keyboard.press("Tab")
    with page.expect_response(lambda answer: answer.url.endswith("/keep")):
        page.keyboard.type("To plan beds.")
    page.reload()  # nothing was sent but what is kept as it is typed
    assert page.get_by_label("Purpose").input_value() == "To plan beds."
    step = page.url
    page.context.clear_cookies()  # as if the session had ended
    page.get_by_label("Population").focus()
    page.keyboard.type("i")
    page.get_by_label("Token").fill(federation.token("coordinator", "operator"))
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
    page.get_by_role("button", name="Remove ward").click()
    page.get_by_role("link", name="ward").wait_for(state="detached")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_url("**/parties")

    cards = sorted((federation.directory / CARDS).glob("*.json"))
    page.get_by_label("Files").set_input_files(cards)
    page.get_by_text("Read. Look at it below").wait_for()
    page.get_by_role("button", name="Add the cards").click()
    page.get_by_role("group", name="north").get_by_role("radio", name="some columns").check()
    page.get_by_role("group", name="north").get_by_role("checkbox", name="age").check()
    page.get_by_role("group", name="south").get_by_role("radio", name="some columns").check()
    page.get_by_role("group", name="south").get_by_role("checkbox", name="smoker").check()
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
    assert (manifest.privacy.epsilon, manifest.title) == (epsilon, f"Wards {SCRIPT}")

    page.once("dialog", lambda question: question.accept())
    page.get_by_role("button", name="Propose the study").click()
    page.wait_for_url(f"**/proposals/{manifest.study_id}")
    page.get_by_role("heading", name=f"Wards {SCRIPT}").wait_for()
    assert page.locator("img[onerror]").count() == 0
    page.get_by_role("cell", name="nobody").first.wait_for()
    approvals = page.get_by_role("region", name="Who has approved").get_by_text("approved", exact=True)
    assert approvals.count() == len(manifest.servers)
    author.check()
    author.picture("author-proposal")
    page.go_back()
    page.get_by_role("link", name="who has approved it").wait_for()
    if "CAPS_PICTURES" in os.environ:
        other = visit(federation.places["coordinator"].url, dark=True, narrow=True)
        other.sign_in(federation.token("coordinator", "operator"), PATH)
        for step in ("columns", "parties", "matching", "privacy", "review"):
            other.go(page.url.replace("/review", f"/{step}"))
            other.check()
            other.picture(f"author-{step}-dark-narrow")
