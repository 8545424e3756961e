"""A run names the build that began it. No build takes up one whose build is unknown."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0002"
down_revision = "mpc_server_0001"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("runs", sa.Column("build", sa.String(length=64), nullable=False, server_default="unknown"))
