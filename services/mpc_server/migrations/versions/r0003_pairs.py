"""Servers keep what they drew for each other; approvals carry the digest of an exchange key in place of the key.

An approval of the form before is none any more, and a study waits to be approved again. Its shares stay.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0003"
down_revision = "mpc_server_0002"


def upgrade() -> None:
    """From the revision before."""
    op.create_table(
        "pairs",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("peer", sa.String(length=63), nullable=False),
        sa.Column("drawn", sa.LargeBinary(), nullable=False),
        sa.Column("received", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "peer"),
    )
    op.execute("UPDATE studies SET state = 'judged', wrapped_key = NULL, seal = NULL WHERE state <> 'erased'")
    op.execute("UPDATE studies SET approval = NULL, approvals = NULL")
