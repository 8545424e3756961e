"""One run, alive: a session with the peers (`session`), opened again whenever it is lost, in which steps are done."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import NoReturn

from caps.basics.retry import Backoff
from caps.dp.oracle import StepRequest
from caps.errors import (
    CapsError,
    LocalError,
    PeerAborted,
    PeerError,
    PeerUnreachable,
    SessionClosed,
    party_name,
)
from caps.service import logs
from caps.service.metrics import Metrics
from services.mpc_server.runs.material import Material
from services.mpc_server.runs.record import Record, Recorded, RunAborted
from services.mpc_server.runs.session import RequestsDiffer, RunSession, Seat, open_channel
from services.mpc_server.transport.keeper import MeshKeeper
from services.mpc_server.transport.session import Session

log = logging.getLogger("caps.runs")

_REOPEN = Backoff(first=0.1, longest=3.0)


class LiveRun:
    """Lives in the event loop of the engine's thread; `ask` is its only entry point."""

    def __init__(
        self,
        record: Record,
        seat: Seat,
        material: Material,
        keeper: MeshKeeper,
        *,
        patience: float,
        metrics: Metrics | None = None,
    ) -> None:
        self.record = record
        self._metrics = metrics or Metrics()
        self._seat = seat
        self._material = material
        self._keeper = keeper
        self._patience = patience
        self._open = asyncio.Event()
        self._session: RunSession | None = None
        self._asked: dict[int, tuple[str, asyncio.Task[Recorded]]] = {}
        self._trouble: PeerError = PeerUnreachable(record.manifest.sharing.peers_of(seat.party)[0], "no session yet")
        self._rounds = self._sent = 0
        self._heard = False
        """Whether there has been a session since the log last said that the run waits."""

    @property
    def trouble(self) -> PeerError | None:
        """Why the run waits; None while it has a session."""
        return None if self._open.is_set() else self._trouble

    @property
    def traffic(self) -> tuple[int, int]:
        """Rounds run and bytes sent, over all sessions since this process began."""
        live = self._session.channel.traffic if self._session is not None else None
        return self._rounds + (live.rounds if live else 0), self._sent + (live.sent if live else 0)

    async def live(self) -> NoReturn:
        """Keep a session open until cancelled, which happens when this server attests the run.

        Its own last answer is too early: a peer that crashed just before recording that answer needs all the others.
        Raises RunAborted once there is evidence that a server deviates, and LocalError if contributions were refused
        and the study agreed to stop then: there is no further session.
        """
        retries, said = _REOPEN.begin(), ""
        while True:
            if self.record.aborted:
                raise RunAborted(str(self._trouble))
            if self.record.account.stopped is not None:
                raise LocalError(self.record.account.stopped)
            try:
                await self._live_once()
                retries.reset()
            except PeerError as error:
                self._trouble = _to_blame(error, self._seat.party)
                self._metrics.count("caps_retries", party=party_name(self._trouble.party))
                if str(self._trouble) != said or self._heard:
                    said, self._heard = str(self._trouble), False
                    logs.say(log, "waiting", party=party_name(self._trouble.party), reason=said)
            except SessionClosed:
                pass
            await asyncio.sleep(retries.pause())

    async def ask(self, number: int, request: StepRequest, digest: str) -> Recorded:
        """The step's record, with its answer. If the step is being computed already, waits for that computation."""
        recorded = self.record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            return recorded
        if self.record.aborted:
            raise RunAborted(str(self._trouble))
        if number in self._asked:
            other, task = self._asked[number]
            if other != digest:
                raise RequestsDiffer(f"step {number} is being computed for a different request")
        else:
            if recorded is None:
                self.record.account.check(request)
            task = self._seat.supervisor.task("step", self._do_in_session(number, request, digest))
            self._asked[number] = digest, task
            task.add_done_callback(lambda _: self._asked.pop(number, None))
        return await asyncio.shield(task)

    async def _do_in_session(self, number: int, request: StepRequest, digest: str) -> Recorded:
        """Wait for a session and have it do the step. Errors name the party to blame."""
        try:
            async with asyncio.timeout(self._patience):
                await self._open.wait()
        except TimeoutError:
            raise self._trouble from None
        session = self._session
        if session is None:
            raise self._trouble
        started, kind = perf_counter(), request.kind
        try:
            done = await session.perform(number, request, digest)
            seconds = perf_counter() - started
            self._metrics.count("caps_steps", kind=kind)
            self._metrics.observe("caps_step_seconds", seconds, kind=kind)
            with logs.bound(run=self.record.run, study=self.record.manifest.study_id, step=number):
                logs.say(log, "answered", kind=kind, seconds=round(seconds, 3))
            return done
        except PeerAborted as error:
            raise _to_blame(error, self._seat.party) from None
        except SessionClosed:  # the cause was raised elsewhere, such as where noise is drawn ahead
            reason = await session.channel.ended()
            raise _to_blame(reason, self._seat.party) if isinstance(reason, PeerError) else reason from None

    async def _live_once(self) -> None:
        mesh = await self._keeper.ready(self._patience)
        channel = await open_channel(mesh, self.record, self._seat)
        try:
            session = await RunSession.begin(channel, self.record, self._seat, self._material)
            self._session = session
            self._heard = True
            self._open.set()
            logs.say(log, "session opened", answered=self.record.answered)
            error = await self._end_of(channel)
            if isinstance(error, PeerError):
                raise error
        except PeerError as error:
            await channel.abort(str(error), error.party)
            raise
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await channel.abort(type(error).__name__)
            raise
        finally:
            self._open.clear()
            if self._session is not None:
                self._session.ended()
            self._session = None
            self._rounds += channel.traffic.rounds
            self._sent += channel.traffic.sent
            await channel.close()

    async def _end_of(self, channel: Session) -> CapsError | None:
        """Why a session ended; None if the run has stopped and peers have had time to write down the same answer."""
        looks = 0
        while looks < 2:
            try:
                async with asyncio.timeout(self._patience):
                    return await channel.ended()
            except TimeoutError:
                looks += self.record.account.stopped is not None
        return None


def _to_blame(error: PeerError, party: int) -> PeerError:
    """The error, naming the party that the run waits for: if a peer gave up because of another, that other one."""
    if isinstance(error, PeerAborted) and error.blames not in (None, error.party, party):
        return PeerUnreachable(error.blames, f"given up by {error}")
    return error
