"""Small servers for tests of the coordinator: one clear twin behind the real signatures of all, and faults at will.

They keep the order of steps, the budget and the wire contract of docs/services.md; there is no MPC in them.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import RLock, Thread
from typing import Any

import httpx
import numpy as np

from caps.basics import canonical
from caps.basics.retry import Backoff
from caps.dp.clear import ClearOracle
from caps.dp.oracle import Compute, Selection, request_digest
from caps.service.site import Settings, Site
from caps.study import Manifest, Server
from caps.study.account import Account
from caps.trust import signing
from caps.wire import (
    Answer,
    Approval,
    Attestation,
    Decline,
    Evidence,
    EvidenceRequest,
    LedgerRange,
    RunRequest,
    RunStatus,
    Seal,
    SealRequest,
    Signed,
    inputs_digest,
    transcript_digest,
)
from caps.wire.steps import request_from_json
from services.coordinator.service import Coordinator
from tests.kit.algorithms import SeededBits, rows_of
from tests.kit.study import AT, NOW, Keys, example_manifest, write_site
from tests.kit.tls import make_authority

SMALL = {"name": "aim", "parameters": {"rounds": 5}}
BRISK = Backoff(first=0.001, longest=0.01)
Result = tuple[int, dict[str, str], Any]


@dataclass
class Faults:
    """What is wrong at present."""

    down: set[str] = field(default_factory=set)
    other_value: set[str] = field(default_factory=set)
    bad_signature: set[str] = field(default_factory=set)
    manual: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    declines: dict[str, Any] = field(default_factory=dict)
    """What servers send as their operators' declines."""
    other_transcript: set[str] = field(default_factory=set)
    other_statement: bool = False
    computing: int = 0
    """How often each step is answered by 202 first."""
    refused_step: int | None = None
    invalid: set[str] = field(default_factory=set)
    """Holders whose contribution turns out invalid."""
    down_at: dict[int, str] = field(default_factory=dict)
    """A server goes down when this step is first asked."""
    delay: float = 0.0
    accuses: dict[str, tuple[int, tuple[str, str]]] = field(default_factory=dict)
    """A server that finds in this step that one of a pair deviates."""


class ClearServers:
    """The servers' common knowledge; `handle` answers a request to one of them."""

    def __init__(self, manifest: Manifest, keys: Keys, *, rows: int = 400) -> None:
        self.manifest, self.keys, self.faults = manifest, keys, Faults()
        self.contributions = {
            holder.name: canonical.digest("c", {"of": holder.name}).hex() for holder in manifest.holders
        }
        self.held = {name: dict(self.contributions) for name in manifest.sharing.server_names}
        self.evidence: dict[str, list[Signed[Evidence]]] = {name: [] for name in self.held}
        self.calls: list[tuple[str, str, str]] = []
        self.seal: SealRequest | None = None
        self.run: str | None = None
        self.abandoned: list[tuple[str, str]] = []
        self.answered: list[tuple[str, Any]] = []
        self.pending: dict[tuple[str, int], int] = {}
        self._lock = RLock()
        self.account = Account(manifest, [])
        codes = np.ascontiguousarray(rows_of(manifest.domain, 3, rows))
        relation, budget = manifest.task.neighbouring, Account(manifest, []).filter
        self.oracle = ClearOracle(codes, manifest.layout, relation, budget, SeededBits(5))

    def approvals_of_holders(self) -> dict[str, Signed[Approval]]:
        return {
            holder.name: Signed[Approval].by(
                Approval(study=self.manifest.study_id, role="holder", at=AT),
                holder.name,
                self.keys[holder.name].signing,
            )
            for holder in self.manifest.holders
        }

    def decline(
        self, name: str, reason: str, *, at: str = AT, role: Any = "holder", study: str = ""
    ) -> Signed[Decline]:
        document = Decline(study=study or self.manifest.study_id, role=role, reason=reason, at=at)
        return Signed[Decline].by(document, name, self.keys[name].signing)

    def handle(self, name: str, method: str, path: str, body: Any) -> Result:
        with self._lock:
            self.calls.append((name, method, path))
            if name in self.faults.down:
                raise ConnectionRefusedError
            parts = path.strip("/").split("/")[1:]
            match method, parts:
                case "PUT", ["studies", study]:
                    return self._judge(name, study, body)
                case "GET", ["studies", _, "contributions"]:
                    listed = self.held[name].items()
                    return 200, {}, [{"holder": who, "contribution": one, "state": "complete"} for who, one in listed]
                case "PUT", ["studies", _, "seal"]:
                    return self._seal(name, SealRequest.model_validate(body))
                case "PUT", ["runs", run]:
                    RunRequest.model_validate(body)
                    assert self.run in (None, run)
                    self.run = run
                    return self._together(name) or (200, {}, self._status(name, run).to_json())
                case "PUT", ["runs", run, "steps", step]:
                    assert run == self.run
                    if int(step) in self.faults.down_at:
                        self.faults.down.add(self.faults.down_at.pop(int(step)))
                        return self.handle(name, method, path, body)
                    return self._together(name) or self._step(name, int(step), body)
                case "PUT", ["runs", run, "evidence"]:
                    return self._take(name, run, EvidenceRequest.model_validate(body))
                case "DELETE", ["runs", run]:
                    if self.run == run:  # what it charged stays spent: here, no second run is possible after a step
                        self.run = None
                    self.abandoned.append((name, run))
                    return 200, {}, {"run": run}
                case "PUT", ["runs", run, "attestation"]:
                    return self._attest(name)
        return problem(404, "not-found", "nothing here")

    def _together(self, name: str) -> Result | None:
        gone = sorted(self.faults.down - {name})
        return problem(503, "peer-failed", f"{gone[0]}: is gone", retryable=True, party=gone[0]) if gone else None

    def _judge(self, name: str, study: str, body: Any) -> Result:
        assert Manifest.from_json(body).study_id == study
        if name in self.faults.refuses:
            return problem(
                403, "policy-refused", "too much", objections=["epsilon 1 exceeds this server's limit of 0.1"]
            )
        if name in self.faults.declines:
            return problem(403, "policy-refused", "declined", decline=self.faults.declines[name])
        if name in self.faults.manual:
            return 202, {}, None
        approval = Approval(study=study, role="mpc-server", exchange_digest=self.keys[name].pin, at=AT)
        return 201, {}, self._signed(name, approval)

    def _signed(self, name: str, document: Any) -> Any:
        signer = signing.generate_signing_key() if name in self.faults.bad_signature else self.keys[name].signing
        return Signed[type(document)].by(document, name, signer).to_json()

    def _seal(self, name: str, request: SealRequest) -> Result:
        if self.seal is not None and self.seal != request:
            return problem(409, "conflict", "sealed otherwise")
        self.seal = request
        listed = self._sealed()
        inputs = inputs_digest(self.manifest.study_id, listed)
        seal = Seal(study=self.manifest.study_id, server=name, inputs=inputs, contributions=listed, at=AT)
        return 200, {}, self._signed(name, seal)

    def _sealed(self) -> tuple[str, ...]:
        """The contributions in the manifest's order of holders."""
        assert self.seal is not None
        return tuple(one for one in self.contributions.values() if one in self.seal.contributions)

    def _contributors(self) -> list[str]:
        sealed = self._sealed()
        return [holder for holder, one in self.contributions.items() if one in sealed]

    def _step(self, name: str, step: int, body: Any) -> Result:
        assert self.run is not None
        if name in self.faults.accuses and self.faults.accuses[name][0] == step:
            self._accuse(name, step, self.faults.accuses[name][1])
        if self.evidence[name]:
            given = [one.to_json() for one in self.evidence[name]]
            return problem(409, "aborted", "the run was aborted", evidence=given)
        if any(self.evidence.values()):
            return problem(503, "peer-failed", "a peer gave up", retryable=True, party="S1")
        if step == self.faults.refused_step:
            return problem(409, "not-due", "the schedule does not allow this step now")
        time.sleep(self.faults.delay)
        seen = self.pending.get((name, step), 0)
        if seen < self.faults.computing:
            self.pending[name, step] = seen + 1
            return 202, {"Retry-After": "0"}, None
        digest, value = self._value(step, body)
        if name in self.faults.other_value:
            value = value + 1 if isinstance(value, int) else (value[0] + 1, *value[1:])
        answer = Answer(study=self.manifest.study_id, run=self.run, step=step, request=digest, value=value)
        return 200, {}, self._signed(name, answer)

    def _accuse(self, name: str, step: int, pair: tuple[str, str]) -> None:
        if self.evidence[name]:
            return
        assert self.run is not None
        document = Evidence(
            study=self.manifest.study_id,
            run=self.run,
            step=step,
            scheme=self.manifest.scheme,
            pair=pair,
            check="messages",
            server=name,
            at=AT,
        )
        self.evidence[name].append(Signed[Evidence].model_validate(self._signed(name, document)))

    def _take(self, name: str, run: str, request: EvidenceRequest) -> Result:
        mine = self.evidence[name]
        mine += [one for one in request.evidence if one.signer not in {known.signer for known in mine}]
        return 200, {}, self._status(name, run).to_json()

    def _status(self, name: str, run: str) -> RunStatus:
        mine = self.evidence[name]
        return RunStatus(
            run=run,
            study=self.manifest.study_id,
            inputs="0" * 64,
            state="aborted" if mine else "failed" if self.account.stopped else "going",
            reason=self.account.stopped,
            position=0,
            due="",
            rounds=0,
            bytes_sent=0,
            evidence=tuple(mine),
        )

    def _value(self, step: int, body: Any) -> tuple[str, Any]:
        if step < len(self.answered):
            digest, value = self.answered[step]
            asked = canonical.digest("request", body).hex()
            assert asked == digest, "a step was repeated with another request"
            return digest, value
        assert step == len(self.answered)
        request = request_from_json(body)
        if not step:
            self.account = Account(self.manifest, self._contributors())
        self.account.charge(self.account.check(request))
        if isinstance(request, Compute):
            assert body == {"kind": "compute"}
            assert self.seal is not None
            self.oracle.answers()
            digest = canonical.digest("request", body).hex()
            value: Any = tuple(int(holder not in self.faults.invalid) for holder in self._contributors())
        else:
            digest = request_digest(request).hex()
            selects = isinstance(request, Selection)
            value = self.oracle.select(request) if selects else tuple(self.oracle.measure(request).tolist())
        self.account.answered(value)
        self.answered.append((digest, value))
        return digest, value

    def _attest(self, name: str) -> Result:
        assert self.account.ended
        assert self.seal is not None
        assert self.run is not None
        inputs = inputs_digest(self.manifest.study_id, self.seal.contributions)
        transcript = inputs
        for step, (digest, value) in enumerate(self.answered):
            answer = Answer(study=self.manifest.study_id, run=self.run, step=step, request=digest, value=value)
            transcript = transcript_digest(transcript, digest, answer.digest())
        if name in self.faults.other_transcript:
            transcript = transcript[::-1]
        statement = json.loads(self.account.statement().to_json())
        if self.faults.other_statement:
            statement["epsilon"] = "1/1000"
        attestation = Attestation(
            study=self.manifest.study_id,
            inputs=inputs,
            run=self.run,
            server=name,
            transcript=transcript,
            steps=len(self.answered),
            contributions=self._sealed(),
            holders=self.account.accepted,
            refused=self.account.refused,
            statement=statement,
            ledger=LedgerRange(first=0, last=9, first_hash="0" * 64, last_hash="1" * 64),
            software="caps test",
            at=AT,
        )
        return 200, {}, self._signed(name, attestation)

    def connect(self, server: Server) -> httpx.Client:
        """A client for one of the servers, in this process."""

        def handler(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content) if request.content else None
            try:
                status, headers, answer = self.handle(server.name, request.method, request.url.path, body)
            except ConnectionRefusedError:
                raise httpx.ConnectError("refused", request=request) from None
            return httpx.Response(status, headers=headers, json=answer)

        return httpx.Client(transport=httpx.MockTransport(handler), base_url=server.url)


def problem(status: int, kind: str, detail: str, **members: Any) -> Result:
    body = {"type": f"urn:caps:problem:{kind}", "status": status, "detail": detail, "retryable": False}
    return status, {}, body | members


def serve_tls(handle: Callable[[str, str, Any], Result], context: ssl.SSLContext) -> ThreadingHTTPServer:
    """One of the servers on a port of its own, over TLS. Its `server_address` says where."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            length = int(self.headers.get("content-length", 0))
            content = self.rfile.read(length)
            try:
                status, headers, body = handle(self.command, self.path, json.loads(content) if content else None)
            except ConnectionRefusedError:
                self.close_connection = True
                return
            answer = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


class Bench:
    """A coordinator's home with a federation; `coordinator()` makes a new object over the same directory."""

    def __init__(self, folder: Path, **choices: Any) -> None:
        choices.setdefault("algorithm", SMALL)
        self.manifest, self.keys = example_manifest(**choices)
        self.federation = ClearServers(self.manifest, self.keys)
        self.home = folder / "home"
        authority = make_authority(NOW)
        write_site(self.home, authority, self.keys["coordinator"], "coordinator")
        state = folder / "state"
        self.settings = Settings(self.home, state, "127.0.0.1", 0, f"sqlite:///{state / 'state.db'}")

    def coordinator(self) -> Coordinator:
        site = Site(self.settings, role="coordinator", clock=lambda: NOW)
        return Coordinator.of(site, connect=self.federation.connect, patience=BRISK)

    def agreed(self) -> Coordinator:
        """A coordinator whose study all have approved."""
        coordinator = self.coordinator()
        coordinator.studies.propose(self.manifest.to_json())
        for holder in self.manifest.holders:
            approval = self.federation.approvals_of_holders()[holder.name]
            coordinator.studies.approve(self.manifest.study_id, holder, approval)
        return coordinator

    def started(self) -> tuple[Coordinator, str]:
        """A run that nobody performs yet."""
        coordinator = self.agreed()
        coordinator.runs._spawn = lambda _: None  # type: ignore[method-assign]
        run, new = coordinator.runs.start(self.manifest.study_id)
        assert new
        return coordinator, run.run

    def folder(self, run: str) -> Path:
        return self.settings.data / "releases" / run


def written(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The bytes of some files."""
    return {name: (folder / name).read_bytes() for name in names}


def performed(bench: Bench):
    coordinator, run = bench.started()
    coordinator.runs.perform(run)
    return coordinator, coordinator.store.run(run)
