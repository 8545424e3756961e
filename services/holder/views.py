"""Records as the interfaces show them: REST answers with these documents, and pages are drawn from them."""

from __future__ import annotations

from caps.data.linkage import ELEMENT_BYTES
from caps.wire.holder import ContributionView, Delivery, DeliveryView, StudyView
from services.holder.service import HolderService, Progress
from services.holder.store import ContributionRecord, MatchingRecord, StudyRecord


def study_view(service: HolderService, record: StudyRecord, *, listed: bool = False) -> StudyView:
    """A study. What it costs its population is not in lists."""
    return StudyView(
        study=record.study,
        title=record.title,
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


def progress_view(service: HolderService, record: Progress) -> ContributionView:
    """How far a contribution has come, or the matching before it."""
    return _matching(service, record) if isinstance(record, MatchingRecord) else _contribution(service, record)


def _matching(service: HolderService, record: MatchingRecord) -> ContributionView:
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


def _contribution(service: HolderService, record: ContributionRecord) -> ContributionView:
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
