"""The holder's service with the MPC servers' own routes and stores, over TLS: both sides mean the same contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from caps.service.app import create_app
from caps.service.database import open_database
from caps.service.identity import Caller, Machine
from caps.service.site import Site
from caps.study import Policy
from caps.wire.holder import Goal
from caps.wire.media import CSV
from services.holder import sharing
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


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HolderBench]:
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
            holder.load(world.study, path, CSV, "00" * 32)
            ids.append(holder.contribute(world.study).contribution)
            until(lambda: holder.contribution(world.study).goal is Goal.COMPLETE)
            until(lambda: world.files() == ["table"])
            if len(ids) == 1:
                assert holder.withdraw(world.study).goal is Goal.WITHDRAWN
        record = holder.contribution(world.study)
        assert [one.accepted is not None for one in record.deliveries] == [True] * 3
        assert ids[0] != ids[1]
        assert record.document.document.chunks == -(-1000 * 7 * 2 // 1024)
        assert np.prod(record.document.document.shape) == 7000
