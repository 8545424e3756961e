"""Errors as people and programs meet them: RFC 9457 problem documents of registered types, never with a data value.

`TYPES` is the one table of problems. A handler raises `Problem`, or any CapsError, which `of_error` maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from caps.data.schema import TableRefused
from caps.dp.privacy import BudgetExceeded
from caps.errors import CapsError, DomainError, LocalError, NotDue, PeerError, SessionClosed, party_name
from caps.trust.signing import SignatureRefused

MEDIA_TYPE = "application/problem+json"
_BASE = "urn:caps:problem:"
_FIXED = frozenset({"type", "title", "status", "detail", "request_id"})
"""What no further member replaces. Whether to retry may be known better than by the type."""


@dataclass(frozen=True)
class Type:
    """A kind of problem: status, title, whether the same request may succeed later, and what to do."""

    status: int
    title: str
    retryable: bool = False
    hint: str | None = None


class Kind(Enum):
    """Every type of problem; the member's name, in lower case and with hyphens, ends its URN."""

    MALFORMED = Type(400, "The request is not well formed")
    UNAUTHENTICATED = Type(401, "Who asks is not known", hint="present a client certificate or a bearer token")
    FORBIDDEN = Type(403, "Who asks may not do this")
    NOT_FOUND = Type(404, "There is no such thing here")
    METHOD_NOT_ALLOWED = Type(405, "This cannot be done with it")
    NOT_ACCEPTABLE = Type(406, "None of the formats asked for can be given")
    TIMEOUT = Type(408, "The request took too long to come", retryable=True)
    CONFLICT = Type(409, "This contradicts what was done before")
    NOT_READY = Type(409, "Something must be done first", retryable=True)
    TOO_LARGE = Type(413, "The request is larger than allowed")
    UNSUPPORTED = Type(415, "The body has a media type that is not read here")
    RANGE_NOT_SATISFIABLE = Type(416, "The range lies outside the document")
    INVALID = Type(422, "The request does not describe something possible")
    TABLE_REFUSED = Type(422, "The table has values that the schema does not admit")
    SIGNATURE_REFUSED = Type(403, "A signature is not its signer's")
    POLICY_REFUSED = Type(403, "This server's policy refuses the study")
    NOT_DUE = Type(409, "The study's schedule does not allow this step now")
    BUDGET_EXCEEDED = Type(403, "The privacy budget does not allow this")
    PEER_FAILED = Type(503, "Another party is out of reach or failed", retryable=True)
    INTERNAL = Type(500, "The service failed", hint="the operator finds the request id in the log")

    @property
    def urn(self) -> str:
        """The type's URI."""
        return _BASE + self.name.lower().replace("_", "-")


class Problem(Exception):
    """Ends a request with a problem document. `detail` and `members` must hold no value of private data."""

    def __init__(self, kind: Kind, detail: str, *, headers: Mapping[str, str] | None = None, **members: object) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    def document(self, request_id: str) -> dict[str, Any]:
        """The body of the response."""
        type_ = self.kind.value
        body: dict[str, Any] = {
            "type": self.kind.urn,
            "title": type_.title,
            "status": type_.status,
            "detail": self.detail,
            "retryable": type_.retryable,
            "request_id": request_id,
        }
        if type_.hint is not None:
            body["hint"] = type_.hint
        return body | {name: member for name, member in self.members.items() if name not in _FIXED}


_KINDS: tuple[tuple[type[CapsError], Kind], ...] = (
    (TableRefused, Kind.TABLE_REFUSED),
    (SignatureRefused, Kind.SIGNATURE_REFUSED),
    (BudgetExceeded, Kind.BUDGET_EXCEEDED),
    (NotDue, Kind.NOT_DUE),
    (DomainError, Kind.INVALID),
    (SessionClosed, Kind.PEER_FAILED),
    (PeerError, Kind.PEER_FAILED),
    (LocalError, Kind.CONFLICT),
)


def of_error(error: CapsError) -> Problem:
    """The problem that an error of the library is. Its messages carry names and public figures only."""
    members: dict[str, Any] = {}
    if isinstance(error, TableRefused):
        members["report"] = error.report.to_json()
    if isinstance(error, PeerError):
        members["party"] = party_name(error.party)
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), Kind.INTERNAL)
    return Problem(kind, str(error), **members)
