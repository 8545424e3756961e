"""Logs with one JSON object per line, ids on every line and data on none; and ids that are passed to other parties.

    {"at": "2026-11-16T06:25:24.120Z", "level": "info", "logger": "caps.runs", "service": "mpc-server", "name": "S1",
     "request_id": "...", "run": "...", "study": "...", "step": 4, "event": "answered"}

Ids that `bound` binds are on each line written inside it, and `trace` puts the request id into outgoing calls, so one
id can be followed through all parties. The text of exceptions is never logged, because it may quote data.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

from caps.errors import DomainError

if TYPE_CHECKING:
    import httpx

HEADER = "X-Request-Id"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_QUIET = ("httpx", "httpcore", "asyncio", "numba", "sqlalchemy")
"""Loggers whose details do not help an operator."""
_OWN = ("caps", "uvicorn")
"""Loggers whose messages contain no data; messages of others are cut short and lose their arguments."""
_ID = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)
_MOST_FRAMES = 12
_LONGEST = 2000
_FOREIGN = 120
_EMPTY: Mapping[str, object] = MappingProxyType({})

_bound: ContextVar[Mapping[str, object]] = ContextVar("caps_log_ids", default=_EMPTY)


@contextmanager
def bound(**ids: object) -> Iterator[None]:
    """Adds ids to every line and outgoing call inside: request_id, run, study, step, party."""
    before = _bound.set({**_bound.get(), **{key: value for key, value in ids.items() if value is not None}})
    try:
        yield
    finally:
        _bound.reset(before)


def request_id() -> str | None:
    """The id of the current request, if there is one."""
    found = _bound.get().get("request_id")
    return None if found is None else str(found)


def new_id(prefix: str = "") -> str:
    """A fresh request id; `prefix` names what it belongs to, for example a run."""
    return f"{prefix[:40]}.{secrets.token_hex(4)}" if prefix else secrets.token_hex(8)


def trace(request: httpx.Request) -> None:
    """An httpx event hook that adds the current request id to a call."""
    if HEADER not in request.headers:
        found = request_id()
        request.headers[HEADER] = found if found is not None and _ID.fullmatch(found) else new_id()


def say(log: logging.Logger, event: str, /, *, level: int = logging.INFO, **members: object) -> None:
    """Log an event with its ids. Pre-conditions: no member is data; reasons come from CapsErrors."""
    if log.isEnabledFor(level):
        log.log(level, json.dumps({"event": event, **members}, default=str))


class JsonLines(logging.Formatter):
    """One JSON object for each record."""

    def __init__(self, service: str = "", name: str = "") -> None:
        super().__init__()
        self._who = {key: value for key, value in (("service", service), ("name", name)) if value}

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "logger": record.name, **self._who}
        line |= {**_bound.get(), **_members(record)}
        if record.exc_info and record.exc_info[1] is not None:
            line |= {"error": type(record.exc_info[1]).__name__, "where": frames(record.exc_info[1])}
        return json.dumps(line, default=str, ensure_ascii=True)


def frames(error: BaseException) -> list[str]:
    """The places an error passed through, innermost last; file names and lines only."""
    found = traceback.extract_tb(error.__traceback__)[-_MOST_FRAMES:]
    return [f"{'/'.join(frame.filename.rsplit('/', 2)[-2:])}:{frame.lineno}" for frame in found]


def _members(record: logging.LogRecord) -> dict[str, Any]:
    if record.name.split(".")[0] not in _OWN:
        return {"message": str(record.msg).partition("\n")[0][:_FOREIGN]}
    message = record.getMessage()
    if message.startswith("{"):
        try:
            found = json.loads(message)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
    return {"message": message.partition("\n")[0][:_LONGEST]}


def level_of(text: str) -> str:
    """The level of this name, in either case. Raises DomainError if there is none."""
    if text.upper() not in LEVELS:
        raise DomainError(f"CAPS_LOG_LEVEL must be one of {', '.join(LEVELS)}")
    return text.upper()


def set_up(service: str, name: str, *, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every log line of this process, including uvicorn's, to `stream` (stderr by default) as JSON."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(service, name))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level_of(level))
    for quiet in _QUIET:
        logging.getLogger(quiet).setLevel(logging.WARNING)
    for own in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(own)
        logger.handlers.clear()
        logger.propagate = True
