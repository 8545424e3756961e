"""The holder's service with the MPC servers' own routes and stores, over TLS: both sides mean the same contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caps.basics.retry import Backoff
from caps.service.app import create_app
from caps.service.database import open_database
from caps.service.identity import Caller, Machine
from caps.service.site import Site
from caps.study import Policy
from caps.wire.holder import Goal
from caps.wire.media import CSV
from services.holder import service, sharing
from services.holder.table import Sent
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.studies import Studies
from services.mpc_server.intake.studies_api import limits, router
from services.mpc_server.storage import tables
from services.mpc_server.storage.shares import ShareStore, Vault
from tests.kit.holder import HolderBench
from tests.kit.study import COLUMNS, POPULATIONS, SERVERS
from tests.kit.tls import serving
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

TABLE = "region,diagnosis\neast,A\nsouth,\n"


class Gate:
    """A server goes away after so many requests, and comes back when it is told to."""

    def __init__(self) -> None:
        self.left = 10**9

    def before(self, app: Any) -> Any:
        async def gated(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                if not self.left:
                    raise ConnectionAbortedError
                self.left -= 1
            await app(scope, receive, send)

        return gated


@pytest.fixture
def gates() -> dict[str, Gate]:
    return {}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gates: dict[str, Gate]) -> Iterator[HolderBench]:
    monkeypatch.setattr(sharing, "CHUNK_BYTES", 1 << 10)
    world = HolderBench(tmp_path, "lab", holders=COLUMNS, slots=1000)
    coordinator = world.manifest.coordinator
    caller = Caller(Machine("coordinator", coordinator.name, coordinator.pin))
    with ExitStack() as stack:
        site = world.site("coordinator", "coordinator")
        stack.enter_context(serving(world.coordinator_app(), site.credentials, world.sockets["coordinator"]))
        for name in SERVERS:
            site = world.site(name, "mpc-server")
            studies, contributions = server_of(site, stack)
            studies.receive(world.study, world.manifest, caller)
            app = create_app(
                service="mpc-server",
                name=name,
                description="",
                routers=[router(studies, contributions)],
                tokens=site.tokens,
                limits=limits(studies, contributions),
            )
            gates[name] = Gate()
            app.add_middleware(gates[name].before)
            stack.enter_context(serving(app, site.credentials, world.sockets[name]))
        yield world
    for one in world.sockets.values():
        one.close()


def server_of(site: Site, stack: ExitStack) -> tuple[Studies, Contributions]:
    database = open_database(site.settings.database, tables.metadata)
    stack.callback(database.dispose)
    store = ShareStore(site.settings.data / "shares", Vault(site.settings.home))
    studies = Studies(site, Policy(populations=POPULATIONS, approval="automatic"), database, store, mesh=3)
    return studies, Contributions(site, studies, database, store)


def test_pushed_withdrawn_and_pushed_again(world: HolderBench) -> None:
    with world.running() as holder:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        ids = []
        for _ in range(2):
            path = holder.upload_path(world.study)
            path.write_text(TABLE)
            holder.load(world.study, path, Sent.of(CSV), "00" * 32)
            ids.append(holder.contribute(world.study).contribution)
            until(lambda: holder.contribution(world.study).goal is Goal.COMPLETE)
            until(lambda: world.files() == ["table"])
            if len(ids) == 1:
                holder.withdraw(world.study)
                until(lambda: holder.contribution(world.study).goal is Goal.WITHDRAWN)
        record = holder.contribution(world.study)
        assert [one.accepted is not None for one in record.deliveries] == [True] * 3
        assert ids[0] != ids[1]
        assert record.document.document.chunks == -(-1000 * 7 * 2 // 1024)
        assert np.prod(record.document.document.shape) == 7000


def kept(world: HolderBench, name: str) -> tuple[int, int, list[str | None]]:
    """Of a server's disk: files of shares, keys of contributions, and what the last receipts say."""
    site = world.site(name, "mpc-server")
    files = [path for path in (site.settings.data / "shares").rglob("*") if path.is_file()]
    database = open_database(site.settings.database, tables.metadata)
    with database.connect() as connection:
        rows = connection.execute(tables.contributions.select()).all()
    database.dispose()
    keys = [row for row in rows if row.wrapped_key is not None or row.openings is not None]
    return len(files), len(keys), [row.state for row in rows]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("answered", [0, 1, 3, 10**9], ids=["nothing", "the offer", "some chunks", "everything"])
def test_withdrawn_in_whatever_state_the_upload_is(
    world: HolderBench, gates: dict[str, Gate], monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """S2 has got so much of it and is away; the others are rid of it at once, and S2 when it is back."""
    monkeypatch.setattr(service, "_PATIENCE", 1.0)
    with world.running(backoff=Backoff(first=0.05, longest=0.05)) as holder:
        holder.know(world.urls["coordinator"], world.study)
        holder.approve(world.study)
        path = holder.upload_path(world.study)
        path.write_text(TABLE)
        holder.load(world.study, path, Sent.of(CSV), "00" * 32)
        gates["S2"].left = answered
        holder.contribute(world.study)
        until(lambda: all(holder.contribution(world.study).deliveries[i].accepted for i in (0, 2)))
        until(lambda: gates["S2"].left == 0 or holder.contribution(world.study).goal is Goal.COMPLETE)
        gates["S2"].left = 0
        assert kept(world, "S3")[:2] == (14, 1)
        record = holder.withdraw(world.study)
        assert record.goal is Goal.WITHDRAWING
        for name in ("S1", "S3"):
            assert kept(world, name) == (0, 0, ["withdrawn"])
        assert world.files() == ["table"]
        gates["S2"].left = 10**9
        until(lambda: holder.contribution(world.study).goal is Goal.WITHDRAWN)
        assert kept(world, "S2") == (0, 0, ["withdrawn"] if answered else [])
        again = holder.contribute(world.study)
        assert again.contribution != record.contribution
        until(lambda: holder.contribution(world.study).goal is Goal.COMPLETE)
        files, keys, told = kept(world, "S2")
        assert (files, keys, sorted(told)) == (14, 1, ["complete", *["withdrawn"] * bool(answered)])
