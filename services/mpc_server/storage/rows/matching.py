"""Rows of joins by tags: what was evaluated for each holder, and whose tags have arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from services.mpc_server.storage.tables import evaluations, tags


def is_counted(within: Connection, study: str, holder: str, batch: str) -> bool:
    """Whether a batch was evaluated for a holder before."""
    own = (evaluations.c.study == study) & (evaluations.c.holder == holder)
    return within.execute(select(evaluations.c.batch).where(own, evaluations.c.batch == batch)).first() is not None


def evaluated(within: Connection, study: str, holder: str) -> int:
    """How many elements were evaluated for a holder."""
    own = (evaluations.c.study == study) & (evaluations.c.holder == holder)
    return int(within.execute(select(func.sum(evaluations.c.elements)).where(own)).scalar() or 0)


def count(within: Connection, study: str, holder: str, batch: str, elements: int) -> None:
    """Record that a batch was evaluated."""
    row = {"study": study, "holder": holder, "batch": batch, "elements": elements}
    within.execute(insert(evaluations).values(**row))


def tags_of(within: Connection, study: str) -> Sequence[Row[Any]]:
    """The tags of all holders that have sent theirs."""
    return within.execute(select(tags).where(tags.c.study == study)).all()


def replace_tags(within: Connection, study: str, holder: str, sha256: str) -> None:
    """Record a holder's tags, replacing earlier ones."""
    within.execute(delete(tags).where(tags.c.study == study, tags.c.holder == holder))
    within.execute(insert(tags).values(study=study, holder=holder, sha256=sha256, given=False))


def give(within: Connection, study: str) -> None:
    """Record that positions were given."""
    within.execute(update(tags).where(tags.c.study == study).values(given=True))


def forget(within: Connection, study: str) -> None:
    """Forget all that is recorded for a study's join."""
    for table in (evaluations, tags):
        within.execute(delete(table).where(table.c.study == study))
