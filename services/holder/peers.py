"""Calls to the other parties. Whatever goes wrong becomes a problem document, which can be kept and shown to the owner.

It is in the other party's words or in the holder's own. `retryable` says whether to ask again, by the rules of
`caps.client.calls`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from caps.basics import canonical
from caps.basics.schemes import SCHEMES
from caps.client import AnswerRefused, ClientError, calls
from caps.errors import DomainError
from caps.service.identity import machine_of
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Coordinator, Manifest, Server
from caps.study.manifest import SCHEME
from caps.wire import Approval, Decline, Signed, media
from caps.wire.coordinator import StudyView
from caps.wire.holder import ServerBudget
from caps.wire.problems import Kind
from caps.wire.server import PopulationState

LONG_TIMEOUT = 120.0
"""Time-out, in seconds, for servers that must work before they answer, such as hashing a whole vector."""
SHORT_TIMEOUT = 5.0
"""Time-out, in seconds, where a person waits and can do without the answer."""
_MAX_MANIFEST = 8 << 20

M = TypeVar("M", bound=BaseModel)


class PeerProblem(Exception):
    """Another party did not do what it was asked. `retry_after`: how many seconds it asked us to wait."""

    def __init__(self, document: dict[str, Any], retry_after: float | None = None) -> None:
        super().__init__(document["detail"])
        self.document = document
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.document["retryable"])

    @classmethod
    def own(cls, kind: Kind, detail: str, *, party: str, retryable: bool) -> PeerProblem:
        """A problem in the holder's own words."""
        document = Problem(kind, detail, party=party).document("")
        del document["request_id"]
        return cls(document | {"retryable": retryable})

    @classmethod
    def of(cls, error: ClientError) -> PeerProblem:
        """The problem that a call ended with, in the other party's words if it sent a problem document."""
        party, retryable = error.party, error.retryable
        own = cls.own(Kind.PEER_FAILED, f"{party}: {error.what}", party=party, retryable=retryable)
        words = error.words()
        document = own.document if words is None else words | {"retryable": retryable, "party": party}
        return cls(document, error.retry_after)

    def passed_on(self) -> Problem:
        """The same problem as the answer to an owner's request."""
        kinds = {kind.urn: kind for kind in Kind}
        kind = kinds.get(self.document["type"], Kind.PEER_FAILED)
        return Problem(kind, self.document["detail"], party=self.document["party"], retryable=self.retryable)


def ask(client: httpx.Client, party: str, method: str, path: str, **options: Any) -> httpx.Response:
    """A party's successful answer. Raises PeerProblem for any other."""
    try:
        return calls.send(client, party, method, path, **options)
    except ClientError as error:
        raise PeerProblem.of(error) from None


def read(model: type[M], response: httpx.Response, party: str) -> M:
    """The document in an answer. Raises PeerProblem if it is not of this model."""
    try:
        canonical.bound(response.content)
        return model.model_validate_json(response.content)
    except (DomainError, ValidationError):
        detail = f"{party} answered with something other than the {model.__name__} it was asked for"
        raise PeerProblem.own(Kind.PEER_FAILED, detail, party=party, retryable=False) from None


def fetch_manifest(site: Site, url: str, study: str) -> Manifest:
    """Fetch a study's manifest from its coordinator, of which only the address is known so far.

    The authority vouches for the certificate. The manifest is the right one if its digest is the study's id; it must
    also name the coordinator that served it. Raises a Problem.
    """
    party = "the coordinator"
    try:
        with (
            site.calls_to(url, timeout=calls.TIMEOUT) as client,
            calls.opened(client, party, "GET", f"/v1/studies/{study}/manifest", also=range(300, 600)) as response,
        ):
            connection = response.extensions["network_stream"].get_extra_info("ssl_object")
            machine = machine_of(connection.getpeercert(True))
            if machine is None or machine.role != "coordinator":
                raise Problem(Kind.INVALID, "this is the address of another service, not of a coordinator", party=party)
            if not response.is_success:
                raise calls.problem_of(response, party)
            body = calls.read(response, party, limit=_MAX_MANIFEST)
    except ClientError as error:
        raise PeerProblem.of(error).passed_on() from None
    manifest = _manifest(body)
    if manifest.study_id != study:
        raise Problem(Kind.INVALID, "the coordinator sent the manifest of a different study", study=study)
    found = manifest.coordinator
    if (found.name, found.pin, found.url) != (machine.name, machine.pin, url):
        raise Problem(Kind.INVALID, "the manifest names a coordinator other than the one that sent it", study=study)
    return manifest


def _manifest(body: bytes) -> Manifest:
    try:
        value = canonical.parse(body)
        if isinstance(value, dict):
            _require_known(value.get("scheme", SCHEME))
            return Manifest.from_json(value)
    except (DomainError, ValidationError):
        pass
    raise Problem(Kind.INVALID, "the coordinator's answer is not a valid manifest")


def _require_known(scheme: object) -> None:
    """Refuse a study whose scheme this holder cannot share in: it is older than the study, or the study is wrong."""
    if isinstance(scheme, str) and scheme not in SCHEMES:
        named = f"{scheme[:40]!a}, which" if scheme.isprintable() else "something that"
        raise Problem(
            Kind.INVALID,
            f"the study's scheme is {named} this holder does not know; it knows {', '.join(SCHEMES)}: "
            "upgrade the holder before it takes part",
        )


def ask_budget(site: Site, server: Server, study: str) -> ServerBudget:
    """What the study's population has left on a server. The owner is waiting, so nobody is asked twice."""
    try:
        with site.calls(server, timeout=SHORT_TIMEOUT) as client:
            found = read(PopulationState, ask(client, server.name, "GET", f"/v1/studies/{study}/budget"), server.name)
    except PeerProblem as problem:
        return ServerBudget(server=server.name, state=None, problem=str(problem.document["detail"]))
    return ServerBudget(server=server.name, state=found, problem=None)


def send_word(site: Site, coordinator: Coordinator, study: str, word: Signed[Approval] | Signed[Decline]) -> None:
    """Send this holder's signed approval, or its decline, to the coordinator. Raises PeerProblem."""
    with site.calls(coordinator, timeout=calls.TIMEOUT) as client:
        path = f"/v1/studies/{study}/{word.document.kind}s/{site.name}"
        ask(client, coordinator.name, "PUT", path, content=word.model_dump_json().encode(), headers=media.JSON_BODY)


def fetch_release(site: Site, coordinator: Coordinator, study: str, path: Path, *, most: int) -> bool:
    """Write the study's released rows to a new file; whether there are any yet. Raises a Problem.

    They are looked at and not relied on, so the coordinator's word for them is enough.
    """
    party = coordinator.name
    try:
        with site.calls(coordinator, timeout=LONG_TIMEOUT) as client:
            releases = read(StudyView, ask(client, party, "GET", f"/v1/studies/{study}"), party).releases
            if not releases:
                return False
            rows = f"/v1/releases/{releases[-1]}/data"
            with (
                calls.opened(client, party, "GET", rows, params={"format": "raw.csv"}) as response,
                path.open("xb") as file,
            ):
                for part in response.iter_bytes():
                    if file.tell() + len(part) > most:
                        raise AnswerRefused(f"the release is longer than {most:,} bytes", party=party)
                    file.write(part)
    except ClientError as error:
        raise PeerProblem.of(error).passed_on() from None
    except PeerProblem as problem:
        raise problem.passed_on() from None
    return True
