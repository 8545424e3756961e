"""`python -m tests.kit.recording_service MODULE`: a service that writes down everything that reaches it from others.

One JSON object a line in CAPS_HOME/recorded: bodies of requests made to it ("request"), and of answers to its own calls
("answer"), with method, path and status, in the order they came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.kit.wrapping import add_middleware, notes, run

FILE = "recorded"


def recorded(home: Path) -> list[dict[str, Any]]:
    """What has come so far."""
    return [json.loads(line) for line in (home / FILE).read_text().splitlines()]


class Hearing:
    """Notes what others ask of the service; not their tokens, which are the service's own matter."""

    def __init__(self, app: ASGIApp, note: Callable[..., None]) -> None:
        self.app, self.note = app, note

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
            self.note(kind="request", method=scope["method"], path=scope["path"], headers=headers, body=text)


def install(path: Path) -> None:
    """Wrap the two ways in: calls that others make, and answers to our own."""
    note, send = notes(path), httpx.Client.send

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

    httpx.Client.send = sending
    add_middleware(Hearing, note=note)


if __name__ == "__main__":
    install(Path(os.environ["CAPS_HOME"]) / FILE)
    run()
