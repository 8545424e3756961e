"""The holder's pages, for people of its own organisation: what each route shows, and to whom."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.pages.rendering import ROOT, Link, Pages
from caps.service.pages.routes import Signed
from services.holder.service import HolderService

TEMPLATES = Path(__file__).parent / "templates"
LINKS = (Link.to("Studies", ROOT),)
ABOUT = "This service checks your table, shares it and sends the shares. It only connects outwards."


def router(pages: Pages, service: HolderService) -> APIRouter:
    """The routes of one holder."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        site = service.site
        return pages.page(request, "home.html", about=ABOUT, reasons=[*site.expired(), *site.room.reasons()])

    return routes
