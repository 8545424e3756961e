"""The coordinator's REST interface: what its routes take and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field

from caps.basics.document import Document, Hex32

_FREE = "A sample is drawn from the published model and costs no privacy: the data are not consulted again."


class Judged(StrEnum):
    """What a server made of a study; pending if it was not reached yet, waiting if its operator decides."""

    PENDING = "pending"
    WAITING = "waiting"
    APPROVED = "approved"
    REFUSED = "refused"


class ServerView(BaseModel):
    """A server's word on a study."""

    server: str
    state: Judged
    reason: str | None
    objections: list[str]


class HolderView(BaseModel):
    """Whether a holder approved."""

    holder: str
    approved: bool


class StudyView(BaseModel):
    """A study; `missing` are parties whose approval is not there yet."""

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
    """What a holder has done. `contribution` is the one that all three servers hold alike."""

    holder: str
    approved: bool
    held_by: list[str]
    contribution: str | None
    complete: bool


class ParticipationView(BaseModel):
    """Of all holders; `unreached` says which servers could not be asked, and why."""

    study: str
    holders: list[PartView]
    unreached: dict[str, str]


class StartBody(Document):
    """Which holders' contributions to compute on; all that are complete if not given. Sealing is final."""

    holders: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)] | None = None


class RunView(BaseModel):
    """A run. `percent` is of the privacy budget; `party` and `reason` say what it waits for or why it failed."""

    run: str
    study: str
    state: str
    party: str | None
    reason: str | None
    holders: list[str]
    percent: float
    round: int | None
    stage: str | None
    measured: list[list[str]]
    model_bytes: int | None
    steps: int
    created_at: str
    release: str | None


class RunChanged(BaseModel):
    """An event of a run, `state`: where it is since then."""

    at: str | None = None
    state: str
    party: str | None
    reason: str | None


class RunProgress(BaseModel):
    """An event of a run, `progress`: what it does. All of it is public or follows from opened, noisy values.

    error: after a measurement, by how much (L1) the model before it was wrong there, as the noisy answer tells.
    annealed: the next rounds spend more.
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


class FileView(BaseModel):
    """A form of the rows."""

    format: str
    media_type: str
    bytes: int
    sha256: str


class ReleaseView(BaseModel):
    """A release. `measurements` says whether these and the transcript, which contains them, are published."""

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
    """rows: as many as the release if not given. seed: 64 hexadecimal digits; drawn if not given."""

    rows: int | None = None
    seed: Hex32 | None = None


class SampleView(BaseModel):
    """Further rows."""

    sample: str
    release: str
    rows: int
    seed: str
    created_at: str
    data: list[FileView]
    privacy: str = _FREE
