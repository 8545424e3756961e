"""What rogues send that nobody honest does, beyond `tests.kit.attacks`: bodies of requests, and answers to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tests.kit.attacks import ANSWERS, BODIES, Answering, answer, empty_lists, gzip_bomb

JSON = {"content-type": "application/json"}
_MOST = 1 << 30
"""Bytes after which a body that never ends ends all the same."""


def _endless() -> Iterator[bytes]:
    """A body without a length, as fast as it is read."""
    yield b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    piece = b" " * (1 << 16)
    for _ in range(_MOST // len(piece)):
        yield piece


def _trickle() -> Iterator[bytes]:
    """A byte now and then."""
    yield answer(b"", length=1 << 20)
    for _ in range(60):
        time.sleep(0.5)
        yield b" "


def _late(seconds: float) -> Iterator[bytes]:
    time.sleep(seconds)
    yield answer(b"{}", status=503)


_PROBLEM = {"status": 409, "Content_Type": "application/problem+json"}


def _once(make: Callable[[], bytes]) -> Answering:
    """An answer that is made when it is first given."""
    made = cache(make)
    return lambda _: made()


LIES: dict[str, Answering] = {
    **{name: _once(make) for name, make in ANSWERS.items()},
    "many digits as a status": lambda _: answer(
        b'{"type":"urn:caps:problem:conflict","title":"t","detail":"d","status":' + b"9" * 5000 + b"}", **_PROBLEM
    ),
    "types that are none": lambda _: answer(
        b'{"type":[],"title":{},"detail":7,"retryable":"x","party":[1],"objections":{"a":1},"evidence":[[]]}',
        **_PROBLEM,
    ),
    "a lone surrogate": lambda _: answer(b'{"detail":"\\ud800","title":"\\u0000"}', **_PROBLEM),
    "a number beyond all": lambda _: answer(b'{"study":1e999999999}'),
    "created": lambda _: answer(b"{}", status=201),
    "accepted for ever": lambda _: answer(b'{"state":"computing"}', status=202, Retry_After="0"),
    "no content": lambda _: answer(b"", status=204),
    "an odd status": lambda _: answer(b"", status=799),
    "busy until the end of time": lambda _: answer(b"{}", status=429, Retry_After="999999999"),
    "an endless body": lambda _: _endless(),
    "the end": lambda _: b"",
}
"""Answers, by name."""
SLOW: dict[str, Answering] = {"a trickle": lambda _: _trickle(), "late": lambda _: _late(8.0)}
"""Those that others wait for."""


def _chunks() -> Iterator[bytes]:
    """Without a length, and more than any document may have."""
    for _ in range(1 << 10):
        yield b"[]," * (1 << 14)


@cache
def _bodies() -> tuple[tuple[dict[str, str], bytes | Callable[[], Iterator[bytes]]], ...]:
    """Headers and contents of requests."""
    return (
        *((JSON, make()) for make in BODIES.values()),
        (JSON, b'{"kind":"measure","clique":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        (JSON, b'{"kind":"select","estimates":[' + b"1," * 1_000_000 + b"1]}"),
        (JSON, b'{"study":' + b"9" * 4_000 + b"}"),
        (JSON, b'{"study":1e999999999}'),
        (JSON, b'{"study":-0.0000000000000000000000000001e-999999999}'),
        (JSON, b'{"study":NaN,"inputs":Infinity}'),
        (JSON, b'{"study":"\\ud800","inputs":"\\u0000"}'),
        (JSON, b"{" + b'"study":"x",' * 100_000 + b'"study":"y"}'),
        (JSON, b"null"),
        (JSON, b"{}{}"),
        (JSON, b"\xef\xbb\xbf{}"),
        (JSON, "{}".encode("utf-16")),
        (JSON, b"x" * (5 << 20)),
        (JSON, _chunks),
        ({"content-type": "text/csv"}, b"a,b\n1,2\n"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n" * 10_000),
        ({"content-type": "application/x-www-form-urlencoded"}, b"a=1&" * 100_000),
        ({**JSON, "content-encoding": "gzip"}, gzip_bomb(64 << 20)),
        ({"content-type": "application/json; charset=utf-7"}, b"+AHs-"),
        ({}, b"{}"),
    )


def body(variant: int) -> dict[str, Any]:
    """A request's body, as options of httpx."""
    found = _bodies()
    headers, content = found[variant % len(found)]
    return {"headers": headers, "content": content() if callable(content) else content}


def brackets() -> dict[str, Any]:
    """48 MB that once took a server from 559 to 1,441 MB before it said 403."""
    return {"headers": JSON, "content": empty_lists(48_000_000)}
