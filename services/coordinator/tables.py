"""All of the coordinator's tables. Everything in them is public, or opened and noisy; releases are files.

Signed documents are text in canonical JSON. Whatever must survive a crash is written before it is acted upon.
"""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, Text

metadata = MetaData()

studies = Table(
    "studies",
    metadata,
    Column("study", String(64), primary_key=True),
    Column("manifest", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
)

approvals = Table(
    "approvals",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("role", String(16), primary_key=True),  # mpc-server or holder
    Column("name", String(63), primary_key=True),
    Column("approval", Text, nullable=False),  # Signed[Approval]
)

declines = Table(
    "declines",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("role", String(16), primary_key=True),  # mpc-server or holder
    Column("name", String(63), primary_key=True),
    Column("decline", Text, nullable=False),  # Signed[Decline]
)

judgements = Table(
    "judgements",
    metadata,
    Column("study", String(64), ForeignKey("studies.study"), primary_key=True),
    Column("server", String(63), primary_key=True),
    Column("state", String(16), nullable=False),  # Judged
    Column("reason", Text),
    Column("objections", Text, nullable=False),  # JSON array of sentences
)

runs = Table(
    "runs",
    metadata,
    Column("run", String(32), primary_key=True),
    Column("number", Integer, nullable=False, unique=True),  # the order in which runs began
    Column("study", String(64), ForeignKey("studies.study"), nullable=False, index=True),
    Column("state", String(16), nullable=False),  # State
    Column("party", String(63)),
    Column("reason", Text),
    Column("contributions", Text, nullable=False),  # JSON object: holder of each contribution
    Column("seal_request", Text, nullable=False),  # SealRequest
    Column("inputs", String(64)),
    Column("sealed", Text),  # JSON array: contributions in the servers' order
    Column("seed", String(64)),  # of the release's rows
    Column("published_at", String(32)),
    Column("created_at", String(32), nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("run", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("request", Text, nullable=False),  # canonical JSON
    Column("digest", String(64), nullable=False),
    Column("answers", Text),  # JSON array of Signed[Answer], one of each server
)

events = Table(
    "events",
    metadata,
    Column("run", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),  # state or progress
    Column("body", Text, nullable=False),
    Column("at", String(32), nullable=False),
)

attestations = Table(
    "attestations",
    metadata,
    Column("run", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("server", String(63), primary_key=True),
    Column("attestation", Text, nullable=False),  # Signed[Attestation]
)

evidence = Table(
    "evidence",
    metadata,
    Column("run", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("server", String(63), primary_key=True),
    Column("evidence", Text, nullable=False),  # Signed[Evidence]
)

releases = Table(
    "releases",
    metadata,
    Column("release", String(32), ForeignKey("runs.run"), primary_key=True),
    Column("certificate", Text, nullable=False),
    Column("files", Text, nullable=False),  # JSON object: size and SHA-256 of each file
    Column("created_at", String(32), nullable=False),
)

samples = Table(
    "samples",
    metadata,
    Column("sample", String(32), primary_key=True),
    Column("release", String(32), ForeignKey("releases.release"), nullable=False, index=True),
    Column("rows", Integer, nullable=False),
    Column("seed", String(64), nullable=False),
    Column("conditions", Text),  # JSON object: by column, the names of the cells that rows may have
    Column("files", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
)
