"""Parties decline studies, and say why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0004"
down_revision = "coordinator_0003"


def upgrade() -> None:
    """From the revision before."""
    op.create_table(
        "declines",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("decline", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "role", "name"),
    )
