"""The tables as they first were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "coordinator_0001"
down_revision = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "studies",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("study"),
    )
    op.create_table(
        "approvals",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("approval", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "role", "name"),
    )
    op.create_table(
        "judgements",
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("objections", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("study", "server"),
    )
    op.create_table(
        "runs",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("study", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("party", sa.String(length=63), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("contributions", sa.Text(), nullable=False),
        sa.Column("seal_request", sa.Text(), nullable=False),
        sa.Column("inputs", sa.String(length=64), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("seed", sa.String(length=64), nullable=True),
        sa.Column("published_at", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["study"],
            ["studies.study"],
        ),
        sa.PrimaryKeyConstraint("run"),
        sa.UniqueConstraint("number"),
    )
    op.create_index(op.f("ix_runs_study"), "runs", ["study"], unique=False)
    op.create_table(
        "attestations",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("server", sa.String(length=63), nullable=False),
        sa.Column("attestation", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("run", "server"),
    )
    op.create_table(
        "events",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["run"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("run", "number"),
    )
    op.create_table(
        "releases",
        sa.Column("release", sa.String(length=32), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["release"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("release"),
    )
    op.create_table(
        "steps",
        sa.Column("run", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("answers", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run"],
            ["runs.run"],
        ),
        sa.PrimaryKeyConstraint("run", "step"),
    )
    op.create_table(
        "samples",
        sa.Column("sample", sa.String(length=32), nullable=False),
        sa.Column("release", sa.String(length=32), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("seed", sa.String(length=64), nullable=False),
        sa.Column("files", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["release"],
            ["releases.release"],
        ),
        sa.PrimaryKeyConstraint("sample"),
    )
    op.create_index(op.f("ix_samples_release"), "samples", ["release"], unique=False)
