"""The holder's routes, for people of its own organisation; docs/services.md says who may do what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from caps.basics.document import Hex32
from caps.service.app import Limit, create_app
from caps.service.identity import Allow
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire import media
from caps.wire.holder import (
    ContributionView,
    Goal,
    HolderLedger,
    Invitation,
    Preview,
    SourceChoice,
    SourceView,
    StudyBudget,
    StudyView,
    TableReport,
)
from caps.wire.server import DeclineBody
from services.holder import pages
from services.holder.receiving import receive, sent_as
from services.holder.service import HolderService, Progress
from services.holder.views import progress_view, study_view

DESCRIPTION = "The data owner's service: checks its table, shares it and sends the shares. It only connects outwards."
OWNER = [Depends(Allow(scopes=[Scope.OWNER]))]
BOTH = [Depends(Allow(scopes=[Scope.OWNER, Scope.OPERATOR]))]
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
    found = service.site.pages(pages.TEMPLATES, pages.LINKS, static=[pages.STATIC])
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
        limits=[
            Limit("/v1/studies/[^/]*/(?:table|contribution)", upload, streamed=True),
            Limit(pages.UPLOADS, upload, streamed=True),
        ],
        lifespan=lifespan,
    )


def router(service: HolderService) -> APIRouter:
    """The routes of one service."""
    every = APIRouter(prefix="/v1", tags=["holder"])
    routes = APIRouter(prefix="/studies")

    def reply(record: Progress, response: Response) -> ContributionView:
        if record.goal in (Goal.MATCHING, Goal.PUSHING, Goal.WITHDRAWING):
            response.status_code = 202
            response.headers["location"] = f"/v1/studies/{record.study}/contribution"
        return progress_view(service, record)

    @routes.post("", status_code=201, dependencies=BOTH, responses={200: {"model": StudyView}})
    def know(invitation: Invitation, response: Response) -> StudyView:
        """Fetch a study's manifest from its coordinator."""
        record, new = service.know(invitation.coordinator, invitation.study)
        response.status_code = 201 if new else 200
        response.headers["location"] = f"/v1/studies/{record.study}"
        return study_view(service, record)

    @routes.get("", dependencies=BOTH)
    def studies() -> list[StudyView]:
        """All studies known here."""
        return [study_view(service, record, listed=True) for record in service.store.studies()]

    @routes.get("/{study}", dependencies=BOTH)
    def study(study: Hex32) -> StudyView:
        """One study."""
        return study_view(service, service.store.study(study))

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
        return study_view(service, service.approve(study))

    @routes.post("/{study}/decline", dependencies=OWNER)
    def decline(study: Hex32, body: DeclineBody) -> StudyView:
        """Do not take part, and say why; it is signed and sent to the coordinator. An approval takes it back."""
        return study_view(service, service.decline(study, body.reason))

    @routes.put("/{study}/table", dependencies=OWNER, openapi_extra=_BODY)
    async def load(study: Hex32, request: Request, ignore_extra: bool = False) -> TableReport:
        """Send the table: CSV, in the encoding that its charset says, gzip of it, Excel or Parquet. It is checked
        against the schema, and kept if it is valid. ignore_extra: it may have columns that the study does not have."""
        return await receive(service, study, request, sent_as(request, ignore_extra=ignore_extra), service.load)

    @routes.put("/{study}/table/source", dependencies=OWNER)
    def load_source(study: Hex32, choice: SourceChoice) -> TableReport:
        """Use a table where it is, in a source that the holder's operator declares. It is checked as a table that is
        sent; nothing of it is kept here."""
        return service.load_source(study, choice.source)

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
        sent = sent_as(request, ignore_extra=ignore_extra)
        return reply(await receive(service, study, request, sent, service.load_and_contribute), response)

    @routes.get("/{study}/contribution", dependencies=BOTH)
    def contribution(study: Hex32) -> ContributionView:
        """How far the contribution has come, with the servers' receipts."""
        return progress_view(service, service.progress(study))

    @routes.delete("/{study}/contribution", dependencies=OWNER, responses={202: {"model": ContributionView}})
    def withdraw(study: Hex32, response: Response) -> ContributionView:
        """Withdraw the contribution from all servers. They allow this until the study is sealed."""
        return reply(service.withdraw(study), response)

    @every.get("/sources", dependencies=BOTH)
    def sources() -> list[SourceView]:
        """The sources that the holder's operator declares: their names, not where they are."""
        return service.sources.views()

    @every.get("/ledger", dependencies=OWNER)
    def ledger() -> HolderLedger:
        """Which tables went to which studies and populations, and what all of them cost the persons together."""
        return service.ledger()

    every.include_router(routes)
    return every
