"""Errors as people and programs see them: RFC 9457 problem documents of registered types, without data values.

`Kind` is the only table of problem types.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict

_BASE = "urn:caps:problem:"


@dataclass(frozen=True)
class Type:
    """A type of problem: its status, its title, whether the same request may succeed later, and what to do."""

    status: int
    title: str
    retryable: bool = False
    hint: str | None = None


class Kind(Enum):
    """Every type of problem. Its URN ends with the member's name in lower case, with hyphens."""

    MALFORMED = Type(400, "Malformed request")
    UNAUTHENTICATED = Type(401, "Not authenticated", hint="present a client certificate or a bearer token")
    FORBIDDEN = Type(403, "Not allowed", hint="use a token or a certificate whose role allows this request")
    NOT_FOUND = Type(404, "Not found", hint="check the path and the id, and that this is the right service")
    METHOD_NOT_ALLOWED = Type(405, "Method not allowed", hint="use a method listed in the Allow header")
    NOT_ACCEPTABLE = Type(406, "None of the requested formats is available")
    TIMEOUT = Type(408, "The request did not arrive in time", retryable=True)
    CONFLICT = Type(409, "The request conflicts with an earlier one")
    NOT_READY = Type(409, "Not ready yet", retryable=True)
    TOO_LARGE = Type(413, "The request is too large")
    UNSUPPORTED = Type(415, "Unsupported media type")
    RANGE_NOT_SATISFIABLE = Type(416, "The range is outside the document")
    INVALID = Type(422, "Invalid request")
    TABLE_REFUSED = Type(422, "The table does not fit the study", hint="`caps table check` says more, at your own desk")
    SIGNATURE_REFUSED = Type(403, "Invalid signature")
    POLICY_REFUSED = Type(403, "This server's policy refuses the study")
    NOT_DUE = Type(409, "The study's schedule does not allow this step now")
    BUDGET_EXCEEDED = Type(403, "The privacy budget does not allow this request")
    ABORTED = Type(
        409,
        "The run was aborted because a server deviates from the protocol",
        hint="see the evidence (`caps run show`, `caps audit`), find out which server it was, and agree on a new study",
    )
    BUSY = Type(503, "Too busy at the moment", retryable=True, hint="send the request again after a while")
    TOO_MANY = Type(429, "Too many requests", retryable=True, hint="ask again after the time in Retry-After")
    PEER_FAILED = Type(503, "Another party failed or cannot be reached", retryable=True)
    NO_SPACE = Type(
        507,
        "No space left on the service's disk",
        retryable=True,
        hint="its operator must free some space: give them the request id; nothing of this request was kept",
    )
    INTERNAL = Type(500, "Internal error", hint="give the request id to the operator, who can find it in the log")

    @property
    def urn(self) -> str:
        """The type's URI."""
        return _BASE + self.name.lower().replace("_", "-")


class ProblemDocument(BaseModel):
    """A problem as in RFC 9457; `type` is one of a fixed list of URNs, and some types have further members."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    retryable: bool
    request_id: str
    hint: str | None = None
