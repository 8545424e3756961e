"""The holder's routes, for people of its own organisation; docs/services.md says who may do what."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from caps.basics.document import Hex32
from caps.basics.files import erase
from caps.data.linkage import ELEMENT_BYTES
from caps.service.app import Limit, create_app
from caps.service.identity import Allow
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire import media
from caps.wire.holder import (
    ContributionView,
    Delivery,
    DeliveryView,
    Goal,
    HolderLedger,
    Invitation,
    Preview,
    StudyBudget,
    StudyView,
    TableReport,
)
from caps.wire.problems import Kind
from caps.wire.server import DeclineBody
from services.holder import pages
from services.holder.service import HolderService, Progress
from services.holder.store import ContributionRecord, MatchingRecord, StudyRecord
from services.holder.table import Sent

DESCRIPTION = "The data owner's service: checks its table, shares it and sends the shares. It only connects outwards."
OWNER = [Depends(Allow(scopes=[Scope.OWNER]))]
BOTH = [Depends(Allow(scopes=[Scope.OWNER, Scope.OPERATOR]))]
_BUFFER = 1 << 20
T = TypeVar("T")
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in (media.CSV, media.GZIP, media.PARQUET, media.XLSX)
        },
    }
}


def holder_app(service: HolderService) -> FastAPI:
    """The application, which also starts and stops the background work."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(service.start)
        yield
        await to_thread.run_sync(service.close)

    upload = service.options.max_upload
    found = service.site.pages(pages.TEMPLATES, pages.LINKS)
    return create_app(
        service="holder",
        name=service.site.name,
        description=DESCRIPTION,
        routers=[router(service), pages.router(found, service)],
        tokens=service.site.tokens,
        denials=service.site.denials,
        clock=service.site.clock,
        ready=service.site.expired,
        room=service.site.room,
        metrics=service.site.metrics,
        pages=found,
        limits=[Limit("/v1/studies/[^/]*/(?:table|contribution)", upload, streamed=True)],
        lifespan=lifespan,
    )


def router(service: HolderService) -> APIRouter:
    """The routes of one service."""
    every = APIRouter(prefix="/v1", tags=["holder"])
    routes = APIRouter(prefix="/studies")

    def study_view(record: StudyRecord, *, listed: bool = False) -> StudyView:
        return StudyView(
            study=record.study,
            title=record.manifest.title,
            state=record.state,
            holder=service.site.name,
            approval=record.approval,
            approval_sent=record.approval_sent,
            decline=record.decline,
            decline_sent=record.decline_sent,
            problem=record.approval_problem,
            table=service.store.table(record.study) is not None,
            views=list(record.manifest.views),
            loss=None if listed else service.loss(record),
            key_warnings=service.key_warnings(record),
        )

    def matching_view(record: MatchingRecord) -> ContributionView:
        manifest = service.store.study(record.study).manifest
        of = (service.me(manifest).capacity or 0) * ELEMENT_BYTES
        evaluated = service.evaluated(record)
        views = [
            DeliveryView(
                server=server.name,
                state=Delivery.PENDING,
                sent=evaluated[server.name],
                of=of,
                receipt=None,
                withdrawal=None,
                problem=record.problems.get(server.name),
            )
            for server in manifest.servers
        ]
        return ContributionView(contribution=None, state=record.goal, statement=None, servers=views)

    def contribution_view(record: ContributionRecord) -> ContributionView:
        size = record.document.document.vector_bytes
        views = []
        for party, one in enumerate(record.deliveries):
            of = size if party > 0 else 0  # S1 holds the two seeds
            accepted = one.state is Delivery.ACCEPTED
            sent = of if accepted else min(of, service.uploader.sent(record.contribution, one.server))
            views.append(
                DeliveryView(
                    server=one.server,
                    state=one.state,
                    sent=sent,
                    of=of,
                    receipt=one.accepted,
                    withdrawal=one.withdrawn,
                    problem=one.problem,
                )
            )
        return ContributionView(
            contribution=record.contribution, state=record.goal, statement=record.document, servers=views
        )

    def view(record: Progress) -> ContributionView:
        return matching_view(record) if isinstance(record, MatchingRecord) else contribution_view(record)

    def reply(record: Progress, response: Response) -> ContributionView:
        if record.goal in (Goal.MATCHING, Goal.PUSHING, Goal.WITHDRAWING):
            response.status_code = 202
            response.headers["location"] = f"/v1/studies/{record.study}/contribution"
        return view(record)

    async def receive(study: str, request: Request, ignore_extra: bool, then: Callable[[str, Path, Sent, str], T]) -> T:
        sent = sent_as(request, ignore_extra=ignore_extra)
        path = await to_thread.run_sync(service.upload_path, study)
        try:
            digest = await save(request, path)
            return await to_thread.run_sync(then, study, path, sent, digest)
        finally:
            erase(path)

    @routes.post("", status_code=201, dependencies=BOTH, responses={200: {"model": StudyView}})
    def know(invitation: Invitation, response: Response) -> StudyView:
        """Fetch a study's manifest from its coordinator."""
        record, new = service.know(invitation.coordinator, invitation.study)
        response.status_code = 201 if new else 200
        response.headers["location"] = f"/v1/studies/{record.study}"
        return study_view(record)

    @routes.get("", dependencies=BOTH)
    def studies() -> list[StudyView]:
        """All studies known here."""
        return [study_view(record, listed=True) for record in service.store.studies()]

    @routes.get("/{study}", dependencies=BOTH)
    def study(study: Hex32) -> StudyView:
        """One study."""
        return study_view(service.store.study(study))

    @routes.get("/{study}/manifest", dependencies=BOTH, response_class=Response, responses={200: {"model": Manifest}})
    def manifest(study: Hex32) -> Response:
        """The study's manifest in canonical form: its digest is the study's id."""
        return Response(service.store.study(study).manifest.canonical_bytes(), media_type=media.JSON)

    @routes.get("/{study}/budget", dependencies=BOTH)
    def budget(study: Hex32) -> StudyBudget:
        """What the study costs its population, by this holder's ledger and by those of the servers, which are asked."""
        return service.budget(study)

    @routes.post("/{study}/approval", dependencies=OWNER)
    def approve(study: Hex32) -> StudyView:
        """Sign the study; the signature is sent to the coordinator."""
        return study_view(service.approve(study))

    @routes.post("/{study}/decline", dependencies=OWNER)
    def decline(study: Hex32, body: DeclineBody) -> StudyView:
        """Do not take part, and say why; it is signed and sent to the coordinator. An approval takes it back."""
        return study_view(service.decline(study, body.reason))

    @routes.put("/{study}/table", dependencies=OWNER, openapi_extra=_BODY)
    async def load(study: Hex32, request: Request, ignore_extra: bool = False) -> TableReport:
        """Send the table: CSV, in the encoding that its charset says, gzip of it, Excel or Parquet. It is checked
        against the schema, and kept if it is valid. ignore_extra: it may have columns that the study does not have."""
        return await receive(study, request, ignore_extra, service.load)

    @routes.get("/{study}/table", dependencies=OWNER)
    def table(study: Hex32) -> TableReport:
        """What was counted when the table was checked. The counts are exact, for the owner's eyes only."""
        return service.report(study)

    @routes.delete("/{study}/table", status_code=204, dependencies=OWNER)
    def erase_table(study: Hex32) -> None:
        """Erase the table here. What was contributed stays at the servers until it is withdrawn."""
        service.erase_table(study)

    @routes.get("/{study}/preview", dependencies=OWNER)
    def preview(study: Hex32) -> Preview:
        """The dry run: exactly what would leave the site."""
        return service.preview(study)

    @routes.put("/{study}/contribution", dependencies=OWNER, responses={202: {"model": ContributionView}})
    def contribute(study: Hex32, response: Response) -> ContributionView:
        """Share the table and push the shares to the servers: 202 until all have signed."""
        return reply(service.contribute(study), response)

    @routes.post(
        "/{study}/contribution", dependencies=OWNER, responses={202: {"model": ContributionView}}, openapi_extra=_BODY
    )
    async def load_and_contribute(
        study: Hex32, request: Request, response: Response, ignore_extra: bool = False
    ) -> ContributionView:
        """The same, with the table as the request's body."""
        return reply(await receive(study, request, ignore_extra, service.load_and_contribute), response)

    @routes.get("/{study}/contribution", dependencies=BOTH)
    def contribution(study: Hex32) -> ContributionView:
        """How far the contribution has come, with the servers' receipts."""
        return view(service.progress(study))

    @routes.delete("/{study}/contribution", dependencies=OWNER, responses={202: {"model": ContributionView}})
    def withdraw(study: Hex32, response: Response) -> ContributionView:
        """Withdraw the contribution from all servers. They allow this until the study is sealed."""
        return reply(service.withdraw(study), response)

    @every.get("/ledger", dependencies=OWNER)
    def ledger() -> HolderLedger:
        """Which tables went to which studies and populations, and what all of them cost the persons together."""
        return service.ledger()

    every.include_router(routes)
    return every


def sent_as(request: Request, *, ignore_extra: bool) -> Sent:
    """How the table is sent, as the request's Content-Type says. Raises a problem (415) for what is not read."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(Kind.UNSUPPORTED, "send the table without a Content-Encoding; a gzip file is application/gzip")
    return Sent.of(request.headers.get("content-type", ""), ignore_extra=ignore_extra)


async def save(request: Request, path: Path) -> str:
    """Stream a body to a new file and return its SHA-256. Raises a problem if the body ends early."""
    digest, buffer = sha256(), bytearray()
    with await to_thread.run_sync(_create, path) as file:
        try:
            async for part in request.stream():
                buffer += part
                if len(buffer) >= _BUFFER:
                    digest.update(buffer)
                    await to_thread.run_sync(file.write, bytes(buffer))
                    buffer.clear()
        except ClientDisconnect:
            raise Problem(Kind.MALFORMED, "the request's body ended early; send the table again") from None
        digest.update(buffer)
        await to_thread.run_sync(_finish, file, bytes(buffer))
    return digest.hexdigest()


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _finish(file: BinaryIO, rest: bytes) -> None:
    file.write(rest)
    file.flush()
    os.fsync(file.fileno())
