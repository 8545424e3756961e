"""A table on its way in: streamed to a file that is erased again, whatever comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar

from anyio import to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from caps.basics.files import erase
from caps.service.problems import Problem
from caps.wire.problems import Kind
from services.holder.service import HolderService
from services.holder.table import Sent

_BUFFER = 1 << 20
T = TypeVar("T")
SentAs = Sent | Callable[[Path], Sent]


async def receive(
    service: HolderService, study: str, request: Request, sent: SentAs, then: Callable[[str, Path, Sent, str], T]
) -> T:
    """What `then` makes of the table in a body. sent: how it says it is sent, or how to tell by the file."""
    path = await to_thread.run_sync(service.upload_path, study)
    try:
        digest = await save(request, path)
        found = sent if isinstance(sent, Sent) else await to_thread.run_sync(sent, path)
        return await to_thread.run_sync(then, study, path, found, digest)
    finally:
        erase(path)


def sent_as(request: Request, *, ignore_extra: bool) -> Sent:
    """How the table is sent, as the request's Content-Type says. Raises a problem (415) for what is not read."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Problem(Kind.UNSUPPORTED, "send the table without a Content-Encoding; a gzip file is application/gzip")
    return Sent.of(request.headers.get("content-type", ""), ignore_extra=ignore_extra)


async def save(request: Request, path: Path) -> str:
    """Stream a body to a new file and return its SHA-256. Raises a problem if the body ends early."""
    digest, buffer = sha256(), bytearray()
    with await to_thread.run_sync(_create, path) as file:
        try:
            async for part in request.stream():
                buffer += part
                if len(buffer) >= _BUFFER:
                    digest.update(buffer)
                    await to_thread.run_sync(file.write, bytes(buffer))
                    buffer.clear()
        except ClientDisconnect:
            raise Problem(Kind.MALFORMED, "the request's body ended early; send the table again") from None
        digest.update(buffer)
        await to_thread.run_sync(_finish, file, bytes(buffer))
    return digest.hexdigest()


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _finish(file: BinaryIO, rest: bytes) -> None:
    file.write(rest)
    file.flush()
    os.fsync(file.fileno())
