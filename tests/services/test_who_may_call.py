"""Who may call what: every route of the three services, called by everybody there is.

Nobody, people with each scope, the parties of a study, machines of the same role that have no part in it, and impostors
with a party's name and another key. Each line of a table names those who are let in; all others get 401 or 403, except
that a run does not exist (404) for coordinators of other studies, word for word as if nobody had ever begun it. A route
that is in no table fails the test.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fastapi.routing import iter_route_contexts

from caps.service.app import OPENAPI_PATH, PUBLIC_PATHS
from caps.service.database import open_database, sqlite_url
from caps.service.identity import CERTIFICATE
from caps.service.pages.rendering import SIGN_IN
from caps.service.site import Settings, Site
from caps.service.tokens import Scope, Tokens
from caps.trust import pki
from caps.wire import Answer, Signed, inputs_digest
from deploy.proto import mpc_server_settings
from services.holder.api import holder_app
from services.holder.service import HolderService
from services.mpc_server.service import MpcServer
from services.mpc_server.storage import states
from services.mpc_server.storage.ledger import FREE
from services.mpc_server.storage.tables import metadata, runs, steps
from tests.kit import mpc_server as kit
from tests.kit.callers import COMMON, PEOPLE, TABLES
from tests.kit.coordinator_servers import Bench
from tests.kit.study import NOW, Keys, certificate_of, example_manifest, honest_walk, make_keys, write_site
from tests.kit.tls import make_authority

pytestmark = pytest.mark.integration

RUN, NO_RUN = "ab" * 16, "cd" * 16
ROLES = {"holder": "holder", "coordinator": "coordinator", "server": "mpc-server"}
"""The parties of the study, by the word for them here, and their roles."""
EVERYBODY = ("nobody", *PEOPLE, *(f"{kind} {party}" for kind in ("own", "strange", "false") for party in ROLES))
"""`own`: of the study. `strange`: another of the same role. `false`: with the name of the study's, and another key."""


@dataclass
class House:
    """A service in this process, with what exists in it: ids for paths, and bodies by method and path."""

    app: Any
    tokens: Tokens
    authority: pki.Authority
    keys: Keys
    names: dict[str, str]
    known: dict[str, Any]
    bodies: dict[str, Any]

    def __post_init__(self) -> None:
        expires = NOW + timedelta(days=4000)
        self._tokens = {scope.value: self.tokens.create(scope.value, [scope], expires=expires) for scope in Scope}
        self._strangers = make_keys([f"strange-{name}" for name in ROLES])
        self._impostors = make_keys(list(self.names.values()))

    def certificate(self, who: str) -> bytes | None:
        kind, _, party = who.partition(" ")
        if not party:
            return None
        keys = {
            "own": lambda: self.keys[self.names[party]],
            "strange": lambda: self._strangers[f"strange-{party}"],
            "false": lambda: self._impostors[self.names[party]],
        }[kind]()
        return certificate_of(self.authority, keys, ROLES[party]).public_bytes(Encoding.DER)

    def call(self, who: str, method: str, path: str, **known: Any) -> httpx.Response:
        body = self.bodies.get(f"{method} {path}")
        named = {"session": "0" * 64} | self.known | known
        given: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        headers = {"Authorization": f"Bearer {self._tokens[who]}"} if who in self._tokens else {}
        if isinstance(body, bytes):
            headers |= kit.content_digest(body) | {"Content-Type": "text/csv"}
        certificate = self.certificate(who)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope[CERTIFICATE] = certificate
            await self.app(scope, receive, send)

        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="https://service.test") as client:
                return await client.request(method, path.format(**named), headers=headers, **given)

        return asyncio.run(exchange())


def mpc_server(folder: Path, stack: ExitStack, **choices: Any) -> House:
    """S2, with a sealed study and a run whose first step is answered."""
    parties = kit.Parties(folder, **choices)
    desks = {name: parties.desk(name) for name in ("S1", "S3")}
    home = folder / "S2"
    place = Settings(home, home / "state", "127.0.0.1", 0, sqlite_url(home / "state" / "state.db"))
    site = Site(place, role="mpc-server")
    server = MpcServer(mpc_server_settings(site), clock=lambda: NOW)
    stack.callback(server.close)
    desks["S2"] = parties.desk("S2")  # on the same database
    given = kit.approvals(parties, desks)
    dealt = [kit.dealt(parties, holder.name) for holder in parties.manifest.holders]
    for one in dealt:
        assert desks["S2"].contribute(one).status_code == 200
    sealing = kit.seal_request(dealt, given)
    assert desks["S2"].call("coordinator", "PUT", "/seal", sealing).status_code == 200
    bodies = {
        "PUT /v1/studies/{study}": parties.manifest.to_json(),
        "PUT /v1/studies/{study}/contributions/{contribution}": dealt[0].offer("S2").to_json(),
        "PUT /v1/studies/{study}/contributions/{contribution}/chunks/{number}": dealt[0].chunk(0),
        "POST /v1/studies/{study}/oprf": b"\0" * 32,
        "PUT /v1/studies/{study}/tags": b"\0" * 16,
        "POST /v1/studies/{study}/decline": {"reason": "No."},
        "PUT /v1/studies/{study}/seal": sealing,
        "PUT /v1/runs/{run}": {"study": parties.study, "inputs": inputs_digest(parties.study, [d.id for d in dealt])},
        "PUT /v1/runs/{run}/steps/{step}": {"kind": "compute"},
        "PUT /v1/runs/{run}/evidence": {"evidence": []},
    }
    known = {"study": parties.study, "contribution": dealt[0].id, "number": 0, "step": 0, "run": RUN}
    names = {"holder": dealt[0].holder, "coordinator": "coordinator", "server": "S1"}
    house = House(server.app, site.tokens, parties.authority, parties.keys, names, known, bodies)
    assert house.call("own coordinator", "PUT", "/v1/runs/{run}").status_code == 201
    _, value = honest_walk(parties.manifest)[1][0]
    answer = Answer(study=parties.study, run=RUN, step=0, request="0" * 64, value=value)
    signed = Signed[Answer].by(answer, "S2", parties.keys["S2"].signing)
    with desks["S2"].database.begin() as connection:
        row = {"run": RUN, "step": 0, "request": FREE, "digest": "0" * 64}
        connection.execute(steps.insert().values(**row, answer=signed.model_dump_json()))
    return house


def coordinator(folder: Path, stack: ExitStack) -> House:
    """A coordinator with a release and a further sample."""
    bench = Bench(folder)
    made, run = bench.started()
    stack.callback(made.close)
    made.runs.perform(run)
    sample, _ = made.publisher.resample(run, 5, "1" * 64)
    bodies = {
        "POST /v1/studies": bench.manifest.to_json(),
        "PUT /v1/studies/{study}/approvals/{holder}": bench.federation.approvals_of_holders()["clinic-a"].to_json(),
        "PUT /v1/studies/{study}/declines/{holder}": bench.federation.decline("clinic-a", "No.").to_json(),
        "POST /v1/releases/{release}/samples": {"rows": 5},
    }
    known = {"study": bench.manifest.study_id, "run": run, "release": run, "holder": "clinic-a"}
    known |= {"sample": sample.sample, "draft": "0" * 32, "step": "about", "key": "1"}
    known |= {"first": "0", "second": "1", "form": "csv"}
    names = {"holder": "clinic-a", "coordinator": "coordinator", "server": "S1"}
    return House(made.app(), made.site.tokens, make_authority(NOW), bench.keys, names, known, bodies)


def holder(folder: Path, stack: ExitStack) -> House:
    """A holder that knows a study. Nobody can be reached from here."""
    manifest, keys = example_manifest()
    authority, home = make_authority(NOW), folder / "clinic-a"
    write_site(home, authority, keys["clinic-a"], "holder")
    place = Settings(home, home / "state", "127.0.0.1", 0, sqlite_url(home / "state" / "state.db"))
    service = stack.enter_context(closing(HolderService(Site(place, role="holder", clock=lambda: NOW))))
    service.store.add_study(manifest)
    table = b"age,smoker,region,diagnosis\n30,yes,north,A\n"
    bodies = {
        "POST /v1/studies": {"coordinator": "https://127.0.0.1:1", "study": manifest.study_id},
        "POST /v1/studies/{study}/decline": {"reason": "No."},
        "PUT /v1/studies/{study}/table": table,
        "PUT /v1/studies/{study}/table/source": {"source": "registry"},
        "POST /v1/studies/{study}/contribution": table,
        "PUT /ui/studies/{study}/table": table,
        "PUT /ui/studies/{study}/release": table,
    }
    names = {"holder": "clinic-a", "coordinator": "coordinator", "server": "S1"}
    known = {"study": manifest.study_id}
    return House(holder_app(service), service.site.tokens, authority, keys, names, known, bodies)


MAKERS: dict[str, Callable[..., House]] = {
    "mpc-server": mpc_server,
    "coordinator": coordinator,
    "holder": holder,
}

UNKNOWN_TO = {"strange coordinator", "false coordinator"}
"""For them, a run of the study does not exist."""
RUNS = tuple(one for one in TABLES["mpc-server"] if "/v1/runs/{run}" in one and one != "PUT /v1/runs/{run}")
"""The routes of a run that was begun."""
LAST = tuple(one for table in TABLES.values() for one in table if one.startswith("DELETE"))
"""Called after all others, because they end what the others need."""


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    made: dict[str, House] = {}
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with ExitStack() as stack:

        def house(name: str) -> House:
            if name not in made:
                made[name] = MAKERS[name](tmp_path_factory.mktemp(name), stack)
            return made[name]

        yield house


@pytest.mark.parametrize("service", list(TABLES))
def test_every_route_is_in_the_table(houses: Callable[[str], House], service: str) -> None:
    contexts = iter_route_contexts(houses(service).app.routes)
    found = {f"{method} {one.path}" for one in contexts for method in one.methods or ()}
    public = {f"{method} {path}" for path in PUBLIC_PATHS for method in ("GET", "HEAD")} | {f"POST {SIGN_IN}"}
    assert found - public == {*TABLES[service], *COMMON}
    assert f"GET {OPENAPI_PATH}" in public


@pytest.mark.parametrize("service", list(TABLES))
def test_every_caller_is_let_in_where_the_table_says_so_and_nowhere_else(
    houses: Callable[[str], House], service: str
) -> None:
    house, wrong = houses(service), []
    table = TABLES[service] | COMMON
    for route in sorted(table, key=lambda one: (one in LAST, one)):
        method, path = route.split(" ")
        for who in EVERYBODY:
            status = house.call(who, method, path).status_code
            hidden = service == "mpc-server" and route in RUNS and who in UNKNOWN_TO
            no = 401 if who == "nobody" else 404 if hidden else 403
            let_in = status not in (401, 403) and (status < 500 or status == 503)  # a peer is out of reach
            if not let_in if who in table[route] else status != no:
                wrong.append((route, who, status))
    assert wrong == []


def test_a_study_is_listed_for_its_parties_only(houses: Callable[[str], House]) -> None:
    for service in ("mpc-server", "coordinator"):
        house = houses(service)
        for who in TABLES[service]["GET /v1/studies"]:
            seen = house.known["study"] in house.call(who, "GET", "/v1/studies").text
            assert seen == (who.split(" ")[0] not in ("strange", "false")), (service, who)


@pytest.mark.parametrize("who", sorted(UNKNOWN_TO))
def test_another_coordinator_cannot_tell_whether_a_run_exists(houses: Callable[[str], House], who: str) -> None:
    house = houses("mpc-server")
    for route in RUNS:
        method, path = route.split(" ")
        real, none = (house.call(who, method, path, run=run) for run in (RUN, NO_RUN))
        documents = [found.json() | {"request_id": ""} for found in (real, none)]
        documents[0]["detail"] = documents[0]["detail"].replace(RUN, NO_RUN)
        assert documents[0] == documents[1], route
        assert set(real.headers) == set(none.headers)
    begun = [house.call(who, "PUT", "/v1/runs/{run}", run=run) for run in (RUN, NO_RUN)]
    assert [found.status_code for found in begun] == [403, 403]  # the study is not theirs


@pytest.mark.parametrize("published", [True, False])
def test_auditors_read_answers_once_they_may_be_published(tmp_path: Path, published: bool) -> None:
    route = "GET", "/v1/runs/{run}/steps/{step}"
    with ExitStack() as stack:
        house = mpc_server(tmp_path, stack, publication={"measurements": published})
        database = open_database(sqlite_url(tmp_path / "S2" / "state" / "state.db"), metadata)
        found = {}
        for state in states.Run:
            with database.begin() as connection:
                connection.execute(runs.update().values(state=state))
            assert house.call("own coordinator", *route).json()["document"]["step"] == 0
            found[state.value] = house.call("auditor", *route).status_code
        database.dispose()
    assert found == ({"going": 409, "ended": 200} if published else {"going": 403, "ended": 403}) | {
        "failed": 403,
        "aborted": 403,
    }


@pytest.mark.parametrize("published", [True, False])
def test_progress_tells_of_answers_only_if_they_are_published(tmp_path: Path, published: bool) -> None:
    bench = Bench(tmp_path, publication={"measurements": published})
    made, run = bench.started()
    with closing(made):
        made.runs.perform(run)
        told = [event.body["error"] for event in made.store.events(run) if event.kind == "progress"]
    assert any(error is not None for error in told) == published
