"""An auditor at an MPC server compares the ledgers, and may change nothing."""

from __future__ import annotations

import pytest

from caps.federation.local import LocalFederation
from tests.kit.browser import Visit
from tests.kit.released import Released

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("dark", [False, True])
def test_an_auditor_compares_the_ledgers(
    federation: LocalFederation, visit: Visit, released: Released, dark: bool
) -> None:
    auditor = visit(federation.places["S2"].url, dark=dark, narrow=dark)
    page = auditor.sign_in(federation.token("S2", "auditor"), "/ui/ledger")
    page.get_by_text("The chain holds").wait_for()
    look = "dark" if dark else "light"
    auditor.check()
    auditor.picture("auditor-ledger-narrow" if dark else "auditor-ledger")
    heads = page.get_by_role("region", name="Heads of ledgers")
    heads.wait_for()
    assert page.get_by_text("in this ledger as signed").count()
    assert page.get_by_text("signature holds").count() >= 2
    for path in ("budgets", "studies", "runs"):
        auditor.go(f"/ui/{path}")
        auditor.check()
        auditor.picture(f"auditor-{path}-{look}")
    page.locator("tbody th a").first.click()
    page.wait_for_url("**/ui/runs/*")
    auditor.check()
    auditor.picture(f"auditor-run-{look}")
    assert auditor.go("/ui/studies").get_by_role("button", name="Approve").count() == 0
