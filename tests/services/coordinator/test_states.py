"""The coordinator's state machines: every state answers every event, and the store writes nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest

from caps.errors import LocalError
from caps.service.database import open_database
from caps.wire import SealRequest
from services.coordinator.states import (
    ENDED,
    JUDGEMENTS,
    TRANSITIONS,
    Answered,
    Judged,
    RunEvent,
    State,
    StudyState,
    after,
    study_state,
)
from services.coordinator.store import Store
from services.coordinator.tables import metadata
from tests.kit.study import example_manifest

PATHS = {
    State.QUEUED: [],
    State.RUNNING: [RunEvent.PROCEED],
    State.WAITING: [RunEvent.PROCEED, RunEvent.WAIT],
    State.PUBLISHING: [RunEvent.PROCEED, RunEvent.PUBLISH],
    State.RELEASED: [RunEvent.PROCEED, RunEvent.PUBLISH, RunEvent.RELEASE],
    State.FAILED: [RunEvent.FAIL],
}
ANSWERS = {
    Judged.PENDING: Answered.NOTHING,
    Judged.WAITING: Answered.LATER,
    Judged.APPROVED: Answered.YES,
    Judged.REFUSED: Answered.NO,
}


@pytest.fixture
def store(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/state.db", metadata)
    yield Store(engine, lambda: datetime(2030, 5, 17, tzinfo=UTC))
    engine.dispose()


def begun(store: Store) -> str:
    manifest, _ = example_manifest()
    store.add_study(manifest)
    request = SealRequest.model_construct(contributions=(), approvals=())
    store.add_run("ab" * 16, manifest.study_id, {}, request)
    return "ab" * 16


@pytest.mark.parametrize(("state", "event"), list(product(State, RunEvent)))
def test_every_state_of_a_run_answers_every_event(store, state: State, event: RunEvent) -> None:
    run, written = begun(store), State.QUEUED
    for earlier in PATHS[state]:
        store.change_state(run, earlier)
        written = after(written, earlier)
    assert written is state
    told = len(store.events(run))
    if (state, event) in TRANSITIONS:
        store.change_state(run, event, reason="new")
        assert (store.run(run).state, store.run(run).reason) == (TRANSITIONS[state, event], "new")
        assert store.events(run)[told:][0].body["state"] == TRANSITIONS[state, event]
    else:
        with pytest.raises(LocalError, match=f"{state} cannot {event}"):
            store.change_state(run, event)
        assert store.run(run).state is state
        assert len(store.events(run)) == told


def test_every_run_can_fail_but_those_that_ended() -> None:
    for state in State:
        following = {event for before, event in TRANSITIONS if before is state}
        assert (RunEvent.FAIL in following) == (state not in ENDED)
        assert bool(following) == (state not in ENDED)
    assert {after for (_, event), after in TRANSITIONS.items() if event is RunEvent.FAIL} == {State.FAILED}
    assert {before for before, event in TRANSITIONS if event is RunEvent.RELEASE} == {State.WAITING, State.PUBLISHING}


def test_what_is_as_it_was_is_not_told_again(store) -> None:
    run = begun(store)
    store.change_state(run, RunEvent.PROCEED)
    for reason in ("away", "away", "still away"):
        store.change_state(run, RunEvent.WAIT, party="S2", reason=reason)
    assert [event.body["reason"] for event in store.events(run)] == [None, None, "away", "still away"]


@pytest.mark.parametrize(("judged", "answer"), list(product(Judged, Answered)))
def test_every_word_of_a_server_is_kept_but_an_approval_stands(store, judged: Judged, answer: Answered) -> None:
    manifest, _ = example_manifest()
    store.add_study(manifest)
    study = manifest.study_id
    store.judge(study, "S2", ANSWERS[judged], None if judged is Judged.APPROVED else "before")
    store.judge(study, "S2", answer, "after", ("one",))
    found = store.judgements(study)
    expected = Judged.APPROVED if judged is Judged.APPROVED else {v: k for k, v in ANSWERS.items()}[answer]
    assert found["S2"].state is JUDGEMENTS[judged, answer] is expected
    assert found["S2"].reason == (None if judged is Judged.APPROVED else "after")
    assert found["S1"].state is Judged.PENDING


@pytest.mark.parametrize(
    ("judged", "last", "expected"),
    [
        ([Judged.APPROVED, Judged.APPROVED, Judged.WAITING], None, StudyState.PROPOSED),
        ([Judged.APPROVED, Judged.REFUSED, Judged.APPROVED], None, StudyState.PROPOSED),
        ([Judged.APPROVED] * 3, None, StudyState.APPROVED),
        *(([Judged.APPROVED] * 3, state, StudyState.RUNNING) for state in State if state not in ENDED),
        ([Judged.APPROVED] * 3, State.RELEASED, StudyState.RELEASED),
        ([Judged.APPROVED] * 3, State.FAILED, StudyState.FAILED),
    ],
)
def test_a_study_is_what_its_servers_and_its_last_run_make_it(judged, last, expected) -> None:
    assert study_state(judged, last) is expected


def test_a_manifest_is_read_once(store) -> None:
    manifest, _ = example_manifest()
    store.add_study(manifest)
    first = store.manifest(manifest.study_id)
    assert first == manifest
    assert store.manifest(manifest.study_id) is first
    assert store.manifest("0" * 64) is None
