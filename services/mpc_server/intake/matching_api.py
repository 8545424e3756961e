"""Routes of the light join: evaluations, tags, positions. The work is in `matching`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool

from caps.service.app import Limit, Limits
from caps.service.identity import Allow, Caller
from caps.wire import media
from services.mpc_server.intake.matching import Matching
from services.mpc_server.intake.studies_api import Id

ByHolder = Annotated[Caller, Depends(Allow(machines=["holder"]))]
_BINARY: dict[str, Any] = {media.BYTES: {"schema": {"type": "string", "format": "binary"}}}
_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": _BINARY}}


class Bytes(Response):
    """An answer of raw bytes, not a document."""

    media_type = media.BYTES


def limits(matching: Matching) -> Limits:
    """For `create_app`: each holder may send as much as its own number of rows needs."""
    study = "/v1/studies/(?P<study>[0-9a-f]{64})"
    return Limit(f"{study}/oprf", matching.batch_length), Limit(f"{study}/tags", matching.tags_length)


def router(matching: Matching) -> APIRouter:
    """What holders of studies that join by tags call."""
    api = APIRouter(prefix="/v1/studies/{study}", tags=["matching"])

    def answers(what: str) -> dict[int | str, dict[str, Any]]:
        return {200: {"description": what, "content": _BINARY}}

    @api.post("/oprf", response_class=Bytes, responses=answers("Evaluated elements, in order"), openapi_extra=_BODY)
    async def evaluate(study: Id, request: Request, caller: ByHolder) -> Response:
        """This server's part of the pseudonyms of blinded elements, 32 bytes each; as many as the holder has rows."""
        elements = await request.body()
        return Bytes(await run_in_threadpool(matching.evaluate, study, elements, caller))

    @api.put("/tags", status_code=204, openapi_extra=_BODY)
    async def tags(study: Id, request: Request, caller: ByHolder) -> None:
        """At S1: a holder's tags, 16 bytes each, as many as its padded rows. Sending them again changes nothing."""
        data = await request.body()
        await run_in_threadpool(matching.put_tags, study, data, caller)

    @api.get("/positions", response_class=Bytes, responses=answers("Positions, 4 bytes each, little-endian"))
    def positions(study: Id, caller: ByHolder) -> Response:
        """At S1: where the caller's own rows go, in the order of its tags. Not ready until all holders sent theirs."""
        return Bytes(matching.positions(study, caller))

    return api
