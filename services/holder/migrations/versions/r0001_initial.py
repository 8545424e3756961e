"""The tables as they first were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "holder_0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "holder_studies",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("approval", sa.Text(), nullable=True),
        sa.Column("approval_sent", sa.Boolean(), nullable=False),
        sa.Column("approval_problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "holder_contributions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.String(length=64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("goal", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["holder_studies.study"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("contribution"),
    )
    op.create_table(
        "holder_tables",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("file", sa.String(length=64), nullable=False),
        sa.Column("media_type", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["holder_studies.study"],
        ),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "holder_matchings",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("folder", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("wanted", sa.Boolean(), nullable=False),
        sa.Column("problems", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["holder_studies.study"],
        ),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "holder_deliveries",
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("accepted", sa.Text(), nullable=True),
        sa.Column("withdrawn", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["contribution"],
            ["holder_contributions.contribution"],
        ),
        sa.PrimaryKeyConstraint("contribution", "server"),
    )
