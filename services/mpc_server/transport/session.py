"""One party's end of a session: the state machine behind every `Channel`, whatever moves the bytes.

A session ends by `close`, by `abort`, or by the first failure of a peer. However it ends, each peer that has not ended
it is sent exactly one ABORT or CLOSE, so that both sides know when the session's number is free again.

Who is to blame is not always known at once. In a ring that waits for a stopped party, everybody times out at about the
same moment, each suspecting its neighbour. So a suspicion is told to the peers at once and judged after a grace period.
If the suspect says in that time that it is itself waiting for another party, the blame moves there. Likewise, an ABORT
that blames another party than its sender gives way to first-hand evidence of the same.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Protocol

from caps.errors import (
    CapsError,
    DomainError,
    LocalError,
    PeerAborted,
    PeerError,
    PeerLost,
    PeerStalled,
    PeerViolation,
    SessionClosed,
)
from services.mpc_server.channel import TAG_BYTES, Buffers, Traffic
from services.mpc_server.transport.framing import (
    MAX_PAYLOAD,
    NO_TAG,
    Frame,
    FrameError,
    Kind,
    decode_abort,
    encode_abort,
)
from services.mpc_server.transport.hello import Hello, meet

_EARLY = "ended the session before the protocol did"
_HEARSAY_GRACE = 0.02
_SUSPICION_GRACE = 0.5
_FRAME_COST = 256
"""Roughly what an unread message costs in memory beyond its payload."""


class Port(Protocol):
    """How a session's frames leave for one peer."""

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that the session should pause. `Session.resume` ends the pause."""

    def send(self, kind: Kind, sequence: int, tag: bytes, pieces: Buffers, size: int) -> None:
        """Send a frame of `size` payload bytes, or nothing if the connection is gone.

        `pieces` may be referred to until the port is no longer congested, or is released.
        """

    def release(self) -> None:
        """Drop all references to `pieces`."""

    def progress(self) -> object:
        """A value that changes while a large transfer to or from the peer progresses; None if there is no transfer."""


class _Lane:
    """What a session knows about one peer."""

    __slots__ = ("ended", "inbox", "port", "received", "sent", "told", "unread")

    def __init__(self, port: Port) -> None:
        self.port = port
        self.sent = 0
        self.received = 0
        self.inbox: deque[Frame] = deque()
        self.unread = 0
        self.ended = False
        self.told = False


class Session:
    """Implements `Channel` over one port per peer.

    Pre-conditions: `secrets` holds the secret of every pair, or `hail` and `opened` are called first.
    """

    def __init__(
        self,
        party: int,
        ports: Mapping[int, Port],
        secrets: MutableMapping[int, bytes],
        *,
        stall: float,
        max_message: int = MAX_PAYLOAD,
        max_unread: int = MAX_PAYLOAD,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._party = party
        self._lanes = {peer: _Lane(port) for peer, port in ports.items()}
        self._secrets = secrets
        self._stall = self._patience = stall
        self._max_message = max_message
        self._max_unread = max_unread
        self._on_end = on_end
        self._hellos: Mapping[int, Hello] = {}
        self._traffic = Traffic()
        self._tag = NO_TAG
        self._awaited: dict[int, int] = {}
        self._arrived: dict[int, memoryview] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = 0.0
        self._pulse: object = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: CapsError | None = None
        self._verdict: asyncio.TimerHandle | None = None
        self._raised = False
        self._over = False
        self._end: asyncio.Future[None] | None = None

    @property
    def party(self) -> int:
        """Which party this end is."""
        return self._party

    @property
    def peers(self) -> Collection[int]:
        """The other parties of the session."""
        return self._lanes.keys()

    @property
    def traffic(self) -> Traffic:
        """Payload bytes sent and rounds run."""
        return self._traffic

    def secret_with(self, peer: int) -> bytes:
        """See `Channel`."""
        return self._secrets[peer]

    def ended_by(self, peer: int) -> bool:
        """Whether `peer` has sent its last frame of this session, or takes no part in it."""
        return peer not in self._lanes or self._lanes[peer].ended

    def hail(self, hellos: Mapping[int, Hello]) -> None:
        """Send each peer its Hello. Pre-conditions: called once, before anything else."""
        self._hellos = hellos
        self._awaited = dict.fromkeys(hellos, 0)
        for peer, hello in hellos.items():
            payload = hello.encode()
            self._lanes[peer].port.send(Kind.HELLO, 0, NO_TAG, (memoryview(payload),), len(payload))

    async def opened(self, patience: float) -> None:
        """Wait for every peer's Hello, for at most `patience` seconds each."""
        self._patience = patience
        if not self._settles():
            await self._settled()
        self._stop_clock()
        self._patience = self._stall

    async def exchange(
        self, tag: bytes, outgoing: Mapping[int, Buffers], incoming: Mapping[int, int]
    ) -> Mapping[int, memoryview]:
        """See `Channel`."""
        if self._waiter is not None:
            raise LocalError("an exchange began before the previous one had ended")
        if self._error is not None:
            await self._settled()
        lanes = self._lanes
        if len(tag) != TAG_BYTES or not outgoing.keys() <= lanes.keys() or not incoming.keys() <= lanes.keys():
            raise DomainError(f"an exchange needs a tag of {TAG_BYTES} bytes and peers among {sorted(lanes)}")
        sizes = {peer: sum([piece.nbytes for piece in pieces]) for peer, pieces in outgoing.items()}
        if sizes and max(sizes.values()) > self._max_message:
            raise DomainError(f"a message exceeds {self._max_message} bytes")

        self._tag = tag
        for peer, size in sizes.items():
            lane = lanes[peer]
            if lane.ended:
                self._fail(PeerLost(peer, _EARLY))
                break
            lane.port.send(Kind.ROUND, lane.sent, tag, outgoing[peer], size)
            lane.sent += 1
            self._traffic.sent += size
        self._traffic.rounds += 1
        for peer, length in incoming.items():
            lane = lanes[peer]
            self._awaited[peer] = length
            if lane.inbox:
                frame = lane.inbox.popleft()
                lane.unread -= len(frame.payload) + _FRAME_COST
                self._claim(peer, frame)
            elif lane.ended:
                self._fail(PeerLost(peer, _EARLY))
        if self._awaited or not self._settles():
            await self._settled()
        arrived, self._arrived = self._arrived, {}
        return arrived

    async def ended(self) -> CapsError:
        """Wait until the session is over, for whatever reason, and return that reason."""
        if not self._over:
            self._end = self._end or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._end)
        assert self._error is not None
        return self._error

    async def abort(self, cause: str, blames: int | None = None) -> None:
        """See `Channel`."""
        self._stop(f"aborted here: {cause}", encode_abort(cause, blames))

    async def close(self) -> None:
        """See `Channel`."""
        self._stop("closed here", None)

    def receive(self, source: int, frame: Frame) -> None:
        """Take in a frame of this session from `source`."""
        lane = self._lanes[source]
        try:
            if frame.sequence != lane.received:
                raise FrameError(f"{frame.kind.name} is number {frame.sequence}, not {lane.received}")
            if frame.kind is Kind.ROUND:
                self._on_round(source, lane, frame)
            elif frame.kind is Kind.HELLO:
                self._on_hello(source, frame)
            else:
                self._on_last(source, lane, frame)
        except FrameError as violation:
            self._fail(PeerViolation(source, str(violation)))
        except PeerError as error:
            self._fail(error)

    def _on_round(self, source: int, lane: _Lane, frame: Frame) -> None:
        if source not in self._secrets:
            raise FrameError("ROUND before HELLO")
        lane.received += 1
        if source in self._awaited:
            self._claim(source, frame)
        elif self._error is None:
            lane.unread += len(frame.payload) + _FRAME_COST
            if lane.unread > self._max_unread:
                raise FrameError(f"ran ahead by more than {self._max_unread} bytes")
            lane.inbox.append(frame)

    def _on_hello(self, source: int, frame: Frame) -> None:
        if source in self._secrets:
            raise FrameError("a second HELLO")
        self._secrets[source] = meet(self._hellos[source], frame.payload)
        del self._awaited[source]
        self._wake()

    def _on_last(self, source: int, lane: _Lane, frame: Frame) -> None:
        lane.ended = True
        if frame.kind is Kind.ABORT:
            cause, blames = decode_abort(frame.payload)
            if blames == self._party and self._error is None:
                self._answer(source)
            raise PeerAborted(source, cause, blames)
        if source in self._awaited:
            raise PeerLost(source, _EARLY)

    def _answer(self, accuser: int) -> None:
        """Answer an accusation of stalling: if we have ourselves waited long for another party, say so now."""
        suspect = self._missing()
        if self._waiter is None or suspect is None or suspect == accuser:
            return
        waited = self._patience + asyncio.get_running_loop().time() - self._deadline
        if waited >= self._patience / 2:
            raise PeerStalled(suspect, f"nothing arrived for {waited:.3g} s")

    def lose(self, peer: int, error: PeerError) -> None:
        """The connection to `peer` is gone; that is a failure if it took part in the session and had not ended it."""
        lane = self._lanes.get(peer)
        if lane is not None and not lane.ended:
            lane.ended = lane.told = True
            self._fail(error)

    def resume(self) -> None:
        """A port is no longer congested."""
        self._wake()

    def _claim(self, source: int, frame: Frame) -> None:
        """Match a message with what this round expects from its sender."""
        length = self._awaited[source]
        if frame.tag != self._tag:
            self._fail(PeerViolation(source, f"message tagged {frame.tag.hex()}, not {self._tag.hex()}"))
        elif len(frame.payload) != length:
            self._fail(PeerViolation(source, f"message of {len(frame.payload)} bytes, not {length}"))
        else:
            del self._awaited[source]
            self._arrived[source] = memoryview(frame.payload)
            self._wake()

    def _missing(self) -> int | None:
        """The peer that holds up this round: one that owes a message, or one that does not read what it is sent."""
        for peer in self._awaited:
            return peer
        for peer, lane in self._lanes.items():
            if lane.port.congested:
                return peer
        return None

    def _settles(self) -> bool:
        return self._error is None and self._missing() is None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not self._awaited and not waiter.done() and (self._over or self._settles()):
            waiter.set_result(None)

    async def _settled(self) -> None:
        """Wait until nothing is missing. Raises the session's error if it ends first."""
        if not self._over:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            self._deadline = loop.time() + self._patience
            if self._timer is None:
                self._timer = loop.call_at(self._next_look(loop.time()), self._look)
            try:
                await self._waiter
            except asyncio.CancelledError:
                self._stop("cancelled here", encode_abort("cancelled in the middle of a round", None))
                raise
            finally:
                self._waiter = None
        if self._error is not None:
            if self._raised:
                raise SessionClosed(f"the session is over: {self._error}")
            self._raised = True
            raise self._error

    def _next_look(self, now: float) -> float:
        return min(self._deadline, now + self._patience / 4)

    def _look(self) -> None:
        """Suspect the peer that holds up this round if nothing has moved since the deadline was set.

        One timer serves all rounds: it is not touched when a round ends, and sleeps when it finds nobody waiting.
        """
        self._timer = None
        suspect = self._missing()
        if self._waiter is None or self._error is not None or suspect is None:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        pulse = self._lanes[suspect].port.progress()
        if pulse is not None and pulse != self._pulse:
            self._deadline = now + self._patience
        self._pulse = pulse
        if now < self._deadline:
            self._timer = loop.call_at(self._next_look(now), self._look)
        else:
            self._fail(PeerStalled(suspect, f"nothing arrived for {self._patience:g} s"))

    def _stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: PeerError) -> None:
        """End the session because of a peer: tell the peers at once, raise when it is clear who is to blame."""
        if self._error is not None:
            if self._verdict is not None and self._outranks(error, self._error):
                self._error = error
                self._conclude()
            return
        self._error = error
        blames = error.party if not isinstance(error, PeerAborted) or error.blames is None else error.blames
        self._tell(encode_abort(str(error), blames), error.party if isinstance(error, PeerAborted) else None)
        grace = 0.0
        if isinstance(error, PeerStalled):
            grace = min(_SUSPICION_GRACE, self._patience / 2)
        elif blames not in (error.party, self._party):
            grace = _HEARSAY_GRACE
        if grace:
            self._verdict = asyncio.get_running_loop().call_later(grace, self._conclude)
        else:
            self._conclude()

    def _stop(self, why: str, abort: bytes | None) -> None:
        if self._over:
            return
        if self._error is None:
            self._error = SessionClosed(f"the session was {why}")
            self._tell(abort)
        self._conclude()

    def _tell(self, abort: bytes | None, informed: int | None = None) -> None:
        """Send each peer the last frame it gets of this session: ABORT, or CLOSE if there is nothing to tell it."""
        for peer, lane in self._lanes.items():
            if lane.told:
                continue
            lane.told = True
            if abort is None or peer == informed:
                lane.port.send(Kind.CLOSE, lane.sent, NO_TAG, (), 0)
            else:
                lane.port.send(Kind.ABORT, lane.sent, NO_TAG, (memoryview(abort),), len(abort))

    def _outranks(self, error: PeerError, held: CapsError) -> bool:
        """Whether `error` says better than `held` who is to blame."""
        if isinstance(held, PeerStalled) and isinstance(error, PeerAborted):
            return error.party == held.party and error.blames not in (None, error.party, self._party)
        if isinstance(held, PeerAborted):
            first_hand = not isinstance(error, PeerAborted) or error.blames in (None, error.party)
            return first_hand and error.party == held.blames != held.party
        return False

    def _conclude(self) -> None:
        if self._verdict is not None:
            self._verdict.cancel()
            self._verdict = None
        self._over = True
        self._stop_clock()
        self._awaited = {}
        self._arrived = {}
        for lane in self._lanes.values():
            lane.inbox.clear()
            lane.port.release()
        self._wake()
        if self._end is not None:
            self._end.set_result(None)
        self._on_end()
