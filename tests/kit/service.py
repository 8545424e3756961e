"""Services for tests: an authority, certificates good and bad, an application with routes of every kind, over TLS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict

from caps.errors import DomainError
from caps.service.app import create_app
from caps.service.identity import Allow, Caller
from caps.service.serve import make_server
from caps.service.tokens import Scope, Tokens
from caps.trust import pki
from caps.trust.tls import Credentials, client_context

HOUR = timedelta(hours=1)
CANARY = "Ottilie-Canary-1927"
"""A value that stands for private data: it must never come back."""


class Authority:
    """An authority in a folder, and the credentials it issues. Times are around now, for TLS looks at the clock."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.now = datetime.now(UTC)
        self.authority = pki.Authority.create(name, not_before=self.now - 48 * HOUR, not_after=self.now + 48 * HOUR)
        self.root = folder / f"{name}.pem"
        pki.write_pem(self.root, self.authority.certificate)

    def issue(
        self,
        label: str,
        *roles: str,
        hosts: Sequence[str] = ("127.0.0.1", "localhost"),
        expires: timedelta = HOUR,
        trusts: Path | None = None,
        key: pki.PrivateKey | None = None,
    ) -> Credentials:
        """A key and a certificate with these role URIs, such as `caps:holder/clinic-a`; none, if none is given."""
        key = pki.generate_key() if key is None else key
        certificate = self.authority.issue(
            key.public_key(),
            subject=label,
            uris=roles,
            hosts=hosts,
            not_before=self.now - 24 * HOUR,
            not_after=self.now + expires,
        )
        paths = Credentials(self.folder / f"{label}.pem", self.folder / f"{label}.key", trusts or self.root)
        pki.write_pem(paths.certificate, certificate)
        pki.write_key(paths.private_key, key)
        return paths


def pin_of(credentials: Credentials) -> str:
    """The pin of a certificate, as manifests spell it."""
    return pki.spki_pin(pki.read_certificate(credentials.certificate)).hex()


@contextmanager
def serving(app: FastAPI, credentials: Credentials) -> Iterator[str]:
    """Serve over TLS in a thread, on a free port of 127.0.0.1; yields the URL, and stops at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(app, credentials, host="127.0.0.1", port=listener.getsockname()[1])
        thread = threading.Thread(target=server.run, args=([listener],), name="service")
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the service did not start"
                time.sleep(0.01)
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the service did not stop"


def calling(
    url: str,
    authority: Path,
    *,
    me: Credentials | None = None,
    token: str | None = None,
    role: str | None = None,
    pin: str | None = None,
) -> httpx.Client:
    """A client with a certificate, or a token, or nothing; `role` and `pin` say whom it must meet."""
    context = client_context(
        authority,
        certificate=me and me.certificate,
        private_key=me and me.private_key,
        role=role,
        pin=pin,
    )
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, verify=context, headers=headers, timeout=20, trust_env=False)


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
            limits=[("/v1/large", 100_000)],
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
