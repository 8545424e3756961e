"""The coordinator's pages: what each route shows, and to whom. docs/pages.md says how to add one."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.app import MANIFEST_LIMIT, Limit
from caps.service.pages.entrance import ROOT
from caps.service.pages.rendering import Link, Pages
from caps.service.pages.routes import Signed
from caps.service.site import Site
from services.coordinator.authoring.drafts import Drafts
from services.coordinator.findings import AllFindings
from services.coordinator.pages import author, operate, releases
from services.coordinator.publish import Publisher
from services.coordinator.runs import Runs
from services.coordinator.store import Store
from services.coordinator.studies import Studies

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
LINKS = (Link.to("Overview", ROOT), *author.LINKS, *operate.LINKS, *releases.LINKS)
LIMITS = (Limit(author.SAVING, MANIFEST_LIMIT),)
ABOUT = "The coordinator takes studies from their manifest to a release. It sees opened, noisy values only."


def router(
    pages: Pages,
    site: Site,
    store: Store,
    studies: Studies,
    runs: Runs,
    publisher: Publisher,
    found: AllFindings,
) -> APIRouter:
    """The routes of one coordinator."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.page(request, "home.html", about=ABOUT, reasons=[*site.expired(), *site.room.reasons()])

    author.add_to(routes, pages, site, store, studies, Drafts(site.settings.data / "drafts.db", site.clock))
    operate.add_to(routes, pages, site, store, studies, runs)
    releases.add_to(routes, pages, store, publisher, found)
    return routes
