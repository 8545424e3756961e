"""Three real processes over real TLS, and what becomes of them when one fails or is not who it should be."""

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from caps.federation.ports import free_ports
from caps.trust import pki
from tests.kit.tls import Authority

pytestmark = [pytest.mark.chaos, pytest.mark.integration]

ROOT = Path(__file__).parents[4]
BOUND = 20.0


class Peer:
    """A running `tests.kit.peer`."""

    def __init__(self, plan, listener):
        self.party = plan["party"]
        plan = {**plan, "listener": listener and listener.fileno()}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.kit.peer", json.dumps(plan)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()] if listener else [],
        )
        self._buffer = b""

    def next(self, bound=BOUND):
        """The next event it prints."""
        deadline = time.monotonic() + bound
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"S{self.party + 1} said nothing for {bound} s"
            read = os.read(self.process.stdout.fileno(), 1 << 16)
            assert read, f"S{self.party + 1} ended without a word"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def until(self, event, bound=BOUND):
        while (got := self.next(bound))["event"] != event:
            pass
        return got

    def signal(self, number):
        self.process.send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Town:
    """Certificates, listening sockets, and the processes started on them."""

    def __init__(self, kit, credentials, stack):
        self.kit = kit
        self.credentials = dict(enumerate(credentials))
        self._stack = stack
        self.ports = free_ports(2)
        self._listeners = [stack.enter_context(socket.create_server(("127.0.0.1", port))) for port in self.ports]

    def start(
        self,
        party,
        act="ring",
        *,
        again=False,
        credentials=None,
        limits=None,
        pins=(None, None, None),
        arguments=None,
        **more,
    ):
        """Start a party on its listening socket; `again`: on its port, which the party before it left."""
        credentials = credentials or self.credentials[party]
        plan = {
            "party": party,
            "certificate": str(credentials.certificate),
            "private_key": str(credentials.private_key),
            "authority": str(credentials.authority),
            "ports": [*self.ports, 9],
            "pins": pins,
            "limits": {"connect": BOUND, "hello": 10.0, "stall": 10.0, **(limits or {})},
            "act": act,
            "arguments": arguments if arguments is not None else {"rounds": 20},
            **more,
        }
        listener = self._listeners[party] if party < 2 and not again else None
        peer = self._stack.enter_context(Peer(plan, listener))
        if listener:
            listener.close()
        return peer


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def credentials(kit):
    return [kit.party(party) for party in range(3)]


@pytest.fixture
def town(kit, credentials):
    with ExitStack() as stack:
        yield Town(kit, credentials, stack)


def culprit(error):
    return error["party"] if error["blames"] is None else error["blames"]


def test_honest_parties_finish(town):
    for peer in [town.start(party, arguments={"rounds": 200}) for party in range(3)]:
        assert peer.until("done")


@pytest.mark.parametrize(
    ("victim", "act", "arguments"),
    [(0, "ring", {"rounds": None}), (2, "ring", {"rounds": None}), (1, "transfer", {"size": 32 << 20})],
)
def test_a_killed_party_is_named_by_both_survivors(town, victim, act, arguments):
    peers = [town.start(party, act, arguments=arguments) for party in range(3)]
    for peer in peers:
        peer.until("running")
    peers[victim].signal(signal.SIGKILL)
    errors = [peer.until("error") for peer in peers if peer.party != victim]
    assert {error["type"] for error in errors} <= {"PeerLost", "PeerAborted"}
    assert [culprit(error) for error in errors] == [victim, victim]


@pytest.mark.parametrize(
    ("victim", "act", "arguments"),
    [(0, "ring", {"rounds": None}), (1, "ring", {"rounds": None}), (2, "transfer", {"size": 32 << 20})],
)
def test_a_stopped_party_is_named_by_both_survivors(town, victim, act, arguments):
    peers = [town.start(party, act, arguments=arguments, limits={"stall": 1.0}) for party in range(3)]
    for peer in peers:
        peer.until("running")
    peers[victim].signal(signal.SIGSTOP)
    errors = [peer.until("error", bound=10.0) for peer in peers if peer.party != victim]
    assert any(error["type"] == "PeerStalled" for error in errors)
    assert [culprit(error) for error in errors] == [victim, victim]


@pytest.mark.parametrize("how", ["noise", "version", "oversize", "sequence", "unopened", "hello"])
def test_an_authenticated_party_that_sends_garbage_is_named(town, how):
    town.start(0, "misbehave", arguments={"how": how})
    errors = [peer.until("error") for peer in [town.start(party, arguments={"rounds": None}) for party in (1, 2)]]
    assert any(error["type"] == "PeerViolation" for error in errors)
    assert [culprit(error) for error in errors] == [0, 0]


def test_each_disagreement_names_its_field(town):
    peers = [town.start(party, "disagree", arguments={"odd": 1}) for party in range(3)]
    for field in ("study", "inputs", "build", "ledger"):
        errors = [peer.until("error") for peer in peers]
        assert {error["about"] for error in errors} == {field}
        assert any(error["type"] == "PeerDisagrees" and error["field"] == field for error in errors)
        assert all(f"disagrees on {field}" in error["message"] for error in errors), errors
        assert culprit(errors[0]) == culprit(errors[2]) == 1


def test_another_wire_version_is_named(town):
    peers = [*(town.start(party, limits={"connect": 3.0}) for party in (0, 1)), town.start(2, wire_version=9)]
    errors = [peer.until("error") for peer in peers]
    assert any((error["type"], error["field"]) == ("PeerDisagrees", "version") for error in errors[:2])
    assert errors[2]["field"] == "version"


def test_a_listener_with_anothers_certificate_is_refused(town):
    """S2's certificate where S1 should answer: both that dial S1 refuse it by name."""
    town.start(0, credentials=town.credentials[1], limits={"connect": 5.0})
    errors = [peer.until("error") for peer in [town.start(1), town.start(2)]]
    assert [(error["type"], error["party"]) for error in errors] == [("PeerRefused", 0)] * 2
    assert "caps:mpc-server/S2" in errors[0]["message"]


def test_a_dialler_with_anothers_certificate_is_refused(town):
    """S1's certificate in the place of S3: S1 and S2, who expect S3, refuse it, and it is told."""
    peers = [town.start(0, limits={"connect": 4.0}), town.start(1, limits={"connect": 4.0})]
    impostor = town.start(2, credentials=town.credentials[0]).until("error")
    assert impostor["type"] == "PeerRefused"
    errors = [peer.until("error") for peer in peers]
    assert {error["party"] for error in errors} == {2}
    assert any(error["type"] == "PeerRefused" and "caps:mpc-server/S1" in error["message"] for error in errors)


def test_a_dialler_that_claims_to_be_another_is_refused(town):
    """S2's certificate presented as S3, to S1 who expects both."""
    first = town.start(0, limits={"connect": 4.0})
    impostor = town.start(2, credentials=town.credentials[1]).until("error")
    assert impostor["type"] == "PeerRefused"
    error = first.until("error")
    assert (error["type"], error["party"]) == ("PeerRefused", 2)
    assert "certificate of S2" in error["message"]


@pytest.mark.parametrize("flaw", ["foreign authority", "expired", "pin"])
def test_a_flawed_certificate_is_refused(town, tmp_path, flaw):
    pins = [None, None, None]
    flawed = None
    if flaw == "foreign authority":
        flawed = Authority(tmp_path, "foreign").party(2, trusts=town.kit.root)
    elif flaw == "expired":
        flawed = town.kit.party(2, "expired", expires=-timedelta(hours=1))
    else:
        pins[2] = pki.spki_pin(pki.read_certificate(town.credentials[1].certificate)).hex()
    peers = [town.start(party, pins=pins, limits={"connect": 4.0}) for party in (0, 1)]
    refused = town.start(2, credentials=flawed, limits={"connect": 3.0}).until("error")
    assert refused["type"] == "PeerRefused"
    errors = [peer.until("error") for peer in peers]
    assert {error["party"] for error in errors} == {2}
    kind, words = {
        "foreign authority": ("PeerUnreachable", "verif"),
        "expired": ("PeerUnreachable", "expired"),
        "pin": ("PeerRefused", "pinned"),
    }[flaw]
    assert any(error["type"] == kind and words in error["message"] for error in errors)


def refused_by(port, context):
    """Whether a listener turns away a client: in the handshake, or before it says anything."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        try:
            with context.wrap_socket(raw) as stream:
                return stream.recv(1) == b""
        except (ssl.SSLError, ConnectionResetError):
            return True


def test_strangers_are_turned_away_and_do_not_keep_the_parties_apart(town, tmp_path):
    foreign = Authority(tmp_path, "foreign").party(2)
    first = town.start(0, limits={"hello": 60.0})
    port = town.ports[0]

    def client(credentials=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if credentials:
            context.load_cert_chain(credentials.certificate, credentials.private_key)
        return context

    nobody, stranger, old = client(), client(foreign), client(town.credentials[1])
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(40)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")
        scanner = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        scanner.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert refused_by(port, nobody)
        assert refused_by(port, stranger)
        assert refused_by(port, old)
        peers = [first, town.start(1), town.start(2)]
        for peer in peers:
            peer.until("done")


def kept(town, **limits):
    peers = [town.start(party, "keep", limits=limits) for party in range(3)]
    assert [peer.until("met")["meshes"] for peer in peers] == [1, 1, 1]
    return peers


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_kept_meshes_are_made_anew_when_a_killed_party_is_back(town, victim):
    peers = kept(town)
    peers[victim].signal(signal.SIGKILL)
    peers[victim].process.wait()
    survivors = [peer for peer in peers if peer.party != victim]
    for peer in survivors:
        assert f"S{victim + 1}" in str(peer.until("error"))
    peers[victim] = town.start(victim, "keep", again=True)
    for peer in peers:
        peer.until("met")


@pytest.mark.parametrize(("victim", "late"), [(2, 0), (2, 1), (0, 1), (1, 2)])
def test_kept_meshes_are_made_anew_when_one_party_notices_late(town, victim, late):
    """One survivor sleeps through the fall and the return of another."""
    peers = kept(town)
    other = peers[3 - victim - late]
    peers[late].signal(signal.SIGSTOP)
    peers[victim].signal(signal.SIGKILL)
    peers[victim].process.wait()
    other.until("error")
    peers[victim] = town.start(victim, "keep", again=True)
    time.sleep(2.0)  # the two that are awake dial, wait and retry meanwhile
    peers[late].signal(signal.SIGCONT)
    for peer in peers:
        peer.until("met")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_an_idle_mesh_notices_a_party_that_stopped(town, victim):
    peers = kept(town, heartbeat=0.2, silence=1.0, stall=1.0)
    peers[victim].signal(signal.SIGSTOP)
    errors = [peer.until("error") for peer in peers if peer.party != victim]
    assert any(error["party"] == victim and "silent for 1 s" in error["message"] for error in errors), errors
    assert all(f"S{victim + 1}: silent" in error["message"] for error in errors), errors
    peers[victim].signal(signal.SIGCONT)
    for peer in peers:
        peer.until("met")
