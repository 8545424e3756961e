"""Pages for operators and auditors of a coordinator: studies, runs as lanes, the federation, what servers attested.

Each shows what its reader could get by REST, from the same functions, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from caps.basics.document import Hex32
from caps.service.health import PATH as FEDERATION
from caps.service.health import Health, add_routes
from caps.service.identity import Allow, Caller
from caps.service.pages.rendering import ROOT, Link, Pages, allowed, see_other
from caps.service.pages.routes import Signed
from caps.service.site import Site
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.trust.signing import SignatureRefused
from caps.wire import Attestation
from caps.wire import Signed as SignedDocument
from services.coordinator.runs import Runs
from services.coordinator.states import ENDED, StudyState, study_state
from services.coordinator.store import Release, Store
from services.coordinator.streams import Streams
from services.coordinator.studies import Studies
from services.coordinator.timeline import timeline
from services.coordinator.views import participation_view, run_view, study_view

EACH = 20
"""Studies, runs and releases on one page."""
_MOST_KNOWN = 20
"""Studies whose parties are looked at: the newest name the addresses in use."""
OPERATOR = Allow(scopes=(Scope.OPERATOR,))
OVERSEERS = Allow(scopes=(Scope.OPERATOR, Scope.AUDITOR))
WATCHERS = Allow(scopes=(Scope.OWNER, Scope.OPERATOR, Scope.AUDITOR))
ANALYSTS = Allow(scopes=(Scope.ANALYST, Scope.OPERATOR, Scope.AUDITOR))
LINKS = (
    Link.to("Studies", f"{ROOT}/studies"),
    Link.to("Runs", f"{ROOT}/runs", Scope.OPERATOR, Scope.AUDITOR),
    Link.to("Federation", f"{ROOT}{FEDERATION}", Scope.OPERATOR, Scope.AUDITOR),
    Link.to("Ledgers", f"{ROOT}/ledgers", Scope.OPERATOR, Scope.AUDITOR),
)
Number = Annotated[int, Query(ge=1, le=1_000_000)]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


@dataclass(frozen=True)
class Attested:
    """What one server attested of a run: where its ledger has it. sound: whether its signature holds."""

    server: str
    first: int
    last: int
    last_hash: str
    sound: bool


def add_to(
    routes: APIRouter, pages: Pages, site: Site, store: Store, studies: Studies, runs: Runs, streams: Streams
) -> None:
    """Add these pages."""
    _studies(routes, pages, store, studies, runs)
    _runs(routes, pages, site, store, studies, runs)

    @routes.get("/runs/{run}/events")
    def events(
        run: RunId,
        caller: Annotated[Caller, Depends(ANALYSTS)],
        after: str = "0",
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """What happens to a run, for its page: Server-Sent Events."""
        return streams.of(run, caller, last_event_id or after, page=True)

    def known() -> list[Manifest]:
        return [studies.manifest(study) for study, *_ in store.standing()[:_MOST_KNOWN]]

    add_routes(routes, pages, site, Health(site, known))

    @routes.get("/ledgers", dependencies=[Depends(OVERSEERS)])
    def ledgers(request: Request, page: Number = 1) -> Response:
        """What the servers signed of their ledgers, side by side."""
        released = store.releases()[::-1]
        shown = released[(page - 1) * EACH : page * EACH]
        servers = sorted({one.signer for release in shown for one in release.certificate.attestations})
        listed = [(release, _attested(release)) for release in shown]
        aborted = [(run, store.evidence(run.run)) for run in store.runs() if run.state in ENDED]
        return pages.page(
            request,
            "operate/ledgers.html",
            servers=servers,
            releases=listed,
            clashes=_clashes(released),
            aborted=[(run, evidence) for run, evidence in aborted if evidence],
            page=page,
            more=len(released) > page * EACH,
        )


def _studies(routes: APIRouter, pages: Pages, store: Store, studies: Studies, runs: Runs) -> None:
    @routes.get("/studies")
    def listed(request: Request, caller: Signed, state: StudyState | None = None, page: Number = 1) -> Response:
        """All studies, the newest first, by state, and who is missing in each."""
        standing = [(study, study_state(judged, ran)) for study, judged, ran in store.standing()]
        found = [study for study, one in standing if state in (None, one)]
        shown = [study_view(store, studies, study, caller) for study in found[(page - 1) * EACH : page * EACH]]
        return pages.page(
            request,
            "operate/studies.html",
            studies=shown,
            counts=Counter(one for _, one in standing),
            states=list(StudyState),
            state=state,
            page=page,
            more=len(found) > page * EACH,
            total=len(standing),
        )

    @routes.get("/studies/{study}")
    def study(study: Hex32, request: Request, caller: Signed) -> Response:
        """A study: who has approved, who is missing and why, and its runs."""
        return pages.page(
            request,
            "operate/study.html",
            study=study_view(store, studies, study, caller),
            manifest=studies.manifest(study),
            runs=store.runs(study)[::-1],
            sees_runs=allowed(caller.person, ANALYSTS.scopes),
            sees_parts=allowed(caller.person, WATCHERS.scopes),
        )

    @routes.get("/studies/{study}/participation", dependencies=[Depends(WATCHERS)])
    def participation(study: Hex32, request: Request) -> Response:
        """Who has contributed: the servers are asked now."""
        return pages.page(request, "operate/participation_part.html", found=participation_view(studies, study))

    @routes.post("/studies/{study}/refresh", dependencies=[Depends(OPERATOR)])
    def refresh(study: Hex32) -> Response:
        """Ask again the servers that have not approved."""
        studies.refresh(study)
        return see_other(f"{ROOT}/studies/{study}")

    @routes.post("/studies/{study}/start", dependencies=[Depends(OPERATOR)])
    def start(study: Hex32) -> Response:
        """Seal the inputs and start a run; while one is going, show that one."""
        run, _ = runs.start(study)
        return see_other(f"{ROOT}/runs/{run.run}")


def _runs(routes: APIRouter, pages: Pages, site: Site, store: Store, studies: Studies, runs: Runs) -> None:
    @routes.get("/runs", dependencies=[Depends(ANALYSTS)])
    def listed(request: Request, page: Number = 1) -> Response:
        """All runs, the newest first, and whom they wait for."""
        found = store.runs()[::-1]
        shown = found[(page - 1) * EACH : page * EACH]
        titles = {run.study: studies.manifest(run.study).title for run in shown}
        return pages.page(
            request,
            "operate/runs.html",
            runs=[(run, runs.position(run.run)) for run in shown],
            titles=titles,
            page=page,
            more=len(found) > page * EACH,
        )

    def shown(run: str) -> dict[str, Any]:
        record = runs.run(run)
        manifest, told = studies.manifest(record.study), store.events(run)
        return {
            "run": run_view(store, runs, record),
            "manifest": manifest,
            "chart": timeline(told, manifest, site.now()),
            "told": told[-1].number if told else 0,
            "ended": record.state in ENDED,
        }

    @routes.get("/runs/{run}", dependencies=[Depends(ANALYSTS)])
    def run(run: RunId, request: Request) -> Response:
        """A run as lanes: where it is, whom it waits for, and what it has spent."""
        return pages.page(request, "operate/run.html", **shown(run))

    @routes.get("/runs/{run}/lanes", dependencies=[Depends(ANALYSTS)])
    def lanes(run: RunId, request: Request) -> Response:
        """The part of the page that changes while a run is going."""
        return pages.page(request, "operate/run_part.html", **shown(run))

    @routes.get("/runs/{run}/servers", dependencies=[Depends(OVERSEERS)])
    def servers(run: RunId, request: Request) -> Response:
        """The run as each server sees it, asked now; and again, unless it had ended before they were asked."""
        ended = runs.run(run).state in ENDED
        return pages.page(request, "operate/run_servers_part.html", run=run, found=runs.at_servers(run), ended=ended)


def _attested(release: Release) -> dict[str, Attested]:
    return {one.signer: _one(release, one) for one in release.certificate.attestations}


def _one(release: Release, attestation: SignedDocument[Attestation]) -> Attested:
    document = attestation.document
    try:
        attestation.verify(release.certificate.manifest.server(attestation.signer))
        sound = True
    except SignatureRefused:
        sound = False
    own = document.ledger
    return Attested(attestation.signer, own.first, own.last, own.last_hash, sound)


def _clashes(releases: list[Release]) -> list[str]:
    """Servers, by their keys, that attested two different records with one number: a ledger was written anew."""
    seen: dict[tuple[str, int], str] = {}
    found = []
    for release in releases:
        for attestation in release.certificate.attestations:
            own, key = attestation.document.ledger, release.certificate.manifest.server(attestation.signer).signing_key
            for number, digest in ((own.first, own.first_hash), (own.last, own.last_hash)):
                if seen.setdefault((key, number), digest) != digest:
                    found.append(f"{attestation.signer} attested two different records with the number {number}")
    return sorted(set(found))
