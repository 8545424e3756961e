"""All of one party's streams as one: a session is opened with all its peers at once; all end when a stream is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from cryptography import x509

from caps.errors import DomainError, PeerError, PeerLost, SessionClosed, party_name
from services.mpc_server.transport.hello import SECRET_BYTES, Agreement, Hello, session_id
from services.mpc_server.transport.session import Session
from services.mpc_server.transport.tls.link import Limits, Link, Port, Refused, Wire


class Mesh:
    """One party's streams to all others. Once a stream is lost, the mesh is useless: connect again."""

    def __init__(self, party: int, limits: Limits, entropy: Callable[[int], bytes]) -> None:
        self._party = party
        self._limits = limits
        self._entropy = entropy
        self._links: dict[int, Link] = {}
        self._sessions: dict[int, Session] = {}
        self._wire = Wire()
        self._lost: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()
        self._lost.add_done_callback(asyncio.Future.exception)

    def new_link(self, identify: Callable[[x509.Certificate], int], *, dials: bool) -> Link:
        """A stream yet to be connected. `identify` says which party a certificate belongs to, or raises Refused."""
        return Link(self._party, self._sessions, self._wire, self._limits, identify, dials=dials)

    def has(self, peer: int) -> bool:
        """Whether there is a live stream to `peer`."""
        return peer in self._links and self._links[peer].lost is None

    def join(self, link: Link) -> None:
        """Make an identified stream part of the mesh. Raises Refused if there is one to that peer already."""
        if self.has(link.peer):
            raise Refused(f"{party_name(link.peer)} is already connected")
        link.joined = True
        self._links[link.peer] = link

    def complete(self) -> None:
        """All streams are up: from now on, losing one ends the mesh."""
        for link in self._links.values():
            link.ended.add_done_callback(self._lose)

    @property
    def party(self) -> int:
        """Which party this is."""
        return self._party

    @property
    def wire(self) -> Wire:
        """Counters over all streams."""
        return self._wire

    def pin(self, peer: int) -> bytes:
        """SHA-256 of the public key in the certificate that `peer` presented (`caps.trust.pki.spki_pin`)."""
        return self._links[peer].pin

    @property
    def whole(self) -> bool:
        """Whether no stream has been lost or closed."""
        return not self._lost.done()

    async def lost(self) -> PeerError:
        """Wait until a stream is lost; return the error naming the party. Raises SessionClosed if closed here first."""
        return await asyncio.shield(self._lost)

    async def open(self, session: str, agreement: Agreement, peers: Collection[int] | None = None) -> Session:
        """Open a session with these peers, or with all, who must open it too, within the limit for Hello.

        Sessions share the streams; a name may be used again once all parties have ended its session.
        Raises PeerDisagrees naming the first field in which a peer's view differs.
        """
        links = {peer: self._links[peer] for peer in (self._links if peers is None else peers)}
        number = session_id(session)
        if number in self._sessions:
            raise DomainError(f"session {session!r} has the number of one that is open")
        hellos = {peer: Hello(self._party, peer, session, agreement, self._entropy(SECRET_BYTES)) for peer in links}
        channel = Session(
            self._party,
            {peer: Port(link, number) for peer, link in links.items()},
            {},
            stall=self._limits.stall,
            max_message=self._limits.max_frame,
            max_unread=self._limits.max_unread,
            on_end=lambda: self._forget(number),
        )
        self._sessions[number] = channel
        channel.hail(hellos)
        for link in links.values():
            link.replay(number)
        for peer, link in links.items():
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
        for peer in session.peers:
            if not session.ended_by(peer):
                self._links[peer].draining.add(number)
