"""Moves of those who mean harm, on real sockets: each opens connections, misbehaves, and says what came back.

A move takes an `Address`, or a connection that the address opened, and never waits longer than it says. Bodies that are
meant to swell a parser are functions that return bytes. `answering` is the other side: a party that answers anything.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from caps.trust.tls import Credentials, client_context, server_context

T = TypeVar("T")
PATIENCE = 30.0
"""Seconds after which a service that neither answers nor hangs up counts as silent."""


@dataclass(frozen=True)
class Address:
    """Where a service listens, and how whoever attacks it introduces itself: a certificate, a token or nothing.

    origin: the address that is called from, if it matters.
    """

    url: str
    authority: Path
    me: Credentials | None = None
    token: str | None = None
    origin: str | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 443)

    def plain(self) -> socket.socket:
        """A TCP connection without a handshake."""
        return socket.create_connection(self.place, PATIENCE, None if self.origin is None else (self.origin, 0))

    def secure(self) -> ssl.SSLSocket:
        """A connection after the handshake."""
        own = self.me
        context = client_context(
            self.authority, certificate=own and own.certificate, private_key=own and own.private_key
        )
        raw = self.plain()
        try:
            return context.wrap_socket(raw, server_hostname=self.place[0])
        except BaseException:
            raw.close()
            raise

    def head(self, method: str, path: str, **headers: str) -> bytes:
        """A request's first line and headers; underscores in names stand for hyphens."""
        own = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in (own | headers).items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {self.place[0]}", *lines, "", ""]).encode()


@dataclass(frozen=True)
class Reply:
    """What came back: the status, 0 if the connection was closed or stayed silent, the body, and after how long."""

    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def heard(connection: socket.socket, *, within: float = PATIENCE) -> Reply:
    """The next final answer on a connection."""
    begun, data = time.monotonic(), bytearray()
    with contextlib.suppress(OSError):
        while True:
            connection.settimeout(max(0.01, within - (time.monotonic() - begun)))
            part = connection.recv(65536)
            data += part
            found = _complete(bytes(data), ended=not part)
            if found is not None:
                return Reply(*found, time.monotonic() - begun)
            if not part:
                break
    return Reply(0, bytes(data), time.monotonic() - begun)


def _complete(data: bytes, *, ended: bool) -> tuple[int, bytes] | None:
    while True:
        head, blank, body = data.partition(b"\r\n\r\n")
        if not blank:
            return None
        status = int(head.split(b" ", 2)[1])
        if status >= 200:
            break
        data = body  # 100 Continue
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and len(body) >= int(value):
            return status, body[: int(value)]
    return (status, body) if ended or status in (204, 304) or body.endswith(b"0\r\n\r\n") else None


def asked(address: Address, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    """One request on a connection of its own, sent as fast as the service reads it."""
    with address.secure() as connection:
        length = {} if body is None else {"Content_Length": str(len(body)), "Content_Type": "application/json"}
        with contextlib.suppress(OSError):
            connection.sendall(address.head(method, path, **(length | headers)) + (body or b""))
        return heard(connection)


def announced(address: Address, method: str, path: str, *, length: int = 1000, way: str = "length") -> Reply:
    """Announce a body and never send it: an answer that comes was decided before the body.

    way: `length`, `chunked`, or `expect`, which waits for 100 Continue.
    """
    ways = {
        "length": {"Content_Length": str(length)},
        "chunked": {"Transfer_Encoding": "chunked"},
        "expect": {"Content_Length": str(length), "Expect": "100-continue"},
    }
    with address.secure() as connection:
        connection.sendall(address.head(method, path, Content_Type="application/json", **ways[way]))
        return heard(connection)


def dripped(
    address: Address, method: str, path: str, *, length: int, every: float, most: float = PATIENCE, **headers: str
) -> Reply:
    """Announce `length` bytes and send one of them every so many seconds, for at most so long."""
    with address.secure() as connection:
        begun = time.monotonic()
        json_body = {"Content_Length": str(length), "Content_Type": "application/json"}
        connection.sendall(address.head(method, path, **(json_body | headers)))
        for _ in range(length):
            reply = heard(connection, within=every)
            if reply.status or time.monotonic() - begun > most:
                return Reply(reply.status, reply.body, time.monotonic() - begun)
            try:
                connection.sendall(b" ")
            except OSError:
                break
        reply = heard(connection, within=every)
        return Reply(reply.status, reply.body, time.monotonic() - begun)


@contextlib.contextmanager
def idle(address: Address, number: int, *, shaken: bool = False) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing: before the handshake, or after it if `shaken`. Yields those still open."""
    held: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(address.secure() if shaken else address.plain()))
        yield held


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has left a silent connection open."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_PEEK))
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False


def at_once(number: int, move: Callable[[int], T]) -> list[T]:
    """The same move so many times at once."""
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(move, range(number)))


# Bodies that are small on the wire and large in memory.


def empty_lists(size: int) -> bytes:
    """About `size` bytes of `[]`, in one list: each becomes an object of 56 bytes."""
    return b"[" + b",".join([b"[]"] * (size // 3)) + b"]"


def nested(depth: int) -> bytes:
    """A list in a list in a list; never closed."""
    return b"[" * depth


def digits(number: int) -> bytes:
    """One integer with so many digits."""
    return b"9" * number


def many_members(number: int) -> bytes:
    """An object with so many members."""
    return b"{" + b",".join(b'"%d":0' % n for n in range(number)) + b"}"


@cache
def gzip_bomb(size: int) -> bytes:
    """So many zero bytes, compressed a thousandfold."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(bytes(min(1 << 20, size - at))) for at in range(0, size, 1 << 20)]
    return b"".join([*parts, packer.flush()])


BODIES: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: empty_lists(3_000_000),
    "nested": lambda: nested(200_000),
    "nested objects": lambda: b'{"a":' * 100_000,
    "digits": lambda: digits(1_000_000),
    "members": lambda: many_members(200_000),
    "fraction": lambda: b"0." + digits(1_000_000),
    "text": lambda: b'"' + b"x" * 1_000_000 + b'"',
    "not text": lambda: b"\xff" * 1000,
    "nothing": lambda: b"",
    "gzip": lambda: gzip.compress(b"{}"),
}
"""What no honest party sends, by name."""


# Answers of a party that lies.


def answer(body: bytes = b"", *, status: int = 200, length: int | None = None, **headers: str) -> bytes:
    """An HTTP answer; `length` is what it claims, if not the truth."""
    own = {"Content_Type": "application/json", "Content_Length": str(len(body) if length is None else length)}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in (own | headers).items()]
    return "\r\n".join([f"HTTP/1.1 {status} Whatever", *lines, "", ""]).encode() + body


def slowly(data: bytes, *, every: float, piece: int = 1) -> Iterator[bytes]:
    """The bytes in small pieces with pauses."""
    for at in range(0, len(data), piece):
        yield data[at : at + piece]
        time.sleep(every)


ANSWERS: dict[str, Callable[[], bytes]] = {
    "gzip bomb": lambda: answer(gzip_bomb(300 << 20), Content_Encoding="gzip"),
    "gzip problem": lambda: answer(gzip_bomb(300 << 20), status=503, Content_Encoding="gzip"),
    "nested": lambda: answer(nested(200_000)),
    "nested problem": lambda: answer(nested(200_000), status=409, Content_Type="application/problem+json"),
    "empty lists": lambda: answer(empty_lists(3_000_000)),
    "digits": lambda: answer(digits(1_000_000)),
    "not JSON": lambda: answer(b"<html>"),
    "not text": lambda: answer(b"\xff" * 1000),
    "null": lambda: answer(b"null"),
    "nothing": lambda: answer(b""),
    "cut short": lambda: answer(b"{}", length=1000),
    "no HTTP": lambda: b"\x00" * 100,
    "endless header": lambda: b"HTTP/1.1 200 OK\r\nA: " + b"x" * 1_000_000,
    "redirect": lambda: answer(status=302, Location="https://127.0.0.1:1/"),
    "informational": lambda: b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + answer(b"{}"),
}
"""What no honest party answers, by name."""

Answering = Callable[[bytes], bytes | Iterable[bytes]]
"""The answer to a request's head, whole or in pieces."""


@contextlib.contextmanager
def answering(credentials: Credentials, answers: Answering, listener: socket.socket | None = None) -> Iterator[str]:
    """A party with these credentials that sends any bytes as its answer, then hangs up; yields its URL."""
    listener = listener or socket.create_server(("127.0.0.1", 0))
    context = server_context(credentials)
    stopping = threading.Event()

    def serve(raw: socket.socket) -> None:
        with contextlib.suppress(OSError), raw, context.wrap_socket(raw, server_side=True) as connection:
            connection.settimeout(PATIENCE)
            head = b""
            while b"\r\n\r\n" not in head and (part := connection.recv(65536)):
                head += part
            found = answers(head)
            for piece in [found] if isinstance(found, bytes) else found:
                if stopping.is_set():
                    return
                connection.sendall(piece)
            connection.settimeout(0.1)
            while connection.recv(65536):  # what is left of the request, so that the answer is not lost with it
                pass

    def run() -> None:
        with ThreadPoolExecutor(32) as pool:
            while not stopping.is_set():
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                pool.submit(serve, raw)

    thread = threading.Thread(target=run, name="liar", daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stopping.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


def memory() -> int:
    """Bytes of memory that this process has resident."""
    return resident("self")


def resident(process: int | str) -> int:
    """Bytes of memory that a process has resident now."""
    return _status(process, "VmRSS:") << 10


def peak(process: int | str) -> int:
    """The most bytes of memory that a process has had resident."""
    return _status(process, "VmHWM:") << 10


def _status(process: int | str, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ValueError(name)


def descriptors(process: int | str) -> int:
    """How many descriptors a process has open."""
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())
