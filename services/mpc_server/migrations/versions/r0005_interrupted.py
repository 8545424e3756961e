"""A run counts the sessions that ended in the middle of a computation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0005"
down_revision = "mpc_server_0004"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("runs", sa.Column("interrupted", sa.Integer(), nullable=False, server_default="0"))
