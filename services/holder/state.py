"""A study at its holder, and what may be done with it when: two tables without I/O.

    known --decline--> declined --decline--> declined --approve--> approved
    known --approve--> approved --load--> loaded --contribute--> contributed --withdraw--> withdrawn
    withdrawn --load--> loaded, withdrawn --contribute--> contributed

A study is `contributed` from the moment its contribution is fixed: signed, and written down with its seeds. The
contribution then has a goal of its own, to be pushed or to be withdrawn, pursued until the servers have signed. Where
rows are joined by tags, positions come first: the study is `loaded` and its contribution to be, `matching`.
"""

from __future__ import annotations

from enum import StrEnum

from caps.service.problems import Problem
from caps.wire.holder import Delivery, Goal, State
from caps.wire.problems import Kind


class Event(StrEnum):
    """What the owner does."""

    APPROVE = "approve"
    DECLINE = "decline"
    LOAD = "load"
    ERASE = "erase"
    CONTRIBUTE = "contribute"
    WITHDRAW = "withdraw"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.KNOWN, Event.APPROVE): State.APPROVED,
    (State.KNOWN, Event.DECLINE): State.DECLINED,
    (State.DECLINED, Event.DECLINE): State.DECLINED,
    (State.DECLINED, Event.APPROVE): State.APPROVED,
    (State.APPROVED, Event.LOAD): State.LOADED,
    (State.LOADED, Event.LOAD): State.LOADED,
    (State.LOADED, Event.ERASE): State.APPROVED,
    (State.LOADED, Event.CONTRIBUTE): State.CONTRIBUTED,
    (State.CONTRIBUTED, Event.ERASE): State.CONTRIBUTED,
    (State.CONTRIBUTED, Event.WITHDRAW): State.WITHDRAWN,
    (State.WITHDRAWN, Event.LOAD): State.LOADED,
    (State.WITHDRAWN, Event.CONTRIBUTE): State.CONTRIBUTED,
    (State.WITHDRAWN, Event.ERASE): State.WITHDRAWN,
}
_FIRST = {
    Event.LOAD: "approve the study first",
    Event.CONTRIBUTE: "load a table first",
    Event.WITHDRAW: "nothing was contributed",
}


def after(state: State, event: Event) -> State:
    """The state that an event leads to. Raises a problem, 409, where it may not happen."""
    found = TRANSITIONS.get((state, event))
    if found is not None:
        return found
    if event is Event.DECLINE:
        raise Problem(
            Kind.CONFLICT,
            "the study is approved, and a signature stands: contribute nothing, or withdraw what was contributed",
        )
    if state is State.CONTRIBUTED:
        raise Problem(Kind.CONFLICT, f"a contribution was made: withdraw it before you {event} again")
    raise Problem(Kind.NOT_READY, f"the study is {state}: {_FIRST.get(event, 'there is nothing to ' + event)}")


GONE = frozenset({Delivery.WITHDRAWN, Delivery.ABSENT})


def settled(goal: Goal, deliveries: list[Delivery], refused: list[bool]) -> Goal:
    """The goal after news from the servers; `refused` says which of them will not do what is asked.

    A withdrawal that all refuse, because the contribution is sealed, leaves it as it was. If one of them has withdrawn
    it, nobody can compute on it any more, and the others are asked until they have withdrawn it, too.
    """
    if goal is Goal.PUSHING and all(one is Delivery.ACCEPTED for one in deliveries):
        return Goal.COMPLETE
    if goal is Goal.WITHDRAWING:
        if GONE.issuperset(deliveries):
            return Goal.WITHDRAWN
        if all(refused) and GONE.isdisjoint(deliveries):
            return Goal.COMPLETE if all(one is Delivery.ACCEPTED for one in deliveries) else Goal.PUSHING
    return goal
