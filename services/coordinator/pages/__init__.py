"""The coordinator's pages: what each route shows, and to whom. docs/pages.md says how to add one."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.pages.rendering import ROOT, Link, Pages
from caps.service.pages.routes import Signed
from caps.service.site import Site
from services.coordinator.findings import AllFindings
from services.coordinator.pages import releases
from services.coordinator.publish import Publisher
from services.coordinator.store import Store

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
LINKS = (Link.to("Overview", ROOT), *releases.LINKS)
ABOUT = "The coordinator takes studies from their manifest to a release. It sees opened, noisy values only."


def router(pages: Pages, site: Site, store: Store, publisher: Publisher, found: AllFindings) -> APIRouter:
    """The routes of one coordinator."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.page(request, "home.html", about=ABOUT, reasons=[*site.expired(), *site.room.reasons()])

    releases.add_to(routes, pages, store, publisher, found)
    return routes
