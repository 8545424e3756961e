"""Rows of pairs: what a server and a peer drew for each other in a study, encrypted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from services.mpc_server.storage.tables import pairs


def find(within: Connection, study: str, peer: str) -> Row[Any] | None:
    """What is kept for a pair."""
    return within.execute(select(pairs).where(pairs.c.study == study, pairs.c.peer == peer)).first()


def add(within: Connection, study: str, peer: str, drawn: bytes) -> None:
    """Record what was drawn for a peer."""
    within.execute(insert(pairs).values(study=study, peer=peer, drawn=drawn))


def set_received(within: Connection, study: str, peer: str, received: bytes) -> None:
    """Record what a peer sent."""
    within.execute(update(pairs).where(pairs.c.study == study, pairs.c.peer == peer).values(received=received))


def forget(within: Connection, study: str) -> None:
    """Forget all pairs of a study."""
    within.execute(delete(pairs).where(pairs.c.study == study))
