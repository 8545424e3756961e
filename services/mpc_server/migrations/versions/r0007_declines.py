"""An operator can decline a study, and says why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0007"
down_revision = "mpc_server_0006"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("studies", sa.Column("decline", sa.Text(), nullable=True))
