"""The one way in which a state is changed: read within the transaction, looked up in its table, written."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Table, select, update

from services.mpc_server.storage.states import Event, Machine, State


def change(
    within: Connection,
    table: Table,
    this: ColumnElement[bool],
    machine: Machine[State, Event],
    event: Event,
    values: dict[str, object],
) -> State:
    """Write the state that an event leads to, with other values. Raises LocalError where it cannot happen."""
    state = machine.after(within.execute(select(table.c.state).where(this)).scalar_one(), event)
    within.execute(update(table).where(this).values(state=state, **values))
    return state
