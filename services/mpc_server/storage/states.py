"""The states of studies, contributions and runs on a server, and what may happen to each when: tables without I/O.

A study is first judged: its coordinator proposed it, and this server's policy has nothing against it. The operator, or
the policy itself, approves it; with the approval its keys are made, and holders may contribute. An operator may also
decline it, and think better of it later. The coordinator seals it when the inputs are chosen, and may seal different
inputs until a run exists. When its time is up, or the operator says so, its keys are erased. That may happen at any
point; repeating it changes nothing:

    judged --decline--> declined --decline--> declined --approve--> approved
    judged --approve--> approved --seal--> sealed --seal--> sealed
    any of them --erase--> erased

A contribution is offered by its holder, who then sends its chunks. It is complete once all of them are here and open
the commitment. The holder may withdraw it unless it is among the sealed inputs; it is erased with the study. In both
cases its keys are gone, and nothing more can happen to it:

    offered --complete--> complete
    offered, complete --withdraw--> withdrawn
    offered, complete --erase--> erased

A run is going from the moment its budget is reserved. It ends with this server's attestation. It fails when the
coordinator gives it up, or when this server finds that it can never go on. It is aborted when a check on shares fails,
here or at a peer that signs evidence of it. Nothing of this is ever taken back:

    going --end--> ended
    going --fail--> failed
    going --abort--> aborted

Waiting for a peer, or for another build of the software, is not a state: it follows from the present circumstances, and
ends with the process.

The tables say what is possible at all. Who may ask for it, and what else must be true, is checked where it is asked
for, with a `Problem` for the caller; an event in a state where it cannot happen is an error of this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from caps.errors import LocalError


class Study(StrEnum):
    """How far a study is on this server."""

    JUDGED = "judged"
    DECLINED = "declined"
    APPROVED = "approved"
    SEALED = "sealed"
    ERASED = "erased"


class StudyEvent(StrEnum):
    """What is done with a study."""

    APPROVE = "approve"
    DECLINE = "decline"
    SEAL = "seal"
    ERASE = "erase"


class Contribution(StrEnum):
    """How far a contribution is on this server."""

    OFFERED = "offered"
    COMPLETE = "complete"
    WITHDRAWN = "withdrawn"
    ERASED = "erased"


class ContributionEvent(StrEnum):
    """What is done with a contribution."""

    COMPLETE = "complete"
    WITHDRAW = "withdraw"
    ERASE = "erase"


class Run(StrEnum):
    """The recorded state of a run."""

    GOING = "going"
    ENDED = "ended"
    FAILED = "failed"
    ABORTED = "aborted"


class RunEvent(StrEnum):
    """What happens to a run."""

    END = "end"
    FAIL = "fail"
    ABORT = "abort"


State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class Machine(Generic[State, Event]):
    """The transitions of one kind of thing."""

    def __init__(self, noun: str, first: State, transitions: Mapping[tuple[State, Event], State]) -> None:
        self._noun = noun
        self.first = first
        self._after = {(str(state), str(event)): after for (state, event), after in transitions.items()}

    def after(self, state: str, event: Event) -> State:
        """The state that an event leads to. Raises LocalError if the event cannot happen in this state."""
        found = self._after.get((state, event))
        if found is not None:
            return found
        raise LocalError(f"cannot {event} a {self._noun} that is {state}")


UNDECIDED = (Study.JUDGED, Study.DECLINED)
"""The states of studies that are not approved; an operator may still decide either way."""
STUDY = Machine(
    "study",
    Study.JUDGED,
    {
        (Study.JUDGED, StudyEvent.APPROVE): Study.APPROVED,
        (Study.JUDGED, StudyEvent.DECLINE): Study.DECLINED,
        (Study.DECLINED, StudyEvent.DECLINE): Study.DECLINED,
        (Study.DECLINED, StudyEvent.APPROVE): Study.APPROVED,
        (Study.DECLINED, StudyEvent.ERASE): Study.ERASED,
        (Study.APPROVED, StudyEvent.SEAL): Study.SEALED,
        (Study.SEALED, StudyEvent.SEAL): Study.SEALED,
        (Study.JUDGED, StudyEvent.ERASE): Study.ERASED,
        (Study.APPROVED, StudyEvent.ERASE): Study.ERASED,
        (Study.SEALED, StudyEvent.ERASE): Study.ERASED,
        (Study.ERASED, StudyEvent.ERASE): Study.ERASED,
    },
)

CONTRIBUTION = Machine(
    "contribution",
    Contribution.OFFERED,
    {
        (Contribution.OFFERED, ContributionEvent.COMPLETE): Contribution.COMPLETE,
        (Contribution.OFFERED, ContributionEvent.WITHDRAW): Contribution.WITHDRAWN,
        (Contribution.COMPLETE, ContributionEvent.WITHDRAW): Contribution.WITHDRAWN,
        (Contribution.OFFERED, ContributionEvent.ERASE): Contribution.ERASED,
        (Contribution.COMPLETE, ContributionEvent.ERASE): Contribution.ERASED,
    },
)
PRESENT = (Contribution.OFFERED, Contribution.COMPLETE)
"""The states of contributions whose keys are kept."""
GONE = (Contribution.WITHDRAWN, Contribution.ERASED)
"""The states of contributions whose keys were forgotten."""

RUN = Machine(
    "run",
    Run.GOING,
    {
        (Run.GOING, RunEvent.END): Run.ENDED,
        (Run.GOING, RunEvent.FAIL): Run.FAILED,
        (Run.GOING, RunEvent.ABORT): Run.ABORTED,
    },
)
