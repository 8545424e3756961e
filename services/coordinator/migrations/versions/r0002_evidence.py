"""Servers' evidence that one of them deviates from the protocol is kept with the run that it ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0002"
down_revision = "coordinator_0001"


def upgrade() -> None:
    """From the revision before."""
    op.create_table(
        "evidence",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("server", sa.String(length=63), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("run", "server"),
    )
