"""A service as others meet it, over real TLS: who gets in, who does not, and what a bad client can do."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from caps.errors import DomainError
from caps.federation.ports import free_ports
from caps.service import serve as serving_module
from caps.service.site import Settings, Site
from caps.service.tokens import Scope
from caps.trust import pki
from caps.trust.denials import Denials, revoke
from caps.trust.home import POLICY
from caps.trust.tls import NotTheParty, client_context, server_context
from caps.wire import media
from caps.wire.problems import Kind
from tests.kit.service import CANARY, Sample
from tests.kit.study import make_keys, write_site
from tests.kit.tls import HOUR, Authority, calling, pin_of, serving

pytestmark = pytest.mark.integration

HOLDER, SERVICE = "caps:holder/clinic", "caps:mpc-server/S1"


class Running:
    """A running sample, its authority, and a caller with the right role."""

    def __init__(self, url, authority, service, sample):
        self.url, self.authority, self.service, self.sample = url, authority, service, sample
        self.holder = authority.issue("holder", HOLDER)
        self.operator = sample.token(Scope.OPERATOR)

    def __call__(self, **choices):
        return calling(self.url, self.authority.root, **choices)

    def socket(self, context=None):
        """A bare connection, after the handshake."""
        host, port = self.url.removeprefix("https://").split(":")
        context = context or client_context(self.authority.root)
        return context.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=host)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority, sample = Authority(folder), Sample(folder)
    service = authority.issue("service", SERVICE)
    with serving(sample.app, service) as url:
        yield Running(url, authority, service, sample)


@pytest.fixture(autouse=True)
def nothing_asked(request):
    if "world" in request.fixturenames:
        request.getfixturevalue("world").sample.seen.clear()


def is_problem(response, kind):
    assert response.status_code == kind.value.status
    assert response.headers["content-type"] == media.PROBLEM
    assert response.json()["type"] == kind.urn
    assert CANARY not in response.text


def refused_by_tls(client):
    """The server ends the connection in or right after the handshake."""
    with client, pytest.raises(httpx.TransportError):
        client.put("/v1/machine")


def test_nobody_gets_a_problem(world):
    with world() as client:
        is_problem(client.put("/v1/machine"), Kind.UNAUTHENTICATED)
        is_problem(client.get("/v1/nothing"), Kind.UNAUTHENTICATED)
        assert client.get("/healthz").json()["status"] == "alive"
        assert client.get("/readyz").status_code == 200
    assert world.sample.seen == []


def test_a_machine_is_known_by_its_certificate_and_its_key(world):
    with world(me=world.holder) as client:
        found = client.get("/v1/who").json()
    assert found == {"caller": "holder/clinic", "pin": pin_of(world.holder)}


def test_a_person_is_known_by_a_token(world):
    with world(token=world.operator) as client:
        assert client.get("/v1/who").json()["caller"] == "person/ada"
        is_problem(client.put("/v1/machine"), Kind.FORBIDDEN)


def test_a_foreign_authority_is_refused(world, tmp_path):
    foreign = Authority(tmp_path, "foreign").issue("holder", HOLDER, trusts=world.authority.root)
    refused_by_tls(world(me=foreign))
    assert world.sample.seen == []


def test_an_authority_of_the_same_name_is_refused(world, tmp_path):
    refused_by_tls(world(me=Authority(tmp_path).issue("holder", HOLDER)))


def test_an_expired_certificate_is_refused(world):
    refused_by_tls(world(me=world.authority.issue("expired", HOLDER, expires=-HOUR)))
    assert world.sample.seen == []


def test_a_certificate_that_a_party_signed_is_refused(world, tmp_path):
    mine = world.holder
    rogue = pki.Authority(pki.read_certificate(mine.certificate), pki.read_key(mine.private_key))
    issuer = Authority(tmp_path, "rogue")
    issuer.authority = rogue
    refused_by_tls(world(me=issuer.issue("forged", HOLDER)))


@pytest.mark.parametrize("roles", [(), (HOLDER, "caps:holder/other"), (HOLDER, SERVICE)])
def test_a_certificate_without_exactly_one_role_is_nobody(world, roles):
    credentials = world.authority.issue(f"roles-{len(roles)}-{roles[-1:] == (SERVICE,)}", *roles)
    with world(me=credentials) as client:
        is_problem(client.put("/v1/machine"), Kind.UNAUTHENTICATED)
    assert world.sample.seen == []


def test_another_role_is_refused(world):
    with world(me=world.authority.issue("coordinator", "caps:coordinator/clinic")) as client:
        is_problem(client.put("/v1/machine"), Kind.FORBIDDEN)
    assert world.sample.seen == []


def test_a_certificate_that_expires_while_connected_is_nobody_then(world):
    credentials = world.authority.issue("brief", HOLDER, expires=timedelta(seconds=4))
    with world(me=credentials) as client:
        assert client.put("/v1/machine").status_code == 200
        end = pki.read_certificate(credentials.certificate).not_valid_after_utc.timestamp()
        while time.time() <= end:
            time.sleep(0.1)
        is_problem(client.put("/v1/machine"), Kind.UNAUTHENTICATED)


def test_tls_1_2_is_refused(world):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(world.authority.root)
    with pytest.raises(ssl.SSLError):
        world.socket(context)


def test_plain_http_is_refused(world):
    with pytest.raises(httpx.TransportError):
        httpx.get(world.url.replace("https", "http") + "/healthz", timeout=10)


def test_sessions_are_not_resumed(world):
    context = client_context(world.authority.root)
    with world.socket(context) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1000)
        assert connection.session is None or not connection.session.has_ticket


def test_a_client_needs_the_same_authority_and_host(world, tmp_path):
    other = Authority(tmp_path, "other")
    with calling(world.url, other.root) as client, pytest.raises(httpx.ConnectError):
        client.get("/healthz")
    elsewhere = world.authority.issue("elsewhere", SERVICE, hosts=["elsewhere.example"])
    mismatch = pytest.raises(httpx.ConnectError, match="mismatch")
    with serving(world.sample.app, elsewhere) as url, calling(url, world.authority.root) as client, mismatch:
        client.get("/healthz")


def test_a_client_meets_whom_it_means_and_keeps_the_connection(world):
    with world(me=world.holder, role=SERVICE, pin=pin_of(world.service)) as client:
        assert [client.get("/v1/who").status_code for _ in range(5)] == [200] * 5
    assert len(world.sample.seen) == 5


@contextlib.contextmanager
def recorder(credentials):
    """A TLS server that answers nothing, and writes down all that it is sent after the handshake."""
    received: list[bytes] = []
    context = server_context(credentials)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            while True:
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), raw, context.wrap_socket(raw, server_side=True) as connection:
                    received.append(b"")
                    while data := connection.recv(1000):
                        received[-1] += data

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("roles", "right_pin", "word"),
    [
        (["caps:mpc-server/S2"], True, "is not caps:mpc-server/S1"),
        (["caps:coordinator/S1"], True, "is not caps:mpc-server/S1"),
        ([], True, "is not caps:mpc-server/S1"),
        ([SERVICE, "caps:mpc-server/S2"], True, "is not caps:mpc-server/S1"),
        ([SERVICE], False, "does not have the key"),
    ],
)
def test_a_client_that_meets_another_sends_nothing(tmp_path, roles, right_pin, word):
    authority = Authority(tmp_path)
    impostor = authority.issue("impostor", *roles)
    pin = pin_of(impostor) if right_pin else "0" * 64
    with recorder(impostor) as (url, received):
        refused = pytest.raises(httpx.ConnectError, match=word)
        with calling(url, authority.root, role=SERVICE, pin=pin) as client, refused:
            client.put("/v1/secret", content=CANARY)
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as raw:
            context = client_context(authority.root, role=SERVICE, pin=pin)
            with pytest.raises(NotTheParty, match=word):
                context.wrap_socket(raw, server_hostname="127.0.0.1")
    assert received == [b"", b""]


def test_the_recorder_records(tmp_path):
    authority = Authority(tmp_path)
    service = authority.issue("service", SERVICE)
    with (
        recorder(service) as (url, received),
        calling(url, authority.root, role=SERVICE, pin=pin_of(service)) as client,
        pytest.raises(httpx.ReadTimeout),
    ):
        client.put("/v1/secret", content=CANARY, timeout=0.3)
    assert CANARY.encode() in received[0]


def test_an_event_loop_cannot_evade_the_check(world):
    async def ask():
        context = client_context(world.authority.root, role="caps:mpc-server/S2")
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            await client.get(world.url + "/healthz")

    with pytest.raises(Exception, match="only be checked on sockets"):
        asyncio.run(ask())


def test_an_error_closes_nothing_that_others_need(world, caplog):
    with world(token=world.operator) as client:
        is_problem(client.get("/v1/broken"), Kind.INTERNAL)
        with pytest.raises(httpx.RemoteProtocolError):
            client.get("/v1/half")
        assert client.get("/v1/who").status_code == 200
    assert CANARY not in caplog.text


def test_a_body_that_is_too_large_is_refused_in_both_ways(world):
    def parts():
        for _ in range(120):
            yield b"x" * 1000

    with world(token=world.operator) as client:
        is_problem(client.put("/v1/large", content=b"x" * 120_000), Kind.TOO_LARGE)
        is_problem(client.put("/v1/large", content=parts()), Kind.TOO_LARGE)
        assert client.put("/v1/large", content=b"x" * 1000).json() == {"size": 1000}


def test_a_client_that_goes_away_in_mid_upload_leaves_no_traceback(world, caplog):
    caplog.set_level(logging.INFO)
    with world.socket() as connection:
        head = f"PUT /v1/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.operator}\r\n"
        connection.sendall(head.encode() + b"Content-Length: 1000\r\n\r\nxxx")
        time.sleep(0.2)
    deadline = time.monotonic() + 10
    while not any("/v1/large" in record.getMessage() for record in caplog.records):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert all(record.levelno < logging.ERROR and record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 200_000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_a_problem(world, request_):
    with world.socket() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(request_)
        answer = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(10_000):
                answer += part
    if answer or len(request_) < 100_000:  # a client that is still sending may not see the answer
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert media.PROBLEM.encode() in answer


def test_slow_clients_hold_up_nobody_and_are_shown_out(world, monkeypatch):
    monkeypatch.setattr(serving_module, "HEAD_TIMEOUT", 1.0)
    host, port = world.url.removeprefix("https://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(20):  # never shake hands
            stack.enter_context(socket.create_connection((host, int(port))))
        slow = [stack.enter_context(world.socket()) for _ in range(20)]
        for connection in slow:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHos")
        with world(token=world.operator) as client:
            assert client.get("/v1/who").status_code == 200
        deadline = time.monotonic() + 20
        for connection in slow:
            connection.settimeout(10)
            ended = b"more"
            while ended and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    connection.sendall(b"t")  # drop by drop wins no time
                try:
                    connection.settimeout(0.2)
                    ended = connection.recv(1000)
                except TimeoutError:
                    continue
                except OSError:
                    ended = b""
            assert ended == b""


def test_a_quiet_connection_is_kept_between_requests(world, monkeypatch):
    monkeypatch.setattr(serving_module, "HEAD_TIMEOUT", 0.3)
    with world.socket() as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = connection.recv(10_000)
            while not answer.endswith(b"}"):
                answer += connection.recv(10_000)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.6)


SCRIPT = """
import sys, asyncio
from pathlib import Path
from fastapi import APIRouter, Depends
from caps.service.app import create_app
from caps.service.identity import Allow
from caps.service.serve import serve
from caps.service.tokens import Tokens
from caps.trust.tls import Credentials
from caps.service import serve as module
module.STOP_TIMEOUT = 1
folder = Path(sys.argv[1])
api = APIRouter(prefix="/v1")
@api.get("/long", dependencies=[Depends(Allow(machines=["holder"]))])
async def long() -> None:
    await asyncio.sleep(600)
app = create_app(service="s", name="n", description="", routers=[api], tokens=Tokens(folder / "tokens.json"))
serve(app, Credentials(folder / "service.pem", folder / "service.key", folder / "authority.pem"),
      host="127.0.0.1", port=int(sys.argv[2]))
"""


@pytest.mark.parametrize("busy", [False, True])
def test_a_service_stops_when_told(tmp_path, busy):
    authority = Authority(tmp_path)
    authority.issue("service", SERVICE)
    holder = authority.issue("holder", HOLDER)
    (port,) = free_ports(1)
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(port)], cwd=root, env=os.environ | {"PYTHONPATH": str(root)}
    )
    try:
        with calling(f"https://127.0.0.1:{port}", authority.root, me=holder) as client:
            for _ in range(300):
                with contextlib.suppress(httpx.ConnectError):
                    assert client.get("/healthz").status_code == 200
                    break
                time.sleep(0.1)
            asking = threading.Thread(target=_ask_long, args=(port, authority, holder))
            if busy:
                asking.start()
                time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
            if busy:
                asking.join(10)
    finally:
        process.kill()
        process.wait()


def _ask_long(port, authority, holder):
    gone = contextlib.suppress(httpx.TransportError)
    with calling(f"https://127.0.0.1:{port}", authority.root, me=holder) as client, gone:
        client.get("/v1/long", timeout=60)


def test_a_denied_key_is_refused_at_once_also_on_an_open_connection(tmp_path):
    authority, policy = Authority(tmp_path), tmp_path / "policy.yaml"
    sample = Sample(tmp_path, denials=Denials(policy))
    holder, other = authority.issue("holder", HOLDER), authority.issue("other", "caps:holder/other")
    with (
        serving(sample.app, authority.issue("service", SERVICE)) as url,
        calling(url, authority.root, me=holder) as client,
        calling(url, authority.root, me=other) as innocent,
    ):
        assert client.get("/v1/who").status_code == 200
        revoke(policy, pin_of(holder), since="2026-11-17T09:00:00Z", reason=CANARY)
        for path in ("/v1/who", "/healthz"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["type"]) == (403, Kind.FORBIDDEN.urn)
            assert refused.json()["detail"] == "the key of holder/clinic is denied here"
            assert CANARY not in refused.text
        token = {"authorization": f"Bearer {sample.token(Scope.OPERATOR)}"}
        assert client.get("/v1/who", headers=token).status_code == 403
        assert innocent.get("/v1/who").status_code == 200


def test_a_denied_service_is_not_called_also_on_an_open_connection(tmp_path):
    authority = Authority(tmp_path)
    service = authority.issue("service", SERVICE)
    home = tmp_path / "home"
    write_site(home, authority.authority, make_keys(["clinic"])["clinic"], "holder", now=authority.now)
    site = Site(Settings(home, tmp_path / "state", "127.0.0.1", 0, ""), role="holder")
    with serving(Sample(tmp_path).app, service) as url:
        pinned = site.calls_to(url, role=SERVICE, pin=pin_of(service), timeout=10)
        with pinned, site.calls_to(url, timeout=10) as unknown:
            assert pinned.get("/healthz").status_code == unknown.get("/healthz").status_code == 200
            revoke(home / POLICY, pin_of(service), since="2026-11-17T09:00:00Z", reason=None)
            with pytest.raises(httpx.ConnectError, match="denied here"):
                pinned.get("/healthz")
        with site.calls_to(url, timeout=10) as unknown, pytest.raises(httpx.ConnectError, match="denied here"):
            unknown.get("/healthz")
    readings = {one.name: one.value for one in site._denied()}
    assert readings == {"caps_denied_keys": 1, "caps_denied_keys_current": True}
    (home / POLICY).write_text("denied: [")
    assert {one.name: one.value for one in site._denied()} == {"caps_denied_keys": 1, "caps_denied_keys_current": False}
    with pytest.raises(DomainError, match="not YAML"):
        Site(site.settings, role="holder")
