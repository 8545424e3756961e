"""Rows of runs and of their steps. Steps are written by `services.mpc_server.runs.record`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from services.mpc_server.storage import states
from services.mpc_server.storage.rows.changing import change as change_state
from services.mpc_server.storage.tables import runs, steps


def find(within: Connection, run: str) -> Row[Any] | None:
    """A run."""
    return within.execute(select(runs).where(runs.c.run == run)).first()


def of_study(within: Connection, study: str) -> Sequence[Row[Any]]:
    """The runs of a study."""
    return within.execute(select(runs).where(runs.c.study == study)).all()


def listed(within: Connection) -> Sequence[Row[Any, Any, Any, Any]]:
    """All runs, in no order."""
    return within.execute(select(runs.c.run, runs.c.study, runs.c.state, runs.c.reason)).all()


def going(within: Connection) -> Sequence[Row[Any]]:
    """The runs of all studies that have neither ended nor failed."""
    return within.execute(select(runs).where(runs.c.state == states.Run.GOING)).all()


def counted(within: Connection) -> dict[states.Run, int]:
    """The number of runs in each state."""
    found = {row[0]: int(row[1]) for row in within.execute(select(runs.c.state, func.count()).group_by(runs.c.state))}
    return {state: found.get(state, 0) for state in states.Run}


def add(within: Connection, run: str, study: str, inputs: str, build: str) -> None:
    """Add a run."""
    row = {"run": run, "study": study, "inputs": inputs, "build": build}
    within.execute(runs.insert().values(**row, state=states.RUN.first))


def change(within: Connection, run: str, event: states.RunEvent, **values: object) -> None:
    """Change a run as an event demands. Raises LocalError if the event cannot happen."""
    change_state(within, runs, runs.c.run == run, states.RUN, event, values)


def count_interrupted(within: Connection, run: str, more: int) -> None:
    """Add to the number of interrupted sessions of a run."""
    within.execute(update(runs).where(runs.c.run == run).values(interrupted=runs.c.interrupted + more))


def interrupted(within: Connection, study: str) -> int:
    """The number of interrupted sessions of all runs of a study."""
    found = select(func.coalesce(func.sum(runs.c.interrupted), 0)).where(runs.c.study == study)
    return int(within.execute(found).scalar_one())


def steps_from(within: Connection, run: str, first: int) -> int:
    """How many steps are recorded, counting from number `first`."""
    found = select(func.count()).select_from(steps).where(steps.c.run == run, steps.c.step >= first)
    return within.execute(found).scalar_one()


def answered(within: Connection, run: str) -> int:
    """How many steps have answers."""
    found = select(func.count()).select_from(steps).where(steps.c.run == run, steps.c.answer.is_not(None))
    return within.execute(found).scalar_one()


def answer(within: Connection, run: str, step: int) -> str | None:
    """The answer to a step, if it has one."""
    return within.execute(select(steps.c.answer).where(steps.c.run == run, steps.c.step == step)).scalar()
