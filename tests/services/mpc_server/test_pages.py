"""A server's pages: the operator decides once, an auditor only looks, and a ledger that was rewritten is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update

from caps.dp.privacy import Reservation
from caps.service.database import open_database, sqlite_url
from caps.service.identity import CERTIFICATE
from caps.service.news import Kind
from caps.service.site import Settings, Site
from caps.service.tokens import Scope
from caps.study import Policy
from caps.wire import LedgerHead, Signed, inputs_digest
from deploy.proto import mpc_server_settings
from services.mpc_server.runs.meters import meter
from services.mpc_server.service import MpcServer
from services.mpc_server.storage import tables
from tests.kit import mpc_server as kit
from tests.kit.ledger import BUDGET, taking
from tests.kit.study import AT, NOW

pytestmark = pytest.mark.integration

RUN = "ab" * 16
MANUAL = "approval: manual\npopulations: {patients: 3}\n"


@dataclass
class Desk:
    """S2 with its pages, and whoever calls it."""

    parties: kit.Parties
    server: MpcServer
    site: Site
    database: Engine

    def __post_init__(self) -> None:
        self.app = self.server.app
        expires = NOW + timedelta(days=1)
        self.tokens = {scope: self.site.tokens.create(scope.value, [scope], expires=expires) for scope in Scope}

    def call(self, who: Scope | str, method: str, path: str, **choices: Any) -> httpx.Response:
        certificate = self.parties.certificate(who) if not isinstance(who, Scope) else None
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if isinstance(who, Scope) else {}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[CERTIFICATE] = certificate
            await self.app(scope, receive, send)

        async def exchange() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://s2.test") as client:
                return await client.request(method, path, headers=headers, **choices)

        return asyncio.run(exchange())

    def page(self, path: str, who: Scope = Scope.OPERATOR) -> str:
        found = self.call(who, "GET", f"/ui/{path}")
        assert found.status_code == 200, found.text
        return found.text


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    parties = kit.Parties(tmp_path, title="Wards & <script>alert(1)</script>")
    home = tmp_path / "S2"
    place = Settings(home, home / "state", "127.0.0.1", 0, sqlite_url(home / "state" / "state.db"))
    site = Site(place, role="mpc-server")
    settings = mpc_server_settings(site)
    settings.policy.write_text(MANUAL)
    server = MpcServer(settings, clock=lambda: NOW)
    database = open_database(place.database, tables.metadata)
    yield Desk(parties, server, site, database)
    database.dispose()
    server.close()


def propose(desk: Desk) -> str:
    study = desk.parties.study
    answer = desk.call("coordinator", "PUT", f"/v1/studies/{study}", json=desk.parties.manifest.to_json())
    assert answer.status_code == 202
    return f"studies/{study}"


def exchanged(desk: Desk, server: str, *, by: str) -> None:
    """A head of a server's ledger, as if it had been given when the run began; signed with somebody's key."""
    document = LedgerHead(server=server, run=RUN, number=7, hash="cd" * 32, at=AT)
    head = Signed[LedgerHead].by(document, server, desk.parties.keys[by].signing)
    row = {"key": server, "run": RUN, "number": 7, "hash": "cd" * 32, "head": head.model_dump_json()}
    with desk.database.begin() as connection:
        connection.execute(tables.heads.insert().values(**row))


def test_an_operator_declines_with_a_reason_then_approves_and_that_stands(desk: Desk) -> None:
    study = propose(desk)
    shown = desk.page(study)
    assert "<script>" not in shown
    assert "Wards &amp; &lt;script&gt;" in shown
    assert "Approve this study" not in desk.page(study, Scope.AUDITOR)
    assert "waits for the operator" in desk.page("studies", Scope.AUDITOR)
    (told,) = desk.server._news._source()
    assert (told.kind, told.path) == (Kind.APPROVAL, f"/ui/{study}")
    nothing = desk.call(Scope.OPERATOR, "POST", f"/ui/{study}/decline", data={"reason": " "})
    assert nothing.status_code == 422
    reason = "Our board <b>meets</b> in May"
    assert desk.call(Scope.OPERATOR, "POST", f"/ui/{study}/decline", data={"reason": reason}).status_code == 303
    assert "Our board &lt;b&gt;meets&lt;/b&gt; in May" in desk.page(study, Scope.AUDITOR)
    for _ in range(2):  # sent twice, or again after going back
        assert desk.call(Scope.OPERATOR, "POST", f"/ui/{study}/approve").status_code == 303
    assert desk.call(Scope.AUDITOR, "GET", f"/v1/{study}").json()["state"] == "approved"
    assert list(desk.server._news._source()) == []
    late = desk.call(Scope.OPERATOR, "POST", f"/ui/{study}/decline", data={"reason": reason})
    assert late.status_code == 409
    assert "its signature stands" in late.text


def test_a_run_its_budget_and_a_ledger_that_was_rewritten(desk: Desk) -> None:
    study = propose(desk)
    others = {name: desk.parties.desk(name) for name in ("S1", "S3")}
    desk.call(Scope.OPERATOR, "POST", f"/ui/{study}/approve")
    mine = desk.parties.desk("S2")
    given = kit.approvals(desk.parties, others | {"S2": mine})
    dealt = [kit.dealt(desk.parties, holder.name) for holder in desk.parties.manifest.holders]
    for one in dealt:
        assert mine.contribute(one).status_code == 200
    assert mine.call("coordinator", "PUT", "/seal", kit.seal_request(dealt, given)).status_code == 200
    assert "The chain holds" in desk.page("ledger/verified", Scope.AUDITOR)
    inputs = inputs_digest(desk.parties.study, [one.id for one in dealt])
    begun = desk.call("coordinator", "PUT", f"/v1/runs/{RUN}", json={"study": desk.parties.study, "inputs": inputs})
    assert begun.status_code == 201
    assert RUN in desk.page("runs", Scope.AUDITOR)
    assert "waiting" in desk.page(f"runs/{RUN}", Scope.AUDITOR).lower()
    assert "reserved for 1 run" in desk.page("budgets", Scope.AUDITOR)
    assert "set aside rho" in desk.page("ledger", Scope.AUDITOR)
    assert "All 1 record " in desk.page("ledger/verified", Scope.AUDITOR)
    exchanged(desk, "S1", by="S1")
    assert "signature holds" in desk.page("ledger/verified", Scope.AUDITOR)
    assert "Not everything fits" not in desk.page("ledger/verified", Scope.AUDITOR)
    exchanged(desk, "S3", by="S1")
    assert "S3, record 7: signature does not hold" in desk.page("ledger/verified", Scope.AUDITOR)
    with desk.database.begin() as connection:
        connection.execute(update(tables.ledger).values(record=tables.ledger.c.record.op("||")(" ")))
    broken = desk.page("ledger/verified", Scope.AUDITOR)
    assert "This ledger cannot be trusted" in broken
    assert "The chain holds" not in broken
    assert "Records" in desk.page("ledger", Scope.AUDITOR)


def test_a_meter_adds_up_and_has_what_each_run_took() -> None:
    policy = Policy(populations={"patients": float(BUDGET.epsilon)}, population_delta=float(BUDGET.delta))
    parts: dict[str, Reservation] = {"a": taking(Fraction(1, 100)), "b": taking(Fraction(2, 100), 2)}
    found = meter("patients", parts, {"b"}, policy)
    assert (found.ended, found.going) == (1, 1)
    assert found.spent == pytest.approx(4 / 100)  # under the worst multiplicity, 2, the first counts fourfold
    assert found.reserved == pytest.approx(2 / 100)
    assert found.whole == pytest.approx(found.spent + found.reserved + found.left)
    assert found.spent_epsilon is not None
    assert found.used_epsilon is not None
    assert 0 < found.spent_epsilon < found.used_epsilon < 3
    assert meter("others", {}, set(), policy).epsilon is None
    over = meter("patients", {"a": taking(Fraction(100))}, set(), policy)
    assert over.left == 0
    assert over.left_epsilon == 0
