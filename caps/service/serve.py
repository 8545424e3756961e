"""Run an application over TLS 1.3, with the client's certificate where handlers find it. uvicorn itself hides it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import h11
import uvicorn
from cryptography import x509
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from caps.errors import CapsError
from caps.service import logs
from caps.service.identity import CERTIFICATE
from caps.service.metrics import Metrics, Reading
from caps.service.problems import Problem
from caps.trust.tls import RENEW_WITHIN, Credentials, RenewedContext
from caps.wire import media
from caps.wire.problems import Kind

HEAD_TIMEOUT = 20.0
"""Seconds within which a request's first line and headers must have come. uvicorn would wait for ever."""
STOP_TIMEOUT = 10
"""Seconds that requests may still take when the service is told to stop."""
WATCH_EVERY = 60.0
"""Seconds between two looks at the certificate's files. A handshake looks by itself; this is for the log."""
WARN_EVERY = 86400.0

log = logging.getLogger("caps.trust.tls")


class CertificateProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; each request's ASGI scope carries the certificate of its connection."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember who connected."""
        super().connection_made(transport)
        connection = transport.get_extra_info("ssl_object")
        certificate = connection.getpeercert(True) if isinstance(connection, ssl.SSLObject) else None
        self.app = _with_certificate(self.app, certificate)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """As the base class, but whoever sends a request's head drop by drop has no more time than others."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """As the base class."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def shutdown(self) -> None:
        """As the base class, but nobody waits for the TLS goodbye of a client whose connection is idle."""
        idle = self.cycle is None or self.cycle.response_complete
        super().shutdown()
        if idle:
            self.transport.abort()

    def _await_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT, self._too_slow)

    def _too_slow(self) -> None:
        self._deadline = None
        waiting = self.cycle is None or self.cycle.response_complete
        if waiting and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets a problem, too."""
        document = Problem(Kind.MALFORMED, msg).document(secrets.token_hex(8))
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", media.PROBLEM.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer is under way
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


def _with_certificate(inner: ASGIApp, certificate: bytes | None) -> ASGIApp:
    """An application that is shown a connection's certificate, for as long as it is valid."""
    end = None if certificate is None else x509.load_der_x509_certificate(certificate).not_valid_after_utc

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope[CERTIFICATE] = None if end is not None and datetime.now(UTC) > end else certificate
        await inner(scope, receive, send)

    return app


def make_server(app: FastAPI, credentials: Credentials, *, host: str, port: int) -> uvicorn.Server:
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
        timeout_keep_alive=30,
        timeout_graceful_shutdown=STOP_TIMEOUT,
        ssl_certfile=credentials.certificate,
        ssl_keyfile=credentials.private_key,
    )
    config.load()
    config.ssl = context = RenewedContext.of(credentials)
    figures = getattr(app.state, "metrics", None)
    if isinstance(figures, Metrics):
        figures.read(lambda: [Reading("caps_certificate_renewals", context.renewals)])
    return uvicorn.Server(config)


def serve(app: FastAPI, credentials: Credentials, *, host: str, port: int) -> None:
    """Serve until told to stop by SIGINT or SIGTERM. SIGHUP: look at the certificate's files at once."""
    server = make_server(app, credentials, host=host, port=port)
    assert isinstance(server.config.ssl, RenewedContext)
    watch = CertificateWatch(server.config.ssl)
    watch.start()
    signal.signal(signal.SIGHUP, lambda *_: watch.look_now())
    server.run()


def begin(service: str, work: Callable[[], None]) -> int:
    """A service's process: what it writes is its owner's alone, and settings of no use end in one line and 2."""
    os.umask(0o077)
    try:
        work()
    except (CapsError, OSError) as error:
        sys.stderr.write(f"caps {service}: {error}\n")
        return 2
    return 0


class CertificateWatch(threading.Thread):
    """Looks at the files now and then, and says in the log, once a day, that a certificate ends soon."""

    def __init__(self, context: RenewedContext) -> None:
        super().__init__(name="certificate-watch", daemon=True)
        self._context = context
        self._nudge = threading.Event()

    def look_now(self) -> None:
        """From a signal's handler, which may not wait for a lock."""
        self._nudge.set()

    def run(self) -> None:
        """For ever."""
        left = 0.0
        while True:
            self._context.renew()
            if left <= 0 and self.warned(datetime.now(UTC)):
                left = WARN_EVERY
            self._nudge.wait(WATCH_EVERY)
            self._nudge.clear()
            left -= WATCH_EVERY

    def warned(self, now: datetime) -> bool:
        """Whether there was something to warn of."""
        end = self._context.not_after
        if end - now >= RENEW_WITHIN:
            return False
        logs.say(log, "certificate expires soon", level=logging.WARNING, until=end.isoformat())
        return True
