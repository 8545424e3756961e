"""A service that answers with garbage: TLS with a party's own key, and behind it whatever a rogue has in mind."""

from __future__ import annotations

import gzip
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Event, Thread

from caps.trust.tls import Credentials, server_context

Lie = Callable[[ssl.SSLSocket, "Liar"], None]
_PIECE = b" " * (1 << 16)
_MOST = 1 << 30
"""Bytes after which a body that never ends ends all the same."""


@cache
def bomb(size: int) -> bytes:
    """Zeros, compressed a thousandfold."""
    return gzip.compress(bytes(size))


def head(status: str = "200 OK", **headers: object) -> bytes:
    """The first lines of an answer."""
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def saying(body: bytes, status: str = "200 OK", media: str = "application/json") -> Lie:
    """One body, whatever was asked."""

    def lie(stream: ssl.SSLSocket, _: Liar) -> None:
        stream.sendall(head(status, content_type=media, content_length=len(body), connection="close") + body)

    return lie


def _gzip(status: str) -> Lie:
    def lie(stream: ssl.SSLSocket, _: Liar) -> None:
        body = bomb(300 << 20)
        headers = {"content_type": "application/json", "content_encoding": "gzip", "content_length": len(body)}
        stream.sendall(head(status, **headers) + body)

    return lie


def _endless(stream: ssl.SSLSocket, liar: Liar) -> None:
    """A body without a length, as fast as it is read."""
    stream.sendall(head(content_type="application/json", connection="close"))
    sent = 0
    while sent < _MOST and not liar.over.is_set():
        stream.sendall(_PIECE)
        sent += len(_PIECE)


def _endless_headers(stream: ssl.SSLSocket, liar: Liar) -> None:
    stream.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(4096):
        if liar.over.is_set():
            return
        stream.sendall(b"x-more: " + b"y" * 4000 + b"\r\n")


def _trickle(stream: ssl.SSLSocket, liar: Liar) -> None:
    """A byte now and then."""
    stream.sendall(head(content_type="application/json", content_length=1 << 20))
    while not liar.over.wait(0.2):
        stream.sendall(b" ")


def _hang(stream: ssl.SSLSocket, liar: Liar) -> None:
    """Nothing at all."""
    liar.over.wait(20.0)


def _redirect(stream: ssl.SSLSocket, liar: Liar) -> None:
    stream.sendall(head("307 Temporary Redirect", location=f"{liar.url}/elsewhere", content_length=0))


LIES: dict[str, Lie] = {
    "a bomb of gzip": _gzip("200 OK"),
    "a bomb of gzip as a problem": _gzip("400 Bad Request"),
    "200,000 brackets": saying(b"[" * 200_000),
    "200,000 brackets as a problem": saying(b"[" * 200_000, "409 Conflict", "application/problem+json"),
    "many digits": saying(b"9" * 1_000_000),
    "many digits as a status": saying(
        b'{"type":"urn:caps:problem:conflict","title":"t","detail":"d","status":' + b"9" * 5000 + b"}",
        "409 Conflict",
        "application/problem+json",
    ),
    "a number beyond all": saying(b'{"study": 1e999999999}'),
    "many members": saying(b"{" + b",".join(b'"m%d":[]' % n for n in range(300_000)) + b"}"),
    "nothing": saying(b""),
    "no JSON": saying(b"\xff\xfe\x00<html>"),
    "a lone surrogate": saying(b'{"detail": "\\ud800"}', "400 Bad Request", "application/problem+json"),
    "an object of nothing": saying(b"{}"),
    "null": saying(b"null"),
    "created": saying(b"{}", "201 Created"),
    "accepted for ever": saying(b'{"state": "computing"}', "202 Accepted"),
    "no content": saying(b"", "204 No Content"),
    "an odd status": saying(b"", "799 Odd"),
    "too busy until the end of time": saying(b"{}", "429 Too Many Requests\r\nRetry-After: 999999999"),
    "a redirect": _redirect,
    "an endless body": _endless,
    "endless headers": _endless_headers,
    "a trickle": _trickle,
    "silence": _hang,
    "no HTTP": lambda stream, _: stream.sendall(b"\0" * 4096),
    "the end": lambda stream, _: None,
}


class Liar:
    """Listens, and answers every request with the lie of the moment."""

    def __init__(self, credentials: Credentials) -> None:
        self._context = server_context(credentials)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.over = Event()
        self.lie = saying(b"{}", "503 Service Unavailable")
        self.asked: list[str] = []
        """The first lines of requests."""
        Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def present(self, credentials: Credentials) -> None:
        """Answer with the certificate of another."""
        self._context = server_context(credentials)

    def close(self) -> None:
        """Hang up."""
        self.over.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.settimeout(30.0)
            with self._context.wrap_socket(connection, server_side=True) as stream:
                request = b""
                while b"\r\n\r\n" not in request:
                    part = stream.recv(1 << 16)
                    if not part:
                        return
                    request += part
                self.asked.append(request.partition(b"\r\n")[0].decode("latin-1"))
                self.lie(stream, self)
                time.sleep(0.05)  # what was sent should not be lost in a reset


@contextmanager
def lying(credentials: Credentials) -> Iterator[Liar]:
    """One, until the block ends."""
    liar = Liar(credentials)
    try:
        yield liar
    finally:
        liar.close()
