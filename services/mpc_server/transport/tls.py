"""Channels over mutually authenticated TLS 1.3: one stream per pair of parties, many sessions on it.

A party dials those with lower numbers and is dialled by those with higher ones. A peer is who its certificate says:
it must chain to the authority, carry the one role URI of the party expected, and match that party's pin if there is
one. Host names are not compared, for they say nothing about roles.

The link layer always reads, so that no party's sending ever waits for another's reading; what a peer may send before
it is asked for is bounded instead. Sending waits for the kernel, so that memory holds one copy of a large message.

An end that has been quiet, or has heard nothing, for a while sends PING, which is answered; so a peer whose machine
vanished without a word is noticed on an idle stream too.

Exceptions of `ssl` and of the operating system end in `_reason`; only CapsErrors leave this module.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import cast

from cryptography import x509

from caps.basics.retry import Backoff
from caps.errors import (
    DomainError,
    LocalError,
    PeerDisagrees,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerStalled,
    PeerUnreachable,
    PeerViolation,
    SessionClosed,
    party_name,
)
from caps.trust.pki import role_uri, role_uris, spki_pin
from caps.trust.tls import Credentials, hardened
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
from services.mpc_server.transport.hello import SECRET_BYTES, Agreement, Greeting, Hello, check_version, session_id
from services.mpc_server.transport.session import PARTIES, Session

ROLE = "mpc-server"

_JOINED = 1 << 16
"""Messages up to this size are copied behind their header and leave in one write."""

_CHUNK = 1 << 18
"""Larger ones leave in pieces of this size, so that encrypting them does not hold up reading."""

_MAX_EARLY = 256
"""Sessions that one peer may have open before we open them."""

_MAX_HANDSHAKES = 32
"""Inbound connections that may be unidentified at once; beyond that the oldest gives way."""

_LEAST_BEATS = 3
"""One beat may go by while this party itself computes; the next ones must then find an answer in time."""

_SHUTDOWN = 2.0
_REDIAL = Backoff(first=0.05, longest=1.0)


@dataclass(frozen=True)
class Endpoint:
    """Where a party listens, and the SHA-256 of the public key it must have (`pki.spki_pin`), if it is known."""

    host: str
    port: int
    pin: bytes | None = None


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
    """What crossed a mesh's streams, headers included, TLS not."""

    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


Report = Callable[[int, PeerError | None], None]
"""Told of each trouble with a peer while a mesh is made, and with None when the stream to it stands."""


async def connect(
    party: int,
    credentials: Credentials,
    endpoints: Sequence[Endpoint],
    limits: Limits | None = None,
    *,
    listener: socket.socket | None = None,
    entropy: Callable[[int], bytes] = token_bytes,
    report: Report | None = None,
) -> Mesh:
    """Connect this party with both others. A stream lost before both stand is made anew.

    `endpoints` has one entry per party. `listener`, a bound and listening socket, serves in place of the party's own
    endpoint; it is closed before this returns or raises. `entropy` yields the contributions to pair secrets. `report`
    is told how it goes.

    Raises PeerRefused if another than the expected party answered or dialled in its place, or if a peer refuses us;
    PeerUnreachable when the time is up; LocalError if the own endpoint or credentials are of no use.
    """
    limits = limits or Limits()
    try:
        if not 0 <= party < PARTIES or len(endpoints) != PARTIES:
            raise DomainError(f"a mesh has {PARTIES} parties")
        joining = _Joining(Mesh(party, limits, entropy), credentials, endpoints, limits, report or _ignore)
        if listener is None and party < PARTIES - 1:
            listener = await listen(endpoints[party])
        if listener is not None:
            listener.setblocking(False)
        return await joining.run(listener)
    finally:
        if listener is not None:
            listener.close()


class Mesh:
    """One party's streams to both others. Once a stream is lost the mesh is of no further use: connect anew."""

    def __init__(self, party: int, limits: Limits, entropy: Callable[[int], bytes]) -> None:
        self._party = party
        self._limits = limits
        self._entropy = entropy
        self._links: dict[int, _Link] = {}
        self._sessions: dict[int, Session] = {}
        self._wire = Wire()
        self._lost: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()
        self._lost.add_done_callback(asyncio.Future.exception)

    def new_link(self, identify: Callable[[x509.Certificate], int], *, dials: bool) -> _Link:
        """A stream yet to be connected. `identify` says whose a certificate is, or raises _Refused."""
        return _Link(self._party, self._sessions, self._wire, self._limits, identify, dials=dials)

    def has(self, peer: int) -> bool:
        """Whether there is a living stream to `peer`."""
        return peer in self._links and self._links[peer].lost is None

    def join(self, link: _Link) -> None:
        """Make an identified stream part of the mesh. Raises _Refused if there is one to that peer already."""
        if self.has(link.peer):
            raise _Refused(f"{party_name(link.peer)} is connected already")
        link.joined = True
        self._links[link.peer] = link

    def complete(self) -> None:
        """Both streams stand: from now on the loss of one is the end of the mesh."""
        for link in self._links.values():
            link.ended.add_done_callback(self._lose)

    @property
    def party(self) -> int:
        """Which party this is."""
        return self._party

    @property
    def wire(self) -> Wire:
        """Counters over both streams."""
        return self._wire

    def pin(self, peer: int) -> bytes:
        """SHA-256 of the public key in the certificate that `peer` presented (`caps.trust.pki.spki_pin`)."""
        return self._links[peer].pin

    @property
    def whole(self) -> bool:
        """Whether no stream was lost or closed yet."""
        return not self._lost.done()

    async def lost(self) -> PeerError:
        """Wait until a stream is lost; return what names the party. Raises SessionClosed if it is closed here first."""
        return await asyncio.shield(self._lost)

    async def open(self, session: str, agreement: Agreement) -> Session:
        """Open a session with both peers, who must open it too, within the limit for Hello.

        Sessions share the streams; a name may be used again once all parties have ended its session.
        Raises PeerDisagrees naming the first field in which a peer's view differs.
        """
        number = session_id(session)
        if number in self._sessions:
            raise DomainError(f"session {session!r} has the number of one that is open")
        hellos = {
            peer: Hello(self._party, peer, session, agreement, self._entropy(SECRET_BYTES)) for peer in self._links
        }
        channel = Session(
            self._party,
            {peer: _Port(link, number) for peer, link in self._links.items()},
            {},
            stall=self._limits.stall,
            max_message=self._limits.max_frame,
            max_unread=self._limits.max_unread,
            on_end=lambda: self._forget(number),
        )
        self._sessions[number] = channel
        channel.hail(hellos)
        for link in self._links.values():
            link.replay(number)
        for peer, link in self._links.items():
            if link.lost is not None:
                channel.lose(peer, PeerLost(peer, link.lost.what))
        await channel.opened(self._limits.hello)
        return channel

    async def close(self, because: PeerError | None = None) -> None:
        """End every session in an orderly way, then the streams; peers are told the reason if given. Idempotent."""
        if not self._lost.done():
            self._lost.set_exception(SessionClosed("the mesh was closed here"))
        for session in list(self._sessions.values()):
            await session.close()
        for link in self._links.values():
            link.leave("the mesh was closed here", because)
        await asyncio.gather(*(link.closed() for link in self._links.values()))

    def _lose(self, ended: asyncio.Future[PeerError]) -> None:
        if not self._lost.done():
            self._lost.set_result(ended.result())

    def _forget(self, number: int) -> None:
        session = self._sessions.pop(number)
        for peer, link in self._links.items():
            if not session.ended_by(peer):
                link.draining.add(number)


class _Refused(Exception):
    """The other end of a connection is not, or does not want, whom it should; `claims` is who it says it is."""

    def __init__(self, why: str, claims: int | None = None) -> None:
        super().__init__(why)
        self.claims = claims


class _Link(asyncio.BufferedProtocol):
    """The stream to one peer: learns who it is, then moves frames between the stream and the sessions.

    `draining` holds sessions that ended here and not yet there: what still arrives for them is dropped. Frames of
    sessions not opened here yet are held; those can only be HELLO and a last frame, for rounds need our HELLO first.
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
        except _Refused as refusal:
            self._refuse(refusal)
        except ValueError:
            self._refuse(_Refused("presented a certificate that cannot be read"))
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
        except _Refused as refusal:
            self._refuse(refusal)

    def eof_received(self) -> None:
        self._lose(PeerLost(self.peer, "closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "closed the connection" if exc is None else _reason(exc)
        if _is_refusal(exc) and not self.ready.done():
            self.ready.set_exception(_Refused(f"refused our certificate ({reason})"))
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
        """Copy what is queued, so that the memory it stood in is its owner's again."""
        self._queue = deque(memoryview(bytes(view)) for view in self._queue)

    def replay(self, session: int) -> None:
        """Take in the frames held of a session that was opened now."""
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
        """Close the stream for a reason of our own, told to a peer that was greeted if another party is that reason."""
        if self._greeted and because is not None and because.party != self.peer:
            self._send_control(Kind.ABORT, 0, encode_abort(str(because), because.party))
        self.shut(PeerLost(self.peer, why))

    async def closed(self) -> None:
        """Wait until the stream is closed, by force if the peer does not do its part."""
        if self._transport is None:
            return
        try:
            await asyncio.wait([self._gone], timeout=_SHUTDOWN)
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
            # A peer that does not read is not answered, lest answers pile up; what it has yet to read tells it as much.
            if frame.kind is Kind.PING and not self.congested:
                self._send_control(Kind.PONG, 0, b"")
            return
        if frame.kind is Kind.ABORT:
            cause, _ = decode_abort(frame.payload)
            if self._greeted:
                raise PeerLost(self.peer, f"ended the connection: {cause}")
            raise _Refused(f"refused us: {cause}")
        if frame.kind is not Kind.HELLO or self._greeted:
            raise FrameError(f"{frame.kind.name} out of place")
        if self._dials:
            self._greet()
        check_version(frame.payload, self.peer)
        greeting = Greeting.decode(frame.payload)
        self._greeted = True
        if greeting.party != self.peer:
            raise _Refused(f"claims to be another with the certificate of {party_name(self.peer)}", greeting.party)
        if greeting.peer != self._party:
            raise _Refused(f"our certificate is not that of {party_name(self._party)}")
        self.ready.set_result(None)
        self._beat = asyncio.get_running_loop().call_later(self._limits.heartbeat, self._on_beat)

    def _on_beat(self) -> None:
        """Judge the peer's silence, break our own.

        Silence is counted in beats: while this party computes no beat falls, so it blames nobody for its own absence.
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

    def _refuse(self, refusal: _Refused) -> None:
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


class _Port:
    """One session's way out to one peer."""

    __slots__ = ("_link", "_session")

    def __init__(self, link: _Link, session: int) -> None:
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


class _Joining:
    """The making of one mesh: dials and is dialled until both peers are there, time is up, or one refuses."""

    def __init__(
        self, mesh: Mesh, credentials: Credentials, endpoints: Sequence[Endpoint], limits: Limits, report: Report
    ) -> None:
        self._mesh = mesh
        self._report = report
        self._endpoints = endpoints
        self._limits = limits
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
        self._made: set[_Link] = set()
        self._diallers = range(mesh.party + 1, PARTIES)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(asyncio.Future.exception)
        self._met: set[int] = set()
        self._troubles: dict[int | None, str] = {}
        self._refusals: dict[int | None, str] = {}

    async def run(self, listener: socket.socket | None) -> Mesh:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._dial(peer)) for peer in range(self._mesh.party)]
        if listener is not None and self._diallers:
            tasks.append(loop.create_task(self._accept(listener)))
        try:
            await asyncio.wait([self._done], timeout=self._limits.connect)
            if not self._done.done():
                raise self._time_is_up()
            self._done.result()
        except BaseException as error:
            because = error if isinstance(error, PeerError) else None
            for link in self._made:
                link.leave("the mesh was given up", because)
            raise
        finally:
            await _cancel(tasks)
            await asyncio.gather(*(link.closed() for link in self._made if link.lost is not None))
        return self._mesh

    def _join(self, link: _Link) -> None:
        """Make a stream part of the mesh; the last one completes it."""
        self._mesh.join(link)
        self._met.add(link.peer)
        self._report(link.peer, None)
        link.ended.add_done_callback(self._on_ended)
        if not self._missing() and not self._done.done():
            self._mesh.complete()
            self._done.set_result(None)

    def _on_ended(self, ended: asyncio.Future[PeerError]) -> None:
        if not self._done.done():
            self._report(ended.result().party, ended.result())

    def _fail(self, error: PeerError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _missing(self) -> list[int]:
        return [peer for peer in range(PARTIES) if peer != self._mesh.party and not self._mesh.has(peer)]

    def _time_is_up(self) -> PeerError:
        """The error that names the peer most likely to blame: one refused, else one that never came."""
        verdicts = {peer: self._verdict(peer) for peer in self._missing()}
        for peer, verdict in verdicts.items():
            self._report(peer, verdict)
        return verdicts[min(verdicts, key=lambda peer: (peer not in self._refusals, peer in self._met))]

    def _verdict(self, peer: int) -> PeerError:
        """Why `peer` is not there when time is up."""
        within = f"within {self._limits.connect:g} s"
        refusal = self._refusals.get(peer)
        trouble = self._troubles.get(peer)
        if peer in self._diallers:
            refusal = refusal or self._refusals.get(None)
            trouble = self._troubles.get(None)
        if refusal is not None:
            return PeerRefused(peer, f"not connected {within}; {refusal}")
        return PeerUnreachable(peer, f"no connection {within}" + (f"; last trouble: {trouble}" if trouble else ""))

    def _link(self, identify: Callable[[x509.Certificate], int], *, dials: bool) -> _Link:
        link = self._mesh.new_link(identify, dials=dials)
        self._made.add(link)
        return link

    async def _discard(self, link: _Link) -> None:
        link.shut(PeerLost(link.peer, "not admitted"))
        await link.closed()
        self._made.discard(link)

    async def _dial(self, peer: int) -> None:
        retries = _REDIAL.begin()
        while True:
            try:
                link = await self._dialled(peer)
            except PeerError as error:
                self._fail(error)
                return
            if link is not None:
                await asyncio.shield(link.ended)
            await asyncio.sleep(retries.pause())

    async def _dialled(self, peer: int) -> _Link | None:
        """Try once to reach `peer`; None if it is worth trying again."""
        link = self._link(lambda certificate: self._identified(certificate, peer), dials=True)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: link,
                self._endpoints[peer].host,
                self._endpoints[peer].port,
                ssl=self._client,
                ssl_handshake_timeout=self._limits.hello,
                ssl_shutdown_timeout=_SHUTDOWN,
            )
            await link.ready
            self._join(link)
        except _Refused as refusal:
            raise PeerRefused(peer, str(refusal)) from None
        except PeerLost:
            # asyncio sends no TLS alert: that the peer refused our certificate shows only in its not greeting us.
            self._refusals[peer] = "it closed the connection when it had seen our certificate"
            self._report(peer, PeerRefused(peer, self._refusals[peer]))
        except OSError as error:
            if _is_refusal(error):
                raise PeerRefused(peer, _reason(error)) from None
            self._refusals.pop(peer, None)
            self._troubles[peer] = _reason(error)
            self._report(peer, PeerUnreachable(peer, _reason(error)))
        finally:
            if not link.joined:
                await self._discard(link)
        return link if link.joined else None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshakes: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:
                    self._troubles[None] = _reason(error)
                    await asyncio.sleep(_REDIAL.first)
                    continue
                if len(handshakes) >= _MAX_HANDSHAKES:
                    next(iter(handshakes)).cancel()
                task = loop.create_task(self._admit(connection))
                handshakes[task] = None
                task.add_done_callback(handshakes.pop)
        finally:
            await _cancel(list(handshakes))

    async def _admit(self, connection: socket.socket) -> None:
        link = self._link(self._expected, dials=False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                connection,
                ssl=self._server,
                ssl_handshake_timeout=self._limits.hello,
                ssl_shutdown_timeout=_SHUTDOWN,
            )
            async with asyncio.timeout(self._limits.hello):
                await link.ready
            self._join(link)
        except _Refused as refusal:
            self._refusals[refusal.claims] = f"whoever dialled in its place {refusal}"
        except PeerDisagrees as error:
            if not self._mesh.has(link.peer):
                self._fail(error)
        except (OSError, PeerError) as error:
            self._troubles[None] = _reason(error)
        finally:
            if not link.joined:
                await self._discard(link)

    def _expected(self, certificate: x509.Certificate) -> int:
        """Which of the parties that may dial us a certificate belongs to."""
        for peer in self._diallers:
            if role_uris(certificate) == [role_uri(ROLE, party_name(peer))]:
                if self._mesh.has(peer):
                    raise _Refused(f"{party_name(peer)} is connected already")
                return self._identified(certificate, peer)
        raise _Refused(f"presented the certificate of {_owner(certificate)}, who does not dial us")

    def _identified(self, certificate: x509.Certificate, peer: int) -> int:
        if role_uris(certificate) != [role_uri(ROLE, party_name(peer))]:
            raise _Refused(f"presented the certificate of {_owner(certificate)}", peer)
        pin = self._endpoints[peer].pin
        if pin is not None and spki_pin(certificate) != pin:
            raise _Refused("presented a certificate whose key is not the one pinned", peer)
        return peer


def _ignore(_peer: int, _trouble: PeerError | None) -> None:
    pass


async def listen(endpoint: Endpoint) -> socket.socket:
    """A listening socket on an endpoint, also right after another process had it. Raises LocalError."""
    try:
        (family, *_, address), *_ = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise LocalError(f"cannot listen on {endpoint.host}:{endpoint.port}: {_reason(error)}") from None


def _context(side: int, credentials: Credentials) -> ssl.SSLContext:
    context = hardened(ssl.SSLContext(side))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_cert_chain(credentials.certificate, credentials.private_key)
        context.load_verify_locations(credentials.authority)
    except OSError as error:
        raise LocalError(f"credentials of no use: {_reason(error)}") from None
    return context


def _owner(certificate: x509.Certificate) -> str:
    return ", ".join(role_uris(certificate)) or "nobody CaPS knows"


def _is_refusal(error: BaseException | None) -> bool:
    """Whether TLS failed for a reason that trying again would not mend."""
    return isinstance(error, ssl.SSLError) and not isinstance(
        error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    )


def _reason(error: BaseException) -> str:
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


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
