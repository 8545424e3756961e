"""Routes of studies, contributions and seals. They parse, call and map; the work is in `studies` and `contributions`.

Handlers that touch the database, the disk or keys run in threads. Bodies are read on the event loop, after `limits`
has let their senders in, and only up to their permitted size.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from caps.basics.document import Document
from caps.service.app import DOCUMENT_LIMIT, MANIFEST_LIMIT, Limit, Limits
from caps.service.bodies import invalid, parsed, read
from caps.service.identity import Allow, Caller
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire import Approval, ContributionState, Decline, Offer, Receipt, Seal, SealRequest, Signed, digests, media
from caps.wire.problems import Kind
from caps.wire.server import DeclineBody, StudyState
from services.mpc_server.intake.contributions import MOST_CHUNKS, Contributions
from services.mpc_server.intake.studies import Studies

Id = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256, in hexadecimal")]
Number = Annotated[int, Path(ge=0, lt=MOST_CHUNKS)]
ByCoordinator = Annotated[Caller, Depends(Allow(machines=["coordinator"]))]
ByHolder = Annotated[Caller, Depends(Allow(machines=["holder"]))]
ByHolderOrCoordinator = Annotated[Caller, Depends(Allow(machines=["holder", "coordinator"]))]
ByOperator = Annotated[Caller, Depends(Allow(scopes=[Scope.OPERATOR]))]
ByObserver = Annotated[
    Caller, Depends(Allow(machines=["coordinator", "holder"], scopes=[Scope.OPERATOR, Scope.AUDITOR]))
]
ByCoordinatorOrPerson = Annotated[
    Caller, Depends(Allow(machines=["coordinator"], scopes=[Scope.OPERATOR, Scope.AUDITOR]))
]


_SAME: dict[int | str, dict[str, Any]] = {200: {"description": "It is here already"}}
_MANIFEST_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {media.JSON: {"schema": Manifest.model_json_schema()}}}
}
_SEAL_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {media.JSON: {"schema": SealRequest.model_json_schema()}}}
}
_CHUNK_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {media.BYTES: {"schema": {"type": "string", "format": "binary"}}},
    },
    "parameters": [
        {
            "name": "Content-Digest",
            "in": "header",
            "required": True,
            "description": "RFC 9530, with sha-256",
            "schema": {"type": "string"},
        }
    ],
}


def limits(studies: Studies, contributions: Contributions) -> Limits:
    """For `create_app`: who may send how much. The study is known, except where it is proposed."""
    study, contribution = "/v1/studies/(?P<study>[0-9a-f]{64})", "contributions/(?P<contribution>[0-9a-f]{64})"

    def offered(study: str, contribution: str, caller: Caller) -> int:
        studies.show_to(study, caller)
        return DOCUMENT_LIMIT

    def chunk(study: str, contribution: str, number: str, caller: Caller) -> int:
        if number.isascii() and number.isdigit() and len(number) <= len(str(MOST_CHUNKS)):
            return contributions.chunk_length(study, contribution, int(number), caller)
        return offered(study, contribution, caller)  # the route refuses the number

    return (
        Limit("/v1/studies/[0-9a-f]{64}", MANIFEST_LIMIT),
        Limit(f"{study}/seal", studies.seal_length),
        Limit(f"{study}/{contribution}", offered),
        Limit(f"{study}/{contribution}/chunks/(?P<number>[^/]+)", chunk),
    )


def router(studies: Studies, contributions: Contributions) -> APIRouter:
    """All of an MPC server's interface except runs and the ledger."""
    api = APIRouter(prefix="/v1/studies")

    @api.put(
        "/{study}",
        tags=["studies"],
        status_code=201,
        response_model=Signed[Approval],
        responses={
            200: {"model": Signed[Approval], "description": "It is approved already"},
            202: {"model": StudyState, "description": "The operator has yet to decide"},
        },
        openapi_extra=_MANIFEST_BODY,
    )
    async def propose(study: Id, request: Request, caller: ByCoordinator) -> Response:
        """Propose a study by its manifest, which this server judges by its policy."""
        body = await request.body()

        def received() -> tuple[StudyState, bool]:
            return studies.receive(study, _manifest(body), caller)

        state, new = await run_in_threadpool(received)
        where = {"Location": f"/v1/studies/{study}"}
        if state.approval is None:
            return _reply(state, 202, where)
        return _reply(state.approval, 201 if new else 200, where)

    @api.get("", tags=["studies"])
    def listed(caller: ByObserver) -> list[StudyState]:
        """All studies in which the caller takes part; people of this server see all studies."""
        return studies.listed(caller)

    @api.get("/{study}", tags=["studies"])
    def status(study: Id, caller: ByObserver) -> StudyState:
        """How far a study is on this server."""
        studies.show_to(study, caller)
        return studies.status(study, caller)

    @api.get("/{study}/manifest", tags=["studies"], response_class=Response, responses={200: {"model": Manifest}})
    def manifest(study: Id, caller: ByObserver) -> Response:
        """The study's manifest in canonical form: its digest is the study's id."""
        return Response(studies.show_to(study, caller).canonical_bytes(), media_type=media.JSON)

    @api.post("/{study}/approval", tags=["studies"])
    def approve(study: Id, caller: ByOperator) -> Signed[Approval]:
        """The operator approves a study that is waiting for that."""
        return studies.approve(study)

    @api.post("/{study}/decline", tags=["studies"])
    def decline(study: Id, body: DeclineBody, caller: ByOperator) -> Signed[Decline]:
        """The operator does not take part in a study, and says why. An approval takes it back."""
        return studies.decline(study, body.reason)

    @api.put("/{study}/seal", tags=["studies"], openapi_extra=_SEAL_BODY)
    async def seal(study: Id, request: Request, caller: ByCoordinator) -> Signed[Seal]:
        """Declare the inputs final. Another set may replace it until a run exists."""
        body = await request.body()  # as long as there are holders

        def sealed() -> Signed[Seal]:
            return studies.seal(study, read(SealRequest, body), caller)

        return await run_in_threadpool(sealed)

    @api.delete("/{study}/shares", tags=["studies"])
    def erase(study: Id, caller: ByOperator) -> list[Signed[Receipt]]:
        """Erase all shares and keys of a study. Returns a receipt for each contribution."""
        return studies.erase(study)

    @api.get("/{study}/contributions", tags=["contributions"])
    def complete(study: Id, caller: ByCoordinatorOrPerson) -> list[ContributionState]:
        """Every complete contribution, with its receipt."""
        return contributions.complete(study, caller)

    @api.put("/{study}/contributions/{contribution}", tags=["contributions"], status_code=201, responses=_SAME)
    def offer(study: Id, contribution: Id, offer: Offer, caller: ByHolder, response: Response) -> ContributionState:
        """Begin a contribution; the answer says which chunks are needed."""
        state, new = contributions.offer(study, contribution, offer, caller)
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/studies/{study}/contributions/{contribution}"
        return state

    @api.get("/{study}/contributions/{contribution}", tags=["contributions"])
    def state(study: Id, contribution: Id, caller: ByHolderOrCoordinator) -> ContributionState:
        """How much of a contribution has arrived, and what is missing."""
        return contributions.state(study, contribution, caller)

    @api.put(
        "/{study}/contributions/{contribution}/chunks/{number}",
        tags=["contributions"],
        status_code=204,
        openapi_extra=_CHUNK_BODY,
    )
    async def chunk(study: Id, contribution: Id, number: Number, request: Request, caller: ByHolder) -> None:
        """Send a chunk of the vector. Sending it again changes nothing."""
        expected = digests.stated(",".join(request.headers.getlist("content-digest")))
        if expected is None:
            raise Problem(Kind.MALFORMED, "send the chunk with the header Content-Digest: sha-256=:...:")
        data = await request.body()

        def kept() -> None:
            if not hmac.compare_digest(sha256(data).digest(), expected):
                raise Problem(Kind.INVALID, "the body does not match Content-Digest", study=study)
            contributions.put_chunk(study, contribution, number, data, caller)

        await run_in_threadpool(kept)

    @api.post("/{study}/contributions/{contribution}/receipt", tags=["contributions"])
    def receipt(study: Id, contribution: Id, caller: ByHolder) -> Signed[Receipt]:
        """Everything is sent: have it verified against the commitment and signed for."""
        return contributions.receipt(study, contribution, caller)

    @api.delete("/{study}/contributions/{contribution}", tags=["contributions"])
    def withdraw(study: Id, contribution: Id, caller: ByHolder) -> Signed[Receipt]:
        """Withdraw a contribution that is not sealed, in whatever state it is. Its shares are erased at once."""
        return contributions.withdraw(study, contribution, caller)

    return api


def _reply(document: Document, status: int, headers: dict[str, str]) -> Response:
    return JSONResponse(document.to_json(), status, headers=headers)


def _manifest(body: bytes) -> Manifest:
    value = parsed(body)
    if not isinstance(value, dict):
        raise Problem(Kind.INVALID, "a manifest must be a JSON object")
    try:
        return Manifest.from_json(value)
    except ValidationError as error:
        raise invalid(error) from None
