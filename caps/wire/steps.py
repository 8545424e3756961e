"""What a coordinator requests of the servers in each step, and their answers: runs, requests, answers, transcripts.

A request is one of those in `caps.dp.oracle`: compute, compare, select, measure or batch. It is sent as a JSON object
whose `kind` says which, and is identified by the digest of its canonical form.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, ValidationError

from caps.basics import canonical
from caps.basics.document import Document, Hex32, first_mistake
from caps.basics.schemes import extremes
from caps.data.domain import MAX_CELLS
from caps.dp.oracle import INTEGER_BYTES, STEP_REQUEST, StepRequest
from caps.dp.privacy import Role
from caps.errors import DomainError
from caps.study import Manifest
from caps.wire.documents import Evidence, Index, RunId, Signable, Signature, Signed

_REST = 1 << 16
"""More than everything in a request or an answer takes whose number does not depend on the study."""


def request_to_json(request: StepRequest) -> dict[str, Any]:
    """The request as an object for canonical JSON."""
    written: dict[str, Any] = STEP_REQUEST.dump_python(request, mode="json")
    return written


def request_from_json(value: object) -> StepRequest:
    """The inverse of `request_to_json`. Raises DomainError with the place if the object is not a request."""
    try:
        return STEP_REQUEST.validate_python(value)
    except ValidationError as error:
        raise DomainError(first_mistake(error)) from None


def largest_request(manifest: Manifest) -> Extent:
    """What the longest request that a manifest allows takes: the estimates of all its cells."""
    layout = manifest.layout
    names = sum(len(json.dumps(clique)) for clique in layout.cliques)
    integers = layout.cells + 2 * len(layout.cliques)
    elements = sum(1 + len(clique) for clique in layout.cliques)
    return Extent(_REST + names + integers * INTEGER_BYTES * 4 // 3, _REST + elements)


def largest_answer(manifest: Manifest) -> Extent:
    """What the longest signed answer takes: noisy counts of the largest marginal or batch, or noisy errors."""
    opened = [
        spend.candidates if spend.role is Role.COMPARE else spend.cells
        for spend in manifest.forecast.spends
        if spend.role is not Role.SELECT
    ]
    cells = max(opened) + len(manifest.holders)
    return Extent(_REST + cells * len(f"-{canonical.MAX_INTEGER}, "), _REST + cells)


class Extent(NamedTuple):
    """Bounds of a JSON text: bytes, and elements of arrays and objects."""

    bytes: int
    elements: int


class RunRequest(Document):
    """Begin a run on sealed inputs."""

    study: Hex32
    inputs: Hex32


class RunStatus(Document):
    """The state of a run on one server. position: steps done; due: what the schedule allows next, in words.

    interrupted: sessions that ended in the middle of a computation, as far as this server knows. evidence: if the run
    was aborted, whose checks failed, signed by the servers that made them.
    """

    run: RunId
    study: Hex32
    inputs: Hex32
    state: Literal["waiting", "going", "ended", "failed", "aborted"]
    reason: str | None = None
    party: str | None = None
    position: Index
    due: str
    rounds: int
    bytes_sent: int
    interrupted: Index = 0
    evidence: tuple[Signed[Evidence], ...] = ()


class Answer(Signable):
    """What a step opened, as every server reports it: the selected position, noisy counts, or noisy errors.

    Step 0 is COMPUTE ANSWERS, whose value says for each sealed contribution, in order, whether it is valid: 1 or 0.
    """

    kind: ClassVar[str] = "answer"
    study: Hex32
    run: RunId
    step: Index
    request: Hex32
    value: int | tuple[int, ...]


class Computing(Document):
    """The answer to this step is not ready yet: ask again."""

    state: Literal["computing"] = "computing"


def transcript_digest(previous: str, request: str, answer: str) -> str:
    """The transcript's digest after one more step; the first `previous` is the digest of the inputs."""
    return canonical.digest("transcript", {"previous": previous, "request": request, "answer": answer}).hex()


class TranscriptStep(Document):
    """The line of a release's transcript for one step: the request, the answer that all servers gave, and their
    signatures on it in the order S1, S2, ...
    """

    request: StepRequest
    answer: Answer
    signatures: Annotated[tuple[Signature, ...], Field(**extremes(lambda scheme: scheme.parties))]

    def line(self) -> bytes:
        """The step in canonical form, with a line feed at the end."""
        return canonical.dump(self.to_json()) + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """The inverse of `line`. Raises DomainError with the place if the line is not valid."""
        if not line.endswith(b"\n"):
            raise DomainError("the line does not end with a line feed")
        return cls.from_canonical(line[:-1], elements=MAX_CELLS + _REST)
