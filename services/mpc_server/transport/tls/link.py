"""One TLS stream to one peer: who is at its other end, frames in and out, and whether it is still alive.

The link layer always reads, so that no party's sending ever waits for another's reading; how much a peer may send
ahead is bounded instead. Sending waits for the kernel, so that memory holds one copy of a large message.

An end that has been quiet, or has heard nothing, for a while sends PING, which is answered; so a peer whose machine
vanished silently is noticed even on an idle stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from cryptography import x509

from caps.errors import DomainError, PeerError, PeerLost, PeerStalled, PeerViolation, party_name
from caps.trust.pki import spki_pin
from services.mpc_server.channel import Buffers
from services.mpc_server.transport.framing import (
    MAX_PAYLOAD,
    NO_TAG,
    Frame,
    FrameDecoder,
    FrameError,
    Kind,
    decode_abort,
    encode_abort,
    encode_header,
)
from services.mpc_server.transport.hello import Greeting, check_version
from services.mpc_server.transport.session import Session

SHUTDOWN = 2.0
"""Seconds for both ends of a stream to close it in an orderly way."""

_JOINED = 1 << 16
"""Messages up to this size are copied behind their header and leave in one write."""

_CHUNK = 1 << 18
"""Larger ones leave in pieces of this size, so that encrypting them does not hold up reading."""

_MAX_EARLY = 256
"""The most sessions that one peer may have open before we open them."""

_LEAST_BEATS = 3
"""One beat may pass while this party itself computes; the following ones must still find an answer in time."""


@dataclass(frozen=True)
class Limits:
    """Bounds on what peers may cost: seconds, and bytes.

    `stall` must exceed the longest local computation between two rounds. `max_unread` is how far a peer may run ahead.
    A stream that was quiet for `heartbeat` is tried with a PING; it is lost when nothing arrived for `silence`, or for
    `stall` if that is longer and a session is open, since a party that computes in its event loop cannot answer. So
    `silence` must exceed the longest such computation outside sessions.
    """

    connect: float = 30.0
    hello: float = 30.0
    stall: float = 60.0
    heartbeat: float = 5.0
    silence: float = 20.0
    max_frame: int = MAX_PAYLOAD
    max_unread: int = MAX_PAYLOAD

    def __post_init__(self) -> None:
        if not 0 < _LEAST_BEATS * self.heartbeat <= self.silence:
            raise DomainError(f"silence must last at least {_LEAST_BEATS} heartbeats")


@dataclass
class Wire:
    """What crossed a mesh's streams, including frame headers but not TLS."""

    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Refused(Exception):
    """The other end is not the expected party, or does not accept us; `claims` is who it says it is."""

    def __init__(self, why: str, claims: int | None = None) -> None:
        super().__init__(why)
        self.claims = claims


class Link(asyncio.BufferedProtocol):
    """The stream to one peer: learns who it is, then moves frames between the stream and the sessions.

    `draining` holds sessions that have ended here but not yet there: what still arrives for them is dropped. Frames of
    sessions not opened here yet are held; they can only be HELLO and a last frame, as rounds need our HELLO first.
    """

    def __init__(
        self,
        party: int,
        sessions: dict[int, Session],
        wire: Wire,
        limits: Limits,
        identify: Callable[[x509.Certificate], int],
        *,
        dials: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.peer = -1
        self.pin = b""
        self.joined = False
        self.congested = False
        self.lost: PeerError | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self.ended: asyncio.Future[PeerError] = loop.create_future()
        self.draining: set[int] = set()
        self._party = party
        self._sessions = sessions
        self._wire = wire
        self._limits = limits
        self._identify = identify
        self._dials = dials
        self._greeted = False
        self._decoder = FrameDecoder(limits.max_frame)
        self._scratch = memoryview(bytearray(_CHUNK))
        self._early: dict[int, list[Frame]] = {}
        self._queue: deque[memoryview] = deque()
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._heard = self._spoke = False
        self._missed = 0
        self._beat: asyncio.TimerHandle | None = None

    def progress(self) -> object:
        pulse = self._decoder.partial, sum(map(len, self._queue))
        return pulse if any(pulse) else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_CHUNK)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        der = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        try:
            certificate = x509.load_der_x509_certificate(der)
            self.peer = self._identify(certificate)
            self.pin = spki_pin(certificate)
        except Refused as refusal:
            self._refuse(refusal)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
            self._refuse(Refused("presented a certificate that cannot be read"))
        else:
            if not self._dials:
                self._greet()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._wire.bytes_received += nbytes
        self._heard = True
        try:
            for frame in self._decoder.feed(self._scratch[:nbytes]):
                if self.lost is not None:
                    return
                self._wire.frames_received += 1
                self._dispatch(frame)
        except FrameError as violation:
            self._give_up(PeerViolation(self.peer, str(violation)))
        except PeerError as error:
            self._give_up(error)
        except Refused as refusal:
            self._refuse(refusal)

    def eof_received(self) -> None:
        self._lose(PeerLost(self.peer, "closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "closed the connection" if exc is None else reason_of(exc)
        if is_refusal(exc) and not self.ready.done():
            self.ready.set_exception(Refused(f"refused our certificate ({reason})"))
        self._lose(PeerLost(self.peer, reason))
        self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._paused = self.congested = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()
        if not self.congested:
            for session in self._sessions.values():
                session.resume()

    def send(self, header: bytes, pieces: Buffers, size: int) -> None:
        """Send a frame in one write if it is small, else queue views of it that leave as the kernel takes them."""
        if self.lost is not None or self._transport is None:
            return
        self._spoke = True
        self._wire.frames_sent += 1
        self._wire.bytes_sent += len(header) + size
        if size > _JOINED:
            self._queue.append(memoryview(header))
            self._queue.extend([piece.cast("B") for piece in pieces if piece.nbytes])
            self._flush()
        elif self.congested:
            self._queue.append(memoryview(b"".join((header, *pieces))))
        else:
            self._transport.write(b"".join((header, *pieces)))

    def release(self) -> None:
        """Copy what is queued, so that its memory belongs to its owner again."""
        self._queue = deque(memoryview(bytes(view)) for view in self._queue)

    def replay(self, session: int) -> None:
        """Take in the held frames of a session that has just been opened."""
        for frame in self._early.pop(session, ()):
            self._dispatch(frame)

    def shut(self, error: PeerError) -> None:
        """Send what is queued, then close the stream, for the reason given."""
        self._lose(error)
        if self._transport is not None and not self._transport.is_closing():
            for view in self._queue:
                self._transport.write(view)
            self._queue.clear()
            self._transport.close()

    def leave(self, why: str, because: PeerError | None = None) -> None:
        """Close the stream for a reason of our own. If that is another party, a peer that was greeted is told."""
        if self._greeted and because is not None and because.party != self.peer:
            self._send_control(Kind.ABORT, 0, encode_abort(str(because), because.party))
        self.shut(PeerLost(self.peer, why))

    async def closed(self) -> None:
        """Wait until the stream is closed, by force if the peer does not do its part."""
        if self._transport is None:
            return
        try:
            await asyncio.wait([self._gone], timeout=SHUTDOWN)
        finally:
            if not self._gone.done():
                self._transport.abort()
        await self._gone

    def _greet(self) -> None:
        self._send_control(Kind.HELLO, 0, Greeting(self._party, self.peer).encode())

    def _send_control(self, kind: Kind, session: int, payload: bytes) -> None:
        self.send(encode_header(kind, session, 0, NO_TAG, len(payload)), (memoryview(payload),), len(payload))

    def _flush(self) -> None:
        assert self._transport is not None
        while self._queue and not self._paused:
            view = self._queue[0]
            if len(view) > _CHUNK:
                self._queue[0] = view[_CHUNK:]
            else:
                self._queue.popleft()
            self._transport.write(view[:_CHUNK])
        self.congested = self._paused or bool(self._queue)

    def _dispatch(self, frame: Frame) -> None:
        number = frame.session
        if number == 0 or not self._greeted:
            self._on_own_frame(frame)
        elif number in self.draining:
            if frame.kind in (Kind.ABORT, Kind.CLOSE):
                self.draining.discard(number)
        elif (session := self._sessions.get(number)) is not None and not session.ended_by(self.peer):
            session.receive(self.peer, frame)
        else:
            self._hold(frame)

    def _on_own_frame(self, frame: Frame) -> None:
        """Session 0 is the stream itself: a greeting from each end, or an ABORT that says why it was refused."""
        if frame.session or frame.sequence:
            raise FrameError("a frame before the greeting")
        if frame.kind in (Kind.PING, Kind.PONG) and self._greeted:
            # A peer that does not read is not answered, or answers would pile up; what it has yet to read will do.
            if frame.kind is Kind.PING and not self.congested:
                self._send_control(Kind.PONG, 0, b"")
            return
        if frame.kind is Kind.ABORT:
            cause, _ = decode_abort(frame.payload)
            if self._greeted:
                raise PeerLost(self.peer, f"ended the connection: {cause}")
            raise Refused(f"refused us: {cause}")
        if frame.kind is not Kind.HELLO or self._greeted:
            raise FrameError(f"{frame.kind.name} out of place")
        if self._dials:
            self._greet()
        check_version(frame.payload, self.peer)
        greeting = Greeting.decode(frame.payload)
        self._greeted = True
        if greeting.party != self.peer:
            raise Refused(
                f"claims to be another party, with the certificate of {party_name(self.peer)}", greeting.party
            )
        if greeting.peer != self._party:
            raise Refused(f"our certificate is not that of {party_name(self._party)}")
        self.ready.set_result(None)
        self._beat = asyncio.get_running_loop().call_later(self._limits.heartbeat, self._on_beat)

    def _on_beat(self) -> None:
        """Judge the peer's silence, and break our own.

        Silence is counted in beats: while this party computes there are none, so it blames nobody for its own absence.
        """
        limits = self._limits
        self._missed = 0 if self._heard else self._missed + 1
        busy = self._sessions or self.draining or self._early
        if self._missed * limits.heartbeat >= (max(limits.silence, limits.stall) if busy else limits.silence):
            self._give_up(PeerStalled(self.peer, f"silent for {self._missed * limits.heartbeat:.3g} s"))
            return
        if not (self._heard and self._spoke) and not self.congested:
            self._send_control(Kind.PING, 0, b"")
        self._heard = self._spoke = False
        self._beat = asyncio.get_running_loop().call_later(limits.heartbeat, self._on_beat)

    def _hold(self, frame: Frame) -> None:
        held = self._early.setdefault(frame.session, [])
        if frame.kind is Kind.ROUND or (frame.kind is Kind.HELLO) == bool(held and held[-1].kind is Kind.HELLO):
            raise FrameError(f"{frame.kind.name} out of place")
        held.append(frame)
        if sum(map(len, self._early.values())) > _MAX_EARLY:
            self._evict(next(iter(self._early)))

    def _evict(self, session: int) -> None:
        """Forget a session that the peer opened and we did not, and tell it so."""
        held = self._early.pop(session)
        for frame in held:
            if frame.kind is Kind.HELLO:
                self._send_control(Kind.ABORT, session, encode_abort("not opened, and too many others since", None))
        if held[-1].kind is Kind.HELLO:
            self.draining.add(session)

    def _refuse(self, refusal: Refused) -> None:
        if not self.ready.done():
            self.ready.set_exception(refusal)
        self._give_up(PeerLost(self.peer, str(refusal)))

    def _give_up(self, error: PeerError) -> None:
        self._send_control(Kind.ABORT, 0, encode_abort(error.what, None))
        self.shut(error)

    def _lose(self, error: PeerError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._beat is not None:
            self._beat.cancel()
        if not self.ready.done():
            self.ready.set_exception(error)
        self.ended.set_result(error)
        if self.joined:
            for session in list(self._sessions.values()):
                session.lose(self.peer, error)


class Port:
    """One session's way out to one peer."""

    __slots__ = ("_link", "_session")

    def __init__(self, link: Link, session: int) -> None:
        self._link = link
        self._session = session

    @property
    def congested(self) -> bool:
        return self._link.congested

    def send(self, kind: Kind, sequence: int, tag: bytes, pieces: Buffers, size: int) -> None:
        self._link.send(encode_header(kind, self._session, sequence, tag, size), pieces, size)

    def progress(self) -> object:
        return self._link.progress()

    def release(self) -> None:
        self._link.release()


def is_refusal(error: BaseException | None) -> bool:
    """Whether TLS failed for a reason that trying again would not fix."""
    return isinstance(error, ssl.SSLError) and not isinstance(
        error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    )


def reason_of(error: BaseException) -> str:
    """What went wrong, in words fit for a message."""
    if isinstance(error, PeerError):
        return error.what
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verification failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or type(error).__name__).replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno and error.strerror:
        # asyncio writes addresses into what it raises, and leaves out what is wrong.
        return os.strerror(error.errno) if error.errno > 0 else error.strerror
    return str(error) or type(error).__name__
