"""A contribution is recorded with the fingerprint of its rows; what was contributed before has none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "holder_0002"
down_revision = "holder_0001"


def upgrade() -> None:
    """From the revision before."""
    op.add_column("holder_contributions", sa.Column("fingerprint", sa.String(length=64), nullable=True))
