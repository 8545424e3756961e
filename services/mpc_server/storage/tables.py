"""All of an MPC server's tables. Rows hold public documents and states; shares are files.

Digests and signed documents are text in canonical JSON. Nothing here is ever updated except the columns `state`,
`receipt`, `wrapped_key`, `join_key`, `given`, `received`, `interrupted`, `answer` and those of peers' acknowledgements;
a later head of the same run replaces the earlier one. The ledger is append-only.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

studies = Table(
    "studies",
    metadata,
    Column("study", String(64), primary_key=True),
    Column("manifest", Text, nullable=False),
    Column("state", String(16), nullable=False),  # `states.Study`
    Column("approval", Text),  # Signed[Approval]
    Column("decline", Text),  # Signed[Decline]; NULL once approved
    Column("wrapped_key", LargeBinary),  # the exchange key and the data key, encrypted; NULL once erased
    Column("join_key", LargeBinary),  # of a join by tags, encrypted; NULL before its first use and once sealed
    Column("seal", Text),  # Signed[Seal]
    Column("approvals", Text),  # JSON array of Signed[Approval]: servers and holders, as sealed
    Column("created_at", String(32), nullable=False),
    Column("sealed_at", String(32)),
)

contributions = Table(
    "contributions",
    metadata,
    Column("contribution", String(64), primary_key=True),
    Column("study", String(64), ForeignKey("studies.study"), nullable=False, index=True),
    Column("holder", String(63), nullable=False),
    Column("offer", Text, nullable=False),  # Signed[Contribution], without the openings
    Column("state", String(16), nullable=False),  # `states.Contribution`
    Column("wrapped_key", LargeBinary),  # of its files and openings; NULL once withdrawn or erased
    Column("openings", LargeBinary),  # nonces and seeds, encrypted under that key
    Column("receipt", Text),  # the latest Signed[Receipt]
)

chunks = Table(
    "chunks",
    metadata,
    Column("contribution", String(64), ForeignKey("contributions.contribution"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False),  # of the encrypted chunk on disk
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("holder", String(63), primary_key=True),
    Column("batch", String(64), primary_key=True),  # SHA-256 of the blinded elements: a repetition is not counted
    Column("elements", Integer, nullable=False),
)

tags = Table(
    "tags",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("holder", String(63), primary_key=True),
    Column("sha256", String(64), nullable=False),  # of the tags, which are a blob
    Column("given", Boolean, nullable=False),  # whether positions were given
)

pairs = Table(
    "pairs",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("peer", String(63), primary_key=True),  # rows are deleted when the study's shares are erased
    Column("drawn", LargeBinary, nullable=False),  # a secret for the peer and its ciphertext, encrypted
    Column("received", LargeBinary),  # the peer's public keys and what it drew, encrypted
)

runs = Table(
    "runs",
    metadata,
    Column("run", String(32), primary_key=True),
    Column("study", String(64), ForeignKey("studies.study"), nullable=False),
    Column("inputs", String(64), nullable=False),
    Column("build", String(64), nullable=False),  # the build that began it; no other resumes it
    Column("state", String(16), nullable=False),  # `states.Run`
    Column("reason", Text),
    Column("attestation", Text),
    # Sessions that computed and are not known to have ended between two computations.
    Column("interrupted", Integer, nullable=False, server_default="0"),
)

steps = Table(
    "steps",
    metadata,
    Column("run", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("request", Text, nullable=False),  # canonical JSON of the request
    Column("digest", String(64), nullable=False),
    Column("acknowledgements", Text),  # JSON: the peers' signatures on the charge
    Column("answer", Text),  # Signed[Answer]
)

ledger = Table(
    "ledger",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("record", Text, nullable=False),  # canonical JSON; holds the previous record's hash
    Column("hash", String(64), nullable=False),
    # Members of the record, again, to find it by; `Ledger.verify` compares them with the text, which alone is hashed.
    Column("kind", String(16), nullable=False, index=True),
    Column("run", String(32), nullable=False, index=True),
    Column("population", String(63), index=True),
    UniqueConstraint("hash"),
)

heads = Table(
    "heads",
    metadata,
    Column("key", String(64), primary_key=True),  # the signing key of the server whose ledger it is, also this one's
    Column("run", String(32), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("head", Text, nullable=False),  # Signed[LedgerHead]
)
