"""Server-Sent Events of a run: numbered, so that a client that lost the connection resumes where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool

from services.coordinator.store import ENDED, Event, Store

LOOK_EVERY = 0.5
HEARTBEAT_EVERY = 15.0
"""A comment, so that proxies do not take a quiet run for a dead connection."""


def encoded(event: Event) -> bytes:
    """An event on the wire."""
    body = json.dumps({"at": event.at, **event.body})
    return f"id: {event.number}\nevent: {event.kind}\ndata: {body}\n\n".encode()


def is_last(event: Event) -> bool:
    """Whether nothing follows."""
    return event.kind == "state" and event.body["state"] in ENDED


async def stream(
    store: Store,
    run: str,
    after: int,
    *,
    stopping: Callable[[], bool],
    look_every: float = LOOK_EVERY,
    heartbeat_every: float = HEARTBEAT_EVERY,
) -> AsyncIterator[bytes]:
    """What happened after event number `after` and what happens from now on, to the run's end."""
    quiet = 0.0
    yield b"retry: 2000\n\n"
    while not stopping():
        found = await run_in_threadpool(store.events, run, after=after)
        for event in found:
            after, quiet = event.number, 0.0
            yield encoded(event)
            if is_last(event):
                return
        await asyncio.sleep(look_every)
        quiet += look_every
        if quiet >= heartbeat_every:
            quiet = 0.0
            yield b": still here\n\n"
