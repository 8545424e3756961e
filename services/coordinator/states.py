"""The states of a run, of a server's verdict on a study, and of a study, and the transitions between them; no I/O.

A run:

    queued --proceed--> running --publish--> publishing --release--> released
                          |  ^                   |           |
                     wait |  | proceed      wait |           | release
                          v  |                   v           |
                        waiting <----------------+-----------+

Any run that has not ended can fail. A run may have to wait for a party that is out of reach, or for its own disk, and
says which. That can happen both while steps are done and while the release is written, so a waiting run may go straight
to released. Only `released` and `failed` are final. A restart resumes every other run and repeats what came before from
the record: a run that was publishing stays so; one that was waiting proceeds, even if it was waiting to publish.

A server's verdict on a study is pending until the server is reached, and waiting while its operator decides. A refusal
may be taken back, because operators change their policies. An approval stands, whatever the server says when it is
asked again: it is signed, and others rely on it.

A study has no state of its own: its state follows from its servers' verdicts and from its last run.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from caps.errors import LocalError
from caps.wire.coordinator import Judged


class State(StrEnum):
    """Where a run is."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PUBLISHING = "publishing"
    RELEASED = "released"
    FAILED = "failed"


class RunEvent(StrEnum):
    """What happens to a run."""

    PROCEED = "proceed"
    WAIT = "wait"
    PUBLISH = "publish"
    RELEASE = "release"
    FAIL = "fail"


ENDED = frozenset({State.RELEASED, State.FAILED})
TRANSITIONS: dict[tuple[State, RunEvent], State] = {
    (State.QUEUED, RunEvent.PROCEED): State.RUNNING,
    (State.QUEUED, RunEvent.FAIL): State.FAILED,
    (State.RUNNING, RunEvent.WAIT): State.WAITING,
    (State.RUNNING, RunEvent.PUBLISH): State.PUBLISHING,
    (State.RUNNING, RunEvent.FAIL): State.FAILED,
    (State.WAITING, RunEvent.PROCEED): State.RUNNING,
    (State.WAITING, RunEvent.WAIT): State.WAITING,  # for another party, or for another reason
    (State.WAITING, RunEvent.RELEASE): State.RELEASED,
    (State.WAITING, RunEvent.FAIL): State.FAILED,
    (State.PUBLISHING, RunEvent.WAIT): State.WAITING,
    (State.PUBLISHING, RunEvent.PUBLISH): State.PUBLISHING,  # again, after a restart
    (State.PUBLISHING, RunEvent.RELEASE): State.RELEASED,
    (State.PUBLISHING, RunEvent.FAIL): State.FAILED,
}


def after(state: State, event: RunEvent) -> State:
    """The state that an event leads to. Raises LocalError if the event cannot happen in this state."""
    found = TRANSITIONS.get((state, event))
    if found is None:
        raise LocalError(f"a run that is {state} cannot {event}")
    return found


class Answered(StrEnum):
    """What a server answers when it is asked about a study."""

    NOTHING = "nothing"
    LATER = "later"
    YES = "yes"
    NO = "no"


_LED_TO = {
    Answered.NOTHING: Judged.PENDING,
    Answered.LATER: Judged.WAITING,
    Answered.YES: Judged.APPROVED,
    Answered.NO: Judged.REFUSED,
}
JUDGEMENTS: dict[tuple[Judged, Answered], Judged] = {
    (judged, answer): Judged.APPROVED if judged is Judged.APPROVED else led_to
    for judged in Judged
    for answer, led_to in _LED_TO.items()
}


class StudyState(StrEnum):
    """The state of a study, in one word."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    RUNNING = "running"
    RELEASED = "released"
    FAILED = "failed"


def study_state(judged: Iterable[Judged], last_run: State | None) -> StudyState:
    """The study's state, from its servers' verdicts and the state of its last run, if there was one."""
    match last_run:
        case None:
            approved = all(one is Judged.APPROVED for one in judged)
            return StudyState.APPROVED if approved else StudyState.PROPOSED
        case State.RELEASED:
            return StudyState.RELEASED
        case State.FAILED:
            return StudyState.FAILED
    return StudyState.RUNNING
