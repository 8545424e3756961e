"""The coordinator as an application: its parts joined together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from caps.basics.loading import load
from caps.basics.retry import Backoff
from caps.client.calls import TIMEOUT
from caps.service.app import create_app
from caps.service.database import open_database
from caps.service.news import SILENT, News, NewsSettings
from caps.service.site import Site
from services.coordinator import pages
from services.coordinator.api import limits, make_router
from services.coordinator.execution import PATIENCE
from services.coordinator.findings import AllFindings
from services.coordinator.generate.create import KERNEL
from services.coordinator.news import news as news_of
from services.coordinator.pages.report import Reports
from services.coordinator.publish import Publisher
from services.coordinator.runs import Runs
from services.coordinator.servers import Connect, Servers
from services.coordinator.settings import Quotas
from services.coordinator.store import Store
from services.coordinator.streams import Streams
from services.coordinator.studies import Studies
from services.coordinator.tables import metadata

ROLE = "coordinator"
DESCRIPTION = "Takes a study from its manifest to a release. Sees opened, noisy values only."


@dataclass(frozen=True)
class Coordinator:
    """The coordinator's parts. `open` resumes what a restart interrupted."""

    site: Site
    store: Store
    servers: Servers
    studies: Studies
    publisher: Publisher
    findings: AllFindings
    runs: Runs
    quotas: Quotas
    news: News

    @classmethod
    def of(
        cls,
        site: Site,
        *,
        connect: Connect | None = None,
        patience: Backoff = PATIENCE,
        quotas: Quotas = Quotas(),  # noqa: B008
        news: NewsSettings = SILENT,
    ) -> Coordinator:
        """`connect` makes a client for a server; by default over TLS, to the key that the manifest pins."""
        database = open_database(site.settings.database, metadata, migrations="services.coordinator.migrations")
        store = Store(database, site.clock)
        calls: Connect = connect or (lambda server: site.calls(server, timeout=TIMEOUT))
        servers = Servers(calls, stamp=site.credentials.stamp)
        studies = Studies(site, store, servers)
        publisher = Publisher(site, store, most_samples=quotas.samples)
        findings = AllFindings(publisher)
        publisher.prepare = findings.prepare
        runs = Runs(store, studies, servers, publisher, patience=patience, metrics=site.metrics)
        site.metrics.read(runs.figures)
        told = News(site, news, lambda: news_of(site, store, studies))
        return cls(site, store, servers, studies, publisher, findings, runs, quotas, told)

    def close(self) -> None:
        """Stop runs at a step boundary, then close the connections."""
        self.news.close()
        self.runs.close()
        self.servers.close()
        self.site.sessions.dispose()

    def app(self) -> FastAPI:
        """The application, which opens and closes the coordinator."""

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            if self.store.releases():  # else the first who asks about one waits a second for the compiled module
                await run_in_threadpool(load, KERNEL)
            await run_in_threadpool(self.runs.open)
            self.news.open()
            yield
            await run_in_threadpool(self.close)

        streams = Streams(self.store, self.runs, self.quotas)
        found = self.site.pages(pages.TEMPLATES, pages.LINKS, static=[pages.STATIC])
        return create_app(
            service=ROLE,
            name=self.site.name,
            description=DESCRIPTION,
            routers=[
                make_router(
                    self.store, self.studies, self.runs, self.publisher, streams, Reports(found, self.findings).send
                ),
                pages.router(
                    found, self.site, self.store, self.studies, self.runs, streams, self.publisher, self.findings
                ),
            ],
            tokens=self.site.tokens,
            denials=self.site.denials,
            clock=self.site.clock,
            limits=(*limits(self.studies), *pages.LIMITS),
            ready=self.site.expired,
            room=self.site.room,
            metrics=self.site.metrics,
            pages=found,
            lifespan=lifespan,
        )
