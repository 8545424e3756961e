"""The coordinator's REST interface: what its routes take and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

from caps.basics.document import Document, Hex32
from caps.wire.documents import Evidence, Signed

_FREE = "A sample is drawn from the published model and costs no privacy budget: the data are not used again."


_Name = Annotated[str, Field(max_length=200)]
Conditions = Annotated[
    dict[_Name, Annotated[list[_Name], Field(min_length=1, max_length=10_000)]], Field(min_length=1, max_length=1_000)
]


class Judged(StrEnum):
    """A server's decision on a study: pending if it has not been reached yet, waiting if its operator must decide."""

    PENDING = "pending"
    WAITING = "waiting"
    APPROVED = "approved"
    REFUSED = "refused"


class Declined(BaseModel):
    """A person said no. reason: for operators and auditors of this coordinator and for the party that declined."""

    at: str
    reason: str | None


class ServerView(BaseModel):
    """A server's decision on a study, with its reasons. declined: if it was its operator who said no."""

    server: str
    state: Judged
    reason: str | None
    objections: list[str]
    declined: Declined | None = None


class HolderView(BaseModel):
    """Whether a holder has approved the study, or declined it."""

    holder: str
    approved: bool
    declined: Declined | None = None


class StudyView(BaseModel):
    """A study; `missing` lists the parties that have not approved it yet."""

    study: str
    title: str
    state: str
    proposed_at: str
    servers: list[ServerView]
    holders: list[HolderView]
    missing: list[str]
    runs: list[str]
    releases: list[str]


class PartView(BaseModel):
    """What a holder has done. `contribution` is set if all servers hold the same one."""

    holder: str
    approved: bool
    held_by: list[str]
    contribution: str | None
    complete: bool


class ParticipationView(BaseModel):
    """What all holders have done; `unreached` says which servers could not be asked, and why."""

    study: str
    holders: list[PartView]
    unreached: dict[str, str]


class StartBody(Document):
    """Which holders' contributions to compute on; if not given, all complete ones. Sealing is final."""

    holders: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)] | None = None


class RunView(BaseModel):
    """A run. `percent` is of the privacy budget; `party` and `reason` say what the run waits for or why it failed.

    fit_seconds: if a model is being fitted, about how long that takes in all.
    holders: whose contributions are computed on. refused: whose contributions failed the servers' checks.
    evidence: if servers aborted the run because one of them deviates from the protocol, what each of them signed.
    """

    run: str
    study: str
    state: str
    party: str | None
    reason: str | None
    holders: list[str]
    refused: list[str] = Field(default=[])
    percent: float
    round: int | None
    stage: str | None
    measured: list[list[str]]
    model_bytes: int | None
    fit_seconds: float | None = None
    steps: int
    created_at: str
    release: str | None
    evidence: list[Signed[Evidence]] = Field(default=[])


class ServerRunView(BaseModel):
    """A run as one of its servers sees it. problem: why there is no status, in words.

    rounds and bytes_sent are since that server's process began, as far as it remembers.
    """

    server: str
    state: str | None = None
    party: str | None = None
    reason: str | None = None
    position: int | None = None
    due: str | None = None
    rounds: int | None = None
    bytes_sent: int | None = None
    interrupted: int | None = None
    problem: str | None = None


class RunChanged(BaseModel):
    """The event `state` of a run: its new state."""

    at: str | None = None
    state: str
    party: str | None
    reason: str | None


class RunProgress(BaseModel):
    """The event `progress` of a run: what it is doing. All of it is public or follows from opened, noisy values.

    error: after a measurement, the L1 distance between the noisy answer and the previous model's marginal; if the study
    publishes its measurements.
    annealed: whether the next rounds spend more. fit_seconds: how long the fit that begins now will take, about.
    """

    at: str | None = None
    round: int
    stage: str
    clique: list[str] | None
    rho_spent: float
    rho: float
    model_bytes: int | None
    error: float | None
    annealed: bool
    fit_seconds: float | None = None


class FileView(BaseModel):
    """The rows in one format."""

    format: str
    media_type: str
    bytes: int
    sha256: str


class ReleaseView(BaseModel):
    """A release. `measurements`: whether the measurements, and the transcript that contains them, are published."""

    release: str
    study: str
    title: str
    rows: int
    epsilon: str
    delta: str
    certified: bool
    created_at: str
    data: list[FileView]
    measurements: bool
    resamples: bool
    samples: list[str]


class SampleBody(Document):
    """A request for a sample. rows: if not given, as many as the release has. seed: if not given, a random one.

    where: by column, the names of the cells that rows may have, as measurements name them. Each row meets all of it.
    """

    rows: int | None = None
    seed: Hex32 | None = None
    where: Conditions | None = None


class SampleView(BaseModel):
    """A further sample of a release's model."""

    sample: str
    release: str
    rows: int
    seed: str
    where: dict[str, list[str]] | None = None
    created_at: str
    data: list[FileView]
    privacy: str = _FREE
