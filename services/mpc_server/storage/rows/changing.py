"""The only way to change a state: read it within the transaction, look up the transition, write the result."""

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
    """Write the state that an event leads to, with other values. Raises LocalError if the event cannot happen."""
    state = machine.after(within.execute(select(table.c.state).where(this)).scalar_one(), event)
    within.execute(update(table).where(this).values(state=state, **values))
    return state
