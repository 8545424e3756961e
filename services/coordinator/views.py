"""What is told of studies and runs, by REST and on pages alike."""

from __future__ import annotations

from caps.service.identity import Caller
from caps.study import Holder, Server
from caps.wire.coordinator import (
    Declined,
    HolderView,
    Judged,
    ParticipationView,
    PartView,
    RunView,
    ServerView,
    StudyView,
)
from services.coordinator.runs import Runs
from services.coordinator.states import ENDED, State
from services.coordinator.store import Run, Store
from services.coordinator.studies import HOLDER, SERVER, Studies, reasons_shown


def study_view(store: Store, studies: Studies, study: str, caller: Caller) -> StudyView:
    """A study as a caller may see it: its state, its approvals, and which are missing."""
    manifest, approved, judged = studies.manifest(study), store.approved(study), store.judgements(study)
    runs, declines = store.runs(study), store.declines(study)

    def declined(role: str, party: Server | Holder) -> Declined | None:
        found = declines.get((role, party.name))
        if found is None:
            return None
        return Declined(at=found.at, reason=found.reason if reasons_shown(caller, party) else None)

    holders = [
        HolderView(holder=one.name, approved=(HOLDER, one.name) in approved, declined=declined(HOLDER, one))
        for one in manifest.holders
    ]
    servers = [
        ServerView(
            server=one.server,
            state=one.state,
            reason=one.reason,
            objections=list(one.objections),
            declined=declined(SERVER, server),
        )
        for server, one in ((server, judged[server.name]) for server in manifest.servers)
    ]
    return StudyView(
        study=study,
        title=manifest.title,
        state=studies.state(study, runs),
        proposed_at=store.proposed_at(study),
        servers=servers,
        holders=holders,
        missing=[
            *(one.server for one in servers if one.state is not Judged.APPROVED),
            *(one.holder for one in holders if not one.approved),
        ],
        runs=[run.run for run in runs],
        releases=[run.run for run in runs if run.state is State.RELEASED],
    )


def participation_view(studies: Studies, study: str) -> ParticipationView:
    """Which holders approved, and which servers hold their contributions: the servers are asked now."""
    found = studies.participation(study)
    parts = [
        PartView(
            holder=part.holder,
            approved=part.approved,
            held_by=sorted(part.held),
            contribution=part.contribution,
            complete=part.contribution is not None,
        )
        for part in found.parts
    ]
    return ParticipationView(study=study, holders=parts, unreached=dict(found.unreached))


def run_view(store: Store, runs: Runs, run: Run) -> RunView:
    """A run: where it is, and what it waits for."""
    at, refused = runs.position(run.run), runs.refused(run)
    return RunView(
        run=run.run,
        study=run.study,
        state=run.state,
        party=run.party,
        reason=run.reason,
        holders=sorted(set(run.contributions.values()) - set(refused)),
        refused=refused,
        percent=at.percent,
        round=at.round,
        stage=at.stage,
        measured=[list(clique) for clique in at.measured],
        model_bytes=at.model_bytes,
        fit_seconds=None if run.state in ENDED else at.fit_seconds,
        steps=at.steps,
        created_at=run.created_at,
        release=run.run if run.state is State.RELEASED else None,
        evidence=store.evidence(run.run),
    )
