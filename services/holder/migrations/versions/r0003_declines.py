"""An owner can decline a study, and says why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "holder_0003"
down_revision = "holder_0002"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("holder_studies", sa.Column("decline", sa.Text(), nullable=True))
    op.add_column("holder_studies", sa.Column("decline_sent", sa.Boolean(), nullable=False, server_default=sa.false()))
