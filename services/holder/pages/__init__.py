"""The holder's pages, for people of its own organisation: what each route shows, and to whom.

They call what the REST interface calls, and only owners see what is exact about their tables. A study has one page for
each part of its owner's work, in order: agreement, table, what leaves, contribution, release.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import ValidationError

from caps.basics.document import Hex32
from caps.basics.files import erase
from caps.data.schema import files
from caps.service.bodies import invalid
from caps.service.identity import Allow, Caller
from caps.service.pages.forms import Fields
from caps.service.pages.rendering import ROOT, Link, Pages, allowed, see_other
from caps.service.tokens import Scope
from caps.wire import agreement
from caps.wire.holder import Goal, Invitation, State
from caps.wire.server import DeclineBody
from services.holder import comparing
from services.holder.pages.findings import expected_of, findings, missing_columns
from services.holder.pages.steps import GROUPS, TITLES, done, step_of
from services.holder.receiving import receive, save
from services.holder.service import HolderService
from services.holder.store import StudyRecord
from services.holder.table import Sent, TableRefusal
from services.holder.views import progress_view, study_view

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
LINKS = (
    Link.to("Studies", ROOT, Scope.OWNER, Scope.OPERATOR),
    Link.to("Ledger", f"{ROOT}/ledger", Scope.OWNER),
)
EACH = 20
"""Studies on one page of the inbox."""
UPLOADS = "/ui/studies/[^/]*/(?:table|release)"
"""The paths of files, which are streamed to disk."""
ByOwner = Annotated[Caller, Depends(Allow(scopes=[Scope.OWNER]))]
ByBoth = Annotated[Caller, Depends(Allow(scopes=[Scope.OWNER, Scope.OPERATOR]))]
_MOVING = (Goal.MATCHING, Goal.PUSHING, Goal.WITHDRAWING)


def router(pages: Pages, service: HolderService) -> APIRouter:
    """The routes of one holder."""
    every = APIRouter(prefix=ROOT, include_in_schema=False)
    routes = APIRouter(prefix="/studies/{study}")

    def about(record: StudyRecord, here: str) -> dict[str, Any]:
        """What the pages of a study have in common."""
        return {
            "study": record.study,
            "manifest": record.manifest,
            "me": service.me(record.manifest),
            "state": record.state,
            "step": step_of(service, record),
            "at": f"{ROOT}/studies/{record.study}",
            "steps": [(f"{ROOT}/studies/{record.study}{end}", title, end == here) for end, title in TITLES.items()],
            "done": {f"{ROOT}/studies/{record.study}{end}" for end in done(service, record)},
        }

    @every.get("")
    def inbox(request: Request, caller: ByBoth, page: Annotated[int, Query(ge=1, le=1_000_000)] = 1) -> Response:
        """All studies, those that wait for the owner first."""
        listed = [(step_of(service, record), record) for record in service.store.studies()]
        listed.sort(key=lambda one: (one[0].group, one[0].kind != "act", one[1].title, one[1].study))
        shown, counts = listed[(page - 1) * EACH : page * EACH], Counter(step.group for step, _ in listed)
        groups = [(title, counts[n], [one for one in shown if one[0].group == n]) for n, title in enumerate(GROUPS)]
        site = service.site
        return pages.page(
            request,
            "inbox.html",
            groups=groups,
            page=page,
            more=len(listed) > page * EACH,
            reasons=[*site.expired(), *site.room.reasons()],
            factor=agreement.factor,
        )

    @every.post("/fetch")
    def fetch(form: Fields, caller: ByBoth) -> Response:
        """Fetch a study's manifest from its coordinator."""
        try:
            asked = Invitation.model_validate({"coordinator": form.one("coordinator"), "study": form.one("study")})
        except ValidationError as error:
            raise invalid(error) from None
        record, _ = service.know(asked.coordinator, asked.study)
        return see_other(f"{ROOT}/studies/{record.study}")

    @every.get("/ledger")
    def ledger(request: Request, caller: ByOwner) -> Response:
        """What all studies cost the persons together."""
        return pages.page(request, "ledger.html", ledger=service.ledger(), epsilon_of=agreement.epsilon_of)

    @routes.get("")
    def study(study: Hex32, request: Request, caller: ByBoth) -> Response:
        """What there is to agree to."""
        record = service.store.study(study)
        owner = allowed(caller.person, [Scope.OWNER])
        return pages.page(
            request,
            "study.html",
            **about(record, ""),
            view=study_view(service, record),
            agreement=agreement,
            sent=service.preview(study).total_bytes if owner else None,
            owner=owner,
        )

    @routes.get("/budget")
    def budget(study: Hex32, request: Request, caller: ByBoth) -> Response:
        """What the servers say is left, which may take them a while."""
        return pages.page(request, "budget_part.html", budget=service.budget(study), left=agreement.left_at)

    @routes.post("/approve")
    def approve(study: Hex32, caller: ByOwner) -> Response:
        """Sign the study."""
        service.approve(study)
        return see_other(f"{ROOT}/studies/{study}")

    @routes.post("/decline")
    def decline(study: Hex32, form: Fields, caller: ByOwner) -> Response:
        """Do not take part, and say why."""
        try:
            given = DeclineBody.model_validate({"reason": form.one("reason")})
        except ValidationError as error:
            raise invalid(error) from None
        service.decline(study, given.reason)
        return see_other(f"{ROOT}/studies/{study}")

    def table_context(record: StudyRecord, refusal: TableRefusal | None = None) -> dict[str, Any]:
        kept, schema = service.store.table(record.study), record.manifest.columns_of(service.me(record.manifest))
        asked = service.store.matching(record.study)
        fixed = record.state is State.CONTRIBUTED or (asked is not None and asked.wanted)
        return {
            **about(record, "/table"),
            "kept": kept,
            "fixed": fixed,
            "found": [] if kept is None else findings(schema, kept.report.columns),
            "loss": service.loss(record),
            "expected": [(column.name, expected_of(column)) for column in schema.columns],
            "encodings": files.ENCODINGS.values(),
            "most": service.options.max_upload,
            "refusal": refusal,
            "refused": _refused(schema, refusal),
            "missing": [] if refusal is None else missing_columns(refusal),
        }

    @routes.get("/table")
    def table(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """The table that is loaded, and how to load another."""
        return pages.page(request, "table.html", **table_context(service.store.study(study)))

    @routes.put("/table")
    async def load(
        study: Hex32, request: Request, caller: ByOwner, ignore_extra: bool = False, encoding: str = ""
    ) -> Response:
        """Check a table and keep it if it fits: the part of the page that says what was found."""
        sent = partial(Sent.recognised, encoding=encoding or None, ignore_extra=ignore_extra)
        refusal = None
        try:
            await receive(service, study, request, sent, service.load)
        except TableRefusal as error:
            refusal = error

        def shown() -> Response:
            context = table_context(service.store.study(study), refusal)
            status = 200 if refusal is None else 422
            return pages.page(request, "table_part.html", status=status, **context)

        response = await to_thread.run_sync(shown)
        if refusal is None:
            response.headers["HX-Refresh"] = "true"  # the whole page says so
        return response

    @routes.get("/table/counts")
    def counts(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """The table's exact counts by column: they stay here."""
        return pages.page(request, "counts_part.html", columns=comparing.own_counts(service, study))

    @routes.post("/table/erase")
    def erase_table(study: Hex32, caller: ByOwner) -> Response:
        """Erase the table here."""
        service.erase_table(study)
        return see_other(f"{ROOT}/studies/{study}/table")

    @routes.get("/leaves")
    def leaves(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """The dry run: exactly what would leave the site."""
        record = service.store.study(study)
        return pages.page(
            request,
            "leaves.html",
            **about(record, "/leaves"),
            preview=service.preview(study),
            agreement=agreement,
            contributed=record.state is State.CONTRIBUTED,
        )

    def progress_context(study: str) -> dict[str, Any]:
        record, found = service.store.study(study), None
        asked = service.store.matching(study)
        if service.store.contribution(study) is not None or (asked is not None and asked.wanted):
            found = progress_view(service, service.progress(study))
        return {
            **about(record, "/contribution"),
            "contribution": found,
            "moving": found is not None and found.state in _MOVING,
            "signed": 0 if found is None else sum(one.receipt is not None for one in found.servers),
        }

    @routes.get("/contribution")
    def contribution(study: Hex32, request: Request, caller: ByBoth) -> Response:
        """How far the contribution has come."""
        owner = allowed(caller.person, [Scope.OWNER])
        return pages.page(request, "contribution.html", **progress_context(study), owner=owner)

    @routes.get("/contribution/progress")
    def progress(study: Hex32, request: Request, caller: ByBoth) -> Response:
        """The same as a part that asks for itself again until it is done."""
        owner, context = allowed(caller.person, [Scope.OWNER]), progress_context(study)
        response = pages.page(request, "contribution_part.html", **context, owner=owner)
        if not context["moving"]:
            response.headers["HX-Refresh"] = "true"  # the whole page says so
        return response

    @routes.post("/leaves/contribute")
    def contribute(study: Hex32, caller: ByOwner) -> Response:
        """Share the table and push the shares to the servers."""
        service.contribute(study)
        return see_other(f"{ROOT}/studies/{study}/contribution")

    @routes.post("/contribution/withdraw")
    def withdraw(study: Hex32, caller: ByOwner) -> Response:
        """Withdraw the contribution from all servers."""
        service.withdraw(study)
        return see_other(f"{ROOT}/studies/{study}/contribution")

    @routes.get("/release")
    def release(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """Where a release can be put beside the table."""
        record = service.store.study(study)
        kept = service.store.table(study) is not None
        return pages.page(
            request, "release.html", **about(record, "/release"), kept=kept, most=service.options.max_upload
        )

    @routes.get("/release/fetched")
    def fetched(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """The table beside the release that the coordinator has, which is asked for it now; it is not kept."""
        path = service.scratch_path(study)
        try:
            out = service.fetch_release(study, path)
            found = comparing.compare(service, study, path) if out else None
        finally:
            erase(path)
        return pages.page(request, "release_part.html", found=found)

    @routes.put("/release")
    async def compare(study: Hex32, request: Request, caller: ByOwner) -> Response:
        """The table beside the release in the body, which is not kept."""
        path = await to_thread.run_sync(service.scratch_path, study)
        try:
            await save(request, path)
            found = await to_thread.run_sync(comparing.compare, service, study, path)
        finally:
            erase(path)
        return await to_thread.run_sync(lambda: pages.page(request, "release_part.html", found=found))

    every.include_router(routes)
    return every


def _refused(schema: Any, refusal: TableRefusal | None) -> list[Any]:
    if refusal is None or refusal.error.report is None:
        return []
    return [one for one in findings(schema, refusal.error.report.columns, refusal.error.rows) if one.refused]
