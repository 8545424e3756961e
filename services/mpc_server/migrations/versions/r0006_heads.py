"""Servers keep signed heads of their own and of their peers' ledgers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0006"
down_revision = "mpc_server_0005"


def upgrade() -> None:
    """From the revision before."""
    op.create_table(
        "heads",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("head", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", "run"),
    )
