"""Rows of contributions, and of their chunks that have arrived."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select

from services.mpc_server.storage import states
from services.mpc_server.storage.rows.changing import change as change_state
from services.mpc_server.storage.tables import chunks, contributions


def find(within: Connection, contribution: str) -> Row[Any] | None:
    """A contribution."""
    return within.execute(select(contributions).where(contributions.c.contribution == contribution)).first()


def of_study(within: Connection, study: str) -> Sequence[Row[Any]]:
    """All contributions to a study, by id."""
    own = select(contributions).where(contributions.c.study == study)
    return within.execute(own.order_by(contributions.c.contribution)).all()


def chosen(within: Connection, ids: Collection[str]) -> Sequence[Row[Any]]:
    """The contributions with these ids."""
    return within.execute(select(contributions).where(contributions.c.contribution.in_(ids))).all()


def present(within: Connection, study: str, holder: str) -> str | None:
    """A holder's contribution whose keys are kept, if there is one."""
    own = (contributions.c.study == study) & (contributions.c.holder == holder)
    found = select(contributions.c.contribution).where(own, contributions.c.state.in_(states.PRESENT))
    return within.execute(found).scalars().first()


def made(within: Connection, study: str, holder: str) -> int:
    """How many contributions a holder has made to a study, whatever became of them."""
    own = (contributions.c.study == study) & (contributions.c.holder == holder)
    return within.execute(select(func.count()).select_from(contributions).where(own)).scalar_one()


def gone(within: Connection) -> list[str]:
    """The ids of all contributions, in any study, whose keys were forgotten."""
    found = select(contributions.c.contribution).where(contributions.c.state.in_(states.GONE))
    return list(within.execute(found).scalars())


def add(within: Connection, **values: object) -> None:
    """Add a contribution."""
    within.execute(insert(contributions).values(state=states.CONTRIBUTION.first, **values))


def change(within: Connection, contribution: str, event: states.ContributionEvent, **values: object) -> None:
    """Change a contribution as an event demands. Raises LocalError if the event cannot happen."""
    this = contributions.c.contribution == contribution
    change_state(within, contributions, this, states.CONTRIBUTION, event, values)


def chunks_of(within: Connection, contribution: str) -> dict[int, str]:
    """The checksums of its chunks, by number, in order."""
    found = select(chunks.c.number, chunks.c.sha256).where(chunks.c.contribution == contribution)
    return {row.number: row.sha256 for row in within.execute(found.order_by(chunks.c.number))}


def checksum(within: Connection, contribution: str, number: int) -> str | None:
    """The checksum of one chunk, if it is here."""
    this = (chunks.c.contribution == contribution) & (chunks.c.number == number)
    return within.execute(select(chunks.c.sha256).where(this)).scalar()


def add_chunk(within: Connection, contribution: str, number: int, sha256: str) -> None:
    """Record that a chunk is on disk."""
    within.execute(insert(chunks).values(contribution=contribution, number=number, sha256=sha256))


def drop_chunk(within: Connection, contribution: str, number: int) -> None:
    """Forget a chunk that will be replaced."""
    within.execute(delete(chunks).where(chunks.c.contribution == contribution, chunks.c.number == number))


def drop_chunks(within: Connection, contribution: str) -> None:
    """Forget all chunks of a contribution."""
    within.execute(delete(chunks).where(chunks.c.contribution == contribution))
