"""`python -m tests.kit.recording MODULE`: a service that writes down everything it receives.

In CAPS_HOME/received, one JSON object a line: of a peer's message {"from", "kind", "tag", "data"}; of an HTTP request
{"verb", "path", "headers"} and then {"body"} for each piece. Bytes are in hexadecimal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

import services.mpc_server.transport.session
from tests.kit.wrapping import add_middleware, notes, run

FILE = "received"


@dataclass(frozen=True)
class Received:
    """A message of a peer's: who sent it, what it is, and its payload."""

    source: int
    kind: str
    tag: str
    payload: bytes

    @property
    def outline(self) -> tuple[int, str, str, int]:
        """All but the content."""
        return self.source, self.kind, self.tag, len(self.payload)


def read(home: Path) -> tuple[list[Received], list[tuple[str, bytes]]]:
    """Messages of the peers in order; and paths of HTTP requests, each with a piece of what came with it."""
    messages, requests, path = [], [], ""
    for line in (home / FILE).read_text().splitlines():
        found = json.loads(line)
        if "tag" in found:
            messages.append(Received(found["from"], found["kind"], found["tag"], bytes.fromhex(found["data"])))
        elif "path" in found:
            path = bytes.fromhex(found["path"]).decode()
            requests.append((path, bytes.fromhex(found["headers"])))
        else:
            requests.append((path, bytes.fromhex(found["body"])))
    return messages, requests


def forget(home: Path) -> None:
    """Begin anew."""
    (home / FILE).write_text("")


def install(path: Path) -> None:
    """Wrap the two entrances of a service."""
    note = notes(path)
    session = services.mpc_server.transport.session.Session
    receive = session.receive

    def receiving(self: Any, source: int, frame: Any) -> None:
        data = bytes(frame.payload).hex()
        note(**{"from": source, "kind": frame.kind.name, "tag": frame.tag.hex(), "data": data})
        receive(self, source, frame)

    session.receive = receiving
    add_middleware(_Hearing, note=note)


class _Hearing:
    """Notes every request's head and body, before anything else sees them."""

    def __init__(self, app: ASGIApp, note: Callable[..., None]) -> None:
        self.app, self.note = app, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = b"\n".join(name + b": " + value for name, value in scope["headers"])
            self.note(verb=scope["method"].encode().hex(), path=scope["path"].encode().hex(), headers=headers.hex())

        async def heard() -> Message:
            message = await receive()
            if message.get("body"):
                self.note(body=message["body"].hex())
            return message

        await self.app(scope, heard, send)


if __name__ == "__main__":
    install(Path(os.environ["CAPS_HOME"]) / FILE)
    run()
