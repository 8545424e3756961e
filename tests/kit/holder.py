"""A holder and whom it talks to, over real TLS on loopback: a coordinator and servers that keep the contract.

The servers are stand-ins: they store, and verify what real ones verify. What they hold can be put together again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from caps.basics.retry import Backoff
from caps.basics.schemes import SCHEMES
from caps.errors import party_name
from caps.service.app import Limit, create_app
from caps.service.database import sqlite_url
from caps.service.identity import Allow, Caller
from caps.service.problems import Problem
from caps.service.site import Settings, Site, confirm
from caps.service.tokens import Scope
from caps.shares.ring import SHARED_RINGS, Words
from caps.shares.sharing import Explicit, Seeded, reconstruct
from caps.study import Manifest
from caps.trust.tls import client_context
from caps.wire import Approval, Commitment, ContributionState, Decline, Offer, Receipt, Signed, digests
from caps.wire.problems import Kind
from services.holder.api import holder_app
from services.holder.service import HolderService
from services.holder.settings import Options
from tests.kit.study import example_json, write_site
from tests.kit.tls import make_authority, serving

HOLDERS = Allow(machines=["holder"])
Met = Annotated[Caller, Depends(HOLDERS)]
QUICK = Backoff(first=0.01, longest=0.05)


class StandIn:
    """One MPC server's contributions. `hook` sees every request first, and may raise."""

    def __init__(self, site: Site, manifest: Callable[[], Manifest], party: int) -> None:
        self.site, self.party = site, party
        self._manifest = manifest
        self.offers: dict[str, Offer] = {}
        self.chunks: dict[str, dict[int, bytes]] = {}
        self.receipts: dict[str, Signed[Receipt]] = {}
        self.requests: list[str] = []
        self.sealed = False
        self.hook: Callable[[str, str], None] = lambda _method, _path: None

    def signed(self, contribution: str, event: Any) -> Signed[Receipt]:
        offer = self.offers[contribution].contribution.document
        document = Receipt(
            study=offer.study,
            contribution=contribution,
            holder=offer.holder,
            server=self.site.name,
            event=event,
            at=self.site.instant(),
        )
        return Signed[Receipt].by(document, self.site.name, self.site.signing_key)

    def state(self, contribution: str) -> ContributionState:
        offer = self.offers[contribution].contribution.document
        receipt = self.receipts.get(contribution)
        scheme = self._manifest().sharing
        wanted = range(offer.chunks) if scheme.vector in scheme.held[self.party] else range(0)
        missing = tuple((n, n) for n in wanted if n not in self.chunks[contribution])
        state = "offered" if receipt is None else "complete" if receipt.document.event == "accepted" else "withdrawn"
        return ContributionState.model_validate(
            {
                "contribution": contribution,
                "holder": offer.holder,
                "state": state,
                "missing": () if receipt else missing,
                "receipt": receipt,
            }
        )

    def vector(self, contribution: str) -> bytes:
        return b"".join(part for _, part in sorted(self.chunks[contribution].items()))

    def components(self, contribution: str) -> tuple[Words, ...]:
        """What this server holds, checked against the commitments."""
        offer = self.offers[contribution]
        document, found = offer.contribution.document, []
        ring = SHARED_RINGS[document.bits]
        for opening in offer.openings:
            content = bytes.fromhex(opening.seed) if opening.seed else self.vector(contribution)
            committed = Commitment(bytes.fromhex(opening.nonce)).update(content)
            assert committed.opens(document.commitments[opening.component])
            part: Seeded | Explicit
            if opening.seed:
                part = Seeded(content, opening.component)
            else:
                part = Explicit(ring.from_bytes(content).reshape(document.shape))
            found.append(part.words(document.shape, ring))
        return tuple(found)

    def router(self) -> APIRouter:
        routes = APIRouter(prefix="/v1/studies/{study}/contributions")

        def met(request: Request, study: str, contribution: str | None = None) -> None:
            self.requests.append(f"{request.method} {request.url.path.rsplit('/contributions', 1)[1]}")
            self.hook(request.method, request.url.path)
            if study != self._manifest().study_id:
                raise Problem(Kind.NOT_FOUND, "no such study")
            if contribution is not None and contribution not in self.offers:
                raise Problem(Kind.NOT_FOUND, "no such contribution")

        @routes.put("/{contribution}")
        def offered(study: str, contribution: str, offer: Offer, request: Request, caller: Met) -> ContributionState:
            met(request, study)
            holder = self._manifest().holder(offer.contribution.signer)
            confirm(caller, holder)
            document = offer.contribution.verify(holder)
            document.check(self._manifest())
            assert document.digest() == contribution
            scheme = self._manifest().sharing
            assert tuple(one.component for one in offer.openings) == scheme.held[self.party]
            assert all((one.seed is None) == (one.component == scheme.vector) for one in offer.openings)
            if self.offers.setdefault(contribution, offer) != offer:
                raise Problem(Kind.CONFLICT, "offered differently before")
            self.chunks.setdefault(contribution, {})
            return self.state(contribution)

        @routes.put("/{contribution}/chunks/{number}", status_code=204, dependencies=[Depends(HOLDERS)])
        async def chunk(study: str, contribution: str, number: int, request: Request) -> None:
            data = await request.body()
            met(request, study, contribution)
            assert request.headers["content-digest"] == digests.spelled(sha256(data).digest())
            if self.chunks[contribution].setdefault(number, data) != data:
                raise Problem(Kind.CONFLICT, "another chunk was sent before")

        @routes.post("/{contribution}/receipt", dependencies=[Depends(HOLDERS)])
        def receipt(study: str, contribution: str, request: Request) -> Signed[Receipt]:
            met(request, study, contribution)
            self.components(contribution)
            self.receipts.setdefault(contribution, self.signed(contribution, "accepted"))
            return self.receipts[contribution]

        @routes.delete("/{contribution}", dependencies=[Depends(HOLDERS)])
        def withdraw(study: str, contribution: str, request: Request) -> Signed[Receipt]:
            met(request, study, contribution)
            if self.sealed:
                raise Problem(Kind.CONFLICT, "the study is sealed")
            found = self.receipts.get(contribution)
            if found is None or found.document.event == "accepted":
                self.receipts[contribution] = self.signed(contribution, "withdrawn")
                self.chunks[contribution].clear()
            return self.receipts[contribution]

        return routes


class HolderBench:
    """A study's parties on loopback. `holder()` makes the holder's service; another on the same folder is a restart."""

    def __init__(self, folder: Path, name: str, **choices: Any) -> None:
        self.folder, self.name = folder, name
        now = datetime.now(UTC)
        self.authority = make_authority(now)
        self.scheme = SCHEMES[choices.get("scheme", "rep3")]
        names = (*self.scheme.server_names, "coordinator", "holder")
        self.sockets = {one: socket.create_server(("127.0.0.1", 0)) for one in names}
        self.urls = {one: f"https://127.0.0.1:{sock.getsockname()[1]}" for one, sock in self.sockets.items()}
        self.document, self.keys = example_json(urls=self.urls, **choices)
        self.manifest = Manifest.from_json(self.document)
        self.answer: bytes = self.manifest.canonical_bytes()
        self.approvals: list[Signed[Approval]] = []
        self.declines: list[Signed[Decline]] = []
        self.approval_hook: Callable[[], None] = lambda: None
        for one in self.scheme.server_names:
            write_site(folder / one, self.authority, self.keys[one], "mpc-server", now=now)
        write_site(folder / "coordinator", self.authority, self.keys["coordinator"], "coordinator", now=now)
        write_site(folder / "holder", self.authority, self.keys[name], "holder", now=now)
        sites = [self.site(one, "mpc-server") for one in self.scheme.server_names]
        self.servers = [StandIn(site, lambda: self.manifest, party) for party, site in enumerate(sites)]
        self.tokens = {
            scope: self.site("holder", "holder").tokens.create(scope, [scope], expires=now + timedelta(1))
            for scope in (Scope.OWNER, Scope.OPERATOR, Scope.ANALYST)
        }

    def site(self, name: str, role: str) -> Site:
        home = self.folder / name
        data = home / "state"
        return Site(Settings(home, data, "127.0.0.1", 0, sqlite_url(data / "state.db")), role=role)

    @property
    def study(self) -> str:
        return self.manifest.study_id

    @property
    def data(self) -> Path:
        return self.folder / "holder" / "state"

    def files(self) -> list[str]:
        """Files of the study at the holder, by the part of their names that is not random."""
        found = sorted(path for path in (self.data / "studies").glob("*/*"))
        return [path.name.split("-")[0] for path in found]

    def coordinator_app(self) -> FastAPI:
        routes = APIRouter(prefix="/v1/studies/{study}")

        @routes.get("/manifest", dependencies=[Depends(HOLDERS)])
        def manifest(study: str) -> Response:
            if study == "f" * 64:
                raise Problem(Kind.NOT_FOUND, "no such study")
            return Response(self.answer, media_type="application/json")

        @routes.put("/approvals/{holder}", status_code=204, dependencies=[Depends(HOLDERS)])
        def approve(holder: str, approval: Signed[Approval]) -> None:
            self.approval_hook()
            approval.verify(self.manifest.holder(holder))
            self.approvals.append(approval)

        @routes.put("/declines/{holder}", status_code=204, dependencies=[Depends(HOLDERS)])
        def decline(holder: str, decline: Signed[Decline]) -> None:
            self.approval_hook()
            decline.verify(self.manifest.holder(holder))
            self.declines.append(decline)

        return self._app("coordinator", routes)

    def _app(self, name: str, routes: APIRouter) -> FastAPI:
        site = self.site(name, "coordinator" if name == "coordinator" else "mpc-server")
        limits = [Limit(r".*/chunks/\d+", 1 << 26)]
        return create_app(service=name, name=name, description="", routers=[routes], tokens=site.tokens, limits=limits)

    @contextmanager
    def others(self) -> Iterator[None]:
        """The coordinator and the servers, listening."""
        own = self.site("coordinator", "coordinator").credentials
        with ExitStack() as stack:
            stack.enter_context(serving(self.coordinator_app(), own, self.sockets["coordinator"], stop_within=1))
            for party in range(self.scheme.parties):
                stack.enter_context(self._server(party))
            yield
        for one in self.sockets.values():
            one.close()

    def _server(self, party: int) -> Any:
        server, name = self.servers[party], party_name(party)
        return serving(
            self._app(name, server.router()),
            server.site.credentials,
            self.sockets[name],
            stop_within=1,
        )

    def holder(self, **options: Any) -> HolderService:
        return HolderService(self.site("holder", "holder"), Options(**({"backoff": QUICK} | options)))

    @contextmanager
    def running(self, **options: Any) -> Iterator[HolderService]:
        """The holder's service without its routes."""
        service = self.holder(**options)
        service.start()
        try:
            yield service
        finally:
            service.close()

    @contextmanager
    def client(self, *, scope: Scope | None = Scope.OWNER, **options: Any) -> Iterator[httpx.Client]:
        """The holder over TLS, and a person who calls it."""
        service = self.holder(**options)
        with (
            serving(holder_app(service), service.site.credentials, self.sockets["holder"], stop_within=1),
            self.person(scope) as client,
        ):
            yield client

    def person(self, scope: Scope | None) -> httpx.Client:
        context = client_context(self.folder / "holder" / "authority.pem")
        headers = {} if scope is None else {"authorization": f"Bearer {self.tokens[scope]}"}
        return httpx.Client(base_url=self.urls["holder"], verify=context, headers=headers, trust_env=False, timeout=30)

    def reconstructed(self) -> Words:
        """The values that the servers hold together."""
        (contribution,) = {name for server in self.servers for name in server.receipts}
        return reconstruct([server.components(contribution) for server in self.servers], scheme=self.scheme)
