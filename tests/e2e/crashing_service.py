"""`python -m tests.e2e.crashing_service MODULE`: a service that kills itself where `tests.crashing.arm` says.

The points are those at which something lasting happens, of whatever kind, so that all services have them:

    committing, committed   before and after a commit that writes to the database
    calling, called         before a request to another party, and after its answer came
    renaming, renamed       before and after a file or a folder gets its final name
    answering               before the answer to a request that changes something leaves
    exchange, waiting       MPC servers only, as `tests.crashing` says: in the middle of steps
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import caps.service.serve
from tests.crashing import _Fuse, _install_exchanges

POINTS = ("committing", "committed", "calling", "called", "renaming", "renamed", "answering")
_WRITES = ("INSERT", "UPDATE", "DELETE")


def install(fuse: _Fuse) -> None:
    """Wrap what a service does at every point."""
    _install_commits(fuse)
    _install_calls(fuse)
    _install_renames(fuse)
    _install_answers(fuse)


def _install_commits(fuse: _Fuse) -> None:
    wrote: set[int] = set()

    def note(_: object, cursor: Any, statement: str, *__: object) -> None:
        if statement.startswith(_WRITES):
            wrote.add(id(cursor.connection))

    event.listen(Engine, "before_cursor_execute", note)
    commit = DefaultDialect.do_commit

    def do_commit(self: DefaultDialect, connection: Any) -> None:
        writes = id(connection.dbapi_connection) in wrote
        wrote.discard(id(connection.dbapi_connection))
        if writes:
            fuse.reach("committing")
        commit(self, connection)
        if writes:
            fuse.reach("committed")

    DefaultDialect.do_commit = do_commit


def _install_calls(fuse: _Fuse) -> None:
    send = httpx.Client.send

    def wrapped(self: httpx.Client, request: httpx.Request, **keywords: Any) -> httpx.Response:
        fuse.reach("calling")
        response = send(self, request, **keywords)
        fuse.reach("called")
        return response

    httpx.Client.send = wrapped


def _install_renames(fuse: _Fuse) -> None:
    for name in ("rename", "replace"):
        original = getattr(os, name)

        def wrapped(*arguments: Any, original: Any = original, **keywords: Any) -> None:
            fuse.reach("renaming")
            original(*arguments, **keywords)
            fuse.reach("renamed")

        setattr(os, name, wrapped)


def _install_answers(fuse: _Fuse) -> None:
    serve = caps.service.serve.serve

    class Answering:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start" and scope["method"] not in ("GET", "HEAD"):
                    fuse.reach("answering")
                await send(message)

            await self.app(scope, receive, sending)

    def wrapped(app: FastAPI, *arguments: Any, **keywords: Any) -> None:
        app.add_middleware(Answering)
        serve(app, *arguments, **keywords)

    caps.service.serve.serve = wrapped


if __name__ == "__main__":
    module = sys.argv[1]
    fuse = _Fuse(Path(os.environ["CAPS_HOME"]))
    install(fuse)
    if module == "services.mpc_server":
        _install_exchanges(fuse)
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
