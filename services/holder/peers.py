"""Asking other parties, and what went wrong when they do not do what they were asked.

A failure is a problem document in the holder's own words or the other party's; `retryable` says whether to ask again.
"""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from caps.basics import canonical
from caps.errors import DomainError
from caps.service.identity import machine_of
from caps.service.logs import trace
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Coordinator, Manifest
from caps.trust.tls import NotTheParty, client_context
from caps.wire import media
from caps.wire.problems import Kind

_MAX_REPLY = 8 << 20
_MAX_TEXT = 500
_PLAIN = {"accept-encoding": "identity"}
JSON = {"content-type": "application/json"}

M = TypeVar("M", bound=BaseModel)


class PeerProblem(Exception):
    """Another party did not do what it was asked."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document["detail"])
        self.document = document

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.document["retryable"])

    @classmethod
    def own(cls, kind: Kind, detail: str, *, party: str, retryable: bool) -> PeerProblem:
        """In the holder's words."""
        document = Problem(kind, detail, party=party).document("")
        del document["request_id"]
        return cls(document | {"retryable": retryable})

    def passed_on(self) -> Problem:
        """The same as the end of a request of the owner."""
        kinds = {kind.urn: kind for kind in Kind}
        kind = kinds.get(self.document["type"], Kind.PEER_FAILED)
        return Problem(kind, self.document["detail"], party=self.document["party"], retryable=self.retryable)


def ask(client: httpx.Client, party: str, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """The answer of a party, if it is one of success. Raises PeerProblem."""
    try:
        response = client.request(method, path, **kwargs)
    except httpx.RequestError as error:
        raise unreachable(error, party) from None
    if response.is_success:
        return response
    raise _refused(response, party)


def read(model: type[M], response: httpx.Response, party: str) -> M:
    """The document of an answer. Raises PeerProblem if it is another."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError:
        detail = f"{party} answered with something else than the {model.__name__} asked for"
        raise PeerProblem.own(Kind.PEER_FAILED, detail, party=party, retryable=False) from None


def unreachable(error: BaseException, party: str) -> PeerProblem:
    """No answer, and why. A stranger at the party's address is named as such."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NotTheParty):
        cause = cause.__cause__ or cause.__context__
    detail = f"{party} cannot be reached" if cause is None else f"at the address of {party}: {cause}"
    return PeerProblem.own(Kind.PEER_FAILED, detail, party=party, retryable=True)


def _refused(response: httpx.Response, party: str) -> PeerProblem:
    """The other party's own problem document, as far as it is one."""
    status = response.status_code
    retryable = status >= 500 or status == 429
    if response.headers.get("content-type", "").startswith(media.PROBLEM):
        try:
            given = response.json()
            document = {key: str(given[key])[:_MAX_TEXT] for key in ("type", "title", "detail")}
            retryable = bool(given.get("retryable", False)) or status >= 500
            return PeerProblem(document | {"status": status, "retryable": retryable, "party": party})
        except (ValueError, KeyError, TypeError):
            pass
    return PeerProblem.own(Kind.PEER_FAILED, f"{party} answered with status {status}", party=party, retryable=retryable)


def fetch_manifest(site: Site, url: str, study: str) -> Manifest:
    """The manifest of a study from its coordinator, of whom only the address is known yet.

    The authority vouches for the certificate. The manifest is what was asked for if its digest is the study's id, and
    it must name the very coordinator that gave it. Raises a Problem.
    """
    party = "the coordinator"
    own = site.credentials
    context = client_context(own.authority, certificate=own.certificate, private_key=own.private_key)
    try:
        with (
            httpx.Client(
                base_url=url, verify=context, timeout=30.0, trust_env=False, event_hooks={"request": [trace]}
            ) as client,
            client.stream("GET", f"/v1/studies/{study}/manifest", headers=_PLAIN) as response,
        ):
            connection = response.extensions["network_stream"].get_extra_info("ssl_object")
            machine = machine_of(connection.getpeercert(True))
            if machine is None or machine.role != "coordinator":
                raise Problem(Kind.INVALID, "the other end is not a coordinator", party=party)
            body = _limited(response, party)
            if not response.is_success:
                raise _refused(httpx.Response(response.status_code, headers=response.headers, content=body), party)
    except httpx.RequestError as error:
        raise unreachable(error, party).passed_on() from None
    except PeerProblem as problem:
        raise problem.passed_on() from None
    manifest = _manifest(body)
    if manifest.study_id != study:
        raise Problem(Kind.INVALID, "the manifest is not that of the study asked for", study=study)
    found = manifest.coordinator
    if (found.name, found.pin, found.url) != (machine.name, machine.pin, url):
        raise Problem(Kind.INVALID, "the manifest names another coordinator than the one that gave it", study=study)
    return manifest


def _limited(response: httpx.Response, party: str) -> bytes:
    parts, size = [], 0
    for part in response.iter_raw(1 << 16):  # raw, so that nothing unfolds
        parts.append(part)
        size += len(part)
        if size > _MAX_REPLY:
            raise PeerProblem.own(Kind.PEER_FAILED, "the answer is too long", party=party, retryable=False)
    return b"".join(parts)


def _manifest(body: bytes) -> Manifest:
    try:
        value = canonical.parse(body)
        if isinstance(value, dict):
            return Manifest.from_json(value)
    except (DomainError, ValidationError):
        pass
    raise Problem(Kind.INVALID, "the coordinator's answer is not a sound manifest")


def send_approval(site: Site, coordinator: Coordinator, study: str, approval: BaseModel) -> None:
    """Give the coordinator this holder's signature. Raises PeerProblem."""
    with site.calls(coordinator) as client:
        path = f"/v1/studies/{study}/approvals/{site.name}"
        ask(client, coordinator.name, "PUT", path, content=approval.model_dump_json().encode(), headers=JSON)
