"""The exit codes of `caps`, and the code for each error."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from caps.errors import CapsError

if TYPE_CHECKING:
    from pydantic import ValidationError


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    NOT_VERIFIED = 5
    NOT_ALLOWED = 6
    NOT_YET = 7
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "done",
    Exit.REFUSED: "refused or failed; stderr says why",
    Exit.USAGE: "the command line is wrong",
    Exit.NOT_FOUND: "there is no such study, run, release or table",
    Exit.UNREACHABLE: "the service cannot be reached, or is not trusted",
    Exit.NOT_VERIFIED: "a certificate, digest or signature is not valid",
    Exit.NOT_ALLOWED: "the token is unknown, has expired, or lacks the scope",
    Exit.NOT_YET: "not possible now; the same command may succeed later",
    Exit.INTERRUPTED: "interrupted from the keyboard",
}

_INTERNAL = "urn:caps:problem:internal"
_NOT_ALLOWED = frozenset({"urn:caps:problem:unauthenticated", "urn:caps:problem:forbidden"})


@dataclass(frozen=True)
class Failure:
    """An error as the user sees it."""

    exit: Exit
    title: str
    detail: str = ""
    hint: str | None = None
    document: dict[str, Any] | None = None

    @property
    def request(self) -> str | None:
        """The id by which a service's operator finds the request in the log, if it is the service that failed."""
        found = self.document or {}
        status, request = found.get("status"), found.get("request_id")
        return request if isinstance(status, int) and status >= 500 and isinstance(request, str) else None

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object: the problem document itself if a service sent one."""
        own = {"title": self.title, "detail": self.detail, "hint": self.hint}
        found = {key: value for key, value in own.items() if value}
        return found | (self.document or {}) | {"exit": int(self.exit)}


class Stop(Exception):
    """Ends a command that has already printed everything."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code.name)
        self.code = code


def failure_of(error: CapsError | OSError | ValidationError) -> Failure:
    """Returns how a command ends after this error."""
    from pydantic import ValidationError

    from caps.client import AnswerRefused, ProblemError, Unreachable
    from caps.trust.signing import SignatureRefused

    if isinstance(error, ProblemError):
        return Failure(_exit_of(error), error.title, error.detail, error.hint, error.document)
    if isinstance(error, Unreachable):
        return Failure(Exit.UNREACHABLE, "The service cannot be reached or trusted", str(error), error.hint)
    if isinstance(error, AnswerRefused | SignatureRefused):
        return Failure(Exit.NOT_VERIFIED, "Verification failed", str(error))
    if isinstance(error, ValidationError):
        places = [f"{'.'.join(map(str, one['loc'])) or 'document'}: {one['msg']}" for one in error.errors()[:20]]
        return Failure(Exit.REFUSED, f"This is not a valid {error.title}", "\n".join(places))
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        return Failure(
            Exit.REFUSED,
            "A file cannot be read or written",
            f"{error.filename}: {reason}" if error.filename else reason,
        )
    return Failure(Exit.REFUSED, "The command failed", str(error))


def _exit_of(problem: Any) -> Exit:
    if problem.type in _NOT_ALLOWED or problem.status == 401:
        return Exit.NOT_ALLOWED
    if problem.status == 404:
        return Exit.NOT_FOUND
    if problem.type == _INTERNAL:  # programs may try again; a person should rather tell the operator
        return Exit.REFUSED
    return Exit.NOT_YET if problem.retryable else Exit.REFUSED
