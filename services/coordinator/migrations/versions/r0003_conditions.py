"""A sample may have conditions that all its rows meet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0003"
down_revision = "coordinator_0002"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("samples", sa.Column("conditions", sa.Text(), nullable=True))
