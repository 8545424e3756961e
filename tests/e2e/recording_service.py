"""`python -m tests.e2e.recording_service MODULE`: a service that writes down everything that reaches it from others.

One JSON object a line in CAPS_HOME/recorded: bodies of requests made to it ("request"), and of answers to its own calls
("answer"), with method, path and status, in the order they came.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from threading import Lock
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import caps.service.serve

FILE = "recorded"
_lock = Lock()


def recorded(home: Path) -> list[dict[str, Any]]:
    """What has come so far."""
    return [json.loads(line) for line in (home / FILE).read_text().splitlines()]


def note(**entry: Any) -> None:
    """Write one line down."""
    with _lock, (Path(os.environ["CAPS_HOME"]) / FILE).open("a") as out:
        out.write(json.dumps(entry) + "\n")


class Hearing:
    """Notes what others ask of the service; not their tokens, which are the service's own matter."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()

        async def receiving() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        await self.app(scope, receiving, send)
        if scope["type"] == "http":
            headers = {key.decode(): value.decode() for key, value in scope["headers"] if key != b"authorization"}
            text = bytes(body).decode("latin-1")
            note(kind="request", method=scope["method"], path=scope["path"], headers=headers, body=text)


def install() -> None:
    """Wrap the two ways in: calls that others make, and answers to our own."""
    send, serve = httpx.Client.send, caps.service.serve.serve

    def sending(self: httpx.Client, request: httpx.Request, **keywords: Any) -> httpx.Response:
        response = send(self, request, **keywords)
        response.read()
        note(
            kind="answer",
            method=request.method,
            host=request.url.netloc.decode(),
            path=request.url.path,
            status=response.status_code,
            headers=dict(response.headers),
            body=response.text,
        )
        return response

    def serving(app: FastAPI, *arguments: Any, **keywords: Any) -> None:
        app.add_middleware(Hearing)
        serve(app, *arguments, **keywords)

    httpx.Client.send, caps.service.serve.serve = sending, serving


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
