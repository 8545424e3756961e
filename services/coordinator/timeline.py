"""A run's events as lanes: what each party did, and whom the others waited for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from caps.service.pages.lanes import Chart, Span, chart
from caps.study import Manifest
from services.coordinator.algorithms import Stage
from services.coordinator.states import ENDED, State
from services.coordinator.store import Event

_DID = {
    Stage.INITIAL: "measured first tables",
    Stage.SELECT: "chose a table",
    Stage.MEASURE: "measured",
    Stage.GENERATE: "fitted the model",
}


def timeline(events: Sequence[Event], manifest: Manifest, now: datetime) -> Chart:
    """The lanes of a run. A report stands for the time since what came before it."""
    servers, coordinator = manifest.sharing.server_names, manifest.coordinator.name
    spans: list[Span] = []
    level: list[tuple[datetime, float]] = []
    state, party, why, since = State.QUEUED, None, None, None
    for event in events:
        at = datetime.fromisoformat(event.at)
        if since is not None:
            if event.kind == "progress":
                spans.append(_reported(event, servers, coordinator, since, at))
            elif at > since or state is State.WAITING:
                spans += _passed(state, party, why, servers, coordinator, since, at)
        if event.kind == "progress":
            level.append((at, event.body["rho_spent"] / event.body["rho"]))
        else:
            state, party, why = State(event.body["state"]), event.body["party"], event.body["reason"]
        since = at
    if since is not None and state not in ENDED:
        spans += _passed(state, party, why, servers, coordinator, since, max(now, since))
    return chart((*servers, coordinator), spans, level)


def _reported(event: Event, servers: tuple[str, ...], coordinator: str, since: datetime, at: datetime) -> Span:
    stage, clique = Stage(event.body["stage"]), event.body["clique"]
    text = f"round {event.body['round']}: {_DID[stage]}{' ' + ' × '.join(clique) if clique else ''}"
    if stage is Stage.GENERATE:
        return Span((coordinator,), since, at, "fit", text)
    return Span(servers, since, at, "work", text)


def _passed(
    state: State,
    party: str | None,
    why: str | None,
    servers: tuple[str, ...],
    coordinator: str,
    since: datetime,
    at: datetime,
) -> list[Span]:
    """What the time between two changes of state went by with."""
    match state:
        case State.WAITING:
            told = f"waiting for {party or 'a party'}: {why}"
            blamed = (party,) if party in (*servers, coordinator) else ()
            others = tuple(name for name in (*servers, coordinator) if name not in blamed)
            spans = [Span(others, since, at, "wait", told)]
            return [Span(blamed, since, at, "blamed", told), *spans] if blamed else spans
        case State.QUEUED:
            return [Span((coordinator,), since, at, "quiet", "queued")]
        case State.PUBLISHING:
            return [Span((coordinator,), since, at, "fit", "publishing")]
    return [Span(servers, since, at, "work", "at work on a step")]
