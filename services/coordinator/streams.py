"""A run's events as answers: as many at once as the quotas allow, for machines by REST and for pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from caps.service.identity import Caller
from caps.service.problems import Problem
from caps.service.quotas import Slots
from caps.wire import media
from caps.wire.problems import Kind
from services.coordinator.events import is_last, stream
from services.coordinator.runs import Runs
from services.coordinator.settings import Quotas
from services.coordinator.states import ENDED
from services.coordinator.store import Store

FAREWELL = b"event: ended\ndata:\n\n"
"""For a page, which is told to ask no more; others know it from the state."""


class Streaming(StreamingResponse):
    """A stream that takes a place for as long as it is sent. Raises a problem, before anything is sent, without one."""

    def __init__(self, place: AbstractContextManager[None], content: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type=media.EVENTS, headers=headers)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._place:
            await super().__call__(scope, receive, send)


class Streams:
    """The event streams of a coordinator."""

    def __init__(self, store: Store, runs: Runs, quotas: Quotas) -> None:
        self._store = store
        self._runs = runs
        self._slots = Slots("event streams", total=quotas.streams, each=quotas.token_streams, seconds=10)

    def of(self, run: str, caller: Caller, number: str, *, page: bool = False) -> Response:
        """What happens to a run after the event of this number, until it ends. Raises a problem."""
        record = self._runs.run(run)
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise Problem(Kind.MALFORMED, "Last-Event-ID must be the number of an event")
        after = int(number)
        if record.state in ENDED and not any(is_last(event) for event in self._store.events(run, after=after)):
            if page:
                return Response(FAREWELL, media_type=media.EVENTS)
            return Response(status_code=204)  # tells a browser not to connect again
        assert caller.person is not None
        farewell = FAREWELL if page else b""
        events = stream(self._store, run, after, stopping=lambda: self._runs.stopping, farewell=farewell)
        return Streaming(self._slots.taken(caller.person.token), events)
