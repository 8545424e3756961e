"""Digests of HTTP bodies as written in the headers Content-Digest and Repr-Digest (RFC 9530)."""

from __future__ import annotations

import base64

_SHA_256 = "sha-256"


def spelled(digest: bytes) -> str:
    """The header's value for a SHA-256 digest."""
    return f"{_SHA_256}=:{base64.b64encode(digest).decode()}:"


def stated(header: str) -> bytes | None:
    """The SHA-256 digest that a header states; None unless it states exactly one. Other algorithms are ignored."""
    members = [member.strip().partition("=") for member in header.split(",")]
    given = [value for algorithm, _, value in members if algorithm == _SHA_256]
    if len(given) != 1 or len(given[0]) < 2 or given[0][0] != ":" or given[0][-1] != ":":
        return None
    try:
        digest = base64.b64decode(given[0][1:-1], validate=True)
    except ValueError:
        return None
    return digest if len(digest) == 32 else None
