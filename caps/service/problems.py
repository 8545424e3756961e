"""How handlers end a request with a problem (`caps.wire.problems`), which never contains a data value.

A handler raises `Problem`, or any CapsError, which `of_error` turns into one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caps.data.schema import TableRefused
from caps.dp.privacy import BudgetExceeded
from caps.errors import CapsError, DomainError, LocalError, NotDue, PeerError, SessionClosed, party_name
from caps.trust.signing import SignatureRefused
from caps.wire.problems import Kind

_FIXED = frozenset({"type", "title", "status", "detail", "request_id"})
"""Members that further members cannot replace. `retryable` and `hint` can be, where more is known than the type."""


class Problem(Exception):
    """Ends a request with a problem document. `detail` and `members` must not contain values of private data."""

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
    """The problem for an error of the library, whose messages contain only names and public numbers."""
    members: dict[str, Any] = {}
    if isinstance(error, TableRefused):
        members["report"] = error.report.to_json()
    if isinstance(error, PeerError):
        members["party"] = party_name(error.party)
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), Kind.INTERNAL)
    return Problem(kind, str(error), **members)
