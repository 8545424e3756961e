"""Records of the ledger are found by kind, run and population; a study has no column for objections, which had none."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "mpc_server_0004"
down_revision = "mpc_server_0003"

_MEMBERS = ("kind", "run", "population")


def upgrade() -> None:
    """From the revision before."""
    op.add_column("ledger", sa.Column("kind", sa.String(length=16), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("run", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("ledger", sa.Column("population", sa.String(length=63), nullable=True))
    ledger = sa.table("ledger", *map(sa.column, ("number", "record", *_MEMBERS)))
    connection = op.get_bind()
    for number, text in connection.execute(sa.select(ledger.c.number, ledger.c.record)).all():
        record = json.loads(text)
        members = {name: record[name] for name in _MEMBERS if name in record}
        connection.execute(sa.update(ledger).where(ledger.c.number == number).values(**members))
    for name in _MEMBERS:
        op.create_index(op.f(f"ix_ledger_{name}"), "ledger", [name], unique=False)
    op.drop_column("studies", "objections")
