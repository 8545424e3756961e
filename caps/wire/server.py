"""An MPC server's REST interface: what its routes return apart from the documents that it signs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from caps.basics.document import Document, Sentence
from caps.wire.documents import Approval, Decline, Seal, Signed


class LedgerRecord(BaseModel):
    """A record of a server's privacy ledger with its hash. Each kind has further members."""

    model_config = ConfigDict(extra="allow")
    number: int
    previous: str
    at: str
    kind: Literal["reserve", "charge", "close", "release", "abort"]
    study: str
    run: str
    hash: str


class PopulationState(BaseModel):
    """What all studies of a population may cost its persons on one server, and what is set aside of it already.

    epsilon, delta: the limit of this server's policy; epsilon is None if it refuses the population. used: epsilon of
    what is set aside, at that delta. left: the largest epsilon, at that delta, of one more study like this one.
    """

    server: str
    population: str
    epsilon: float | None
    delta: float
    used: float | None
    left: float


class DeclineBody(Document):
    """Why a study is declined, for its coordinator's operators."""

    reason: Sentence


class StudyState(Document):
    """The state of a study on one server. An approval is permanent; shares are kept until the state is `erased`.

    decline: for this server's people and the study's coordinator.
    """

    study: str
    state: Literal["judged", "declined", "approved", "sealed", "erased"]
    approval: Signed[Approval] | None = None
    decline: Signed[Decline] | None = None
    seal: Signed[Seal] | None = None
