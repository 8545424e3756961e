"""An MPC server's pages, for its operator and auditors: what each route shows, and to whom. See docs/pages.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import ValidationError

from caps.basics.document import Hex32
from caps.dp.privacy.rational import decode_ratio
from caps.errors import party_name
from caps.service.bodies import invalid
from caps.service.health import PATH as FEDERATION
from caps.service.health import Health, add_routes
from caps.service.identity import Allow, Caller
from caps.service.pages.forms import Fields
from caps.service.pages.lanes import Chart, Span, chart
from caps.service.pages.rendering import ROOT, Door, Link, Pages, see_other
from caps.service.pages.routes import Signed
from caps.service.pages.words import count_of
from caps.service.site import Site
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire.server import DeclineBody
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.studies import Studies
from services.mpc_server.pages.compared import Compared, compare
from services.mpc_server.runs.runs import Runs
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger, LedgerBroken, RecordKind
from services.mpc_server.transport.keeper import MeshState

TEMPLATES = FilePath(__file__).parent / "templates"
ABOUT = "This server computes on shares with its peers, and enforces the budget of every study that it has signed."
EACH = 20
RECORDS = 50
_MOST_KNOWN = 20
"""Studies whose parties are looked at: the newest name the addresses in use."""
_OBSERVING = (Scope.OPERATOR, Scope.AUDITOR)
OBSERVERS = Allow(scopes=_OBSERVING)
OPERATOR = Allow(scopes=(Scope.OPERATOR,))
LINKS = (
    Link.to("Overview", ROOT),
    Link.to("Studies", f"{ROOT}/studies", *_OBSERVING),
    Link.to("Runs", f"{ROOT}/runs", *_OBSERVING),
    Link.to("Budgets", f"{ROOT}/budgets", *_OBSERVING),
    Link.to("Ledger", f"{ROOT}/ledger", *_OBSERVING),
    Link.to("Federation", f"{ROOT}{FEDERATION}", *_OBSERVING),
)
Number = Annotated[int, Query(ge=1, le=1_000_000)]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
Observer = Annotated[Caller, Depends(OBSERVERS)]


@dataclass(frozen=True)
class Parts:
    """What the pages show. missing: why the server is not ready. mesh: its connections with its peers."""

    site: Site
    studies: Studies
    contributions: Contributions
    runs: Runs
    ledger: Ledger
    heads: Heads
    missing: Callable[[], list[str]]
    mesh: Callable[[], MeshState]


def router(pages: Pages, parts: Parts) -> APIRouter:
    """The routes of one server."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.home(request, ABOUT, parts.missing(), _doors(parts))

    _studies(routes, pages, parts)
    _runs(routes, pages, parts)
    _ledger(routes, pages, parts)

    def peers() -> list[tuple[str, str]]:
        state = parts.mesh()
        told = [
            (f"Connection with {party_name(peer)}", "well" if trouble is None else str(trouble))
            for peer, trouble in sorted(state.troubles.items())
        ]
        return [("Mesh of servers", state.phase), *told]

    add_routes(routes, pages, parts.site, Health(parts.site, lambda: parts.studies.newest(_MOST_KNOWN)), peers)
    return routes


def _doors(parts: Parts) -> dict[str, Door]:
    """What is behind each entry of the navigation, with how things stand."""
    studies, runs = parts.studies.brief(), parts.runs.listed()
    undecided = sum(one.state == "judged" for one in studies)
    waiting, going = (sum(one.state == state for one in runs) for state in ("waiting", "going"))
    return {
        f"{ROOT}/studies": Door(
            "What coordinators propose; approve a study here, or decline it and say why.",
            f"{undecided} to decide" if undecided else count_of(len(studies), "study", "studies"),
            undecided > 0,
        ),
        f"{ROOT}/runs": Door(
            "What this server computes with its peers, step by step, and what each step cost.",
            count_of(waiting, "run waits", "runs wait") if waiting else f"{going} going",
            waiting > 0,
        ),
        f"{ROOT}/budgets": Door("What all studies together may cost the same people, and what is left."),
        f"{ROOT}/ledger": Door(
            "Every charge, in a chain that is recomputed before your eyes, beside the other servers' ledgers.",
            count_of(parts.ledger.length(), "record"),
        ),
        f"{ROOT}{FEDERATION}": Door("Versions, clocks, certificates and round trips, as seen from here."),
    }


def _studies(routes: APIRouter, pages: Pages, parts: Parts) -> None:
    studies = parts.studies

    @routes.get("/studies")
    def listed(request: Request, caller: Observer, page: Number = 1) -> Response:
        """All studies, those that wait for the operator first, then the newest."""
        newest = studies.brief()[::-1]
        found = [one for waits in (True, False) for one in newest if (one.state == "judged") is waits]
        shown = found[(page - 1) * EACH : page * EACH]
        return pages.page(
            request,
            "studies.html",
            studies=[(one, studies.show_to(one.study, caller)) for one in shown],
            page=page,
            more=len(found) > page * EACH,
        )

    @routes.get("/studies/{study}")
    def study(study: Hex32, request: Request, caller: Observer) -> Response:
        """A study: what is asked for, what it costs, what has come, and the operator's decision."""
        manifest = studies.show_to(study, caller)
        return pages.page(
            request,
            "study.html",
            manifest=manifest,
            state=studies.status(study),
            budget=parts.runs.budget(study, caller),
            contributions=parts.contributions.complete(study, caller),
            runs=[one for one in parts.runs.listed() if one.study == study],
        )

    @routes.post("/studies/{study}/approve", dependencies=[Depends(OPERATOR)])
    def approve(study: Hex32) -> Response:
        """The operator approves a study that waits for that."""
        studies.approve(study)
        return see_other(f"{ROOT}/studies/{study}")

    @routes.post("/studies/{study}/decline", dependencies=[Depends(OPERATOR)])
    def decline(study: Hex32, form: Fields) -> Response:
        """The operator does not take part, and says why."""
        try:
            said = DeclineBody(reason=form.one("reason"))
        except ValidationError as error:
            raise invalid(error) from None
        studies.decline(study, said.reason)
        return see_other(f"{ROOT}/studies/{study}")


def _runs(routes: APIRouter, pages: Pages, parts: Parts) -> None:
    @routes.get("/runs")
    def listed(request: Request, caller: Observer, page: Number = 1) -> Response:
        """All runs, the newest first."""
        found = parts.runs.listed()
        shown = found[(page - 1) * EACH : page * EACH]
        titles = {one.study: parts.studies.show_to(one.study, caller).title for one in shown}
        return pages.page(request, "runs.html", runs=shown, titles=titles, page=page, more=len(found) > page * EACH)

    def shown(run: str, caller: Caller) -> dict[str, Any]:
        status = parts.runs.status(run, caller)
        manifest = parts.studies.manifest(status.study)
        records = parts.ledger.of_run(run)
        ended = status.state in ("ended", "failed", "aborted")
        return {
            "run": status,
            "manifest": manifest,
            "chart": steps_chart(records, manifest, parts.site.name, None if ended else parts.site.now()),
            "spent": float(_charged(records)),
            "budget": float(manifest.reservation.rho),
            "ended": ended,
        }

    @routes.get("/runs/{run}")
    def run(run: RunId, request: Request, caller: Observer) -> Response:
        """A run on this server: its steps, what they cost, and whom it waits for."""
        return pages.page(request, "run.html", **shown(run, caller))

    @routes.get("/runs/{run}/lanes")
    def lanes(run: RunId, request: Request, caller: Observer) -> Response:
        """The part of the page that changes while a run is going."""
        return pages.page(request, "run_part.html", **shown(run, caller))


def _ledger(routes: APIRouter, pages: Pages, parts: Parts) -> None:
    @routes.get("/budgets")
    def budgets(request: Request, caller: Observer) -> Response:
        """What each population may cost on this server, and what is left."""
        return pages.page(request, "budgets.html", meters=parts.runs.populations())

    @routes.get("/ledger")
    def ledger(request: Request, caller: Observer, page: Number = 1) -> Response:
        """The records, the newest first, and the heads of all ledgers that were exchanged."""
        length = parts.ledger.length()
        last = length - (page - 1) * RECORDS
        try:
            records = parts.ledger.part(max(last - RECORDS, 0), min(RECORDS, max(last, 0)))[::-1]
        except LedgerBroken:  # the part above them says so
            records = []
        return pages.page(
            request, "ledger.html", records=records, length=length, page=page, more=last > RECORDS, told=told_of
        )

    @routes.get("/ledger/verified")
    def verified(request: Request, caller: Observer) -> Response:
        """The whole chain, recomputed now, and the heads compared."""
        try:
            count, broken = parts.ledger.verify(), None
            parts.heads.verify()
        except LedgerBroken as error:
            count, broken = 0, str(error)
        found: Compared = compare(parts.heads.all(), parts.site.name, parts.ledger, parts.runs, parts.studies)
        return pages.page(request, "ledger_part.html", count=count, broken=broken, found=found)


def told_of(record: dict[str, Any]) -> str:
    """A record of the ledger in words."""
    match record["kind"]:
        case RecordKind.RESERVE:
            return f"set aside rho {float(decode_ratio(record['rho'])):.4g} of {record['population']}"
        case RecordKind.CHARGE:
            entry = record["entry"]
            return f"charged rho {float(decode_ratio(entry['rho'])):.4g} for step {record['step']}, {entry['step']}"
        case RecordKind.CLOSE:
            return f"the run ended; rho {float(decode_ratio(record['spent'])):.4g} is spent"
        case RecordKind.RELEASE:
            return f"given back to {record['population']}: the run charged nothing"
    return "the run was aborted on a server's signed evidence"


def steps_chart(records: list[dict[str, Any]], manifest: Manifest, name: str, now: datetime | None) -> Chart:
    """A run's steps on this server, from the times at which each was charged; `now` if it is going."""
    budget, spent = manifest.reservation.rho, Fraction(0)
    spans: list[Span] = []
    level: list[tuple[datetime, float]] = []
    times = [datetime.fromisoformat(record["at"]) for record in records]
    for number, record in enumerate(records):
        at = times[number]
        until = times[number + 1] if number + 1 < len(times) else (now or at)
        if record["kind"] == RecordKind.CHARGE:
            spans.append(Span((name,), at, max(at, until), "work", f"step {record['step']}: {record['entry']['step']}"))
            spent += decode_ratio(record["entry"]["rho"])
            level.append((at, min(float(spent / budget), 1.0)))
        elif record["kind"] == RecordKind.RESERVE:
            spans.append(Span((name,), at, max(at, until), "quiet", "connected, and computed what costs nothing"))
    return chart((name,), spans, level, words=False)


def _charged(records: list[dict[str, Any]]) -> Fraction:
    charges = (one["entry"]["rho"] for one in records if one["kind"] == RecordKind.CHARGE)
    return sum(map(decode_ratio, charges), Fraction(0))
