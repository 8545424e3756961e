"""How a mesh comes to be: a party dials those with lower numbers and is dialled by those with higher ones.

A peer is who its certificate says: it must chain to the authority, carry the one role URI of the party expected, and
match that party's pin if there is one. Host names are not compared, because they say nothing about roles.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_bytes

from cryptography import x509

from caps.basics.accepting import accepted
from caps.basics.crowd import Crowd
from caps.basics.retry import Backoff
from caps.errors import (
    DomainError,
    LocalError,
    PeerDisagrees,
    PeerError,
    PeerLost,
    PeerRefused,
    PeerUnreachable,
    party_name,
)
from caps.service.supervision import Supervisor
from caps.trust.pki import role_uri, role_uris, spki_pin
from caps.trust.tls import Credentials, hardened
from services.mpc_server.transport.tls.link import SHUTDOWN, Limits, Link, Refused, is_refusal, reason_of
from services.mpc_server.transport.tls.mesh import Mesh

ROLE = "mpc-server"

_MAX_HANDSHAKES, _MAX_EACH = 32, 8
"""The most inbound connections that may be unidentified at once, in all and from one address."""

_REDIAL = Backoff(first=0.05, longest=1.0)


@dataclass(frozen=True)
class Endpoint:
    """Where a party listens, and the SHA-256 of the public key it must have (`pki.spki_pin`), if it is known."""

    host: str
    port: int
    pin: bytes | None = None


@dataclass(frozen=True)
class Watch:
    """Who starts the tasks that make a mesh, and who is told of connections that were too many."""

    supervisor: Supervisor = field(default_factory=Supervisor)
    crowded: Callable[[str], None] = lambda _address: None


Report = Callable[[int, PeerError | None], None]
"""Told of each trouble with a peer while a mesh is made; None means that the stream to it is up."""

Denies = Callable[[str], bool]
"""Whether the key with this pin, in hexadecimal digits, is not accepted, whoever certified it."""


async def connect(
    party: int,
    credentials: Credentials,
    endpoints: Sequence[Endpoint],
    limits: Limits | None = None,
    *,
    listener: socket.socket | None = None,
    entropy: Callable[[int], bytes] = token_bytes,
    report: Report | None = None,
    watch: Watch | None = None,
    denies: Denies | None = None,
) -> Mesh:
    """Connect this party with all others. A stream lost before all of them are up is made again.

    `endpoints` has one entry per party. `listener`, a bound and listening socket, serves in place of the party's own
    endpoint; it is closed before this returns or raises. `entropy` yields the contributions to pair secrets. `report`
    is told how it goes, and `watch` starts the tasks. `denies` says of a pin that its key is not accepted.

    Raises PeerRefused if some other party answered or dialled in place of the expected one, or if a peer refuses us;
    PeerUnreachable when the time is up; LocalError if our own endpoint or credentials are unusable.
    """
    limits = limits or Limits()
    try:
        if not 0 <= party < len(endpoints):
            raise DomainError(f"a mesh of {len(endpoints)} parties has no party {party}")
        mesh = Mesh(party, limits, entropy)
        joining = _Joining(mesh, credentials, endpoints, limits, report or _ignore, watch or Watch(), denies)
        if listener is None and party < len(endpoints) - 1:
            listener = await listen(endpoints[party])
        if listener is not None:
            listener.setblocking(False)
        return await joining.run(listener)
    finally:
        if listener is not None:
            listener.close()


class _Joining:
    """The making of one mesh: dials and is dialled until every peer is there, time is up, or one refuses."""

    def __init__(
        self,
        mesh: Mesh,
        credentials: Credentials,
        endpoints: Sequence[Endpoint],
        limits: Limits,
        report: Report,
        watch: Watch,
        denies: Denies | None,
    ) -> None:
        self._mesh = mesh
        self._watch = watch
        self._denies = denies
        self._report = report
        self._endpoints = endpoints
        self._limits = limits
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, credentials)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
        self._made: set[Link] = set()
        self._diallers = range(mesh.party + 1, len(endpoints))
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(asyncio.Future.exception)
        self._met: set[int] = set()
        self._troubles: dict[int | None, str] = {}
        self._refusals: dict[int | None, str] = {}

    async def run(self, listener: socket.socket | None) -> Mesh:
        start = self._watch.supervisor.task
        tasks = [start("mesh dial", self._dial(peer)) for peer in range(self._mesh.party)]
        if listener is not None and self._diallers:
            tasks.append(start("mesh entrance", self._accept(listener)))
        for task in tasks:
            task.add_done_callback(self._on_task)
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

    def _join(self, link: Link) -> None:
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

    def _on_task(self, task: asyncio.Task[None]) -> None:
        """Without one of its tasks a mesh cannot be made: begin again."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._done.done():
            self._done.set_exception(error)

    def _fail(self, error: PeerError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _missing(self) -> list[int]:
        return [peer for peer in range(len(self._endpoints)) if peer != self._mesh.party and not self._mesh.has(peer)]

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

    def _link(self, identify: Callable[[x509.Certificate], int], *, dials: bool) -> Link:
        link = self._mesh.new_link(identify, dials=dials)
        self._made.add(link)
        return link

    async def _discard(self, link: Link) -> None:
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

    async def _dialled(self, peer: int) -> Link | None:
        """Try once to reach `peer`; None if it is worth trying again."""
        link = self._link(lambda certificate: self._identified(certificate, peer), dials=True)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: link,
                self._endpoints[peer].host,
                self._endpoints[peer].port,
                ssl=self._client,
                ssl_handshake_timeout=self._limits.hello,
                ssl_shutdown_timeout=SHUTDOWN,
            )
            await link.ready
            self._join(link)
        except Refused as refusal:
            raise PeerRefused(peer, str(refusal)) from None
        except PeerLost:
            # asyncio sends no TLS alert: the only sign of a peer refusing our certificate is that it does not greet us.
            self._refusals[peer] = "it closed the connection after seeing our certificate"
            self._report(peer, PeerRefused(peer, self._refusals[peer]))
        except OSError as error:
            if is_refusal(error):
                raise PeerRefused(peer, reason_of(error)) from None
            self._refusals.pop(peer, None)
            self._troubles[peer] = reason_of(error)
            self._report(peer, PeerUnreachable(peer, reason_of(error)))
        finally:
            if not link.joined:
                await self._discard(link)
        return link if link.joined else None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        handshakes: set[asyncio.Task[None]] = set()
        crowd: Crowd[asyncio.Task[None]] = Crowd(_MAX_HANDSHAKES, _MAX_EACH)
        try:
            while True:
                try:
                    connection, address = await accepted(listener)
                except OSError as error:
                    self._troubles[None] = reason_of(error)
                    await asyncio.sleep(_REDIAL.first)
                    continue
                task = self._watch.supervisor.task("mesh handshake", self._admit(connection))
                handshakes.add(task)
                task.add_done_callback(handshakes.discard)
                task.add_done_callback(crowd.leave)
                gone = crowd.enter(task, address[0])
                if gone is not None:
                    loop.call_soon(gone.cancel)  # not before it began: nobody would close its connection
                    self._watch.crowded(str(address[0]))
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
                ssl_shutdown_timeout=SHUTDOWN,
            )
            async with asyncio.timeout(self._limits.hello):
                await link.ready
            self._join(link)
        except Refused as refusal:
            self._refusals[refusal.claims] = f"whoever dialled in its place {refusal}"
        except PeerDisagrees as error:
            if not self._mesh.has(link.peer):
                self._fail(error)
        except (OSError, PeerError) as error:
            self._troubles[None] = reason_of(error)
        finally:
            if not link.joined:
                await self._discard(link)

    def _expected(self, certificate: x509.Certificate) -> int:
        """Which of the parties that may dial us a certificate belongs to."""
        for peer in self._diallers:
            if role_uris(certificate) == [role_uri(ROLE, party_name(peer))]:
                if self._mesh.has(peer):
                    raise Refused(f"{party_name(peer)} is already connected")
                return self._identified(certificate, peer)
        raise Refused(f"presented the certificate of {_owner(certificate)}, who does not dial us")

    def _identified(self, certificate: x509.Certificate, peer: int) -> int:
        if role_uris(certificate) != [role_uri(ROLE, party_name(peer))]:
            raise Refused(f"presented the certificate of {_owner(certificate)}", peer)
        pin = self._endpoints[peer].pin
        if pin is not None and spki_pin(certificate) != pin:
            raise Refused("presented a certificate whose key is not the one pinned", peer)
        if self._denies is not None and self._denies(spki_pin(certificate).hex()):
            raise Refused("presented a certificate whose key is denied here", peer)
        return peer


def _ignore(_peer: int, _trouble: PeerError | None) -> None:
    pass


async def listen(endpoint: Endpoint) -> socket.socket:
    """A listening socket on an endpoint, even right after another process used it. Raises LocalError."""
    try:
        (family, *_, address), *_ = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise LocalError(f"cannot listen on {endpoint.host}:{endpoint.port}: {reason_of(error)}") from None


def _context(side: int, credentials: Credentials) -> ssl.SSLContext:
    context = hardened(ssl.SSLContext(side))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_cert_chain(credentials.certificate, credentials.private_key)
        context.load_verify_locations(credentials.authority)
    except OSError as error:
        raise LocalError(f"the credentials cannot be used: {reason_of(error)}") from None
    return context


def _owner(certificate: x509.Certificate) -> str:
    return ", ".join(role_uris(certificate)) or "an unknown party"


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.sleep(0)  # all have begun then: one that had not would leave its connection open
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
