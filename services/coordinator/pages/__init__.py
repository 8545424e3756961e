"""The coordinator's pages: what each route shows, and to whom. docs/pages.md says how to add one."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.pages.rendering import ROOT, Link, Pages
from caps.service.pages.routes import Signed
from caps.service.site import Site
from services.coordinator.pages import operate
from services.coordinator.runs import Runs
from services.coordinator.store import Store
from services.coordinator.studies import Studies

TEMPLATES = Path(__file__).parent / "templates"
LINKS = (Link.to("Overview", ROOT), *operate.LINKS)
ABOUT = "The coordinator takes studies from their manifest to a release. It sees opened, noisy values only."


def router(pages: Pages, site: Site, store: Store, studies: Studies, runs: Runs) -> APIRouter:
    """The routes of one coordinator."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.page(request, "home.html", about=ABOUT, reasons=[*site.expired(), *site.room.reasons()])

    operate.add_to(routes, pages, site, store, studies, runs)
    return routes
