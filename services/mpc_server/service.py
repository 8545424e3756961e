"""An MPC server, put together: stores, studies, runs, the mesh with its peers, and the REST interface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from caps.errors import DomainError, party_name
from caps.service import logs
from caps.service.app import Clock, create_app, utc_now
from caps.service.connections import Refusals
from caps.service.database import open_database
from caps.service.news import News
from caps.service.serve import serve
from caps.service.site import Site
from caps.study import Policy
from services.mpc_server import pages
from services.mpc_server.build import build_digest
from services.mpc_server.figures import ledger_figures, mesh_figures
from services.mpc_server.intake import matching_api, studies_api
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.matching import Matching
from services.mpc_server.intake.studies import Studies
from services.mpc_server.news import news as news_of
from services.mpc_server.runs import api as runs_api
from services.mpc_server.runs.alive import AliveRuns
from services.mpc_server.runs.runs import Runs
from services.mpc_server.runs.thread import EngineThread
from services.mpc_server.settings import ServerSettings
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger
from services.mpc_server.storage.shares import ShareStore, Vault
from services.mpc_server.storage.tables import metadata
from services.mpc_server.transport.keeper import MeshKeeper
from services.mpc_server.transport.tls import Watch, listen

SWEEP = 3600.0
"""Seconds between two searches for shares whose time is up."""

log = logging.getLogger("caps.mpc_server")


class MpcServer:
    """One server of the mesh. `serve` runs it, `close` ends it; `app` is what people and machines call."""

    def __init__(self, settings: ServerSettings, *, clock: Clock = utc_now) -> None:
        self._settings = settings
        self._site = Site(settings.base, role="mpc-server", clock=clock, policy=settings.policy)
        names = [party_name(party) for party in range(len(settings.mesh))]
        if self._site.name not in names:
            raise DomainError(f"an MPC server must be called {' or '.join(names)}, not {self._site.name}")
        self._party = names.index(self._site.name)
        policy = Policy.read(settings.policy)
        database = open_database(settings.base.database, metadata, migrations="services.mpc_server.migrations")
        store = ShareStore(settings.base.data / "shares", Vault(settings.base.home))
        self._ledger = Ledger(database)
        self._heads = Heads(database, self._ledger, self._site.name, self._site.signing_key)
        self._studies = Studies(self._site, policy, database, store, mesh=len(settings.mesh))
        self._contributions = Contributions(self._site, self._studies, database, store)
        self._matching = Matching(self._site, self._studies, database, store)
        self._workers = settings.workers.workers()
        self._engine = EngineThread(self._site.supervisor)
        self._engine.start()
        self._keeper = self._engine.submit(self._make_keeper()).result()
        alive = AliveRuns(
            self._site,
            database,
            self._ledger,
            self._studies,
            self._contributions,
            store,
            self._engine,
            self._keeper,
            self._heads,
            build=build_digest(),
            patience=settings.patience,
            least_holders=policy.least_holders,
            workers=self._workers,
        )
        self._runs = Runs(self._site, policy, database, self._ledger, self._studies, self._engine, alive, self._heads)
        self._news = News(self._site, settings.news, lambda: news_of(self._site.name, self._studies, self._runs))
        figures = ledger_figures(self._ledger, policy, self._heads)
        for source in (mesh_figures(self._keeper), figures, self._runs.figures):
            self._site.metrics.read(source)

    @property
    def name(self) -> str:
        """The name in its certificate, such as S1."""
        return self._site.name

    @property
    def app(self) -> FastAPI:
        """The REST interface and the pages."""
        found = self._site.pages(pages.TEMPLATES, pages.LINKS)
        return create_app(
            service="mpc-server",
            name=self._site.name,
            description="Computes on shares with its peers; enforces the budget of every study it has signed.",
            routers=[
                studies_api.router(self._studies, self._contributions),
                matching_api.router(self._matching),
                runs_api.router(self._runs, self._ledger, self._heads),
                pages.router(found, self._parts()),
            ],
            tokens=self._site.tokens,
            denials=self._site.denials,
            clock=self._site.clock,
            limits=(
                *studies_api.limits(self._studies, self._contributions),
                *matching_api.limits(self._matching),
                *runs_api.limits(self._runs),
            ),
            ready=self.missing,
            room=self._site.room,
            metrics=self._site.metrics,
            pages=found,
            lifespan=self._lifespan,
        )

    def _parts(self) -> pages.Parts:
        return pages.Parts(
            self._site,
            self._studies,
            self._contributions,
            self._runs,
            self._ledger,
            self._heads,
            self.missing,
            lambda: self._keeper.state,
        )

    def missing(self) -> list[str]:
        """Why no run can go on now: peers out of reach, a certificate that nobody accepts, or a ledger cut off."""
        state, expired = self._keeper.state, self._site.expired()
        if self._heads.broken is not None:
            expired = [*expired, self._heads.broken]
        if state.phase == "connected":
            return expired
        troubles = [str(trouble) for trouble in state.troubles.values() if trouble is not None]
        return [*expired, *([str(state.local)] if state.local else []), *troubles] or ["connecting with the peers"]

    def serve(self) -> None:
        """Serve until told to stop."""
        base = self._settings.base
        serve(self.app, self._site.credentials, host=base.host, port=base.port, people=self._site.people)

    def close(self) -> None:
        """End the engine's thread, and the workers."""
        self._engine.stop()
        self._workers.close()
        self._site.sessions.dispose()

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        supervisor = self._site.supervisor
        mesh = self._engine.submit(self._keeper.run())
        self._runs.resume()
        self._news.open()
        # Else the first to look at the list would wait for them.
        reading = supervisor.task("studies", asyncio.to_thread(self._studies.newest, pages.EACH))
        sweeping = supervisor.task("sweep", supervisor.keep("sweep", self._sweep))
        yield
        await asyncio.to_thread(self._news.close)
        await asyncio.gather(reading, return_exceptions=True)
        sweeping.cancel()
        mesh.cancel()
        await asyncio.to_thread(self.close)

    async def _sweep(self) -> None:
        while True:
            erased = await asyncio.to_thread(self._studies.sweep, self._site.now())
            for study in erased:
                logs.say(log, "erased, its time was up", study=study)
            await asyncio.sleep(SWEEP)

    async def _make_keeper(self) -> MeshKeeper:
        """Make the keeper in the engine's thread, to whose event loop it belongs."""
        own = self._settings.mesh_listen
        crowded = partial(Refusals(self._site.metrics).count, "mesh")
        return MeshKeeper(
            self._party,
            self._site.credentials,
            self._settings.mesh,
            self._settings.limits,
            listener=await listen(own) if own is not None else None,
            watch=Watch(self._site.supervisor, crowded),
            denies=self._site.denials.denies,
        )
