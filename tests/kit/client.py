"""A small service over real TLS, for what clients must cope with: problems, ranges, events, lost connections."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from caps.client import Client
from caps.data.schema import ColumnReport
from caps.service.app import Limit, create_app
from caps.service.identity import Allow
from caps.service.problems import Problem
from caps.service.tokens import Scope, Tokens
from caps.trust import home as party
from caps.trust.tls import Credentials, client_context
from caps.wire.coordinator import ReleaseView, RunView, StudyView
from caps.wire.holder import TableReport
from caps.wire.problems import Kind
from services.coordinator.algorithms import Progress, Stage
from tests.kit.tls import serving

RUN = "0123456789abcdef" * 2
STUDY = "ab" * 32
ROWS = b"age,smoker\n" + b"".join(b"%d,no\n" % (i % 90) for i in range(200_000))
"""More than a few chunks of the client's."""
LINE_SEPARATOR = "\u2028"
ENTRY = {"rho": "1/4", "sampler": "geometric"}


AT = "2030-05-17T12:00:00Z"
PROGRESS = Progress(1, Stage.MEASURE, ("age", "smoker"), Fraction(1, 2), Fraction(1))


def study_view(title: str) -> StudyView:
    """A study that all have approved."""
    return StudyView(
        study=STUDY,
        title=title,
        state="approved",
        proposed_at=AT,
        servers=[],
        holders=[],
        missing=[],
        runs=[],
        releases=[],
    )


def run_view(run: str, state: str) -> RunView:
    """A run that measured nothing yet."""
    return RunView(
        run=run,
        study=STUDY,
        state=state,
        party=None,
        reason=None,
        holders=["clinic-a"],
        percent=0.0,
        round=None,
        stage=None,
        measured=[],
        model_bytes=None,
        steps=0,
        created_at=AT,
        release=None,
    )


@dataclass
class Script:
    """What the service is to do, and what it met."""

    tag: str = '"one"'
    digest: bytes = sha256(ROWS).digest()
    breaks: int = 0
    """Downloads and event streams that end too early."""
    events: bool = True
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Of GET contribution, in order; the last one stays."""
    met: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


def routes(script: Script) -> APIRouter:
    """Routes as docs/services.md has them, with what protocols need behind them."""
    router = APIRouter(prefix="/v1", dependencies=[Depends(Allow(scopes=tuple(Scope)))])

    def breaking() -> bool:
        script.breaks -= 1
        return script.breaks >= 0

    @router.get("/studies")
    def studies() -> list[StudyView]:
        return [study_view(f"One{LINE_SEPARATOR}[red]study\x1b[31m")]

    @router.get("/studies/{study}")
    def study(study: str) -> StudyView:
        if study != STUDY:
            raise Problem(Kind.NOT_FOUND, "this coordinator has no such study; propose its manifest first", study=study)
        return study_view("One study")

    @router.get("/studies/{study}/participation")
    def participation(study: str) -> None:
        raise Problem(Kind.FORBIDDEN, "this is for operators")

    @router.post("/studies/{study}/runs", status_code=202)
    async def start(study: str, request: Request, response: Response) -> RunView:
        script.met.append(("start", dict(request.headers), await request.body()))
        response.headers["Location"] = f"/v1/runs/{RUN}"
        return run_view(RUN, "queued")

    @router.put("/studies/{study}/table")
    async def table(study: str, request: Request) -> TableReport:
        body = await request.body()
        script.met.append(("table", dict(request.headers), body))
        if b"nonsense" in body:
            columns = [{"name": "age", "unparsable": 1}]
            raise Problem(Kind.TABLE_REFUSED, "1 value refused", report={"rows": 1, "columns": columns})
        return TableReport(rows=body.count(b"\n"), columns=[ColumnReport("age", 0, 0, 0, 0, 0, 0)])

    @router.delete("/studies/{study}/table", status_code=204)
    def erase(study: str) -> None:
        script.met.append(("erase", {}, b""))

    @router.put("/studies/{study}/contribution", status_code=202)
    def contribute(study: str) -> dict[str, Any]:
        return script.answers[0]

    @router.get("/studies/{study}/contribution")
    def contribution(study: str) -> dict[str, Any]:
        return script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]

    @router.get("/runs/{run}")
    def run(run: str) -> RunView:
        return run_view(run, "released")

    @router.get("/runs/{run}/events", response_model=None)
    def events(run: str, last_event_id: Annotated[str | None, Header()] = None) -> Response:
        script.met.append(("events", {"last-event-id": last_event_id or ""}, b""))
        if not script.events:
            return JSONResponse({})
        if int(last_event_id or 0) >= 3:
            return Response(status_code=204)
        all_events = [
            ("state", {"state": "running", "party": None, "reason": None}),
            ("progress", PROGRESS.view().model_dump(mode="json") | {"at": AT}),
            ("state", {"state": "released", "party": None, "reason": None}),
        ]

        def stream() -> Iterator[bytes]:
            yield b"retry: 2000\n\n: a comment\n\n"
            for number, (kind, body) in enumerate(all_events, start=1):
                if number <= int(last_event_id or 0):
                    continue
                yield f"id: {number}\nevent: {kind}\ndata: {json.dumps(body)}\n\n".encode()
                if number == 1 and breaking():
                    raise ConnectionAbortedError

        return StreamingResponse(stream(), media_type="text/event-stream")

    @router.get("/releases")
    def releases() -> list[ReleaseView]:
        return [
            ReleaseView(
                release=RUN,
                study=STUDY,
                title="One",
                rows=200_000,
                epsilon="1",
                delta="0.000001",
                certified=True,
                created_at=AT,
                data=[],
                measurements=True,
                resamples=True,
                samples=[],
            )
        ]

    @router.delete("/releases/{release}/samples/{sample}", status_code=204)
    def delete_sample(release: str, sample: str, request: Request) -> None:
        script.met.append((f"delete {release}/{sample}", dict(request.headers), b""))

    @router.get("/releases/{release}/transcript", response_model=None)
    @router.get("/releases/{release}/data", response_model=None)
    def data(
        release: str, request: Request, range_: Annotated[str | None, Header(alias="range")] = None
    ) -> StreamingResponse:
        script.met.append(("data", dict(request.headers), b""))
        begin = 0
        if range_ is not None and request.headers.get("if-range") == script.tag:
            begin = int(range_.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(ROWS):
                raise Problem(Kind.RANGE_NOT_SATISFIABLE, "there is no more")
        headers = {
            "ETag": script.tag,
            "Repr-Digest": f"sha-256=:{b64encode(script.digest).decode()}:",
            "Content-Length": str(len(ROWS) - begin),
        }
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(ROWS) - 1}/{len(ROWS)}"
        early = breaking()

        def stream() -> Iterator[bytes]:
            half = begin + (len(ROWS) - begin) // 2
            yield ROWS[begin:half]
            if early:
                raise ConnectionAbortedError
            yield ROWS[half:]

        return StreamingResponse(stream(), 206 if begin else 200, headers=headers, media_type="text/csv")

    @router.get("/releases/{release}/certificate", response_model=None)
    def certificate(release: str) -> Response:
        return Response(b'{"a": 1}\n', media_type="application/json")

    @router.get("/ledger", response_model=None)
    def ledger() -> Response:
        common = {"previous": "0" * 64, "at": AT, "study": f"one{LINE_SEPARATOR}", "run": RUN, "hash": "1" * 64}
        lines = [{"number": 0, "kind": "reserve", **common}, {"number": 1, "kind": "charge", "entry": ENTRY, **common}]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return Response(text, media_type="application/x-ndjson")

    return router


@dataclass(frozen=True)
class Service:
    """Where it is, and how to be let in."""

    url: str
    authority: Path
    token: str
    script: Script
    home: Path

    def client(self, **choices: Any) -> Client:
        """A client that does not wait between attempts."""
        given = {"token": self.token, "authority": self.authority, "sleep": lambda _: None}
        return Client(self.url, **given | choices)

    @property
    def options(self) -> list[str]:
        """For commands."""
        return ["--url", self.url, "--token", self.token, "--authority", str(self.authority)]


def make_home(folder: Path, role: str = "coordinator", name: str = "coordinator") -> Path:
    """A party's home by the way every party goes."""
    now = datetime.now(UTC)
    authority, home = folder / "authority", folder / name
    if not authority.exists():
        party.create_authority(authority, "Test authority", now=now)
    party.request_party(home, role, name, ["localhost", "127.0.0.1"])
    asked = party.read_request(home / party.REQUEST)
    hosts = ["127.0.0.1", "localhost"]
    issued = party.approve_request(party.read_authority(authority), asked, role, name, hosts, now=now)
    party.write_certificate(folder / f"{name}.pem", issued)
    party.install(home, folder / f"{name}.pem", authority / party.AUTHORITY, now=now)
    return home


@contextmanager
def scripted(folder: Path) -> Iterator[Service]:
    """The service, until the block ends."""
    home = make_home(folder)
    tokens = Tokens(home / party.TOKENS)
    token = tokens.create("ann", [Scope.ANALYST], expires=datetime.now(UTC) + timedelta(days=1))
    script = Script()
    limits = [Limit("/v1/studies/[^/]*/table", 1 << 26)]
    routers = [routes(script)]
    app = create_app(service="coordinator", name="test", description="", routers=routers, tokens=tokens, limits=limits)
    credentials = Credentials(home / party.CERTIFICATE, home / party.PRIVATE_KEY, home / party.AUTHORITY)
    with serving(app, credentials) as url:
        yield Service(url.replace("127.0.0.1", "localhost"), credentials.authority, token, script, home)


@pytest.fixture(scope="module")
def scripted_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests of a module."""
    with scripted(tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
def service(scripted_service: Service) -> Service:
    """With a script of its own for each test."""
    scripted_service.script.__init__()  # type: ignore[misc]
    return scripted_service


class Flaky(httpx.BaseTransport):
    """A way to the service on which the first requests get lost, before or after they were sent."""

    def __init__(self, service: Service, *losses: httpx.TransportError) -> None:
        self._real = httpx.HTTPTransport(verify=client_context(service.authority))
        self._losses = list(losses)
        self.attempts = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.attempts += 1
        if self._losses:
            raise self._losses.pop(0)
        return self._real.handle_request(request)

    def close(self) -> None:
        self._real.close()
