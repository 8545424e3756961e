"""The pages that every service has: signing in and out, one's sessions, and static files."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from caps.basics.document import Hex32
from caps.service import logs
from caps.service.identity import Allow, Caller
from caps.service.pages.entrance import require_same_origin, session_of
from caps.service.pages.forms import Fields
from caps.service.pages.rate import FailureRate
from caps.service.pages.rendering import ROOT, SIGN_IN, Pages, onwards, see_other
from caps.service.pages.static import PATH
from caps.service.problems import Problem
from caps.service.tokens import Scope
from caps.wire.problems import Kind

PUBLIC_PATHS = frozenset({"/", SIGN_IN, PATH})
"""Open to everybody: without these, nobody could sign in."""
SESSIONS = f"{ROOT}/sessions"
ANYBODY = Allow(scopes=tuple(Scope))
"""Whoever is signed in."""
_KEPT = "public, max-age=31536000, immutable"

log = logging.getLogger("caps.pages")
Signed = Annotated[Caller, Depends(ANYBODY)]


def router(pages: Pages) -> APIRouter:
    """The routes of one service."""
    routes = APIRouter(include_in_schema=False)
    public = [Depends(Allow(public=True))]
    failures = FailureRate()

    @routes.get("/", dependencies=public)
    def root() -> Response:
        """To the pages."""
        return see_other(ROOT)

    @routes.get(PATH, dependencies=public)
    def static(name: str) -> Response:
        """A file, whose name changes with its content."""
        found = pages.static.find(name)
        if found is None:
            raise Problem(Kind.NOT_FOUND, "there is no such file; load the page again")
        return Response(found.content, media_type=found.media_type, headers={"Cache-Control": _KEPT})

    @routes.get(SIGN_IN, dependencies=public)
    def ask(request: Request) -> Response:
        """The form that asks for a token."""
        back = onwards(request.query_params.get("next", ROOT))
        if session_of(request.scope) is not None:
            return see_other(back)
        return pages.page(request, "sign_in.html", next=back, refused=False)

    @routes.post(SIGN_IN, dependencies=public)
    def sign_in(request: Request, form: Fields) -> Response:
        """Sign in with a token, which is not kept."""
        require_same_origin(request.headers)
        back = onwards(form.one("next", ROOT))
        address = request.client.host if request.client else ""
        token = form.one("token")
        secret = pages.sessions.open(token)
        if secret is None:
            failures.failed(address)
            logs.say(log, "not signed in", address=address)
            expired = pages.sessions.expired(token)
            return pages.page(request, "sign_in.html", status=403, next=back, refused=True, expired=expired)
        response = see_other(back)
        old = session_of(request.scope)
        if old is not None:
            pages.sessions.close(old.identity)
        pages.entrance.sign_in(response, secret)
        found = pages.sessions.find(secret)
        assert found is not None
        logs.say(log, "signed in", person=found.person.name, token=found.person.token)
        return response

    @routes.post(f"{ROOT}/sign-out")
    def sign_out(request: Request, caller: Signed) -> Response:
        """End this session."""
        response = see_other(SIGN_IN)
        found = session_of(request.scope)
        if found is not None:
            pages.sessions.close(found.identity)
        pages.entrance.sign_out(response)
        return response

    @routes.get(SESSIONS)
    def sessions(request: Request, caller: Signed) -> Response:
        """Where one's token is signed in."""
        assert caller.person is not None
        here = session_of(request.scope)
        listed = pages.sessions.of(caller.person)
        return pages.page(request, "sessions.html", sessions=listed, here=None if here is None else here.identity)

    @routes.post(f"{SESSIONS}/{{session}}/end")
    def end(session: Hex32, caller: Signed) -> Response:
        """End one of one's own sessions."""
        assert caller.person is not None
        pages.sessions.close(session, token=caller.person.token)
        return see_other(SESSIONS)

    return routes
