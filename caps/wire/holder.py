"""The holder's REST interface, for people of its own organisation: what its routes take and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel

from caps.basics.document import Document, Hex32, Url
from caps.data.joinkey import KeyReport
from caps.data.schema import ColumnReport
from caps.wire.documents import Approval, Contribution, Receipt, Signed

STATEMENT = (
    "Each server receives two of three components. Every two of them are independent, uniformly random words, whatever "
    "the table holds; all three add up to the values shared. One server alone learns nothing of them, two together "
    "learn all. No row, no count and no value leaves the site in the clear."
)
PUBLIC = (
    "the study's manifest: schema, workload, privacy, parties",
    "this holder's name, keys and address on the network",
    "that it approved and contributed, and when",
    "sizes of the messages, which follow from the manifest alone",
)


class State(StrEnum):
    """How far a study has come here."""

    KNOWN = "known"
    APPROVED = "approved"
    LOADED = "loaded"
    CONTRIBUTED = "contributed"
    WITHDRAWN = "withdrawn"


class Goal(StrEnum):
    """What is to become of a contribution, and whether it has."""

    MATCHING = "matching"
    PUSHING = "pushing"
    COMPLETE = "complete"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"


class Delivery(StrEnum):
    """A contribution at one server. `absent`: the server never had it when it was withdrawn."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    WITHDRAWN = "withdrawn"
    ABSENT = "absent"


class Invitation(Document):
    """Where a study's manifest is, and the digest that it must have."""

    coordinator: Url
    study: Hex32


class StudyView(BaseModel):
    """A study at this holder. problem: why the coordinator does not have the approval yet."""

    study: str
    title: str
    state: State
    holder: str
    approval: Signed[Approval] | None
    approval_sent: bool
    problem: dict[str, Any] | None
    table: bool


class DeliveryView(BaseModel):
    """A contribution at one server: bytes of the vector it has, of how many; what it signed; what it objects to."""

    server: str
    state: Delivery
    sent: int
    of: int
    receipt: Signed[Receipt] | None
    withdrawal: Signed[Receipt] | None
    problem: dict[str, Any] | None


class ContributionView(BaseModel):
    """A contribution and how far it has come. While rows that are joined by tags are `matching`, there is none yet, and
    servers have sent some bytes of evaluations instead."""

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
    """What was found in a table. The counts are exact, hence for its owner alone."""

    rows: int
    columns: list[ColumnReport]
    alignment: SlotCounts | None = None
    join: KeyReport | None = None
    """Where rows are joined by a key."""


class Part(BaseModel):
    """A marginal, by its attributes, or the block of one column; cells: how many counts, or one-hot columns, it has."""

    attributes: list[str]
    cells: int


class ComponentPreview(BaseModel):
    """One of the three components, as a server receives it."""

    component: int
    kind: Literal["seed", "vector"]
    bytes: int


class ServerPreview(BaseModel):
    """What one server would receive: bodies of requests, without the overhead of HTTP and TLS."""

    server: str
    url: str
    components: list[ComponentPreview]
    elements: int
    """Blinded elements, of 32 bytes, where rows are joined by tags."""
    tags: int
    """Of 16 bytes; to S1 alone."""
    offer_bytes: int
    vector_bytes: int
    chunks: int
    total_bytes: int


class Preview(BaseModel):
    """What would leave the site. The numbers of a table play no part in any size."""

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
    """What the guarantee covers, of what is published and of what each party sees; and what it does not."""
    statement: str = STATEMENT
    public: list[str] = list(PUBLIC)
