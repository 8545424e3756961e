"""HTTP over TLS whose every exchange comes to an end: a peer that answers drop by drop is given up in time.

httpx bounds the time between two pieces only. Here a request may keep us waiting for its time-out, all waits together,
and for as long as its bytes take at the least rate; and so may an answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import httpcore
import httpx

LEAST_RATE = 8192
"""Bytes per second at which a peer must take a request and send an answer."""
_PIECE = 1 << 14
_MOST_CONNECTIONS, _MOST_IDLE, _IDLE = 100, 20, 5.0


class TimelyTransport(httpx.HTTPTransport):
    """The transport of a client of one party, with its TLS context."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=_MOST_CONNECTIONS,
            max_keepalive_connections=_MOST_IDLE,
            keepalive_expiry=_IDLE,
            network_backend=_Backend(),
        )


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """A connection whose two directions are timed."""
        return _Timely(super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Timely(httpcore.NetworkStream):
    """A connection: each change of direction begins a new count of waits."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._reading: bool | None = None
        self._waited = 0.0
        self._moved = 0

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes. Raises httpcore.ReadTimeout."""
        self._turn(reading=True)
        with self._timed(timeout, httpcore.ReadTimeout) as left:
            data = self._inner.read(max_bytes, left)
        self._moved += len(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes, in pieces. Raises httpcore.WriteTimeout."""
        self._turn(reading=False)
        for at in range(0, len(buffer), _PIECE):
            piece = buffer[at : at + _PIECE]
            with self._timed(timeout, httpcore.WriteTimeout) as left:
                self._inner.write(piece, left)
            self._moved += len(piece)

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """The same over TLS. The context bounds the time of the handshake."""
        return _Timely(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """What the connection knows about itself."""
        return self._inner.get_extra_info(info)

    def _turn(self, *, reading: bool) -> None:
        if self._reading is not reading:
            self._reading, self._waited, self._moved = reading, 0.0, 0

    @contextmanager
    def _timed(self, timeout: float | None, late: type[httpcore.TimeoutException]) -> Iterator[float | None]:
        """Count what is waited inside; yields how long that may be at most."""
        left = None
        if timeout is not None:
            left = min(timeout, timeout + self._moved / LEAST_RATE - self._waited)
            if left <= 0:
                raise late("slower than the least rate")
        began = monotonic()
        try:
            yield left
        finally:
            self._waited += monotonic() - began
