"""The tables as they first were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "ledger",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "studies",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("objections", sa.Text(), nullable=False),
        sa.Column("approval", sa.Text(), nullable=True),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=True),
        sa.Column("join_key", sa.LargeBinary(), nullable=True),
        sa.Column("seal", sa.Text(), nullable=True),
        sa.Column("approvals", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("sealed_at", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "contributions",
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("offer", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=True),
        sa.Column("openings", sa.LargeBinary(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("contribution"),
    )
    op.create_index(op.f("ix_contributions_study"), "contributions", ["study"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("batch", sa.String(length=64), nullable=False),
        sa.Column("elements", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "holder", "batch"),
    )
    op.create_table(
        "tags",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("given", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "holder"),
    )
    op.create_table(
        "runs",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("inputs", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("attestation", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("run"),
    )
    op.create_table(
        "chunks",
        sa.Column("contribution", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["contribution"],
            ["contributions.contribution"],
        ),
        sa.PrimaryKeyConstraint("contribution", "number"),
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("acknowledgements", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("run", "step"),
    )
