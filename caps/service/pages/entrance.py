"""What is asked of a request under /ui before any page sees it.

Whoever has a session's cookie is the person of its token, here and nowhere else: REST takes tokens only. A request that
may change something must come from a page of this very service. The cookie is not sent along from other sites
(SameSite), browsers say where a request comes from (Sec-Fetch-Site, Origin), and a form must repeat what only pages of
its session know. Each of the three would do.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.responses import Response

from caps.service.pages.forms import CSRF_FIELD, Form
from caps.service.pages.sessions import LONGEST, Session, Sessions
from caps.service.problems import Problem
from caps.wire.problems import Kind

ROOT = "/ui"
SESSION = "caps.session"
"""The key in the ASGI scope of the session, if there is one."""
CSRF_HEADER = "x-csrf-token"
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""Added to every answer under /ui that does not set them itself."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LONGEST_SECRET = 64


def is_page(path: str) -> bool:
    """Whether a path is of a page."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def changes(method: str) -> bool:
    """Whether a request may change something."""
    return method not in _SAFE


def session_of(scope: Mapping[str, Any]) -> Session | None:
    """The session of a request."""
    found = scope.get(SESSION)
    assert found is None or isinstance(found, Session)
    return found


class Entrance:
    """The sessions of one service and the name of its cookie. Ports share cookies, so each party has its own name."""

    def __init__(self, sessions: Sessions, party: str) -> None:
        self.sessions = sessions
        self.cookie = f"__Host-caps-{party.replace('/', '.')}"

    def session(self, headers: Mapping[str, str]) -> Session | None:
        """The session of a request; None without a cookie that stands for one."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return None
        if found is None or not found.value or len(found.value) > _LONGEST_SECRET:
            return None
        return self.sessions.find(found.value)

    def sign_in(self, response: Response, secret: str) -> None:
        """Give a browser its cookie."""
        response.set_cookie(
            self.cookie,
            secret,
            max_age=int(LONGEST.total_seconds()),
            path="/",
            secure=True,
            httponly=True,
            samesite="strict",
        )

    def sign_out(self, response: Response) -> None:
        """Take the cookie back."""
        response.delete_cookie(self.cookie, path="/", secure=True, httponly=True, samesite="strict")


def require_same_origin(headers: Mapping[str, str]) -> None:
    """Raises a problem (403) if a browser says that a request comes from elsewhere, or does not say where from.

    Because pages tell nobody where a reader comes from (no-referrer), browsers send forms with the Origin null; then
    Sec-Fetch-Site, which no script can set, must say it.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin", "null")
    told = origin != "null"
    if site not in (None, "same-origin") or (told and origin != f"https://{headers.get('host', '')}"):
        raise _elsewhere()
    if site is None and not told:
        raise _elsewhere()


def require_token(session: Session, headers: Mapping[str, str], form: bytes | None) -> None:
    """Raises a problem (403) unless a request repeats what the pages of its session say: in a header, or in a form."""
    given = headers.get(CSRF_HEADER)
    if given is None and form is not None:
        given = Form.of(form).one(CSRF_FIELD)
    if given is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise Problem(
            Kind.FORBIDDEN,
            "this form is not of your present session; nothing was changed",
            hint="go back, load the page again, and repeat what you did",
        )


def _elsewhere() -> Problem:
    return Problem(
        Kind.FORBIDDEN,
        "this request was not sent by a page of this service; nothing was changed",
        hint="open the page itself and use its buttons",
    )
