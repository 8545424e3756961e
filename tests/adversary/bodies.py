"""Bodies that nobody honest sends."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

JSON = {"content-type": "application/json"}
Body = tuple[dict[str, str], bytes | Callable[[], Iterator[bytes]]]


def _chunks() -> Iterator[bytes]:
    """Without a length, and more than any document may have."""
    for _ in range(1 << 10):
        yield b"[]," * (1 << 14)


@cache
def _bodies() -> tuple[Body, ...]:
    return (
        (JSON, b"[" * 200_000),
        (JSON, b'{"a":' * 100_000),
        (JSON, b'{"kind":"measure","clique":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        (JSON, b"[" + b"[]," * 1_000_000 + b"[]]"),
        (JSON, b'{"kind":"select","estimates":[' + b"1," * 1_000_000 + b"1]}"),
        (JSON, b'{"study":' + b"9" * 100_000 + b"}"),
        (JSON, b'{"study":' + b"9" * 4_000 + b"}"),
        (JSON, b'{"study":1e999999999}'),
        (JSON, b'{"study":-0.0000000000000000000000000001e-999999999}'),
        (JSON, b'{"study":NaN,"inputs":Infinity}'),
        (JSON, b'{"study":"\\ud800","inputs":"\\u0000"}'),
        (JSON, b'{"study":"\xff\xfe"}'),
        (JSON, b"{" + b",".join(b'"m%d":0' % n for n in range(200_000)) + b"}"),
        (JSON, b"{" + b'"study":"x",' * 100_000 + b'"study":"y"}'),
        (JSON, b'"' + b"x" * (3 << 20) + b'"'),
        (JSON, b""),
        (JSON, b"null"),
        (JSON, b"{}{}"),
        (JSON, b"\xef\xbb\xbf{}"),
        (JSON, "{}".encode("utf-16")),
        (JSON, b"x" * (5 << 20)),
        (JSON, _chunks),
        ({"content-type": "text/csv"}, b"a,b\n1,2\n"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n" * 10_000),
        ({"content-type": "application/x-www-form-urlencoded"}, b"a=1&" * 100_000),
        ({**JSON, "content-encoding": "gzip"}, gzip.compress(b"[" * (64 << 20))),
        ({"content-type": "application/json; charset=utf-7"}, b"+AHs-"),
        ({}, b"{}"),
    )


COUNT = len(_bodies())


def body(variant: int) -> dict[str, Any]:
    """One of them, as options of a request."""
    headers, content = _bodies()[variant % COUNT]
    return {"headers": headers, "content": content() if callable(content) else content}


BRACKETS = 24 << 20
"""Of the pairs of brackets that once took a server from 559 to 1,441 MB."""


def brackets() -> bytes:
    """48 MB of them."""
    return b"[" + b"[]," * (BRACKETS * 2 // 3) + b"[]]"
