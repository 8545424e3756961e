"""Every service has pages: people sign in with its own tokens, and with no others."""

from __future__ import annotations

import pytest

from caps.federation.local import LocalFederation
from tests.kit.browser import Visit

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("name", "scope"), [("north", "owner"), ("north", "operator"), ("coordinator", "analyst"), ("S2", "auditor")]
)
def test_people_find_their_service(federation: LocalFederation, visit: Visit, name: str, scope: str) -> None:
    person = visit(federation.places[name].url)
    page = person.go("/")
    page.get_by_label("Token").fill(federation.token("south", "owner"))
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    person.check()
    person.sign_in(federation.token(name, scope))
    assert page.url.endswith("/ui")
    assert name in page.locator("header .party").inner_text()
    person.check()
