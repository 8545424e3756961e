"""Where a study stands for its owner, and what is to be done next."""

from __future__ import annotations

from dataclasses import dataclass

from caps.service.pages.rendering import ROOT
from caps.wire.holder import Goal, State
from services.holder.service import HolderService
from services.holder.store import StudyRecord

TITLES = {
    "": "Agreement",
    "/table": "Table",
    "/leaves": "What leaves",
    "/contribution": "Contribution",
    "/release": "Release",
}
"""The pages of a study, in the order of the owner's work, by what their address ends with."""


@dataclass(frozen=True)
class Step:
    """The next thing to do: in which group a study is listed, its state in a word, and the page to go to."""

    group: int
    word: str
    kind: str
    label: str
    where: str


GROUPS = ("Waiting for you", "Under way", "Done")


def step_of(service: HolderService, record: StudyRecord) -> Step:
    """The next step of a study."""
    here = f"{ROOT}/studies/{record.study}"
    asked, made = service.store.matching(record.study), service.store.contribution(record.study)
    if record.state is State.KNOWN:
        return Step(0, "awaits your approval", "act", "Read and decide", here)
    if record.state is State.DECLINED:
        return Step(2, "declined", "note", "Show", here)
    if record.state is State.APPROVED:
        return Step(0, "needs your table", "warn", "Load the table", f"{here}/table")
    if asked is not None and asked.wanted:
        return Step(1, "is being matched", "note", "Show progress", f"{here}/contribution")
    if record.state is State.LOADED:
        return Step(0, "ready to contribute", "warn", "Look at what leaves", f"{here}/leaves")
    if made is not None and made.goal in (Goal.PUSHING, Goal.WITHDRAWING):
        word = "being sent" if made.goal is Goal.PUSHING else "being withdrawn"
        refused = any(one.problem is not None and not one.problem["retryable"] for one in made.deliveries)
        return Step(0 if refused else 1, word, "bad" if refused else "note", "Show progress", f"{here}/contribution")
    if record.state is State.CONTRIBUTED:
        return Step(2, "contributed", "good", "Receipts", f"{here}/contribution")
    return Step(2, "withdrawn", "note", "Show", f"{here}/contribution")


def done(service: HolderService, record: StudyRecord) -> set[str]:
    """The pages whose work is done."""
    found = set()
    if record.approval is not None:
        found.add("")
    if service.store.table(record.study) is not None:
        found.add("/table")
    made = service.store.contribution(record.study)
    if made is not None:
        found |= {"/table", "/leaves"}
        if made.goal is Goal.COMPLETE:
            found.add("/contribution")
    return found
