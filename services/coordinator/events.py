"""Server-Sent Events of a run: numbered, so that a client that lost the connection resumes where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from time import monotonic

from starlette.concurrency import run_in_threadpool

from services.coordinator.states import ENDED
from services.coordinator.store import Event, Store

LOOK_EVERY = 0.5
"""Seconds after which to look at the store even without a notification, so that `stopping` is noticed."""
HEARTBEAT_EVERY = 15.0
"""A comment, sent so that proxies do not mistake a quiet run for a dead connection."""


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
    farewell: bytes = b"",
) -> AsyncIterator[bytes]:
    """All events after number `after`, past and future, until the run ends; then the farewell, if there is one."""
    yield b"retry: 2000\n\n"
    with store.written.listening() as written:
        told = monotonic()
        while not stopping():
            written.clear()
            found = store.events_known(run, after=after)
            if found is None:
                found = await run_in_threadpool(store.events, run, after=after)
            for event in found:
                after, told = event.number, monotonic()
                yield encoded(event)
                if is_last(event):
                    if farewell:
                        yield farewell
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(written.wait(), look_every)
            if monotonic() - told >= heartbeat_every:
                told = monotonic()
                yield b": still here\n\n"
