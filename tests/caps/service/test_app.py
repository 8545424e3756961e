"""The frame of the services, without a network: who is let in, what is refused, and that nothing is repeated."""

import asyncio
import json
import logging
import threading
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from fastapi import APIRouter, Depends, Request

from caps.service import app as frame
from caps.service.app import create_app
from caps.service.identity import CERTIFICATE, Allow, Caller, Machine, machine_of
from caps.service.pages.routes import PUBLIC_PATHS as PUBLIC_PAGES
from caps.service.problems import Problem
from caps.service.site import Settings, confirm
from caps.service.tokens import Scope, Tokens
from caps.study import Holder
from caps.trust import pki
from caps.wire import media
from caps.wire.problems import Kind
from tests.kit.service import CANARY, Sample
from tests.kit.tls import HOUR, Authority


@pytest.fixture
def sample(tmp_path):
    return Sample(tmp_path)


def ask(sample, method, path, *, token=None, certificate=None, **choices):
    """One request, and its response; the lifespan does not run."""

    async def app(scope, receive, send):
        scope[CERTIFICATE] = certificate
        await sample.app(scope, receive, send)

    async def exchange():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = choices.pop("headers", {}) | ({} if token is None else {"Authorization": f"Bearer {token}"})
        async with httpx.AsyncClient(transport=transport, base_url="https://service.test") as client:
            return await client.request(method, path, headers=headers, **choices)

    return asyncio.run(exchange())


def is_problem(response, kind):
    assert response.status_code == kind.value.status
    assert response.headers["content-type"] == media.PROBLEM
    body = response.json()
    assert body["type"] == kind.urn
    assert body["status"] == response.status_code
    assert body["request_id"] == response.headers["x-request-id"]
    assert CANARY not in response.text
    return body


def test_a_route_that_states_nothing_cannot_be_built(tmp_path):
    api = APIRouter(prefix="/v1")

    @api.get("/open")
    def silent() -> None: ...

    outer = APIRouter()
    outer.include_router(api, prefix="/deep")
    for router in (api, outer):
        with pytest.raises(TypeError, match="/v1/open must state exactly once"):
            create_app(service="s", name="n", description="", routers=[router], tokens=Tokens(tmp_path / "t"))


def test_a_public_route_that_is_not_listed_cannot_be_built(tmp_path):
    api = APIRouter(prefix="/v1")

    @api.get("/open", dependencies=[Depends(Allow(public=True))])
    def silent() -> None: ...

    with pytest.raises(TypeError, match="not in PUBLIC_PATHS"):
        create_app(service="s", name="n", description="", routers=[api], tokens=Tokens(tmp_path / "t"))


def test_what_is_no_route_of_the_kind_that_can_state_it_cannot_be_built(tmp_path):
    api = APIRouter()
    api.add_route("/v1/bare", lambda _: None)
    with pytest.raises(TypeError, match="/v1/bare"):
        create_app(service="s", name="n", description="", routers=[api], tokens=Tokens(tmp_path / "t"))


@pytest.mark.parametrize("path", ["/v1/who", "/v1/nothing", "/", "/healthz/", "/v1/openapi.json/x", "//healthz"])
@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "HEAD", "STRANGE"])
def test_nobody_is_refused_everywhere_else(sample, path, method):
    response = ask(sample, method, path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    if method != "HEAD":
        is_problem(response, Kind.UNAUTHENTICATED)
    assert sample.seen == []


@pytest.mark.parametrize("path", sorted(frame.PUBLIC_PATHS - PUBLIC_PAGES))
def test_public_paths_answer_anybody(sample, path):
    assert ask(sample, "GET", path).status_code == 200
    assert ask(sample, "HEAD", path).status_code == 200
    is_problem(ask(sample, "POST", path), Kind.METHOD_NOT_ALLOWED)


def test_readiness_says_why_not(tmp_path):
    reasons = ["the disk is full"]
    sample = Sample(tmp_path, ready=lambda: reasons)
    response = ask(sample, "GET", "/readyz")
    assert (response.status_code, response.json()["reasons"]) == (503, reasons)
    assert ask(sample, "GET", "/healthz").json()["status"] == "alive"
    reasons.clear()
    assert ask(sample, "GET", "/readyz").json()["status"] == "ready"


def test_health_and_readiness_need_no_thread(tmp_path):
    """All threads are held by handlers that wait; who asks for more must wait, too, but not these."""
    released, begun, threads = threading.Event(), [], 40
    api = APIRouter(prefix="/v1")

    @api.get("/wait", dependencies=[Depends(Allow(scopes=[Scope.OPERATOR]))])
    def wait() -> None:
        begun.append(True)
        released.wait(60)

    tokens = Tokens(tmp_path / "tokens.json")
    app = create_app(service="s", name="n", description="", routers=[api], tokens=tokens)
    token = tokens.create("ada", [Scope.OPERATOR], expires=datetime.now(UTC) + timedelta(hours=1))

    async def scenario():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://service.test") as client:
            headers = {"Authorization": f"Bearer {token}"}
            waiting = [asyncio.create_task(client.get("/v1/wait", headers=headers)) for _ in range(threads + 20)]
            while len(begun) < threads:  # noqa: ASYNC110  threads write it
                await asyncio.sleep(0.01)
            try:
                found = [await asyncio.wait_for(client.get(page), 20) for page in ("/healthz", "/readyz")]
                assert not any(one.done() for one in waiting)
            finally:
                released.set()
            await asyncio.gather(*waiting)
            return [one.status_code for one in found]

    assert asyncio.run(scenario()) == [200, 200]


def test_tokens_open_what_their_scope_allows(sample):
    operator, analyst = sample.token(Scope.OPERATOR), sample.token(Scope.ANALYST)
    assert ask(sample, "GET", "/v1/who", token=operator).json()["caller"] == "person/ada"
    body = is_problem(ask(sample, "GET", "/v1/who", token=analyst), Kind.FORBIDDEN)
    assert "operators" in body["detail"]
    is_problem(ask(sample, "PUT", "/v1/machine", token=operator), Kind.FORBIDDEN)
    altered = operator[:-1] + ("A" if operator[-1] != "A" else "B")
    for wrong in (altered, operator[:-1], operator + "x", "", "x", "caps_" + "0" * 12 + "_" + "a" * 43):
        is_problem(ask(sample, "GET", "/v1/who", token=wrong), Kind.UNAUTHENTICATED)
    response = ask(sample, "GET", "/v1/who", headers={"Authorization": f"Basic {operator}"})
    is_problem(response, Kind.UNAUTHENTICATED)
    assert sample.seen == ["person/ada"]


def certificate(folder, *roles):
    return pki.read_certificate(Authority(folder).issue("x", *roles).certificate).public_bytes(Encoding.DER)


def test_machines_open_what_their_role_allows(sample, tmp_path):
    mine = certificate(tmp_path, "caps:holder/clinic")
    assert ask(sample, "PUT", "/v1/machine", certificate=mine).json() == {"caller": "holder/clinic"}


@pytest.mark.parametrize(
    "roles",
    [
        (),
        ("caps:holder/a", "caps:holder/b"),
        ("caps:holder/a", "caps:coordinator/a"),
        ("caps:holder",),
        ("caps:holder/",),
        ("caps:holder/a/b",),
        ("caps:/a",),
        ("caps:Holder/a",),
        ("https://holder/a",),
    ],
)
def test_a_certificate_without_exactly_one_role_is_nobody(sample, tmp_path, roles):
    shown = certificate(tmp_path, *roles)
    assert machine_of(shown) is None
    is_problem(ask(sample, "PUT", "/v1/machine", certificate=shown), Kind.UNAUTHENTICATED)


def test_a_certificate_that_cannot_be_read_is_nobody(sample):
    is_problem(ask(sample, "PUT", "/v1/machine", certificate=b"\x30\x03\x02\x01\x01"), Kind.UNAUTHENTICATED)


def test_another_role_is_refused(sample, tmp_path):
    other = certificate(tmp_path, "caps:coordinator/clinic")
    is_problem(ask(sample, "PUT", "/v1/machine", certificate=other), Kind.FORBIDDEN)
    assert sample.seen == []


def test_confirm_wants_role_name_and_key_of_the_manifest():
    party = Holder(name="clinic", pin="1" * 64, signing_key="2" * 64, brings="rows")
    good = Machine("holder", "clinic", "1" * 64)
    assert confirm(Caller(good), party) == good
    for bad in (
        Machine("holder", "clinic", "3" * 64),
        Machine("holder", "other", "1" * 64),
        Machine("mpc-server", "clinic", "1" * 64),
        None,
    ):
        with pytest.raises(Problem) as caught:
            confirm(Caller(bad), party)
        assert caught.value.kind is Kind.FORBIDDEN


def test_unknown_paths_and_methods(sample):
    token = sample.token(Scope.OPERATOR)
    is_problem(ask(sample, "GET", f"/v1/{CANARY}?{CANARY}", token=token), Kind.NOT_FOUND)
    is_problem(ask(sample, "GET", "/v1/who/", token=token), Kind.NOT_FOUND)
    response = ask(sample, "DELETE", "/v1/things", token=token)
    is_problem(response, Kind.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "GET, HEAD, POST"


def test_head_is_get_without_the_body(sample):
    token = sample.token(Scope.OPERATOR)
    whole, head = (ask(sample, method, "/v1/who", token=token) for method in ("GET", "HEAD"))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert ask(sample, "HEAD", "/v1/large", token=token).status_code == 405


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Kind.INVALID),
        (b"{", Kind.MALFORMED),
        (b'{"name": "' + CANARY.encode() + b'"', Kind.MALFORMED),
        (b"\xff\xfe", Kind.MALFORMED),
        (b"[" * 100_000, Kind.MALFORMED),
        (b"null", Kind.INVALID),
        (json.dumps({"name": {"x": CANARY}}).encode(), Kind.INVALID),
        (json.dumps({"name": "a", "count": CANARY}).encode(), Kind.INVALID),
        (json.dumps({"name": "a", CANARY: 1}).encode(), Kind.INVALID),
        (json.dumps([CANARY]).encode(), Kind.INVALID),
        (json.dumps(CANARY).encode(), Kind.INVALID),
    ],
)
def test_bad_bodies_are_refused_and_not_repeated(sample, body, kind, caplog):
    caplog.set_level(logging.DEBUG)
    token = sample.token(Scope.OPERATOR)
    response = ask(
        sample, "POST", "/v1/things", token=token, content=body, headers={"Content-Type": "application/json"}
    )
    found = is_problem(response, kind)
    assert found["detail"]
    assert CANARY not in caplog.text
    assert sample.seen == []


def test_bad_parameters_are_refused_and_not_repeated(sample):
    token = sample.token(Scope.OPERATOR)
    found = is_problem(ask(sample, "GET", f"/v1/things?most={CANARY}", token=token), Kind.INVALID)
    assert found["errors"][0]["place"] == "query.most"


def test_large_bodies_are_refused_by_their_length(sample, monkeypatch):
    monkeypatch.setattr(frame, "DOCUMENT_LIMIT", 1000)
    token = sample.token(Scope.OPERATOR)
    is_problem(ask(sample, "POST", "/v1/things", token=token, content=b"x" * 1001), Kind.TOO_LARGE)
    assert ask(sample, "PUT", "/v1/large", token=token, content=b"x" * 100_000).json() == {"size": 100_000}
    is_problem(ask(sample, "PUT", "/v1/large", token=token, content=b"x" * 100_001), Kind.TOO_LARGE)


@pytest.mark.parametrize("path", ["/v1/things", "/v1/large"])
def test_large_bodies_are_refused_while_they_come(sample, monkeypatch, path):
    monkeypatch.setattr(frame, "DOCUMENT_LIMIT", 1000)
    method = "POST" if path == "/v1/things" else "PUT"

    async def parts():
        for _ in range(101):
            yield b" " * 1000

    response = ask(
        sample,
        method,
        path,
        token=sample.token(Scope.OPERATOR),
        content=parts(),
        headers={"Content-Type": "application/json"},
    )
    is_problem(response, Kind.TOO_LARGE)


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "9" * 30, "٣"])
def test_lengths_that_are_no_numbers_are_refused(sample, length):
    headers = {"Content-Length": length.encode()}
    token = sample.token(Scope.OPERATOR)
    is_problem(ask(sample, "GET", "/v1/who", token=token, headers=headers), Kind.MALFORMED)


def test_two_tokens_are_refused(sample):
    token = sample.token(Scope.OPERATOR)
    headers = [("Authorization", f"Bearer {token}"), ("Authorization", "Bearer x")]

    async def exchange():
        transport = httpx.ASGITransport(sample.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://service.test") as client:
            return await client.get("/v1/who", headers=headers)

    is_problem(asyncio.run(exchange()), Kind.MALFORMED)


def test_a_stalled_body_ends_the_request(sample, monkeypatch):
    monkeypatch.setattr(frame, "BODY_STALLS", 0.05)

    async def parts():
        yield b"begin"
        await asyncio.Event().wait()

    response = ask(sample, "PUT", "/v1/large", token=sample.token(Scope.OPERATOR), content=parts())
    is_problem(response, Kind.TIMEOUT)


@pytest.mark.parametrize("path", ["/v1/large", "/v1/things"])
def test_a_client_that_goes_away_leaves_no_error(sample, caplog, path):
    caplog.set_level(logging.INFO)
    sent = []
    messages = [
        {"type": "http.request", "body": b'{"na', "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "PUT" if path == "/v1/large" else "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (b"authorization", f"Bearer {sample.token(Scope.OPERATOR)}".encode()),
            (b"content-type", b"application/json"),
        ],
    }
    asyncio.run(sample.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert [record.levelname for record in caplog.records if record.name == "caps.http"] == ["INFO"]


def test_an_unforeseen_error_says_nothing(sample, caplog):
    caplog.set_level(logging.DEBUG)
    response = ask(sample, "GET", "/v1/broken", token=sample.token(Scope.OPERATOR))
    body = is_problem(response, Kind.INTERNAL)
    assert CANARY not in caplog.text
    logged = [json.loads(record.message) for record in caplog.records if record.levelname == "ERROR"]
    assert logged[0]["request_id"] == body["request_id"]
    assert logged[0]["error"] == "RuntimeError"
    assert any("kit/service.py" in place for place in logged[0]["where"])


def test_a_database_that_is_busy_is_no_error_of_ours(sample, caplog):
    """Nothing was done, and the caller may ask again."""
    response = ask(sample, "GET", "/v1/busy", token=sample.token(Scope.OPERATOR))
    is_problem(response, Kind.BUSY)
    assert response.headers["retry-after"] == "1"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_errors_of_the_library_are_problems(sample):
    response = ask(sample, "GET", "/v1/refused", token=sample.token(Scope.OPERATOR))
    assert is_problem(response, Kind.INVALID)["detail"] == "not possible"


def test_members_cannot_replace_what_a_type_says():
    document = Problem(Kind.CONFLICT, "x", status=200, type="y", study="z").document("id")
    assert (document["status"], document["type"], document["study"]) == (409, Kind.CONFLICT.urn, "z")
    assert Problem(Kind.PEER_FAILED, "x", retryable=False).document("id")["retryable"] is False


def test_request_ids(sample):
    token = sample.token(Scope.OPERATOR)
    given = ask(sample, "GET", "/v1/who", token=token, headers={"X-Request-ID": "abc-12345"})
    assert given.headers["x-request-id"] == "abc-12345"
    for bad in ("short", "x" * 65, 'a"b\\cdefgh', "aaaa bbbb"):
        made = ask(sample, "GET", "/v1/who", token=token, headers={"X-Request-ID": bad})
        assert made.headers["x-request-id"] != bad


@pytest.mark.parametrize("path", ["/v1/who", "/v1/nothing", "/v1/broken", "/healthz"])
def test_security_headers_are_on_every_answer(sample, path):
    headers = ask(sample, "GET", path, token=sample.token(Scope.OPERATOR)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["strict-transport-security"]
    assert headers["cache-control"] == "no-store"
    assert "default-src 'none'" in headers["content-security-policy"]


def test_a_log_line_has_ids_and_no_data(sample, caplog):
    caplog.set_level(logging.INFO, "caps.http")
    token = sample.token(Scope.OPERATOR)
    ask(sample, "GET", f"/v1/things?most=2&x={CANARY}", token=token, headers={"User-Agent": CANARY})
    (line,) = (json.loads(record.message) for record in caplog.records if record.name == "caps.http")
    assert {"method", "route", "status", "caller", "request_id", "ms", "service"} == set(line)
    assert (line["route"], line["status"], line["caller"]) == ("/v1/things", 200, "person/ada")
    assert CANARY not in caplog.text
    assert token not in caplog.text


def test_a_damaged_token_file_lets_nobody_in(sample, tmp_path):
    token = sample.token(Scope.OPERATOR)
    (tmp_path / "tokens.json").write_text("{")
    is_problem(ask(sample, "GET", "/v1/who", token=token), Kind.INTERNAL)
    assert sample.seen == []


def test_openapi_says_who_may_ask_and_that_errors_are_problems(sample):
    document = sample.app.openapi()
    assert set(document["components"]["securitySchemes"]) == {"machine", "person"}
    operations = {
        (path, method): operation for path, item in document["paths"].items() for method, operation in item.items()
    }
    assert operations["/v1/who", "get"]["security"] == [{"machine": ["holder"]}, {"person": ["operator"]}]
    assert operations["/v1/machine", "put"]["security"] == [{"machine": ["holder"]}]
    assert operations["/healthz", "get"]["security"] == []
    assert "HTTPValidationError" not in json.dumps(document)
    for operation in operations.values():
        assert "422" not in operation["responses"]
        assert operation["responses"]["4XX"] == {"$ref": "#/components/responses/Problem"}


def test_every_kind_of_problem_has_a_type_of_its_own():
    assert len({kind.urn for kind in Kind}) == len(list(Kind.__members__)) == len(list(Kind))


def test_settings_come_from_the_environment(tmp_path):
    home = str(tmp_path)
    assert Settings.from_environment({"CAPS_HOME": home}).port == 8443
    assert Settings.from_environment({"CAPS_HOME": home, "CAPS_LISTEN": "[::1]:9"}).host == "::1"
    for bad in ("x", "host:", "host:²", "host:65536", ":x"):
        with pytest.raises(Exception, match="CAPS_LISTEN"):
            Settings.from_environment({"CAPS_HOME": home, "CAPS_LISTEN": bad})
    with pytest.raises(Exception, match="CAPS_HOME"):
        Settings.from_environment({})


def test_tokens_expire(sample):
    now = datetime.now(UTC)
    token = sample.tokens.create("ada", [Scope.OWNER], expires=now + HOUR)
    assert sample.tokens.find(token, now) is not None
    assert sample.tokens.find(token, now + HOUR) is None
    assert sample.tokens.find(token, now + HOUR - timedelta(seconds=1)) is not None


def test_handlers_see_the_request_id(tmp_path):
    api = APIRouter(prefix="/v1")

    @api.get("/id", dependencies=[Depends(Allow(scopes=[Scope.OWNER]))])
    def own(request: Request) -> str:
        return frame.request_id_of(request)

    sample = Sample(tmp_path)
    sample.app = create_app(service="s", name="n", description="", routers=[api], tokens=sample.tokens)
    response = ask(sample, "GET", "/v1/id", token=sample.token(Scope.OWNER))
    assert response.json() == response.headers["x-request-id"]
