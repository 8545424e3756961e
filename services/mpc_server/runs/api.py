"""Routes of runs and of the ledger. Thin: parse, call, answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from caps.basics.document import Hex32
from caps.dp.oracle import STEP_REQUEST
from caps.service.app import Limit, Limits
from caps.service.identity import Allow, Caller
from caps.service.tokens import Scope
from caps.wire import Answer, Attestation, Computing, EvidenceRequest, LedgerHead, RunRequest, RunStatus, Signed, media
from caps.wire.server import PopulationState
from services.mpc_server.runs.runs import Runs
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger

_STEP_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {media.JSON: {"schema": STEP_REQUEST.json_schema()}}}
}
RunPath = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
StepPath = Annotated[int, Path(ge=0, lt=1 << 31)]
Coordinator = Annotated[Caller, Depends(Allow(machines=["coordinator"]))]
Reader = Annotated[Caller, Depends(Allow(machines=["coordinator"], scopes=[Scope.OPERATOR, Scope.AUDITOR]))]
Party = Annotated[Caller, Depends(Allow(machines=["coordinator", "holder"], scopes=[Scope.OPERATOR, Scope.AUDITOR]))]
Checker = Annotated[Caller, Depends(Allow(machines=["coordinator"], scopes=[Scope.AUDITOR]))]
Auditor = Annotated[Caller, Depends(Allow(scopes=[Scope.OPERATOR, Scope.AUDITOR]))]


def limits(runs: Runs) -> Limits:
    """For `create_app`: only a run's coordinator may send anything, and no more than its manifest can ask for."""
    run = "/v1/runs/(?P<run>[0-9a-f]{32})"
    return Limit(f"{run}/steps/[^/]+", runs.step_length), Limit(f"{run}/evidence", runs.evidence_length)


def router(runs: Runs, ledger: Ledger, heads: Heads) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1", tags=["runs"])

    @routes.get("/studies/{study}/budget", tags=["studies"])
    def budget(study: Hex32, caller: Party) -> PopulationState:
        """What this server's policy lets the study's population spend in all, and what is left of it."""
        return runs.budget(study, caller)

    @routes.put("/runs/{run}", status_code=201)
    def begin(run: RunPath, asked: RunRequest, caller: Coordinator) -> RunStatus:
        """Reserve the study's whole budget for this run, and connect with the peers. Idempotent."""
        return runs.begin(run, asked, caller)

    @routes.get("/runs/{run}")
    def status(run: RunPath, caller: Reader) -> RunStatus:
        """The state of the run here, and which party it waits for."""
        return runs.status(run, caller)

    @routes.delete("/runs/{run}")
    def abandon(run: RunPath, caller: Coordinator) -> RunStatus:
        """Abandon the run. What was charged stays spent."""
        return runs.abandon(run, caller)

    @routes.put(
        "/runs/{run}/steps/{step}",
        response_model=Signed[Answer],
        responses={202: {"model": Computing, "description": "The step is being computed: ask again"}},
        openapi_extra=_STEP_BODY,
    )
    async def step(run: RunPath, step: StepPath, request: Request, caller: Coordinator) -> Any:
        """Do a step of the schedule, once. The same request, sent again, gets the recorded answer."""
        answer = await runs.answer_to(run, step, await request.body(), caller)
        if answer is not None:
            return answer
        return JSONResponse(
            Computing().to_json(), 202, headers={"Retry-After": "1", "Location": f"/v1/runs/{run}/steps/{step}"}
        )

    @routes.get("/runs/{run}/steps/{step}")
    def answer(run: RunPath, step: StepPath, caller: Checker) -> Signed[Answer]:
        """The recorded answer of a step: for auditors if measurements are published, once the run has ended."""
        return runs.recorded_answer(run, step, caller)

    @routes.put("/runs/{run}/evidence")
    def evidence(run: RunPath, given: EvidenceRequest, caller: Coordinator) -> RunStatus:
        """Keep other servers' signed evidence that a server deviates, which ends the run; returns all evidence."""
        return runs.take_evidence(run, given, caller)

    @routes.put("/runs/{run}/attestation")
    def attest(run: RunPath, caller: Coordinator) -> Signed[Attestation]:
        """This server's signed attestation of a run that has ended."""
        return runs.attest(run, caller)

    @routes.get(
        "/ledger",
        response_class=StreamingResponse,
        responses={200: {"description": "One record per line", "content": {media.NDJSON: {}}}},
    )
    def records(caller: Auditor) -> Response:
        """Every record of this server's ledger, in order, each with its hash."""
        ledger.verify()

        def lines() -> Iterator[str]:
            for record in ledger.records():
                yield json.dumps(record) + "\n"

        return StreamingResponse(lines(), media_type=media.NDJSON)

    @routes.get("/ledger/heads")
    def kept_heads(caller: Auditor) -> list[Signed[LedgerHead]]:
        """The signed heads of ledgers that this server keeps, one for each run: its own and its peers'."""
        return heads.all()

    return routes
