"""An MPC server's pages: what each route shows, and to whom. docs/pages.md says how to add one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Request, Response

from caps.service.pages.rendering import ROOT, Link, Pages
from caps.service.pages.routes import Signed

TEMPLATES = Path(__file__).parent / "templates"
LINKS = (Link.to("Overview", ROOT),)
ABOUT = "This server computes on shares with its peers, and enforces the budget of every study that it has signed."


def router(pages: Pages, missing: Callable[[], list[str]]) -> APIRouter:
    """The routes of one server. missing: why it is not ready."""
    routes = APIRouter(prefix=ROOT, include_in_schema=False)

    @routes.get("")
    def home(request: Request, caller: Signed) -> Response:
        """What this service is, and whether it is ready."""
        return pages.page(request, "home.html", about=ABOUT, reasons=missing())

    return routes
