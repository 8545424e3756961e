"""Rows of studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from services.mpc_server.storage import states
from services.mpc_server.storage.rows.changing import change as change_state
from services.mpc_server.storage.tables import studies

_STATE = [column for column in studies.c if column is not studies.c.manifest]
"""All but the manifest, which is large with many holders, and is asked for once."""


def find(within: Connection, study: str) -> Row[Any] | None:
    """A study, without its manifest."""
    return within.execute(select(*_STATE).where(studies.c.study == study)).first()


def manifest(within: Connection, study: str) -> str:
    """The manifest of a study that is known."""
    found: str = within.execute(select(studies.c.manifest).where(studies.c.study == study)).scalar_one()
    return found


def lock(within: Connection, study: str) -> Row[Any] | None:
    """The same, locked so that nobody else changes it until the transaction ends."""
    return within.execute(select(*_STATE).where(studies.c.study == study).with_for_update()).first()


def listed(within: Connection) -> Sequence[Row[Any]]:
    """All studies, the oldest first, without their manifests."""
    return within.execute(select(*_STATE).order_by(studies.c.created_at)).all()


def brief(within: Connection) -> Sequence[Row[Any, Any, Any]]:
    """All studies, the oldest first: ids, states and times, without their manifests."""
    columns = select(studies.c.study, studies.c.state, studies.c.created_at)
    return within.execute(columns.order_by(studies.c.created_at, studies.c.study)).all()


def kept(within: Connection) -> Sequence[Row[Any, Any, Any]]:
    """The studies whose shares are not erased: ids and times, without their manifests."""
    brief = select(studies.c.study, studies.c.created_at, studies.c.sealed_at)
    return within.execute(brief.where(studies.c.state != states.Study.ERASED)).all()


def names(within: Connection, state: states.Study) -> list[str]:
    """The ids of the studies in a state."""
    return list(within.execute(select(studies.c.study).where(studies.c.state == state)).scalars())


def add(within: Connection, study: str, manifest: str, at: str) -> None:
    """Add a study."""
    first = {"study": study, "state": states.STUDY.first, "created_at": at}
    within.execute(insert(studies).values(**first, manifest=manifest))


def change(within: Connection, study: str, event: states.StudyEvent, **values: object) -> None:
    """Change a study as an event demands. Raises LocalError if the event cannot happen."""
    change_state(within, studies, studies.c.study == study, states.STUDY, event, values)


def set_join_key(within: Connection, study: str, wrapped: bytes | None) -> None:
    """Keep the key of a join by tags, or forget it."""
    within.execute(update(studies).where(studies.c.study == study).values(join_key=wrapped))
