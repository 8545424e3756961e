"""A sample service for tests, with routes of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import TimeoutError as NoConnection

from caps.errors import DomainError
from caps.service.app import Limit, create_app
from caps.service.identity import Allow, Caller
from caps.service.tokens import Scope, Tokens
from tests.kit.tls import HOUR

CANARY = "Ottilie-Canary-1927"
"""A value that stands for private data: it must never come back."""


ByHolder = Annotated[Caller, Depends(Allow(machines=["holder"]))]
ByOperator = Annotated[Caller, Depends(Allow(scopes=[Scope.OPERATOR]))]
ByEither = Annotated[Caller, Depends(Allow(machines=["holder"], scopes=[Scope.OPERATOR]))]


class Thing(BaseModel):
    """A body."""

    model_config = ConfigDict(extra="forbid")
    name: str
    count: int = 0


class Sample:
    """An application with routes of every kind, and what they were asked."""

    def __init__(self, folder: Path, **choices: Any) -> None:
        self.tokens = Tokens(folder / "tokens.json")
        self.seen: list[str] = []
        self.app = create_app(
            service="sample",
            name="one",
            description="A sample.",
            routers=[self._router()],
            tokens=self.tokens,
            limits=[Limit("/v1/large", 100_000)],
            **choices,
        )

    def token(self, *scopes: Scope, name: str = "ada") -> str:
        """A new token, good for an hour."""
        return self.tokens.create(name, scopes, expires=datetime.now(UTC) + HOUR)

    def _router(self) -> APIRouter:
        api = APIRouter(prefix="/v1")

        @api.get("/who")
        def who(caller: ByEither) -> dict[str, str]:
            """Who asks."""
            self.seen.append(str(caller))
            return {"caller": str(caller), "pin": caller.machine.pin if caller.machine else ""}

        @api.put("/machine")
        def machine(caller: ByHolder) -> dict[str, str]:
            """For holders only."""
            self.seen.append(str(caller))
            return {"caller": str(caller)}

        @api.post("/things", status_code=201)
        def things(thing: Thing, caller: ByEither) -> Thing:
            """Take a body of JSON."""
            self.seen.append(thing.name)
            return thing

        @api.get("/things")
        def listed(caller: ByEither, most: int = 1) -> list[Thing]:
            """With a parameter."""
            return []

        @api.put("/large")
        async def large(request: Request, caller: ByEither) -> dict[str, int]:
            """Take a stream."""
            size = 0
            async for part in request.stream():
                size += len(part)
            return {"size": size}

        @api.get("/broken")
        def broken(caller: ByOperator) -> None:
            """Fail with data in the message."""
            try:
                raise KeyError(CANARY)
            except KeyError:
                raise RuntimeError(f"cannot cope with {CANARY}") from None

        @api.get("/busy")
        def busy(caller: ByOperator) -> None:
            """Wait for a connection to the database in vain."""
            raise NoConnection

        @api.get("/full")
        def full(caller: ByOperator) -> None:
            """Write to a disk that has no room."""
            Path("/dev/full").write_bytes(b"x")

        @api.get("/refused")
        def refused(caller: ByOperator) -> None:
            """Fail on purpose."""
            raise DomainError("not possible")

        @api.get("/half")
        def half(caller: ByOperator) -> StreamingResponse:
            """Fail when half of the answer is out."""

            async def parts() -> AsyncIterator[bytes]:
                yield b"first"
                raise RuntimeError(CANARY)

            return StreamingResponse(parts(), media_type="text/plain")

        return api
