"""Templates of pages: Jinja with everything escaped and nothing undefined, and what every page has in common."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from caps import __version__
from caps.service.identity import caller_of
from caps.service.pages.entrance import CSRF_HEADER, ROOT, Entrance, changes, session_of
from caps.service.pages.sessions import Sessions
from caps.service.pages.static import FOLDER, Static
from caps.service.pages.words import FILTERS
from caps.service.problems import Problem
from caps.service.tokens import Person, Scope
from caps.wire.problems import Kind

__all__ = ["ROOT", "SIGN_IN", "Door", "Link", "Pages", "allowed", "back_of", "onwards", "see_other"]

SIGN_IN = f"{ROOT}/sign-in"
TEMPLATES = Path(__file__).parent / "templates"
_ONWARDS = re.compile(r"/ui(?:/[A-Za-z0-9._~-]+)*", re.ASCII)
_HTMX = json.dumps(
    {
        "allowEval": False,
        "includeIndicatorStyles": False,
        "selfRequestsOnly": True,
        "historyCacheSize": 0,
        "historyEnabled": False,
        "responseHandling": [{"code": ".*", "swap": True}],
    }
)
"""htmx without eval, without styles of its own, to this service only, and with nothing kept in the browser."""


@dataclass(frozen=True)
class Link:
    """An entry of the navigation, for people with one of these scopes."""

    title: str
    path: str
    scopes: frozenset[Scope]

    @classmethod
    def to(cls, title: str, path: str, *scopes: Scope) -> Link:
        """For these scopes; for everybody who is signed in if there is none."""
        return cls(title, path, frozenset(scopes or Scope))


@dataclass(frozen=True)
class Door:
    """What is behind an entry of the navigation, on the first page. now: how things stand; waits: for the reader."""

    about: str
    now: str = ""
    waits: bool = False


class Pages:
    """The pages of one service: how they look, where they lead, and who is signed in."""

    def __init__(
        self,
        *,
        service: str,
        name: str,
        sessions: Sessions,
        templates: Path,
        links: Sequence[Link] = (),
        static: Iterable[Path] = (),
    ) -> None:
        """templates: the service's own, which may extend the shared ones. static: folders of further files."""
        self.entrance = Entrance(sessions, f"{service}.{name}")
        self.static = Static([FOLDER, *static])
        self._links = tuple(links)
        self._jinja = Environment(
            loader=FileSystemLoader([templates, TEMPLATES]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.filters.update(FILTERS)
        self._jinja.globals.update(
            service=service, party=name, version=__version__, static=self.static.url, htmx_config=_HTMX, root=ROOT
        )

    @property
    def sessions(self) -> Sessions:
        """Who is signed in."""
        return self.entrance.sessions

    def page(self, request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """A whole page, or a part of one for htmx: whatever the template is."""
        found = self._jinja.get_template(template)
        return HTMLResponse(self._rendered(found, request.scope, context), status)

    def part(self, request: Request, template: str, **context: Any) -> str:
        """The text of a part, for an event of a stream."""
        return self._rendered(self._jinja.get_template(template), request.scope, context)

    def file(self, template: str, **context: Any) -> str:
        """A whole file that is nobody's page: it knows no person and no session."""
        return self._jinja.get_template(template).render(context)

    def home(self, request: Request, about: str, reasons: list[str], doors: Mapping[str, Door]) -> HTMLResponse:
        """The first page: what the service is, why it is not ready, and where its pages lead, by path."""
        return self.page(request, "home.html", about=about, reasons=reasons, doors=doors)

    def problem(self, problem: Problem, request_id: str, scope: dict[str, Any]) -> Response:
        """A problem as a page, in the same words as its document; whoever is not signed in is asked to."""
        headers = dict(scope.get("headers", ()))
        htmx = headers.get(b"hx-request") == b"true"
        document = problem.document(request_id)
        if problem.kind is Kind.UNAUTHENTICATED:
            if (answer := _asked_to_sign_in(scope, headers, htmx=htmx)) is not None:
                return answer
            document |= {"title": "You are not signed in", "hint": "sign in, then repeat what you did"}
            document["detail"] = "there is no session, or it has ended; nothing was changed"
        person = caller_of(scope).person
        if problem.kind is Kind.FORBIDDEN and person is not None:
            roles = ", ".join(sorted(person.scopes))
            document["hint"] = f"you are signed in with a token for {roles}; sign in with another one to see this page"
        template = self._jinja.get_template("problem_part.html" if htmx else "problem.html")
        context = {"problem": document, "retry_after": problem.headers.get("Retry-After"), "back": back_of(scope)}
        kept = {name: value for name, value in problem.headers.items() if name != "WWW-Authenticate"}
        return HTMLResponse(self._rendered(template, scope, context), document["status"], headers=kept)

    def _rendered(self, template: Template, scope: Any, context: dict[str, Any]) -> str:
        session, person = session_of(scope), caller_of(scope).person
        hx_headers = json.dumps({CSRF_HEADER: session.csrf} if session is not None else {})
        common: dict[str, Any] = {
            "person": person,
            "csrf": "" if session is None else session.csrf,
            "hx_headers": hx_headers,
            "path": scope["path"],
            "links": [link for link in self._links if allowed(person, link.scopes)],
        }
        return template.render(common | context)


def allowed(person: Person | None, scopes: Iterable[Scope]) -> bool:
    """Whether a person has one of these scopes: for what a page offers. Routes decide for themselves."""
    return person is not None and not person.scopes.isdisjoint(scopes)


def onwards(path: str) -> str:
    """Where to go after signing in: a page of this service, whatever was asked for."""
    return path if _ONWARDS.fullmatch(path) and not path.startswith(SIGN_IN) else ROOT


def see_other(path: str) -> RedirectResponse:
    """Where the result of a form is: going back, or loading again, does not send the form again."""
    return RedirectResponse(path, 303)


def back_of(scope: Any) -> str:
    """The page that a request came from: a form is sent to the address of its page with one more word."""
    path = str(scope["path"])
    return onwards(path.rpartition("/")[0]) if changes(scope["method"]) else ROOT


def _asked_to_sign_in(scope: Any, headers: dict[bytes, bytes], *, htmx: bool) -> Response | None:
    back = back_of(scope) if changes(scope["method"]) else onwards(str(scope["path"]))
    if htmx:
        shown = headers.get(b"hx-current-url", b"").decode("latin-1").partition("://")[2].partition("/")[2]
        back = onwards(f"/{shown.partition('?')[0].partition('#')[0]}")
    where = f"{SIGN_IN}?next={quote(back)}"
    if htmx:
        return Response(status_code=401, headers={"HX-Redirect": where})
    if changes(scope["method"]) or b"text/html" not in headers.get(b"accept", b""):
        return None
    if headers.get(b"sec-fetch-site") == b"cross-site":
        # A link from elsewhere, such as a mail's: the browser holds the cookie back, and sends it when the page itself
        # asks again.
        return HTMLResponse(
            f'<!doctype html><html lang="en"><title>CaPS</title><meta http-equiv="refresh" content="0; url={back}">'
            f'<p><a href="{back}">Go on</a>'
        )
    return see_other(where)
