"""What all services share: authentication, body limits, request ids, a log line per request, problems for errors.

Who calls, whether it may, and how large the body may be are decided in this order, before any of the body is read. A
body must arrive at a least rate; JSON is bounded in depth, elements and digits before anything parses it. Pages, which
are under /ui, follow the same rules; there, a person may have a session instead of a token (`caps.service.pages`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from caps import __version__
from caps.basics import canonical
from caps.errors import CapsError, DomainError
from caps.service import logs
from caps.service.database import is_busy
from caps.service.identity import CALLER, CERTIFICATE, NOBODY, Allow, Caller, machine_of, unauthenticated
from caps.service.metrics import Metrics, Reading
from caps.service.metrics import router as metrics_router
from caps.service.pages import entrance, forms
from caps.service.pages import routes as page_routes
from caps.service.pages.rendering import Pages
from caps.service.problems import Problem, of_error
from caps.service.room import DiskRoom, is_full
from caps.service.tokens import Tokens
from caps.trust.denials import Denials
from caps.wire import media
from caps.wire.health import Health
from caps.wire.problems import Kind, ProblemDocument

REQUEST_ID = "caps.request_id"
DOCUMENT_LIMIT = 1 << 18
"""The most bytes in a body, unless a route has its own limit."""
MANIFEST_LIMIT = 4 << 20
"""The most bytes of a manifest."""
BODIES_AT_ONCE = 1 << 28
"""The most bytes of all bodies that are in memory at once. A body that is alone may be larger."""
SMALL_BODY = 1 << 16
"""Bodies up to this size are looked at in the event loop, and count for nothing."""
BODY_STALLS = 30.0
"""Seconds that a body may keep us waiting, in all, beyond what it needs at the least rate."""
LEAST_RATE = 8192
"""Bytes per second at which a body must arrive."""
SEND_STALLS = 60.0
"""Seconds after which a caller that does not read its answer is given up."""
OPENAPI_PATH = "/v1/openapi.json"
PUBLIC_PATHS = frozenset({"/healthz", "/readyz", OPENAPI_PATH, *page_routes.PUBLIC_PATHS})
"""The paths open to everybody. An application with any other public route cannot be built."""
_PAGES = "caps.pages"
"""The key in the ASGI scope of what shows problems as pages, for requests under /ui."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)
_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_LONGEST_LENGTH = 18
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})
_ONCE = frozenset({"authorization", "content-length", "content-type", "x-request-id"})
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""Added to every response that does not set them itself."""
_BY_STATUS = {kind.value.status: kind for kind in reversed(Kind)}
"""Several kinds may have the same status; the first of them is the general one."""

Clock = Callable[[], datetime]
Admission = Callable[..., int]
"""Called with `caller` and the named groups of a path, in a thread: returns the most bytes of a body there.

Raises a Problem if this caller may not send one, for instance because it is not a party of the study named.
"""


@dataclass(frozen=True)
class Limit:
    """How large bodies may be.

    path: a regular expression for a whole path. most: bytes, or what decides them. streamed: the body is written away
    as it arrives, so it takes no room in memory.
    """

    path: str
    most: int | Admission
    streamed: bool = False


Limits = Sequence[Limit]
"""The first whose path matches counts."""

log = logging.getLogger("caps.http")


def utc_now() -> datetime:
    """The default clock."""
    return datetime.now(UTC)


def instant(at: datetime) -> str:
    """A time in the format of documents."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def create_app(
    *,
    service: str,
    name: str,
    description: str,
    routers: Sequence[APIRouter],
    tokens: Tokens,
    denials: Denials | None = None,
    clock: Clock = utc_now,
    limits: Limits = (),
    ready: Callable[[], list[str]] = list,
    room: DiskRoom | None = None,
    metrics: Metrics | None = None,
    pages: Pages | None = None,
    lifespan: Any = None,
) -> FastAPI:
    """A service's application. `ready` lists the reasons why it is not ready; `limits` sets body limits of paths;
    machines with a key among the `denials` are refused, whatever they ask for; without `room` it is not ready either.
    `pages` sign people in; the routes of the service's own pages are among the `routers`.
    """
    app = FastAPI(
        title=f"CaPS {service}",
        description=description,
        version=__version__,
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    health = APIRouter(tags=["health"])

    def missing() -> list[str]:
        return [*ready(), *(room.reasons() if room is not None else [])]

    public = [Depends(Allow(public=True))]

    @health.get("/healthz", dependencies=public)
    async def healthz() -> Health:
        """Whether the process answers."""
        return Health(status="alive", service=service, name=name, version=__version__)

    @health.get("/readyz", dependencies=public, responses={503: {"model": Health, "description": "Not yet"}})
    async def readyz(response: Response) -> Health:
        """Whether the service is ready to work and, if it is not, why."""
        reasons = missing()
        response.status_code = 503 if reasons else 200
        status = "waiting" if reasons else "ready"
        return Health(status=status, service=service, name=name, version=__version__, reasons=reasons)

    figures = metrics or Metrics(service, name)
    figures.read(lambda: [Reading("caps_ready", not missing())])
    for router in (health, metrics_router(figures), *([page_routes.router(pages)] if pages else []), *routers):
        app.include_router(router)
    table = [_served(context) for context in iter_route_contexts(app.routes) if context.path != OPENAPI_PATH]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(FastAPI.openapi(app), table)
        return app.openapi_schema

    async def on_http(request: Request, error: Exception) -> Response:
        return _ended(_of_http(cast(HTTPException, error), request, table), request.scope)

    app.state.metrics = figures
    app.openapi = openapi  # type: ignore[method-assign]
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(CapsError, _on_caps_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_middleware(
        _Frame,
        service=service,
        tokens=tokens,
        clock=clock,
        table=table,
        limits=limits,
        metrics=figures,
        denials=denials,
        room=room,
        pages=pages,
    )
    return app


_Table = list[tuple[RouteContext, Allow]]


def _served(context: RouteContext) -> tuple[RouteContext, Allow]:
    """A route and its permissions. Raises TypeError unless it states them exactly once."""
    allowed = list(_allows(context.dependant)) if isinstance(context.route, APIRoute) else []
    if len(allowed) != 1:
        raise TypeError(f"{context.path} must state exactly once who may call it; it does so {len(allowed)} times")
    if allowed[0].public and context.path not in PUBLIC_PATHS:
        raise TypeError(f"{context.path} is open to everybody but is not in PUBLIC_PATHS")
    return context, allowed[0]


def _allows(dependant: Dependant) -> Iterator[Allow]:
    if isinstance(dependant.call, Allow):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _allows(inner)


def _described(document: dict[str, Any], table: _Table) -> dict[str, Any]:
    """FastAPI's description, corrected to say who may call each route and that errors are problems."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = ProblemDocument.model_json_schema()
    components["responses"] = {
        "Problem": {
            "description": "A problem (RFC 9457)",
            "content": {media.PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    }
    components["securitySchemes"] = {
        "machine": {
            "type": "mutualTLS",
            "description": "A certificate from the federation's authority with one SAN URI caps:role/name; "
            "the allowed roles are listed. For a study, its key must be the one in the manifest.",
        },
        "person": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of this service; the allowed scopes are listed.",
        },
    }
    document = _hoisted(document, schemas)
    for context, allow in table:
        for method in context.methods or ():
            operation = document["paths"].get(context.path_format, {}).get(method.lower())
            if operation is None:
                continue
            operation["security"] = [
                *([{"machine": sorted(allow.machines)}] if allow.machines else []),
                *([{"person": sorted(allow.scopes)}] if allow.scopes else []),
            ]
            responses = operation["responses"]
            responses.pop("422", None)
            for status in ("4XX", "503", "507"):
                responses.setdefault(status, {"$ref": "#/components/responses/Problem"})
    return document


def _hoisted(part: Any, schemas: dict[str, Any]) -> Any:
    """The same, with schema definitions of routes moved to where OpenAPI looks for them."""
    match part:
        case dict():
            for name, schema in part.get("$defs", {}).items():
                found = _hoisted(schema, schemas)
                if schemas.setdefault(name, found) != found:
                    raise TypeError(f"two schemas are called {name}")
            return {key: _hoisted(value, schemas) for key, value in part.items() if key != "$defs"}
        case list():
            return [_hoisted(one, schemas) for one in part]
        case str() if part.startswith("#/$defs/"):  # in a reference, or in a discriminator's mapping
            return part.replace("#/$defs/", "#/components/schemas/")
    return part


def problem_response(problem: Problem, request_id: str) -> Response:
    """A problem as a response."""
    body = problem.document(request_id)
    return JSONResponse(body, body["status"], headers=problem.headers, media_type=media.PROBLEM)


def _ended(problem: Problem, scope: Any) -> Response:
    """A problem as a response: as a page, if a page was asked for."""
    pages, request_id = scope.get(_PAGES), str(scope.get(REQUEST_ID, ""))
    return problem_response(problem, request_id) if pages is None else pages.problem(problem, request_id, scope)


def request_id_of(request: Request) -> str:
    """The id of a request, which is also in its problem and its log line."""
    return str(request.scope.get(REQUEST_ID, ""))


async def _on_problem(request: Request, error: Exception) -> Response:
    return _ended(cast(Problem, error), request.scope)


async def _on_caps_error(request: Request, error: Exception) -> Response:
    return _ended(of_error(cast(CapsError, error)), request.scope)


async def _on_invalid(request: Request, error: Exception) -> Response:
    # FastAPI's own answer repeats the input, which may be data.
    found = cast(RequestValidationError, error).errors()[:50]
    errors = [{"place": _place(one), "message": _message(one)} for one in found]
    kind = Kind.MALFORMED if found[0]["type"] == "json_invalid" else Kind.INVALID
    return _ended(Problem(kind, errors[0]["message"], errors=errors), request.scope)


def _place(one: dict[str, Any]) -> str:
    """The place of an error. An unknown member's name was chosen by the sender, so it is not repeated."""
    parts = one["loc"][:-1] if one["type"] in _UNKNOWN else one["loc"]
    return ".".join(str(part) if isinstance(part, int) or _MEMBER.fullmatch(part) else "*" for part in parts)


_UNKNOWN = dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "has a member that is not known here")
_MESSAGES = _UNKNOWN | {
    "json_invalid": "the body is not JSON",
    "model_attributes_type": "is not an object",
    "union_tag_not_found": "does not say what kind it is",
    "union_tag_invalid": "is of an unknown kind",
    "uuid_parsing": "is not a UUID",
}
"""Replacements for pydantic's messages that quote the input or are unclear."""


def _message(one: dict[str, Any]) -> str:
    return _MESSAGES.get(one["type"]) or str(one["msg"]).removeprefix("Value error, ")


def _of_http(error: HTTPException, request: Request, table: _Table) -> Problem:
    if isinstance(error.__cause__, Problem):  # raised while FastAPI read a body
        return error.__cause__
    kind = _BY_STATUS.get(error.status_code, Kind.MALFORMED)
    headers = dict(error.headers or {})
    if kind is Kind.METHOD_NOT_ALLOWED:  # starlette only looks at the first route of the path
        here = [context.methods or set() for context, _ in table if context.path_regex.match(request.scope["path"])]
        headers["Allow"] = ", ".join(
            sorted(set().union(*here) | ({"HEAD"} if any("GET" in m for m in here) else set()))
        )
    return Problem(kind, kind.value.title, headers=headers)


class _Frame:
    """Decides who may send what, bounds the body, logs the request, and catches stray errors. Pure ASGI."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: str,
        tokens: Tokens,
        clock: Clock,
        table: _Table,
        limits: Limits,
        metrics: Metrics,
        denials: Denials | None,
        room: DiskRoom | None,
        pages: Pages | None,
    ) -> None:
        self._app = app
        self._pages = pages
        self._disk = room
        self._denials = denials
        self._metrics = metrics
        self._service = service
        self._tokens = tokens
        self._clock = clock
        self._table = table
        self._public = {OPENAPI_PATH, *(context.path for context, allow in table if allow.public)}
        self._limits = [(re.compile(limit.path), limit) for limit in limits]
        self._room = _Room(BODIES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise TypeError("HTTP only")
        headers = _Headers(scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        caller = NOBODY
        # HEAD is GET without the body of its answer.
        inner = dict(scope, method="GET") if scope["method"] == "HEAD" else scope
        inner[REQUEST_ID], inner[CALLER] = request_id, caller
        pages = self._pages if entrance.is_page(scope["path"]) else None
        inner[_PAGES] = pages
        security = _SECURITY_HEADERS if pages is None else entrance.HEADERS
        started, status, begun, received = time.perf_counter(), 500, False, 0

        async def receiving() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                own = list(message.get("headers", []))
                names = {name.lower() for name, _ in own}
                rest = [(name, value) for name, value in security if name not in names]
                message = {**message, "headers": [*own, (b"x-request-id", request_id.encode()), *rest]}
            elif scope["method"] == "HEAD":
                message = {**message, "body": b""}
            try:
                async with asyncio.timeout(SEND_STALLS):
                    await send(message)
            except TimeoutError:
                raise ConnectionAbortedError(request_id) from None

        async def ending(problem: Problem) -> None:
            if begun:  # too late for a problem; ending the connection shows that the answer is incomplete
                raise ConnectionAbortedError(request_id) from None
            await _ended(problem, inner)(inner, receive, sending)

        try:
            headers.check()
            caller = inner[CALLER] = self._caller(scope.get(CERTIFICATE), headers.get("authorization", ""))
            if pages is not None and caller.person is None:
                caller = inner[CALLER] = await self._visitor(pages, inner, caller, headers)
            self._authorise(inner, caller)
            with logs.bound(request_id=request_id):
                if (length := headers.length()) == 0:
                    self._require_token(inner, headers, None)
                    await self._app(inner, receive, sending)
                else:
                    await self._with_body(inner, caller, headers, length, receiving, sending)
        except Problem as problem:
            await ending(problem)
        except ClientDisconnect:
            await ending(Problem(Kind.MALFORMED, "the body ended early"))
        except ConnectionAbortedError:
            raise
        except Exception as error:  # noqa: BLE001  the last line of defence: says where, never what
            if is_busy(error):
                detail = "others are writing to the database; send the request again"
                await ending(Problem(Kind.BUSY, detail, headers={"Retry-After": "1"}))
                return
            log.error(_line(request_id=request_id, error=type(error).__name__, where=logs.frames(error)))
            if is_full(error):
                if self._disk is not None:
                    self._disk.failed()
                await ending(Problem(Kind.NO_SPACE, "a write failed because a disk or a quota is full"))
                return
            self._metrics.count("caps_unexpected_errors", work="request", error=type(error).__name__)
            await ending(
                Problem(Kind.INTERNAL, "an unexpected error; details are withheld because they may quote data")
            )
        finally:
            route = getattr(inner.get("route"), "path", None) or "-"
            method = scope["method"] if scope["method"] in _METHODS else "-"
            seconds = time.perf_counter() - started
            self._metrics.count("caps_requests", route=route, method=method, status=str(status))
            self._metrics.observe("caps_request_seconds", seconds, route=route)
            self._metrics.count("caps_received_bytes", received, route=route)
            log.info(
                _line(
                    service=self._service,
                    request_id=request_id,
                    method=method,
                    route=route,
                    status=status,
                    ms=round(1000 * seconds, 1),
                    caller=str(caller),
                )
            )

    def _caller(self, certificate: bytes | None, authorization: str) -> Caller:
        scheme, _, token = authorization.partition(" ")
        shown, now = token.strip() if scheme.lower() == "bearer" else "", self._clock()
        person = self._tokens.find(shown, now)
        found = machine_of(certificate)
        if found is not None and self._denials is not None and self._denials.denies(found.pin):
            raise Problem(Kind.FORBIDDEN, f"the key of {found.role}/{found.name} is denied here")
        return Caller(found, person, None if person else self._tokens.expired(shown, now))

    async def _visitor(self, pages: Pages, scope: Scope, caller: Caller, headers: _Headers) -> Caller:
        """The same caller with the person of its session, if it has one."""
        found = await run_in_threadpool(pages.entrance.session, headers)
        if found is None:
            return caller
        scope[entrance.SESSION] = found
        if entrance.changes(scope["method"]):
            entrance.require_same_origin(headers)
        return Caller(caller.machine, found.person)

    def _require_token(self, scope: Scope, headers: _Headers, form: bytes | None) -> None:
        """Raises a problem, 403, unless what may change something repeats the token of its session."""
        session = entrance.session_of(scope)
        if session is not None and entrance.changes(scope["method"]) and scope["path"] not in self._public:
            entrance.require_token(session, headers, form)

    def _authorise(self, scope: Scope, caller: Caller) -> None:
        """Raises a problem, 401 or 403, unless the route is for this caller."""
        for context, allow in self._table:
            if scope["method"] in (context.methods or ()) and context.path_regex.match(scope["path"]):
                allow.check(caller)
                return
        if caller == NOBODY and scope["path"] not in self._public:
            raise unauthenticated(caller)

    async def _with_body(
        self, scope: Scope, caller: Caller, headers: _Headers, length: int | None, receive: Receive, send: Send
    ) -> None:
        """Pass on a request with a body, whose length may be unknown."""
        most, streamed = await self._limit(scope["path"], caller)
        if length is not None and length > most:
            raise _too_large(most)
        with self._room.taken(0 if streamed else most if length is None else length):
            bounded = _bounded(receive, most)
            if headers.are_of_json():
                body = await _whole(bounded)
                await _bound_json(body)
                bounded = _replayed(body, bounded)
            form = None
            if forms.is_form(headers.get("content-type", "")) and not streamed:
                form = await _whole(bounded)
                bounded = _replayed(form, bounded)
            self._require_token(scope, headers, form)
            await self._app(scope, bounded, send)

    async def _limit(self, path: str, caller: Caller) -> tuple[int, bool]:
        """The most bytes that this caller may send here, and whether they are streamed."""
        for pattern, limit in self._limits:
            if (found := pattern.fullmatch(path)) is not None:
                if isinstance(limit.most, int):
                    return limit.most, limit.streamed
                return await run_in_threadpool(limit.most, caller=caller, **found.groupdict()), limit.streamed
        return DOCUMENT_LIMIT, False


class _Room:
    """The memory for bodies. Whoever comes when it is full is told to come again."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Room for a body. Raises a problem, 503, if others have taken too much of it."""
        if size <= SMALL_BODY:
            yield
            return
        if self._taken and self._taken + size > self._size:
            raise Problem(
                Kind.BUSY, "other bodies are being received; send this one again", headers={"Retry-After": "1"}
            )
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size


def _too_large(most: int) -> Problem:
    return Problem(Kind.TOO_LARGE, f"the body is larger than the {most} bytes allowed here")


def _bounded(receive: Receive, most: int) -> Receive:
    """A body of at most so many bytes, which arrives at the least rate or faster. Our own pauses do not count."""
    received, waited, more = 0, 0.0, True

    async def receiving() -> Message:
        nonlocal received, waited, more
        if not more:  # only the end of the connection can come, which may take any time
            return await receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(BODY_STALLS, BODY_STALLS + received / LEAST_RATE - waited)):
                message = await receive()
        except TimeoutError:
            raise Problem(
                Kind.TIMEOUT, f"the body stalled for {BODY_STALLS:g} seconds, or arrived at below {LEAST_RATE} bytes/s"
            ) from None
        waited += time.monotonic() - began
        more = message["type"] == "http.request" and message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > most:
            raise _too_large(most)
        return message

    return receiving


async def _whole(receive: Receive) -> bytes:
    """A whole body."""
    parts, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


async def _bound_json(body: bytes) -> None:
    """Raises a problem if a body of JSON, not parsed yet, would swell."""
    try:
        if len(body) <= SMALL_BODY:
            canonical.bound(body)
        else:
            await run_in_threadpool(canonical.bound, body)
    except DomainError as error:
        raise Problem(Kind.MALFORMED, str(error)) from None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one message, then whatever follows."""
    given = False

    async def receiving() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


class _Headers(dict[str, str]):
    """The headers of a request by name in lower case, with a check for headers that must not be repeated."""

    def __init__(self, scope: Scope) -> None:
        pairs = [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in scope["headers"]]
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self._twice = sorted(name for name in _ONCE if names.count(name) > 1)

    def check(self) -> None:
        """Raises Problem if a header that must be unique was repeated."""
        if self._twice:
            raise Problem(Kind.MALFORMED, f"the header {self._twice[0]} was sent twice")

    def length(self) -> int | None:
        """Bytes of the body that follows; None if only its end will tell. Raises Problem."""
        if "transfer-encoding" in self:
            return None
        length = self.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or len(length) > _LONGEST_LENGTH:
            raise Problem(Kind.MALFORMED, "Content-Length is not a number")
        return int(length)

    def are_of_json(self) -> bool:
        """Whether the body claims to be JSON."""
        kind = self.get("content-type", "").partition(";")[0].strip().lower()
        return kind == media.JSON or kind.endswith("+json")


def _line(**members: object) -> str:
    return json.dumps(members)
