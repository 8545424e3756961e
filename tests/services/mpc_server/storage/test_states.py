"""Every state of studies, contributions and runs meets every event: what may happen happens, the rest is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table

from caps.errors import LocalError
from services.mpc_server.storage import states, tables
from services.mpc_server.storage.rows import contributions, runs, studies
from tests.kit.federation import opened

ALLOWED = {
    "study": {
        "judged": {"approve": "approved", "decline": "declined", "erase": "erased"},
        "declined": {"approve": "approved", "decline": "declined", "erase": "erased"},
        "approved": {"seal": "sealed", "erase": "erased"},
        "sealed": {"seal": "sealed", "erase": "erased"},
        "erased": {"erase": "erased"},
    },
    "contribution": {
        "offered": {"complete": "complete", "withdraw": "withdrawn", "erase": "erased"},
        "complete": {"withdraw": "withdrawn", "erase": "erased"},
        "withdrawn": {},
        "erased": {},
    },
    "run": {
        "going": {"end": "ended", "fail": "failed", "abort": "aborted"},
        "ended": {},
        "failed": {},
        "aborted": {},
    },
}
KINDS: dict[str, tuple[Any, type[StrEnum], type[StrEnum]]] = {
    "study": (states.STUDY, states.Study, states.StudyEvent),
    "contribution": (states.CONTRIBUTION, states.Contribution, states.ContributionEvent),
    "run": (states.RUN, states.Run, states.RunEvent),
}
CHANGES: dict[str, tuple[Table, Callable[[Connection, str, Any], None]]] = {
    "study": (tables.studies, studies.change),
    "contribution": (tables.contributions, contributions.change),
    "run": (tables.runs, runs.change),
}
PAIRS = [(kind, *pair) for kind, (_, found, events) in KINDS.items() for pair in product(found, events)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Engine]:
    with opened(tmp_path / "state.db") as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_this_test_has_every_state(kind: str) -> None:
    machine, found, _ = KINDS[kind]
    assert set(ALLOWED[kind]) == set(found)
    assert machine.first == next(iter(ALLOWED[kind]))


@pytest.mark.parametrize(("kind", "state", "event"), PAIRS)
def test_every_state_meets_every_event(kind: str, state: StrEnum, event: StrEnum) -> None:
    machine = KINDS[kind][0]
    then = ALLOWED[kind][state].get(event)
    if then is not None:
        assert machine.after(state, event) == then
        return
    with pytest.raises(LocalError, match=f"cannot {event} a {kind} that is {state}"):
        machine.after(state, event)


@pytest.mark.parametrize(("kind", "state", "event"), PAIRS)
def test_the_database_follows(database: Engine, kind: str, state: StrEnum, event: StrEnum) -> None:
    table, change = CHANGES[kind]
    with database.begin() as connection:
        study = {"study": "one", "manifest": "{}", "created_at": "now"}
        connection.execute(tables.studies.insert().values(**study, state=state if kind == "study" else "sealed"))
        if kind == "contribution":
            row = {"contribution": "one", "study": "one", "holder": "lab", "offer": "{}"}
            connection.execute(table.insert().values(**row, state=state))
        if kind == "run":
            row = {"run": "one", "study": "one", "inputs": "", "build": ""}
            connection.execute(table.insert().values(**row, state=state))
    then = ALLOWED[kind][state].get(event)
    if then is None:
        with pytest.raises(LocalError), database.begin() as connection:
            change(connection, "one", event)
    else:
        with database.begin() as connection:
            change(connection, "one", event)
    with database.begin() as connection:
        assert connection.execute(table.select()).one().state == (then or state)
