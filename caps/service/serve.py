"""Run an application over TLS 1.3 as uvicorn does, with what uvicorn lacks: handlers see the client's certificate,
connections are bounded before and after their handshake, and requests must arrive in time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import h11
import uvicorn
from cryptography import x509
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from caps.basics.loading import keep_loaded
from caps.errors import CapsError, DomainError
from caps.service import logs
from caps.service.connections import Bounds, Connection, Doors, Entrance, People, listening, raise_descriptors
from caps.service.identity import CERTIFICATE, machine_of
from caps.service.metrics import Metrics, Reading
from caps.service.problems import Problem
from caps.service.supervision import Supervisor
from caps.trust.tls import RENEW_WITHIN, Credentials, RenewedContext
from caps.wire import media
from caps.wire.problems import Kind

HEAD_TIMEOUT = 20.0
"""Seconds within which a request's first line and headers must arrive. uvicorn would wait forever."""
KEEP_ALIVE = 30
"""Seconds that a connection may be idle between requests."""
STOP_TIMEOUT = 10
"""Seconds that open requests may still take when the service stops."""
WATCH_EVERY = 60.0
"""Seconds between checks of the certificate's files. Handshakes check them too; this is for the log."""
WARN_EVERY = 86400.0
TURN = 0.001
"""Seconds after which a thread that computes makes way for another. There may be 40 of them, and the event loop, which
answers /healthz, waits for its turn among them: at Python's 5 ms that can be 200 ms."""

log = logging.getLogger("caps.trust.tls")


class CertificateProtocol(H11Protocol, Connection):
    """uvicorn's HTTP/1.1, with the connection's certificate in the ASGI scope of each request."""

    doors: Doors
    _refused = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Store the client's certificate."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(True) if isinstance(connection, ssl.SSLObject) else None
        self.app = _with_certificate(self.app, certificate)
        self._await_head()
        machine = machine_of(certificate)
        address = str(self.client[0]) if self.client else ""
        self.doors.let_in(self, machine=None if machine is None else machine.pin, address=address)

    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def cut(self) -> None:
        """End the connection at once."""
        self._refused = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Does what the base class does; a client that sends a request's head slowly gets no extra time."""
        if self._refused:  # the event loop may have read this before the connection was cut
            return
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Does what the base class does, and cancels the deadline."""
        super().connection_lost(exc)
        self.doors.let_out(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def shutdown(self) -> None:
        """Does what the base class does, without waiting for the TLS close of an idle connection."""
        idle = not self.is_busy()
        super().shutdown()
        if idle:
            self.transport.abort()

    def _await_head(self) -> None:
        if self.is_busy():
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.is_busy() and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answers invalid HTTP with a problem."""
        document = Problem(Kind.MALFORMED, msg).document(secrets.token_hex(8))
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", media.PROBLEM.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else a response is in progress
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


def _with_certificate(inner: ASGIApp, certificate: bytes | None) -> ASGIApp:
    """An application that sees the connection's certificate for as long as it is valid."""
    end = None if certificate is None else x509.load_der_x509_certificate(certificate).not_valid_after_utc

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope[CERTIFICATE] = None if end is not None and datetime.now(UTC) > end else certificate
        await inner(scope, receive, send)

    return app


class Server(uvicorn.Server):
    """uvicorn's server, whose connections come in by our own entrances."""

    def __init__(
        self, config: uvicorn.Config, doors: Doors, supervisor: Supervisor, people: People | None = None
    ) -> None:
        super().__init__(config)
        self._doors = doors
        self._people = people
        self.supervisor = supervisor

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind before the application starts, which may change things; listen when it has started."""
        context = self.config.ssl
        assert context is not None
        self.supervisor.take_over(asyncio.get_running_loop())
        own = _bound(self.config.host, self.config.port, "CAPS_LISTEN") if sockets is None else sockets
        places: list[tuple[socket.socket, ssl.SSLContext]] = [(one, context) for one in own]
        if (people := self._people) is not None:
            places += [(one, people.context) for one in _bound(people.host, people.port, "CAPS_PEOPLE_LISTEN")]
        await super().startup(sockets=[])
        for listener, shown in places:
            listener.listen(self.config.backlog)
            entrance = Entrance(listener, self._protocol, shown, self._doors, self.supervisor)
            self.servers.append(cast(asyncio.Server, entrance))
            logs.say(log, "listening", address=str(listener.getsockname()[0]), port=listener.getsockname()[1])

    def _protocol(self) -> CertificateProtocol:
        made = CertificateProtocol(self.config, self.server_state, self.lifespan.state)
        made.doors = self._doors
        return made


def _bound(host: str, port: int, variable: str) -> list[socket.socket]:
    try:
        return listening(host, port)
    except OSError as error:
        words = (error.strerror or "it cannot be used").lower()
        raise DomainError(f"cannot listen at {host}:{port}: {words}; {variable} chooses another address") from None


def make_server(
    app: FastAPI,
    credentials: Credentials,
    *,
    host: str,
    port: int,
    bounds: Bounds | None = None,
    people: People | None = None,
) -> Server:
    """A server that is ready to run."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=CertificateProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=STOP_TIMEOUT,
        ssl_certfile=credentials.certificate,
        ssl_keyfile=credentials.private_key,
    )
    config.load()
    config.ssl = context = RenewedContext.of(credentials)
    metrics = getattr(app.state, "metrics", None)
    figures = metrics if isinstance(metrics, Metrics) else None
    if figures is not None:
        figures.read(lambda: [Reading("caps_certificate_renewals", context.renewals)])
    doors = Doors(bounds or Bounds.within(raise_descriptors()), figures)
    return Server(config, doors, Supervisor(figures), people)


def serve(app: FastAPI, credentials: Credentials, *, host: str, port: int, people: People | None = None) -> None:
    """Serve until SIGINT or SIGTERM. SIGHUP makes it check the certificate's files at once."""
    server = make_server(app, credentials, host=host, port=port, people=people)
    assert isinstance(server.config.ssl, RenewedContext)
    watch = CertificateWatch(server.config.ssl)
    server.supervisor.thread("certificate watch", watch.run)
    sys.setswitchinterval(TURN)
    signal.signal(signal.SIGHUP, lambda *_: watch.look_now())
    keep_loaded()
    server.run()


def begin(service: str, work: Callable[[], None]) -> int:
    """Run a service, whose files only its owner can read. Returns 2 after a one-line message if settings are bad."""
    os.umask(0o077)
    try:
        work()
    except CapsError as error:
        sys.stderr.write(f"caps {service}: {error}\n")
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"caps {service}: {where}{error.strerror or error}\n")
        return 2
    return 0


class CertificateWatch:
    """Checks the files regularly, and logs once a day that a certificate expires soon."""

    def __init__(self, context: RenewedContext) -> None:
        self._context = context
        self._nudge = threading.Event()

    def look_now(self) -> None:
        """Check now; for a signal handler, which must not wait for a lock."""
        self._nudge.set()

    def run(self) -> None:
        """Check forever."""
        left = 0.0
        while True:
            self._context.renew()
            if left <= 0 and self.warned(datetime.now(UTC)):
                left = WARN_EVERY
            self._nudge.wait(WATCH_EVERY)
            self._nudge.clear()
            left -= WATCH_EVERY

    def warned(self, now: datetime) -> bool:
        """Logs that the certificate has expired or expires soon, and returns whether it did."""
        end = self._context.not_after
        if end - now >= RENEW_WITHIN:
            return False
        expired = end <= now
        event = "certificate expired" if expired else "certificate expires soon"
        logs.say(log, event, level=logging.ERROR if expired else logging.WARNING, until=end.isoformat())
        return True
