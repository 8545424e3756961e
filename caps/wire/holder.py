"""The holder's REST interface, for people of its own organisation: what its routes take and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

from caps.basics.document import Document, Hex32, Name, Url
from caps.basics.schemes import Scheme
from caps.data.joinkey import KeyReport
from caps.data.schema import ColumnReport
from caps.wire.documents import Approval, Contribution, Decline, Receipt, Signed
from caps.wire.server import PopulationState

_NUMBERS = {2: "two", 3: "three", 4: "four"}
PUBLIC = (
    "the study's manifest: schema, workload, privacy, parties",
    "this holder's name, keys and network address",
    "that it approved, or declined and why, and contributed, and when",
    "the sizes of messages, which follow from the manifest alone",
)


def statement_of(scheme: Scheme) -> str:
    """What servers can learn from what they receive, in words for the owner of the data."""
    held, components = _NUMBERS[len(scheme.held[0])], _NUMBERS[scheme.components]
    return (
        f"Each server receives {held} of {components} components. Any {held} of them are independent, uniformly random "
        f"words, whatever the table contains; all {components} add up to the shared values. One server alone learns "
        "nothing about the values; two servers together learn all of them. No row, no count and no value leaves the "
        "site in the clear."
    )


class State(StrEnum):
    """The state of a study at this holder."""

    KNOWN = "known"
    DECLINED = "declined"
    APPROVED = "approved"
    LOADED = "loaded"
    CONTRIBUTED = "contributed"
    WITHDRAWN = "withdrawn"


class Goal(StrEnum):
    """What the holder is doing with a contribution, or has done."""

    MATCHING = "matching"
    PUSHING = "pushing"
    COMPLETE = "complete"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"


class Delivery(StrEnum):
    """The state of a contribution at one server. `absent`: it was withdrawn before the server had it."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
    ABSENT = "absent"


class Invitation(Document):
    """Where to fetch a study's manifest, and the digest it must have."""

    coordinator: Url
    study: Hex32


class SourceChoice(Document):
    """The source from which a study's table is read, by the name that the holder's operator gave it."""

    source: Name


class SourceView(BaseModel):
    """A source that the holder's operator declares: a file on the holder's machine, or a table of an engine."""

    source: str
    file: bool


class StudyView(BaseModel):
    """A study at this holder. problem: why the coordinator does not have the approval, or the decline, yet.

    loss: not in lists.

    views: what the guarantee covers of what is published and of what each party sees, and what follows if a
    contribution fails the servers' checks: this is what an approval agrees to.
    """

    study: str
    title: str
    state: State
    holder: str
    approval: Signed[Approval] | None
    approval_sent: bool
    decline: Signed[Decline] | None = None
    decline_sent: bool = False
    problem: dict[str, Any] | None
    table: bool
    views: list[str]
    loss: StudyLoss | None
    key_warnings: list[str] = []
    """Servers and coordinators that had another key in a study that was approved here before."""


class Loss(BaseModel):
    """What studies cost one person who is in all of them, under the worst of their relations and multiplicities.

    epsilon: at this delta, the sum of the studies'; None if nothing can be promised any more.
    """

    studies: int
    rho: float
    epsilon: float | None
    delta: float
    relation: str
    multiplicity: int


class StudyLoss(BaseModel):
    """What a study adds for its population, over all that this holder contributed: before it and with it."""

    population: str
    before: Loss | None
    after: Loss
    warnings: list[str]


class ServerBudget(BaseModel):
    """What a study's population has left on one server; or why the server does not say."""

    server: str
    state: PopulationState | None
    problem: str | None


class StudyBudget(BaseModel):
    """What a study costs its population: by this holder's own ledger, and by the ledgers of the servers."""

    loss: StudyLoss
    servers: list[ServerBudget]


class LedgerEntry(BaseModel):
    """A contribution in the owner's ledger. fingerprint: of its rows; None if it was made before there were any."""

    study: str
    title: str
    population: str
    contribution: str
    at: str
    state: Goal
    counted: bool
    fingerprint: str | None
    epsilon: str
    delta: str
    rho: float


class PopulationLoss(BaseModel):
    """What all studies of a population cost its persons."""

    population: str
    loss: Loss


class TableLoss(BaseModel):
    """What all studies cost to which the same rows were contributed, whatever their populations are called."""

    fingerprint: str
    populations: list[str]
    loss: Loss


class HolderLedger(BaseModel):
    """The owner's ledger. total: for a person who would be in every table; None if nothing is counted."""

    entries: list[LedgerEntry]
    populations: list[PopulationLoss]
    tables: list[TableLoss]
    total: Loss | None
    warnings: list[str]


class DeliveryView(BaseModel):
    """A contribution at one server: how many of the vector's bytes it has, what it signed, and its objection if any."""

    server: str
    state: Delivery
    sent: int
    of: int
    receipt: Signed[Receipt] | None
    withdrawal: Signed[Receipt] | None
    problem: dict[str, Any] | None


class ContributionView(BaseModel):
    """A contribution and its state. While rows that are joined by tags are `matching`, there is no contribution yet,
    and the bytes counted are those of the evaluations that servers have sent.
    """

    contribution: str | None
    state: Goal
    statement: Signed[Contribution] | None
    servers: list[DeliveryView]


class SlotCounts(BaseModel):
    """The `ColumnReport` of the column with the numbers of slots."""

    name: str
    missing: int
    out_of_range: int
    unparsable: int
    duplicate: int
    refused: int


class TableReport(BaseModel):
    """The result of checking a table. The counts are exact, so only its owner may see them."""

    rows: int
    columns: list[ColumnReport]
    alignment: SlotCounts | None = None
    join: KeyReport | None = None
    """Present if rows are joined by a key."""
    fingerprint: str | None = None
    """Of the rows, whatever their order: the same rows are recognised when they are contributed again."""


class Part(BaseModel):
    """A marginal, by its attributes, or the block of one column. cells: its number of counts or one-hot columns."""

    attributes: list[str]
    cells: int


class ComponentPreview(BaseModel):
    """A component, as a server receives it."""

    component: int
    kind: Literal["seed", "vector"]
    bytes: int


class ServerPreview(BaseModel):
    """What one server would receive: the bodies of requests, without the overhead of HTTP and TLS."""

    server: str
    url: str
    components: list[ComponentPreview]
    elements: int
    """The number of blinded elements of 32 bytes, if rows are joined by tags."""
    tags: int
    """The number of tags of 16 bytes; only S1 receives them."""
    offer_bytes: int
    vector_bytes: int
    chunks: int
    total_bytes: int


class Preview(BaseModel):
    """What would leave the site. No size depends on the contents of a table; only the warnings of `loss` do."""

    study: str
    holder: str
    loaded: bool
    form: str
    bits: int
    shape: list[int]
    parts: list[Part]
    servers: list[ServerPreview]
    total_bytes: int
    views: list[str]
    """What the guarantee covers, and what it does not, of what is published and of what each party sees."""
    statement: str
    """What servers can learn from what they receive."""
    loss: StudyLoss
    """What the study adds to what this holder's studies of the same persons cost."""
    public: list[str] = list(PUBLIC)
    source: str | None = None
    """The source from which the table is read, if it was not sent."""
    queries: list[str] = []
    """All that is asked of the source's engine, in its SQL. No answer leaves the site but in shares."""
    key_warnings: list[str] = []
    """Servers and coordinators that had another key in a study that was approved here before."""
