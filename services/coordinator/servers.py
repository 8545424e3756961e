"""Calls to a study's servers. Every error names the party to blame:

ServerError          `.party` names who is to blame
+-- Unavailable      out of reach, or waiting for another that is: the same call may succeed later
+-- ServerRefused    said no, and will say so again; `.problem` is what it sent
+-- Misbehaved       an answer that is malformed, wrongly signed, or contradicts the others
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from caps.basics import canonical
from caps.client import ClientError, ProblemError, calls
from caps.errors import CapsError
from caps.service import logs
from caps.study import Manifest, Server
from caps.trust.signing import SignatureRefused
from caps.wire import Signable, Signed, media
from caps.wire.steps import Extent, largest_answer

_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 5.0
"""Seconds between requests for what a server is still computing (202)."""

_USUAL = Extent(calls.MAX_ANSWER, canonical.MAX_ELEMENTS)
Connect = Callable[[Server], httpx.Client]
D = TypeVar("D", bound=Signable)


class ServerError(CapsError):
    """A server is to blame, or another party that a server blames."""

    def __init__(self, party: str, what: str) -> None:
        super().__init__(f"{party}: {what}")
        self.party = party
        self.what = what


class Unavailable(ServerError):
    """Try again later. `direct` if this was seen here, rather than reported by one server about another.

    retry_after: how many seconds the server asked us to wait, if it did.
    """

    def __init__(self, party: str, what: str, *, direct: bool = True, retry_after: float | None = None) -> None:
        super().__init__(party, what)
        self.direct = direct
        self.retry_after = retry_after


class ServerRefused(ServerError):
    """The server's final word."""

    def __init__(self, party: str, what: str, problem: dict[str, Any]) -> None:
        super().__init__(party, what)
        self.problem = problem


class Misbehaved(ServerError):
    """What the server sent cannot be used."""


@dataclass(frozen=True)
class Reply:
    """A server's answer. `pending`: if it is not ready yet (202), the seconds after which to ask again."""

    server: Server
    body: Any
    created: bool = False
    pending: float | None = None


class Servers:
    """Keeps a connection to each server, and asks all of a study at once.

    `stamp` changes when our own certificate is renewed: calls from then on are made with the new one.
    """

    def __init__(self, connect: Connect, *, stamp: Callable[[], object] = lambda: None) -> None:
        self._connect = connect
        self._stamp = stamp
        self._clients: dict[tuple[str, str, str], tuple[object, httpx.Client]] = {}
        self._retired: list[httpx.Client] = []  # perhaps still in use
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(24, thread_name_prefix="servers")

    def close(self) -> None:
        """End all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in [*self._retired, *(client for _, client in self._clients.values())]:
            client.close()

    def ask(self, server: Server, method: str, path: str, body: object = None) -> Reply:
        """One call. Raises ServerError."""
        return self._ask(server, method, path, body, self._stamp())

    def _ask(self, server: Server, method: str, path: str, body: object, stamp: object, most: Extent = _USUAL) -> Reply:
        content = None if body is None else canonical.dump(body)
        headers = {} if body is None else media.JSON_BODY
        try:
            http = self._client(server, stamp)
            response = calls.send(http, server.name, method, path, content=content, headers=headers, limit=most.bytes)
            found = calls.parsed(response.content, server.name, elements=most.elements) if response.content else None
        except ClientError as error:
            raise _failure(error) from None
        except OSError as error:  # our own certificate, perhaps being renewed at this moment
            raise Unavailable(server.name, f"cannot be called ({type(error).__name__})") from None
        pending = _pending(response) if response.status_code == 202 else None
        return Reply(server, found, response.status_code == 201, pending)

    def ask_each(self, manifest: Manifest, method: str, path: str, body: object = None) -> list[Reply | ServerError]:
        """The same call to all servers of a study at once, under one request id; the order is the manifest's."""

        stamp, answer = self._stamp(), largest_answer(manifest)
        most = Extent(max(answer.bytes, _USUAL.bytes), max(answer.elements, _USUAL.elements))

        def one(server: Server) -> Reply | ServerError:
            try:
                return self._ask(server, method, path, body, stamp, most)
            except ServerError as error:
                return error

        with logs.bound(request_id=logs.request_id() or logs.new_id()):
            contexts = [copy_context() for _ in manifest.servers]
        return list(self._threads.map(lambda context, server: context.run(one, server), contexts, manifest.servers))

    def ask_all(self, manifest: Manifest, method: str, path: str, body: object = None) -> list[Reply]:
        """The same, if all answers are needed. Raises the worst error: a refusal outweighs silence."""
        results = self.ask_each(manifest, method, path, body)
        errors = [result for result in results if isinstance(result, ServerError)]
        if errors:
            raise max(errors, key=_weight)
        return [result for result in results if isinstance(result, Reply)]

    def _client(self, server: Server, stamp: object) -> httpx.Client:
        key = (server.role, server.pin, server.url)
        with self._lock:
            found = self._clients.get(key)
            if found is None or found[0] != stamp:
                self._clients[key] = stamp, self._connect(server)
                if found is not None:
                    self._retired.append(found[1])
            return self._clients[key][1]


def signed(document: type[D], reply: Reply) -> Signed[D]:
    """The document in a reply, which its server must have signed. Raises Misbehaved."""
    try:
        found: Signed[D] = Signed[document].model_validate(reply.body)  # type: ignore[valid-type]
        found.verify(reply.server)
    except ValidationError:
        raise Misbehaved(reply.server.name, f"sent something other than a signed {document.kind}") from None
    except SignatureRefused as error:
        raise Misbehaved(reply.server.name, str(error)) from None
    return found


def agree(documents: Sequence[Signed[D]], what: str, *, apart_from: frozenset[str] = frozenset()) -> None:
    """Raise Misbehaved, naming the servers that differ, unless all documents say the same."""
    said = [canonical.dump(_without(signed.document, apart_from)) for signed in documents]
    if len(set(said)) == 1:
        return
    commonest = max(said, key=said.count)
    names = [signed.signer for signed, text in zip(documents, said, strict=True)]
    if said.count(commonest) == 1:
        raise Misbehaved(", ".join(names), f"each reports a different {what}")
    odd = [name for name, text in zip(names, said, strict=True) if text != commonest]
    others = [name for name in names if name not in odd]
    raise Misbehaved(", ".join(odd), f"reports a different {what} than {' and '.join(others)}")


def _without(document: BaseModel, names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in document.model_dump(mode="json").items() if name not in names}


def _weight(error: ServerError) -> tuple[bool, bool, bool]:
    direct = isinstance(error, Unavailable) and error.direct
    return isinstance(error, ServerRefused), isinstance(error, Misbehaved), direct


def _failure(error: ClientError) -> ServerError:
    """Who is to blame, by the rules of `caps.client.calls`."""
    if error.retryable:
        return Unavailable(error.blamed, error.what, direct=error.blamed == error.party, retry_after=error.retry_after)
    if isinstance(error, ProblemError):
        return ServerRefused(error.party, error.what, error.document)
    return Misbehaved(error.party, error.what)


def _pending(response: httpx.Response) -> float:
    """Seconds after which to ask again for what is being computed."""
    return min(max(calls.retry_after(response) or 0.0, _SHORTEST_WAIT), _LONGEST_WAIT)
