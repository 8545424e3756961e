"""Errors as people and programs meet them: RFC 9457 problem documents of registered types, never with a data value.

`Kind` is the one table of problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict

_BASE = "urn:caps:problem:"


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


class ProblemDocument(BaseModel):
    """RFC 9457; `type` is one of a fixed list of URNs, and some types carry further members."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    retryable: bool
    request_id: str
    hint: str | None = None
