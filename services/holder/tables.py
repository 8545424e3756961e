"""All of a holder's database tables. No row of an owner's table, no seed and no share is in here: those are files.

Signed documents are text in JSON.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Integer, MetaData, String, Table, Text, false

metadata = MetaData()

studies = Table(
    "holder_studies",
    metadata,
    Column("study", String(64), primary_key=True),
    Column("manifest", Text, nullable=False),
    Column("state", String(16), nullable=False),  # State
    Column("approval", Text),  # Signed[Approval]
    Column("approval_sent", Boolean, nullable=False, default=False),
    Column("decline", Text),  # Signed[Decline]
    Column("decline_sent", Boolean, nullable=False, default=False, server_default=false()),
    Column("approval_problem", Text),  # JSON: why the coordinator does not have the approval, or the decline
)

owner_tables = Table(
    "holder_tables",
    metadata,
    Column("study", ForeignKey(studies.c.study), primary_key=True),
    Column("file", String(64), nullable=False),
    Column("media_type", String(64), nullable=False),  # Sent.kept: the format and, if it was stated, the encoding
    Column("digest", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("report", Text, nullable=False),  # TableReport
)

contributions = Table(
    "holder_contributions",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("contribution", String(64), unique=True, nullable=False),
    Column("study", ForeignKey(studies.c.study), nullable=False),
    Column("folder", String(64), nullable=False),
    Column("document", Text, nullable=False),  # Signed[Contribution]
    Column("goal", String(16), nullable=False),  # Goal
    Column("fingerprint", String(64)),  # of the rows; NULL if it was made before there were any
)

matchings = Table(
    "holder_matchings",
    metadata,
    Column("study", ForeignKey(studies.c.study), primary_key=True),
    Column("folder", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("wanted", Boolean, nullable=False),
    Column("problems", Text, nullable=False),  # JSON object: what servers objected to, by their names
)

deliveries = Table(
    "holder_deliveries",
    metadata,
    Column("contribution", ForeignKey(contributions.c.contribution), primary_key=True),
    Column("server", String(64), primary_key=True),
    Column("state", String(16), nullable=False),  # Delivery
    Column("accepted", Text),  # Signed[Receipt]
    Column("withdrawn", Text),  # Signed[Receipt]
    Column("problem", Text),  # JSON
)
