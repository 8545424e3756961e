"""The coordinator's routes: parse, call, answer. See docs/services.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response

from caps.basics import canonical
from caps.service.app import DOCUMENT_LIMIT, MANIFEST_LIMIT, Limit, Limits
from caps.service.bodies import parsed
from caps.service.identity import Allow, Caller
from caps.service.problems import Problem
from caps.service.site import confirm, speaks_for
from caps.service.tokens import Scope
from caps.study import Manifest
from caps.wire import Approval, Certificate, Decline, Signed, media
from caps.wire.coordinator import (
    Declined,
    FileView,
    HolderView,
    ParticipationView,
    ReleaseView,
    RunView,
    SampleBody,
    SampleView,
    ServerRunView,
    StartBody,
    StudyView,
)
from caps.wire.problems import Kind
from caps.wire.releases import MEASUREMENTS, REPORT, TRANSCRIPT, Measurements, Report
from services.coordinator import content, formats
from services.coordinator.publish import Publisher, markdown
from services.coordinator.runs import Runs
from services.coordinator.store import FileEntry, Release, Run, Sample, Store
from services.coordinator.streams import Streams
from services.coordinator.studies import Studies
from services.coordinator.views import participation_view, run_view, study_view

StudyId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
HolderName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
_READERS = Allow(machines=("holder", "mpc-server"), scopes=tuple(Scope))
Reader = Annotated[Caller, Depends(_READERS)]
_OPERATOR = Allow(scopes=(Scope.OPERATOR,))
Operator = Annotated[Caller, Depends(_OPERATOR)]
_WATCHERS = Allow(scopes=(Scope.OWNER, Scope.OPERATOR, Scope.AUDITOR))
_ANALYSTS = Allow(scopes=(Scope.ANALYST, Scope.OPERATOR, Scope.AUDITOR))
_OVERSEERS = Allow(scopes=(Scope.OPERATOR, Scope.AUDITOR))
_SAMPLERS = Allow(scopes=(Scope.ANALYST, Scope.OPERATOR))
_HOLDERS = Allow(machines=("holder",))
_TAKERS = Allow(machines=("holder",), scopes=_ANALYSTS.scopes)
_MARKDOWN = f"{media.MARKDOWN}; charset=utf-8"
_DATA_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {form.media_type.partition(";")[0]: {} for form in formats.FORMATS}},
    206: {"description": "The part asked for by Range"},
    304: {"description": "Not changed"},
}


SendReport = Callable[[Request, str], Response]


async def _body(request: Request) -> bytes:
    return await request.body()


def limits(studies: Studies) -> Limits:
    """For `create_app`: an approval or a decline is taken from the holder that it names, and from nobody else."""

    def approval(study: str, holder: str, caller: Caller) -> int:
        confirm(caller, studies.holder(study, holder))
        return DOCUMENT_LIMIT

    return (
        Limit("/v1/studies", MANIFEST_LIMIT),
        Limit("/v1/studies/(?P<study>[0-9a-f]{64})/(?:approvals|declines)/(?P<holder>[^/]{1,63})", approval),
    )


def make_router(
    store: Store, studies: Studies, runs: Runs, publisher: Publisher, streams: Streams, html: SendReport
) -> APIRouter:
    """All routes except those that every service has. html: sends a release's report as a file for people."""
    router = APIRouter()
    study_routes(router, store, studies)
    run_routes(router, store, runs, streams)
    release_routes(router, store, publisher, html)
    return router


def study_routes(router: APIRouter, store: Store, studies: Studies) -> None:
    """Proposals, approvals, participation."""

    def view(study: str, caller: Caller) -> StudyView:
        return study_view(store, studies, study, caller)

    manifest_body = {"content": {media.JSON: {"schema": Manifest.model_json_schema()}}, "required": True}

    @router.post(
        "/v1/studies",
        status_code=201,
        openapi_extra={"requestBody": manifest_body},
        responses={200: {"model": StudyView, "description": "Known already"}},
    )
    def propose(body: Annotated[bytes, Depends(_body)], response: Response, caller: Operator) -> StudyView:
        """Propose a study by its manifest, which is sent to the servers; their verdicts are kept."""
        manifest, new = studies.propose(parsed(body))
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/studies/{manifest.study_id}"
        return view(manifest.study_id, caller)

    @router.get("/v1/studies")
    def list_studies(caller: Reader) -> list[StudyView]:
        """All studies in which the caller takes part, the oldest first; people of this coordinator see all studies."""
        return [view(study, caller) for study in studies.listed(caller)]

    @router.get("/v1/studies/{study}")
    def get_study(study: StudyId, caller: Reader) -> StudyView:
        """A study: its state, its approvals, and which are missing."""
        studies.shown(study, caller)
        return view(study, caller)

    @router.get("/v1/studies/{study}/manifest", response_class=Response, response_model=None)
    def get_manifest(study: StudyId, request: Request, caller: Reader) -> Response:
        """The manifest, in canonical JSON."""
        text = studies.shown(study, caller).canonical_bytes()
        return content.send(request, text, content.entry_of(text), media_type=media.JSON)

    @router.post("/v1/studies/{study}/refresh")
    def refresh(study: StudyId, caller: Operator) -> StudyView:
        """Ask again the servers that have not approved."""
        studies.refresh(study)
        return view(study, caller)

    @router.put("/v1/studies/{study}/approvals/{holder}")
    def approve(
        study: StudyId, holder: HolderName, approval: Signed[Approval], caller: Annotated[Caller, Depends(_HOLDERS)]
    ) -> HolderView:
        """A holder's approval, signed with the key of the manifest."""
        party = studies.holder(study, holder)
        confirm(caller, party)
        studies.approve(study, party, approval)
        return HolderView(holder=holder, approved=True)

    @router.put("/v1/studies/{study}/declines/{holder}")
    def decline(
        study: StudyId, holder: HolderName, decline: Signed[Decline], caller: Annotated[Caller, Depends(_HOLDERS)]
    ) -> HolderView:
        """A holder does not take part, and says why, signed with the key of the manifest."""
        party = studies.holder(study, holder)
        confirm(caller, party)
        studies.decline(study, party, decline)
        said = Declined(at=decline.document.at, reason=decline.document.reason)
        return HolderView(holder=holder, approved=False, declined=said)

    @router.get("/v1/studies/{study}/participation", dependencies=[Depends(_WATCHERS)])
    def participation(study: StudyId) -> ParticipationView:
        """Which holders approved, and which servers hold their contributions."""
        return participation_view(studies, study)


def run_routes(router: APIRouter, store: Store, runs: Runs, streams: Streams) -> None:
    """Starting runs and watching them."""

    def view(run: Run) -> RunView:
        return run_view(store, runs, run)

    @router.post("/v1/studies/{study}/runs", status_code=202, dependencies=[Depends(_OPERATOR)])
    def start(study: StudyId, response: Response, body: StartBody | None = None) -> RunView:
        """Seal the inputs and start a run. While a run is going, returns that one."""
        run, _ = runs.start(study, body.holders if body is not None else None)
        response.headers["Location"] = f"/v1/runs/{run.run}"
        return view(run)

    @router.get("/v1/runs/{run}", dependencies=[Depends(_ANALYSTS)])
    def get_run(run: RunId) -> RunView:
        """A run: where it is, and what it waits for."""
        return view(runs.run(run))

    @router.get("/v1/runs/{run}/servers", dependencies=[Depends(_OVERSEERS)])
    def run_at_servers(run: RunId) -> list[ServerRunView]:
        """The run as each server sees it: how far it is there, whom it waits for, its rounds and bytes."""
        return runs.at_servers(run)

    @router.get(
        "/v1/runs/{run}/events",
        response_class=Response,
        response_model=None,
        responses={200: {"content": {media.EVENTS: {}}}, 204: {"description": "The run has ended; no events follow"}},
    )
    def events(
        run: RunId,
        caller: Annotated[Caller, Depends(_ANALYSTS)],
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The run as Server-Sent Events: `state` and `progress`. Ends with the run."""
        return streams.of(run, caller, last_event_id or "0")


def release_routes(router: APIRouter, store: Store, publisher: Publisher, html: SendReport) -> None:
    """Releases: data, samples, measurements, report, certificate, transcript."""

    def files(entries: dict[str, FileEntry]) -> list[FileView]:
        return [
            FileView(
                format=form.name,
                media_type=form.media_type.partition(";")[0],
                bytes=entries[form.file].size,
                sha256=entries[form.file].sha256,
            )
            for form in formats.of_files(entries)
        ]

    def view(release: Release) -> ReleaseView:
        certificate = release.certificate
        manifest, body = certificate.manifest, certificate.release.document
        return ReleaseView(
            release=release.release,
            study=body.study,
            title=manifest.title,
            rows=body.rows,
            epsilon=manifest.privacy.epsilon,
            delta=manifest.privacy.delta,
            certified=manifest.algorithm.certified,
            created_at=release.created_at,
            data=files(dict(release.files)),
            measurements=manifest.publication.measurements,
            resamples=manifest.publication.resamples,
            samples=[sample.sample for sample in store.samples(release.release)],
        )

    def sample_view(sample: Sample) -> SampleView:
        return SampleView(
            sample=sample.sample,
            release=sample.release,
            rows=sample.rows,
            seed=sample.seed,
            where=None if sample.where is None else dict(sample.where),
            created_at=sample.created_at,
            data=files(dict(sample.files)),
        )

    def opened(release: str, name: str, request: Request, media_type: str) -> Response:
        path, entry = publisher.opened(release, name)
        return content.send(request, path, entry, media_type=media_type)

    @router.get("/v1/releases", dependencies=[Depends(_ANALYSTS)])
    def list_releases() -> list[ReleaseView]:
        """All releases, the oldest first."""
        return [view(release) for release in store.releases()]

    @router.get("/v1/releases/{release}", dependencies=[Depends(_ANALYSTS)])
    def get_release(release: RunId) -> ReleaseView:
        """A release, and the formats and digests of its data."""
        return view(publisher.release(release))

    @router.head("/v1/releases/{release}/data", include_in_schema=False)
    @router.get(
        "/v1/releases/{release}/data",
        response_class=Response,
        response_model=None,
        responses=_DATA_CONTENT,
    )
    def data(
        release: RunId,
        request: Request,
        caller: Annotated[Caller, Depends(_TAKERS)],
        form: Annotated[str | None, Query(alias="format")] = None,
    ) -> Response:
        """The synthetic rows, in the format that Accept or `format` (csv, raw.csv, parquet, arrow, ndjson) asks for.

        A holder may read those that were made from its table, among others.
        """
        found = publisher.release(release)
        if caller.person is None and not _gave(caller, found):
            raise Problem(Kind.FORBIDDEN, f"{caller} has no part in this release", release=release)
        return content.send_rows(
            request, form, f"release-{release[:12]}", found.files, partial(publisher.file, release)
        )

    @router.post(
        "/v1/releases/{release}/samples",
        status_code=201,
        dependencies=[Depends(_SAMPLERS)],
        responses={200: {"model": SampleView, "description": "Drawn before"}},
    )
    def resample(release: RunId, response: Response, body: SampleBody | None = None) -> SampleView:
        """Further rows from the release's model. The same rows and seed give the same table. Costs no privacy."""
        asked = body or SampleBody()
        sample, new = publisher.resample(release, asked.rows, asked.seed, asked.where)
        response.status_code = 201 if new else 200
        response.headers["Location"] = f"/v1/releases/{release}/samples/{sample.sample}"
        return sample_view(sample)

    @router.get("/v1/releases/{release}/samples/{sample}", dependencies=[Depends(_ANALYSTS)])
    def get_sample(release: RunId, sample: RunId) -> SampleView:
        """A sample: its rows, seed and digests."""
        return sample_view(publisher.sample(release, sample))

    @router.delete("/v1/releases/{release}/samples/{sample}", status_code=204, dependencies=[Depends(_SAMPLERS)])
    def delete_sample(release: RunId, sample: RunId) -> None:
        """Delete a sample, to make room for another. The same rows and seed give it again."""
        publisher.delete_sample(release, sample)

    @router.head(
        "/v1/releases/{release}/samples/{sample}/data", dependencies=[Depends(_ANALYSTS)], include_in_schema=False
    )
    @router.get(
        "/v1/releases/{release}/samples/{sample}/data",
        dependencies=[Depends(_ANALYSTS)],
        response_class=Response,
        response_model=None,
        responses=_DATA_CONTENT,
    )
    def sample_data(
        release: RunId, sample: RunId, request: Request, form: Annotated[str | None, Query(alias="format")] = None
    ) -> Response:
        """The rows of a sample, in the same formats as the release's."""
        found = publisher.sample(release, sample)
        return content.send_rows(
            request, form, f"sample-{sample[:12]}", found.files, partial(publisher.sample_file, sample)
        )

    @router.get(
        "/v1/releases/{release}/measurements",
        dependencies=[Depends(_ANALYSTS)],
        response_class=Response,
        response_model=None,
        responses={200: {"model": Measurements}},
    )
    def measurements(release: RunId, request: Request) -> Response:
        """The noisy counts, with the standard deviation of their noise and the half width of 95 % intervals."""
        return opened(release, MEASUREMENTS, request, media.JSON)

    @router.get(
        "/v1/releases/{release}/report",
        dependencies=[Depends(_ANALYSTS)],
        response_class=Response,
        response_model=None,
        responses={200: {"model": Report, "content": {media.MARKDOWN: {}, media.HTML: {}}}},
    )
    def report(release: RunId, request: Request) -> Response:
        """Privacy in words, and quality as estimated from the noisy answers: JSON, Markdown, or one HTML file."""
        found = publisher.release(release)
        media_type = formats.preferred(request.headers.get("accept"), [media.JSON, _MARKDOWN, media.HTML])
        if media_type == media.HTML:
            return html(request, release)
        stored = publisher.file(release, REPORT).read_bytes()
        if media_type == media.JSON:
            return content.send(request, stored, found.files[REPORT], media_type=media_type, varies=True)
        text = markdown(Report.model_validate_json(stored)).encode()
        return content.send(request, text, content.entry_of(text), media_type=media_type, varies=True)

    @router.get("/v1/releases/{release}/certificate", dependencies=[Depends(_ANALYSTS)], response_model=Certificate)
    def certificate(release: RunId, request: Request) -> Response:
        """The certificate that `caps verify` checks offline, in canonical JSON."""
        text = canonical.dump(publisher.release(release).certificate.to_json())
        return content.send(request, text, content.entry_of(text), media_type=media.JSON)

    @router.get(
        "/v1/releases/{release}/transcript",
        dependencies=[Depends(_ANALYSTS)],
        response_class=Response,
        response_model=None,
        responses={200: {"content": {media.NDJSON: {}}}},
    )
    def transcript(release: RunId, request: Request) -> Response:
        """Every request with the answer that the servers signed. `caps verify` recomputes the charges from it."""
        return opened(release, TRANSCRIPT, request, media.NDJSON)


def _gave(caller: Caller, release: Release) -> bool:
    """Whether the caller is one of the holders that a release was made from."""
    certificate = release.certificate
    holders = certificate.attestations[0].document.holders
    return any(speaks_for(caller, certificate.manifest.holder(name)) for name in holders)
