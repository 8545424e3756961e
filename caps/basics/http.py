"""Words of HTTP that more than one party uses: media types, headers of bodies, and digests (RFC 9530)."""

from __future__ import annotations

from base64 import b64decode, b64encode

JSON = "application/json"
OCTETS = "application/octet-stream"
CSV = "text/csv"
PARQUET = "application/vnd.apache.parquet"
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
PARQUET_MAGIC = b"PAR1"
"""What a Parquet file begins and ends with."""

JSON_BODY = {"Content-Type": JSON}
OCTETS_BODY = {"Content-Type": OCTETS}

DIGEST_BYTES = 32
_ALGORITHM = "sha-256="


def digest_header(digest: bytes) -> str:
    """A SHA-256 as Content-Digest and Repr-Digest spell it."""
    return f"{_ALGORITHM}:{b64encode(digest).decode()}:"


def digest_of_header(header: str) -> bytes | None:
    """The SHA-256 that such a header states, beside others perhaps; None unless it states exactly one, and soundly."""
    members = [member.strip() for member in header.split(",")]
    stated = [member.removeprefix(_ALGORITHM) for member in members if member.startswith(_ALGORITHM)]
    if len(stated) != 1 or len(stated[0]) < 2 or stated[0][0] != ":" or stated[0][-1] != ":":
        return None
    try:
        digest = b64decode(stated[0][1:-1], validate=True)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES else None
