"""Schemathesis asks the three services what their OpenAPI documents allow, and what they do not.

Every caller is let in, so that requests get past authentication: people by a token with all scopes, machines by the
certificate of a party of the study. Half of the requests name things that exist. No answer may be undocumented, have
another form than documented, or be an error of the server; only that a peer is out of reach is told with 503.
"""

import asyncio
import copy
import json
import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from caps.service.database import sqlite_url
from caps.service.identity import CERTIFICATE
from caps.service.site import Settings, Site
from caps.service.tokens import Scope
from caps.trust import pki
from caps.wire import media
from caps.wire.problems import Kind
from deploy.proto import SERVICES, mpc_server_settings
from services.holder.api import holder_app
from services.holder.service import HolderService
from services.mpc_server.service import MpcServer
from tests.kit import mpc_server as mpc_kit
from tests.kit.coordinator_servers import Bench
from tests.kit.study import COLUMNS, NOW, certificate_of, example_manifest, write_site
from tests.kit.tls import make_authority

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
EXAMPLES = 15
CONFORMS = (
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
BOUNDED = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Target:
    """A service in this process, who calls it, and what exists there: path parameters, and bodies by operation."""

    app: Any
    tokens: Any
    certificates: dict[str, bytes]
    known: dict[str, Any]
    bodies: dict[str, Any]
    schema: Any = None

    def __post_init__(self) -> None:
        token = self.tokens.create("fuzz", list(Scope), expires=NOW + timedelta(days=4000))
        self.headers = {"Authorization": f"Bearer {token}"}
        self.role = ""
        document = copy.deepcopy(self.app.openapi())
        for item in document["paths"].values():
            for operation in item.values():
                del operation["security"]  # or else requests without a token would be most of all
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.app = self.asgi

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        """The application, shown a certificate; its background work does not run."""
        if scope["type"] == "lifespan":
            raise RuntimeError("no lifespan")
        scope[CERTIFICATE] = self.certificates.get(self.role)
        await self.app(scope, receive, send)

    def ask(self, role: str, method: str, path: str, **choices: Any) -> httpx.Response:
        """A request that must succeed."""

        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self.asgi)
            async with httpx.AsyncClient(transport=transport, base_url="https://service.test") as client:
                return await client.request(method, path, headers=self.headers | choices.pop("headers", {}), **choices)

        self.role = role
        response = asyncio.run(exchange())
        assert response.is_success, response.text
        return response


def certificates(authority: pki.Authority, keys: Any, holder: str = "clinic-a") -> dict[str, bytes]:
    parties = {"mpc-server": "S3", "coordinator": "coordinator", "holder": holder}
    return {
        role: certificate_of(authority, keys[name], role).public_bytes(Encoding.DER) for role, name in parties.items()
    }


def make_site(folder: Path, authority: pki.Authority, keys: Any, role: str, name: str) -> Site:
    home = folder / name
    write_site(home, authority, keys[name], role)
    data = home / "state"
    place = Settings(home, data, "127.0.0.1", 0, sqlite_url(data / "state.db"))
    return Site(place, role=role, clock=lambda: NOW)


def mpc_server(folder: Path, stack: ExitStack) -> Target:
    """S2, which has approved a study, and holds a contribution of which one chunk is there."""
    federation = mpc_kit.Parties(folder, holders=COLUMNS)
    study, dealt = federation.study, mpc_kit.dealt(federation, "registry")
    home = folder / "S2"
    data = home / "state"
    site = Site(Settings(home, data, "127.0.0.1", 0, sqlite_url(data / "state.db")), role="mpc-server")
    server = MpcServer(mpc_server_settings(site), clock=lambda: NOW)
    stack.callback(server.close)
    known = {"study": study, "contribution": dealt.id, "number": 0, "step": 0, "run": "0" * 32}
    approvals = [federation.approval(name).to_json() for name, _ in COLUMNS]
    bodies = {
        "PUT /v1/studies/{study}": federation.manifest.to_json(),
        "PUT /v1/studies/{study}/contributions/{contribution}": dealt.offer("S2").to_json(),
        "PUT /v1/studies/{study}/contributions/{contribution}/chunks/{number}": dealt.chunk(0),
        "PUT /v1/studies/{study}/seal": {"contributions": [dealt.id], "approvals": approvals},
        "PUT /v1/runs/{run}": {"study": study, "inputs": "0" * 64},
    }
    shown = certificates(federation.authority, federation.keys, "registry")
    target = Target(server.app, site.tokens, shown, known, bodies)
    target.ask("coordinator", "PUT", f"/v1/studies/{study}", json=federation.manifest.to_json())
    place = f"/v1/studies/{study}/contributions/{dealt.id}"
    target.ask("holder", "PUT", place, json=bodies["PUT /v1/studies/{study}/contributions/{contribution}"])
    digest = mpc_kit.content_digest(dealt.chunk(0))
    target.ask("holder", "PUT", f"{place}/chunks/0", content=dealt.chunk(0), headers=digest)
    target.headers |= digest  # other bodies do not have it, and are refused
    return target


def holder(folder: Path, stack: ExitStack) -> Target:
    """A holder that knows a study."""
    manifest, keys = example_manifest()
    authority = make_authority(NOW)
    service = stack.enter_context(closing(HolderService(make_site(folder, authority, keys, "holder", "clinic-a"))))
    service.store.add_study(manifest)
    table = b"age,smoker,region,diagnosis\n30,yes,north,A\n"
    bodies = {"PUT /v1/studies/{study}/table": table, "POST /v1/studies/{study}/contribution": table}
    known = {"study": manifest.study_id}
    return Target(holder_app(service), service.site.tokens, certificates(authority, keys), known, bodies)


def coordinator(folder: Path, stack: ExitStack) -> Target:
    """A coordinator with a release and a further sample."""
    bench = Bench(folder)
    made, run = bench.started()
    stack.callback(made.close)
    made.runs.perform(run)
    known = {"study": bench.manifest.study_id, "run": run, "release": run, "holder": "clinic-a"}
    approval = bench.federation.approvals_of_holders()["clinic-a"]
    bodies = {
        "POST /v1/studies": bench.manifest.to_json(),
        "PUT /v1/studies/{study}/approvals/{holder}": approval.to_json(),
        "PUT /v1/studies/{study}/declines/{holder}": bench.federation.decline("clinic-a", "No.").to_json(),
        "POST /v1/releases/{release}/samples": {"rows": 5},
    }
    target = Target(made.app(), made.site.tokens, certificates(make_authority(NOW), bench.keys), known, bodies)
    sample = target.ask("", "POST", f"/v1/releases/{run}/samples", json={"rows": 5, "seed": "1" * 64})
    known["sample"] = sample.json()["sample"]
    return target


MAKERS: dict[str, Callable[[Path, ExitStack], Target]] = {
    "holder": holder,
    "mpc-server": mpc_server,
    "coordinator": coordinator,
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    made: dict[str, Target] = {}
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with ExitStack() as stack:

        def target(name: str) -> Target:
            if name not in made:
                made[name] = MAKERS[name](tmp_path_factory.mktemp(name), stack)
            return made[name]

        yield target


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Nobody outside this process can be reached."""

    def refuse(*_arguments, **_choices):
        raise ConnectionRefusedError("there is nobody")

    monkeypatch.setattr("services.holder.service._PATIENCE", 0.01)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def operations():
    for service in SERVICES:
        document = json.loads((ROOT / f"proto/openapi/{service}.json").read_text())
        for path, item in document["paths"].items():
            for method, operation in item.items():
                roles = [role for one in operation["security"] for role in one.get("machine", [])]
                yield pytest.param(service, method.upper(), path, roles, id=f"{service} {method.upper()} {path}")


def no_server_error(response, path):
    if response.status_code < 500:
        return
    if response.status_code == 503 and path == "/readyz":
        return
    body = json.loads(response.content)
    assert body["type"] == Kind.PEER_FAILED.urn, response.content


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("service", "method", "path", "roles"), list(operations()))
def test_the_service_does_what_its_document_says(targets, service, method, path, roles, mode):
    target = targets(service)
    target.role = roles[0] if roles else ""
    operation = target.schema[path][method]
    if mode is GenerationMode.NEGATIVE and not (operation.path_parameters or operation.query or operation.body):
        pytest.skip("there is nothing to get wrong")
    good = target.bodies.get(f"{method} {path}")

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans(), sound=st.integers(0, 2))
    def check(case, known, sound):
        if known:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = target.known.get(name, case.path_parameters[name])
        if replaced := good is not None and sound == 0:
            case.body = good
        response = case.call(headers=target.headers)
        statuses.add(response.status_code)
        no_server_error(response, path)
        wrong = mode is GenerationMode.NEGATIVE and not known and not replaced
        case.validate_response(response, checks=[*CONFORMS, *([negative_data_rejection] if wrong else [])])
        if response.status_code >= 400 and path != "/readyz":
            assert response.headers["content-type"] == [media.PROBLEM]

    statuses: set[int] = set()
    check()
    assert statuses
    assert 401 not in statuses
