"""Who may hold a connection: strangers are bounded apart from people, and people apart from machines.

A connection is a stranger's until its TLS handshake is done. Then it belongs to a machine, known by the key in its
certificate, or to people, known by their address. Each kind is bounded in all and for each origin, by the rules of
`caps.basics.crowd`: what strangers do takes no room from machines of the federation. Every refusal is counted, and the
log tells of it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from operator import methodcaller
from typing import Self

from caps.basics.accepting import accepted
from caps.basics.crowd import Crowd
from caps.service import logs
from caps.service.metrics import Metrics, Reading
from caps.service.supervision import Supervisor

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a TLS handshake may take."""
GRACE = 2.0
"""Seconds for which nobody's handshake is cut off for a newcomer: it takes two round trips, and some computing."""
MOST_HANDS = 16
"""Handshakes at once of one address that has this grace. Nobody needs more, so whoever has more gives way at once."""
SHUTDOWN_TIMEOUT = 2.0
"""Seconds for both ends to close a TLS connection in an orderly way."""
TELL_EVERY = 10.0
"""Seconds between two log lines about refused connections of a kind."""
ACCEPT_AGAIN = 0.1
"""Seconds to wait when the system cannot open a connection."""
MOST_DESCRIPTORS = 1 << 14
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_RESERVED = 256
"""Descriptors for files, the database, the mesh and our own calls."""

log = logging.getLogger("caps.connections")


@dataclass(frozen=True)
class People:
    """A port for people only: where it is, and the TLS that it shows browsers."""

    host: str
    port: int
    context: ssl.SSLContext


def raise_descriptors() -> int:
    """Allow this process as many descriptors as the system lets it have, within reason; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else MOST_DESCRIPTORS


@dataclass(frozen=True)
class Bounds:
    """The most connections of each kind, and for each origin of it: an address, or a machine's key."""

    strangers: int = 2048
    strangers_each: int = 256
    people: int = 1024
    people_each: int = 512
    machines: int = 4096
    machines_each: int = 128

    @classmethod
    def within(cls, descriptors: int) -> Self:
        """The same, or less where there are not enough descriptors for all."""
        full = cls()
        room = max(1, descriptors - _RESERVED)
        share = min(1.0, room / (full.strangers + full.people + full.machines))
        return cls(**{one.name: max(1, int(getattr(full, one.name) * share)) for one in fields(cls)})


class Refusals:
    """Counts refused connections and logs them, now and then."""

    def __init__(self, metrics: Metrics | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._monotonic = monotonic
        self._untold: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def count(self, kind: str, origin: str) -> None:
        """One connection of this kind had to go; `origin` is where the one came from that was too many."""
        self._untold[kind] = self._untold.get(kind, 0) + 1
        if self._metrics is not None:
            self._metrics.count("caps_connections_refused", kind=kind)
        now = self._monotonic()
        if kind not in self._told or now - self._told[kind] >= TELL_EVERY:
            self._told[kind] = now
            number = self._untold.pop(kind)
            logs.say(log, "too many connections", level=logging.WARNING, kind=kind, refused=number, origin=origin)


class Connection(ABC):
    """A connection whose handshake is done."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a request is being answered."""

    @abstractmethod
    def cut(self) -> None:
        """End it at once."""


class Doors:
    """The connections of one service, by kind."""

    def __init__(self, bounds: Bounds, metrics: Metrics | None = None) -> None:
        self.refusals = Refusals(metrics)
        self._strangers: Crowd[asyncio.Task[None]] = Crowd(bounds.strangers, bounds.strangers_each)
        self._known: dict[str, Crowd[Connection]] = {
            "people": Crowd(bounds.people, bounds.people_each, busy=methodcaller("is_busy")),
            "machines": Crowd(bounds.machines, bounds.machines_each, busy=methodcaller("is_busy")),
        }
        self._came: dict[asyncio.Task[None], float] = {}
        self._somebody_left = asyncio.Event()
        if metrics is not None:
            metrics.read(self._figures)

    async def room(self) -> None:
        """Wait until the next stranger may come: the system keeps newcomers in a queue meanwhile.

        If a thousand parties come at once, those who shake hands finish, and the others follow. To cut off the oldest
        each time would waste what was done for it, and it would come again. Whoever takes more than the grace, or has
        more hands than anybody needs, gives way as ever, so that nobody is shut out by those who say nothing.
        """
        while self._strangers.full and self._strangers.largest() <= MOST_HANDS:
            left = next(iter(self._came.values())) + GRACE - time.monotonic()
            if left <= 0:
                return
            self._somebody_left.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._somebody_left.wait()

    def greet(self, handshake: asyncio.Task[None], address: str) -> None:
        """A stranger has come, and shakes hands."""
        self._came[handshake] = time.monotonic()
        handshake.add_done_callback(self._part)
        gone = self._strangers.enter(handshake, address)
        if gone is not None:
            del self._came[gone]
            _cancel_soon(gone)
            self.refusals.count("strangers", address)

    def _part(self, handshake: asyncio.Task[None]) -> None:
        """A handshake has ended."""
        self._strangers.leave(handshake)
        self._came.pop(handshake, None)
        self._somebody_left.set()

    def let_in(self, connection: Connection, *, machine: str | None, address: str) -> None:
        """The handshake is done: `machine` is the key in the certificate, if there is one."""
        kind, origin = ("people", address) if machine is None else ("machines", machine)
        gone = self._known[kind].enter(connection, origin)
        if gone is not None:
            gone.cut()
            self.refusals.count(kind, address)

    def let_out(self, connection: Connection) -> None:
        """A connection has ended."""
        for crowd in self._known.values():
            crowd.leave(connection)

    def _figures(self) -> Iterator[Reading]:
        crowds: dict[str, int] = {"strangers": len(self._strangers)}
        for kind, number in (crowds | {kind: len(crowd) for kind, crowd in self._known.items()}).items():
            yield Reading("caps_connections", number, (kind,))


class Entrance:
    """Accepts connections on a listening socket, with the interface of an event loop's server that uvicorn needs."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        doors: Doors,
        supervisor: Supervisor,
    ) -> None:
        self._listener = listener
        self._make = make
        self._context = context
        self._doors = doors
        self._supervisor = supervisor
        listener.setblocking(False)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = supervisor.task("entrance", supervisor.keep("entrance", self._accept))

    def close(self) -> None:
        """Take no more connections."""
        self._accepting.cancel()
        for handshake in self._handshakes:
            _cancel_soon(handshake)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Wait for what `close` ended."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            await self._doors.room()
            try:
                connection, address = await accepted(self._listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:  # else the stranger is gone already
                    self._doors.refusals.count("none", os.strerror(error.errno))
                    await asyncio.sleep(ACCEPT_AGAIN)
                continue
            handshake = self._supervisor.task("handshake", self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
            self._doors.greet(handshake, str(address[0]))

    async def _shake_hands(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
            )
        except OSError:  # not TLS, not of this authority, too slow, or gone
            return


def _cancel_soon(handshake: asyncio.Task[None]) -> None:
    """Cancel a handshake once it has begun: before that, nobody would close its connection."""
    asyncio.get_running_loop().call_soon(handshake.cancel)


def listening(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of a host. Raises OSError."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
    except BaseException:
        for one in found:
            one.close()
        raise
    return found
