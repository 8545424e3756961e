"""Where rogues act: a federation of real processes, identities of every kind, one way to ask, and one oracle.

A rogue is a catalogue of moves, `Move` by name. A sequence is a list of names with a number each, by which a move picks
among its variants, so that a sequence which once broke something can be kept as it is.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np

from caps.service.pages.entrance import is_page
from caps.trust import home as party
from caps.trust.tls import Credentials, client_context
from caps.wire.problems import Kind
from deploy.federation import COORDINATOR, HOST, SERVERS
from tests.kit.federation import ServerStores, manifest_of
from tests.kit.processes import CANARIES, SCHEMA, Everybody, Study, horizontal, persons
from tests.kit.tls import Authority

ELSEWHERE = "127.0.0.2"
"""The address that rogues call from: limits per address are not to shut out the honest, who call from another."""
HOLDERS = ("north", "south", "west")
PARTS = {"north": ["income"], "south": ["smoker", "illness"], "west": ["smoker"]}
"""Columns of the holders whose rows are joined."""
STRANGERS = {"rival": "coordinator", "mallory": "holder", "S9": "mpc-server"}
"""Parties of the federation that take part in no study here."""
NOBODY, ALIEN = "nobody", "alien"
"""Without a certificate; with one of a foreign authority."""
PATIENCE = 120.0
"""Seconds after which a service that says nothing counts as stuck, on a machine that has much else to do."""
PATIENCE_FOR_ALL = 600.0
"""Seconds for a whole study, on a machine that has much else to do."""
MOST_MEMORY = 256 << 20
"""Bytes that any sequence may add to a service's memory, at its peak."""
MOST_DESCRIPTORS = 40
"""Descriptors that may be left over after a sequence: connections kept alive."""
MOST_THREADS = 80
"""Threads that a service may have at all: its own and those of its pools."""
PAGE = "text/html; charset=utf-8"
_BAD_WORDS = ("Traceback", 'File "/')

Variant = int
T = TypeVar("T")


class Broken(AssertionError):
    """A service did what none may."""


@dataclass
class Stage:
    """The federation, its studies, and what was said during a sequence."""

    federation: Everybody
    folder: Path
    released: Study
    """An honest study that was released before anybody misbehaved."""
    open: Study
    """One to which north and south have contributed, and which is not sealed."""
    joined: Study
    """One with a join by tags, approved and without contributions."""
    identities: dict[str, Credentials]
    seen: list[str] = field(default_factory=list)
    """What was asked, and the status of the answer."""
    began: set[tuple[str, str]] = field(default_factory=set)
    """Servers and runs that were begun by what was accepted."""
    stepped: set[tuple[str, str, str]] = field(default_factory=set)
    """Servers, runs and steps that were accepted."""
    proposed: set[tuple[str, str]] = field(default_factory=set)
    """Servers and studies that they keep, for this sequence alone."""
    held: ExitStack = field(default_factory=ExitStack)
    """What a rogue holds open until its sequence ends."""
    away: set[str] = field(default_factory=set)
    """Services that a rogue sent away for the time being."""
    broken: Broken | None = None
    """What the oracle found first: a shorter sequence would meet a federation that is broken already."""

    @property
    def now(self) -> datetime:
        """For those who verify."""
        return datetime.now(UTC)

    # Asking.

    def ask(
        self,
        name: str,
        method: str,
        path: str,
        *,
        who: str = NOBODY,
        token: str | None = None,
        timeout: float = PATIENCE,
        **options: Any,
    ) -> httpx.Response | None:
        """Ask a service; None if it hung up. Raises Broken for an answer that no service may give, or for none."""
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx.HTTPTransport(verify=self.context(who), local_address=ELSEWHERE, trust_env=False)
        url = self.federation.places[name].url
        with httpx.Client(base_url=url, transport=transport, timeout=timeout, trust_env=False) as client:
            try:
                with client.stream(method, path, headers=headers, **options) as response:
                    response.read()
            except (httpx.ConnectTimeout, httpx.ReadTimeout):
                raise Broken(f"{name} says nothing to {method} {path}") from None
            except (httpx.TransportError, httpx.StreamError):
                self.seen.append(f"{who} {method} {name}{path}: hung up")
                return None
        self.judge(name, method, path, who, response)
        return response

    def judge(self, name: str, method: str, path: str, who: str, response: httpx.Response) -> None:
        """What holds of every answer."""
        status = response.status_code
        self.seen.append(f"{who} {method} {name}{path[:160]}: {status}")
        if status >= 400 and path.partition("?")[0] not in ("/healthz", "/readyz"):
            page = is_page(path.partition("?")[0])
            if response.headers.get("content-type") != (PAGE if page else "application/problem+json"):
                raise Broken(f"{self.seen[-1]} without a problem document")
            if status == 429 and not response.headers.get("retry-after", "").isdigit():
                raise Broken(f"{self.seen[-1]} without Retry-After")
            if method != "HEAD" and not page:
                document = response.json()
                if document["type"] not in {kind.urn for kind in Kind} or document["status"] != status:
                    raise Broken(f"{self.seen[-1]}: {document['type']} is not a problem of the table")
        if status >= 500 and status != 503:
            raise Broken(f"{self.seen[-1]}: {response.text[:400]}")
        if any(value in response.text[: 1 << 20] for value in (*CANARIES, *_BAD_WORDS)):
            raise Broken(f"{self.seen[-1]} says what it must not")
        parts = path.strip("/").split("/")
        if status < 300 and method == "PUT" and parts[:2] == ["v1", "studies"] and len(parts) == 3:
            self.proposed.add((name, parts[2]))
        if status < 300 and method == "POST" and parts == ["v1", "studies"] and name == COORDINATOR:
            self.proposed |= {(server, response.json()["study"]) for server in SERVERS}
        if (status < 300 or status == 503) and method == "PUT" and parts[:2] == ["v1", "runs"]:
            if len(parts) == 3:
                self.began.add((name, parts[2]))
            elif len(parts) == 5 and parts[3] == "steps":
                self.stepped.add((name, parts[2], parts[4]))

    def accepted(self, run: str) -> None:
        """A run in which all went as it should: whatever it was charged is right."""
        self.began |= {(name, run) for name in SERVERS}
        self.stepped |= {(name, run, str(step)) for name in SERVERS for step in range(100)}

    def card(self, name: str, **addresses: str) -> dict[str, Any]:
        """An identity as manifests name it."""
        home = self.identities[name].certificate.parent
        card = party.card(home, **addresses).to_json()
        return {key: value for key, value in card.items() if key != "role" and value is not None}

    def refused(self, *arguments: Any, **options: Any) -> httpx.Response | None:
        """Ask for what must not be given."""
        response = self.ask(*arguments, **options)
        if response is not None and response.status_code < 400:
            raise Broken(f"{self.seen[-1]}, and should be refused")
        return response

    def context(self, who: str) -> ssl.SSLContext:
        """How an identity calls."""
        if who == NOBODY:
            return client_context(self.federation.authority)
        given = self.identities[who]
        return client_context(self.federation.authority, certificate=given.certificate, private_key=given.private_key)

    def token(self, name: str, scope: str) -> str:
        """Of a person at a service."""
        return self.federation.token(name, scope)

    # Sockets.

    def plain(self, name: str, *, mesh: bool = False, timeout: float = PATIENCE) -> socket.socket:
        """A connection on which nothing was said yet; closed when the sequence ends."""
        place = self.federation.places[name]
        port = place.mesh_port if mesh else place.port
        assert port is not None
        found = socket.create_connection((HOST, port), timeout=timeout, source_address=(ELSEWHERE, 0))
        return self.held.enter_context(found)

    def secure(self, name: str, who: str = NOBODY, *, mesh: bool = False) -> ssl.SSLSocket:
        """The same, after a handshake."""
        context = self.context(who)
        context.check_hostname = not mesh
        # Nobody answers at the mesh while all servers are connected.
        plain = self.plain(name, mesh=mesh, timeout=1.0 if mesh else PATIENCE)
        return self.held.enter_context(context.wrap_socket(plain, server_hostname=HOST))

    def say(self, name: str, data: bytes | Iterator[bytes], who: str = NOBODY, *, patience: float = 20.0) -> bytes:
        """Send bytes as they are; what the service answers until it stops or hangs up."""
        try:
            stream = self.secure(name, who)
            stream.settimeout(patience)
            for part in [data] if isinstance(data, bytes) else data:
                stream.sendall(part)
        except OSError:
            pass  # it hung up: whatever it said before is judged
        answer = b""
        with suppress(OSError, UnboundLocalError):
            while part := stream.recv(1 << 16):
                answer += part
                if len(answer) > 1 << 20:
                    break
                if b"\r\n\r\n" in answer:
                    stream.settimeout(0.3)
        self.heard(name, answer)
        return answer

    def heard(self, name: str, answer: bytes) -> None:
        """Judge an answer in bytes."""
        line = answer.partition(b"\r\n")[0]
        self.seen.append(f"{name} answers bytes with {line[:80]!r}")
        if line.startswith(b"HTTP/1.1 5") and not line.startswith(b"HTTP/1.1 503"):
            raise Broken(f"{self.seen[-1]}: {answer[:600]!r}")
        if any(value.encode() in answer for value in (*CANARIES, *_BAD_WORDS)):
            raise Broken(f"{self.seen[-1]} and says what it must not")

    def at_once(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Do things in as many threads; their results. Raises the first error."""
        results: list[Any] = [None] * len(calls)

        def run(place: int, call: Callable[[], T]) -> None:
            try:
                results[place] = call()
            except BaseException as error:  # noqa: BLE001  raised below, in the thread of the test
                results[place] = error

        threads = [threading.Thread(target=run, args=(place, call)) for place, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def last_lines(self, name: str) -> str:
        """The end of what a service wrote."""
        return self.federation.log(name)[-2000:]

    def alive(self) -> None:
        """Every service says so, to those who call from where honest people do, whatever a rogue holds open.

        A machine with too much to do may lose a connection, so a service that still runs is asked again for a while;
        one that has died is not waited for.
        """
        for name in self.federation.places.keys() - self.away:
            deadline, status = time.monotonic() + PATIENCE, 0
            while status == 0:
                try:
                    with self.federation.client(name, None, timeout=PATIENCE) as client:
                        status = client.get("/healthz").status_code
                except httpx.TransportError as error:
                    if not self.federation.running(name):
                        raise Broken(f"{name} has died. Its last lines:\n{self.last_lines(name)}") from None
                    if time.monotonic() > deadline:
                        raise Broken(f"{name} does not answer /healthz: {type(error).__name__}") from None
                    time.sleep(0.2)
            if status != 200:
                raise Broken(f"{name} answers /healthz with {status}")


Move = Callable[[Stage, Variant], None]
Catalogue = Mapping[str, Move]
Sequence_ = Sequence[tuple[str, Variant]]


def play(stage: Stage, catalogue: Catalogue, moves: Sequence_) -> None:
    """Make the moves, one after the other, and judge what they did to the federation. What is broken stays so."""
    if stage.broken is not None:
        raise stage.broken
    with watched(stage):
        for name, variant in moves:
            stage.seen.append(f"-- {name} {variant}")
            catalogue[name](stage, variant)
            stage.alive()


@contextmanager
def watched(stage: Stage) -> Iterator[None]:
    """The oracle: what holds after every sequence of moves, whoever made them."""
    federation = stage.federation
    stage.seen.clear()
    stage.began.clear()
    stage.stepped.clear()
    stage.proposed.clear()
    before = {name: federation.vitals(name) for name in federation.places}
    pids = {name: federation.pid(name) for name in federation.places}
    logs = {name: len(federation.log(name)) for name in federation.places}
    ledgers = {name: ServerStores(federation, name).ledger() for name in SERVERS}
    for pid in pids.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins here
    try:
        with stage.held:
            yield
        stage.alive()
        for name in federation.places:
            if not federation.running(name):
                raise Broken(f"{name} has died. Its last lines:\n{stage.last_lines(name)}")
            grown = federation.vitals(name).peak - before[name].memory
            if federation.pid(name) == pids[name] and grown > MOST_MEMORY:
                raise Broken(f"{name} took {grown >> 20} MB more than before")
            _settles(stage, name, before[name].descriptors)
            written = federation.log(name)[logs[name] :]
            if any(value in written for value in (*CANARIES, *_BAD_WORDS)):
                raise Broken(f"the log of {name} says what it must not")
            if '"unexpected"' in written:
                raise Broken(f"{name} met an error that nobody foresaw")
        for name in SERVERS:
            _nothing_lost(stage, name, ledgers[name])
    except Broken as error:
        stage.broken = Broken(f"{error}\n" + "\n".join(stage.seen[-40:]))
        raise stage.broken from None
    finally:
        _tidy(stage)


def _settles(stage: Stage, name: str, before: int) -> None:
    """Descriptors and threads go back to what they were, soon after everybody has hung up."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = stage.federation.vitals(name)
        if now.descriptors <= before + MOST_DESCRIPTORS and now.threads <= MOST_THREADS:
            return
        if time.monotonic() > deadline:
            raise Broken(f"{name} keeps {now.descriptors} descriptors, {before} before, and {now.threads} threads")
        time.sleep(0.1)


def _nothing_lost(stage: Stage, name: str, before: list[dict[str, Any]]) -> None:
    """The ledger goes on where it was, with charges for accepted requests alone."""
    after = ServerStores(stage.federation, name).ledger()
    if after[: len(before)] != before:
        raise Broken(f"{name} has rewritten its ledger")
    for record in after[len(before) :]:
        run = record["run"]
        if record["kind"] == "reserve" and (name, run) not in stage.began:
            raise Broken(f"{name} reserved a budget for a run that was refused")
        if record["kind"] == "charge" and (name, run, str(record["step"])) not in stage.stepped:
            raise Broken(f"{name} charged step {record['step']}, which was refused")


def _tidy(stage: Stage) -> None:
    """The operators erase what the sequence left: servers keep a bounded number of studies."""
    for name, study in stage.proposed - {(name, stage.open.identity) for name in SERVERS}:
        with stage.federation.client(name, "operator") as operator:
            operator.delete(f"/v1/studies/{study}/shares")


def make_stage(federation: Everybody, folder: Path) -> Stage:
    """All services up, one study released, one open."""
    identities = {name: Credentials.of(place.home) for name, place in federation.places.items()}
    identities |= {name: Credentials.of(_stranger(federation, role, name)) for name, role in STRANGERS.items()}
    foreign = Authority(folder, "foreign")
    identities[ALIEN] = foreign.issue("alien", f"caps:coordinator/{COORDINATOR}", trusts=federation.authority)
    released = _study(federation, folder / "released", 21)
    released.go(PATIENCE_FOR_ALL)
    opened = _study(federation, folder / "open", 22)
    opened.agree()
    opened.contribute()
    split = [{"name": name, "brings": "columns", "columns": part, "capacity": 140} for name, part in PARTS.items()]
    join = {"key": {"columns": [{"name": "number", "kind": "text"}]}, "protocol": "oprf"}
    manifest = manifest_of(federation, split, schema=SCHEMA, join=join, algorithm="mst")
    joined = Study(federation, manifest, dict.fromkeys(PARTS, folder), np.zeros((0, 3)))
    joined.agree()
    return Stage(federation, folder, released, opened, joined, identities)


def finish(stage: Stage) -> None:
    """The honest parties' study completes with a release that verifies, whatever happened before."""
    stage.federation.start()
    stage.federation.wait_ready(timeout=PATIENCE_FOR_ALL)
    study = new_study(stage, 23)
    study.go(PATIENCE_FOR_ALL)
    study.check(stage.folder / f"checked-{study.run}")


def new_study(stage: Stage, seed: int) -> Study:
    """One of honest parties."""
    study = _study(stage.federation, stage.folder / f"study-{secrets.token_hex(4)}", seed)
    stage.proposed |= {(name, study.identity) for name in SERVERS}
    return study


def _study(federation: Everybody, folder: Path, seed: int) -> Study:
    folder.mkdir()
    study = horizontal(federation, folder, persons(40, seed), algorithm="mst")
    study.patience = PATIENCE
    return study


def _stranger(federation: Everybody, role: str, name: str) -> Path:
    """A party with a certificate of the federation's authority, and with no service."""
    now = datetime.now(UTC)
    authority, home = federation.directory / "authority", federation.directory / "strangers" / name
    party.request_party(home, role, name, ["localhost", HOST])
    asked = party.read_request(home / party.REQUEST)
    issued = party.approve_request(party.read_authority(authority), asked, role, name, ["localhost", HOST], now=now)
    party.write_certificate(authority / f"{name}.pem", issued)
    party.install(home, authority / f"{name}.pem", federation.authority, now=now)
    return home


def pick(variants: Sequence[T], variant: Variant) -> T:
    """One of them."""
    return variants[variant % len(variants)]


def text(value: Any) -> bytes:
    """As JSON, which may be any JSON."""
    return json.dumps(value).encode()
