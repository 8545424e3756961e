"""The client of CaPS for people's programs: thin, typed, on the public REST interfaces only (docs/services.md).

    with Client("https://coordinator.example:8443", token=..., authority="authority.pem") as client:
        client.download(release, Path("synthetic.csv"))

One client talks to one service: a coordinator, a holder or an MPC server, each of which knows some of the routes.

    ClientError                 (a CapsError)
    +-- ProblemError            the service refused; `.document` is the problem (RFC 9457)
    +-- Unreachable             no answer came
    +-- AnswerRefused           an answer that is not what the contract says, such as a file with another digest

Requests that may be repeated are repeated when a connection fails, with growing pauses. The environment plays no part:
no proxy, no netrc.
"""

from __future__ import annotations

import contextlib
import hmac
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from caps.basics import canonical
from caps.basics.document import first_mistake
from caps.basics.files import digest_of
from caps.errors import CapsError, DomainError
from caps.study import Manifest
from caps.trust.tls import client_context
from caps.wire import (
    Approval,
    Certificate,
    ContributionState,
    Receipt,
    Signed,
    coordinator,
    digests,
    holder,
    media,
    server,
)
from caps.wire.coordinator import (
    ParticipationView,
    ReleaseView,
    RunChanged,
    RunProgress,
    RunView,
    SampleBody,
    SampleView,
    StartBody,
)
from caps.wire.health import Health
from caps.wire.holder import ContributionView, Invitation, Preview, TableReport
from caps.wire.releases import Measurements, Report
from caps.wire.server import LedgerRecord

Study = coordinator.StudyView | holder.StudyView | server.StudyState
"""A study, as the service that is asked sees it."""
_STUDY: TypeAdapter[Study] = TypeAdapter(Study)
_STUDIES: TypeAdapter[list[Study]] = TypeAdapter(list[Study])
_APPROVED: TypeAdapter[holder.StudyView | Signed[Approval]] = TypeAdapter(holder.StudyView | Signed[Approval])
T = TypeVar("T")
Progress = Callable[[int, int | None], None]
"""Told the bytes moved so far, and how many there are if that is known."""

CHUNK = 1 << 18
ATTEMPTS = 5
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 4.0
POLL = 1.0
ENDED = frozenset({"released", "failed"})
"""States that a run does not leave."""
_PARQUET = b"PAR1"
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})


class ClientError(CapsError):
    """A request did not lead to what was asked."""


class ProblemError(ClientError):
    """The service answered with a problem. Without a problem document, as from a proxy, the type is `about:blank`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = dict(document)
        super().__init__(f"{self.title}: {self.detail}" if self.detail else self.title)

    @property
    def type(self) -> str:
        """One of the URNs of `caps.wire.problems`."""
        return str(self.document.get("type", "about:blank"))

    @property
    def status(self) -> int:
        """The status of the response."""
        return int(self.document.get("status", 0))

    @property
    def title(self) -> str:
        """What kind of problem it is."""
        return str(self.document.get("title") or f"The service answered {self.status}")

    @property
    def detail(self) -> str:
        """What is wrong this time."""
        return str(self.document.get("detail") or "")

    @property
    def hint(self) -> str | None:
        """What to do about it."""
        hint = self.document.get("hint")
        return None if hint is None else str(hint)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.document.get("retryable", False))


class Unreachable(ClientError):
    """No answer came; `hint` says what to look at."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


class AnswerRefused(ClientError):
    """An answer that is not what the contract says."""


@dataclass(frozen=True)
class Event:
    """One of Server-Sent Events."""

    id: str
    name: str
    data: str


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines by line feeds alone: text may hold other characters that Python calls line ends."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """The events of a stream's lines, by the HTML standard's rules. Comments and an unfinished event are dropped."""
    last, name, data = "", "", list[str]()
    for line in lines:
        if line == "":
            if data:
                yield Event(last, name or "message", "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            last = value


@dataclass(frozen=True)
class Download:
    """A file that arrived whole, with the digest its service stated."""

    path: Path
    bytes: int
    sha256: str
    resumed_from: int


class Client:
    """A person's access to one service.

    token: a bearer token, as `caps token create` made it. authority: PEM file of the federation's authority; those that
    the system trusts if not given. transport: another way to the service, for tests of programs.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authority: Path | str | None = None,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith("https://"):
            raise DomainError("a service's URL begins with https://, for tokens and tables are not sent in the clear")
        headers = {"User-Agent": "caps-client/1"}
        if token is not None:
            if not token.isascii() or not token.isprintable() or not token.strip():
                raise DomainError("a token is one line of ASCII")
            headers["Authorization"] = f"Bearer {token.strip()}"
        self.url = url.rstrip("/")
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout,
            transport=transport,
            trust_env=False,
            verify=True if authority is None else _context(Path(authority)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # Every service.

    def health(self) -> Health:
        """Whether the service answers."""
        return self._ask(Health, "GET", "/healthz")

    def ready(self) -> Health:
        """Whether the service can work now, and if not, why."""
        response = self._send("GET", "/readyz")
        return _read(Health, (response if response.status_code == 503 else _checked(response)).content)

    def studies(self) -> list[Study]:
        """The studies this service knows."""
        return self._ask(_STUDIES, "GET", "/v1/studies")

    def study(self, study: str) -> Study:
        """A study's state here."""
        return self._ask(_STUDY, "GET", _path("studies", study))

    def approve(self, study: str) -> holder.StudyView | Signed[Approval]:
        """At a holder, its owner's signature; at an MPC server, its operator's consent."""
        return self._ask(_APPROVED, "POST", _path("studies", study, "approval"))

    # The coordinator.

    def propose(self, manifest: Manifest | Mapping[str, Any]) -> coordinator.StudyView:
        """Propose a study. The same manifest again is the same study."""
        value = dict(manifest) if isinstance(manifest, Mapping) else manifest.to_json()
        return self._ask(coordinator.StudyView, "POST", "/v1/studies", body=value, repeat=True)

    def manifest(self, study: str) -> Manifest:
        """A study's manifest, whose digest is the study's id."""
        found = Manifest.from_json(self._ask(dict[str, Any], "GET", _path("studies", study, "manifest")))
        if found.study_id != study:
            raise AnswerRefused("the manifest is that of another study")
        return found

    def refresh(self, study: str) -> coordinator.StudyView:
        """Have the coordinator ask the servers again."""
        return self._ask(coordinator.StudyView, "POST", _path("studies", study, "refresh"), repeat=True)

    def participation(self, study: str) -> ParticipationView:
        """Per holder: whether it approved, and which servers hold its contribution."""
        return self._ask(ParticipationView, "GET", _path("studies", study, "participation"))

    def start(self, study: str, *, holders: Sequence[str] | None = None) -> RunView:
        """Seal the study and start its run, on what all gave or only these holders; while one goes on, that one."""
        body = StartBody(holders=None if holders is None else tuple(holders)).model_dump(exclude_none=True)
        return self._ask(RunView, "POST", _path("studies", study, "runs"), body=body, repeat=True)

    def run(self, run: str) -> RunView:
        """A run's state and progress."""
        return self._ask(RunView, "GET", _path("runs", run))

    def events(self, run: str, *, after: str | None = None) -> Iterator[Event]:
        """A run's events as they happen, after the one with that id, until the service ends the stream.

        A connection that breaks is made again, from the last event on.
        """
        failures = 0
        while True:
            opened = False
            headers = {"Accept": media.EVENTS} | ({} if after is None else {"Last-Event-ID": after})
            try:
                with self._stream("GET", _path("runs", run, "events"), headers) as response:
                    if response.status_code == 204:
                        return  # all was told before
                    if not response.headers.get("content-type", "").startswith(media.EVENTS):
                        raise AnswerRefused("the service sends no events")
                    opened = True
                    for event in parse_events(_lines(response.iter_bytes())):
                        failures = 0
                        after = event.id or after
                        yield event
                return
            except httpx.TransportError as error:
                if opened and isinstance(error, httpx.ReadTimeout):
                    continue  # a long step; if the service is gone, connecting again will tell
                failures += 1
                self._pause(failures, error)

    def watch(self, run: str) -> Iterator[RunChanged | RunProgress]:
        """What happens in a run until it has ended; the last event is the final state.

        By polling where the service sends no events. Events of kinds that are not known here are passed over.
        """
        after: str | None = None
        while True:
            try:
                for event in self.events(run, after=after):
                    after = event.id or after
                    told: RunChanged | RunProgress
                    if event.name == "state":
                        told = _read(RunChanged, event.data)
                    elif event.name == "progress":
                        told = _read(RunProgress, event.data)
                    else:
                        continue
                    yield told
                    if isinstance(told, RunChanged) and told.state in ENDED:
                        return
            except AnswerRefused:
                pass
            found = self.run(run)
            yield RunChanged(state=found.state, party=found.party, reason=found.reason)
            if found.state in ENDED:
                return
            self._sleep(POLL)

    def releases(self) -> list[ReleaseView]:
        """The releases that are published."""
        return self._ask(list[ReleaseView], "GET", "/v1/releases")

    def release(self, release: str) -> ReleaseView:
        """One release."""
        return self._ask(ReleaseView, "GET", _path("releases", release))

    def sample(self, release: str, *, rows: int | None = None, seed: str | None = None) -> SampleView:
        """Another sample of the release's model."""
        body = SampleBody(rows=rows, seed=seed).model_dump(exclude_none=True)
        return self._ask(SampleView, "POST", _path("releases", release, "samples"), body=body)

    def measurements(self, release: str) -> Measurements:
        """The noisy counts, with sigma and error bars."""
        return _read(Measurements, self.document(release, "measurements"))

    def report(self, release: str) -> Report:
        """Privacy in words, and quality as estimated."""
        return _read(Report, self.document(release, "report"))

    def certificate(self, release: str) -> Certificate:
        """What an auditor checks a release by: `caps verify`."""
        return _read(Certificate, self.document(release, "certificate"))

    def transcript(self, release: str, target: Path, *, progress: Progress | None = None) -> Download:
        """Fetch every request and signed answer of a release into a file, as `download` does with the rows."""
        return _Fetch(self, _path("releases", release, "transcript"), media.NDJSON, target, progress).run()

    def document(self, release: str, name: str, *, accept: str = media.JSON) -> bytes:
        """A release's `measurements`, `report` or `certificate`, byte by byte, with the digest stated if one is."""
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        response = _checked(self._send("GET", _path("releases", release, name), headers=headers))
        stated = _stated_digest(response) if "repr-digest" in response.headers else None
        if stated is not None and not hmac.compare_digest(sha256(response.content).digest(), stated):
            raise AnswerRefused(f"the {name} that arrived has another digest than the service states")
        return response.content

    def download(
        self,
        release: str,
        target: Path,
        *,
        format: str = "csv",  # noqa: A002  the word of every reader and writer of tables
        sample: str | None = None,
        progress: Progress | None = None,
    ) -> Download:
        """Fetch a release's rows into a file, or those of one of its samples.

        A partial file `<target>.part` of an earlier attempt is continued. The file appears under its name only when its
        bytes have the digest that the service states.
        """
        if format not in media.TABLES:
            raise DomainError(f"a format is one of {', '.join(media.TABLES)}")
        parts = ("releases", release, *(() if sample is None else ("samples", sample)), "data")
        return _Fetch(self, _path(*parts), media.TABLES[format], target, progress).run()

    # A holder.

    def fetch(self, coordinator: str, study: str) -> holder.StudyView:
        """Have the holder fetch a study's manifest from its coordinator."""
        body = Invitation(coordinator=coordinator, study=study).to_json()
        return self._ask(holder.StudyView, "POST", "/v1/studies", body=body, repeat=True)

    def put_table(self, study: str, table: Path, *, progress: Progress | None = None) -> TableReport:
        """Stream a CSV or Parquet file to the holder, which validates it and keeps it at its site."""
        return self._upload(TableReport, "PUT", _path("studies", study, "table"), table, progress)

    def table_report(self, study: str) -> TableReport:
        """What the holder counted when it checked the table: counts, never values."""
        return self._ask(TableReport, "GET", _path("studies", study, "table"))

    def erase_table(self, study: str) -> None:
        """Erase the table at the holder."""
        _checked(self._send("DELETE", _path("studies", study, "table")))

    def preview(self, study: str) -> Preview:
        """The dry run: exactly what would leave the site, to whom, how many bytes."""
        return self._ask(Preview, "GET", _path("studies", study, "preview"))

    def contribute(
        self, study: str, table: Path | None = None, *, progress: Progress | None = None
    ) -> ContributionView:
        """Share the holder's table into the study, or this file's; done when three receipts are there."""
        path = _path("studies", study, "contribution")
        if table is None:
            return self._ask(ContributionView, "PUT", path)
        return self._upload(ContributionView, "POST", path, table, progress)

    def contribution(self, study: str) -> ContributionView:
        """State of the push, and receipts."""
        return self._ask(ContributionView, "GET", _path("studies", study, "contribution"))

    def withdraw(self, study: str) -> ContributionView:
        """Take the contribution back, before the study is sealed."""
        return self._ask(ContributionView, "DELETE", _path("studies", study, "contribution"))

    # An MPC server.

    def contributions(self, study: str) -> list[ContributionState]:
        """Complete contributions of a study."""
        return self._ask(list[ContributionState], "GET", _path("studies", study, "contributions"))

    def erase_shares(self, study: str) -> list[Signed[Receipt]]:
        """Erase the shares of a study; the server's receipts."""
        return self._ask(list[Signed[Receipt]], "DELETE", _path("studies", study, "shares"))

    def ledger(self) -> Iterator[LedgerRecord]:
        """Every record of the server's ledger, in order. Raises Unreachable if the stream breaks."""
        try:
            with self._stream("GET", "/v1/ledger", {"Accept": media.NDJSON}) as response:
                for line in _lines(response.iter_bytes()):
                    if line:
                        yield _read(LedgerRecord, line)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    # How requests are sent.

    def _ask(
        self,
        model: type[T] | TypeAdapter[T],
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        repeat: bool = False,
    ) -> T:
        """What the service answers, which must be such a model."""
        content, headers = (None, None) if body is None else (canonical.dump(body), _JSON)
        return _read(model, _checked(self._send(method, path, lambda: content, headers, repeat=repeat)).content)

    def _upload(self, model: type[T], method: str, path: str, table: Path, progress: Progress | None) -> T:
        with table.open("rb") as file:
            kind = media.PARQUET if file.read(len(_PARQUET)) == _PARQUET else media.CSV
        size = table.stat().st_size
        headers = {"Content-Type": kind, "Content-Length": str(size)}

        def body() -> Iterator[bytes]:
            sent = 0
            with table.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
                    sent += len(chunk)
                    if progress is not None:
                        progress(sent, size)

        # The holder answers only when it has read and checked the whole table.
        response = self._send(method, path, body, headers, timeout=httpx.Timeout(30.0, read=600.0))
        return _read(model, _checked(response).content)

    def _send(
        self,
        method: str,
        path: str,
        body: Callable[[], bytes | Iterator[bytes] | None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool = False,
        timeout: httpx.Timeout | None = None,
    ) -> httpx.Response:
        """One request, repeated after failed connections if nothing was sent or if sending twice is as once."""
        safe = repeat or method in _REPEATABLE
        extra = {} if timeout is None else {"timeout": timeout}
        failures = 0
        while True:
            request = self._http.build_request(method, path, content=body(), headers=headers, **cast(Any, extra))
            try:
                return self._http.send(request)
            except httpx.TransportError as error:
                if not safe and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise self._unreachable(error) from None
                failures += 1
                self._pause(failures, error)

    @contextlib.contextmanager
    def _stream(self, method: str, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """A response whose body is read as it comes. Connection errors are the caller's to handle."""
        headers = {"Accept-Encoding": "identity", **headers}
        with self._http.stream(method, path, headers=headers) as response:
            if not response.is_success:
                response.read()
            yield _checked(response)

    def _pause(self, failures: int, error: httpx.TransportError) -> None:
        """Wait before the next attempt. Raises Unreachable when enough were made, or none can help."""
        if failures >= ATTEMPTS or _is_distrust(error):
            raise self._unreachable(error) from None
        self._sleep(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        if _is_distrust(error):
            hint = "name the federation's authority with --authority, and call the service by a name in its certificate"
            return Unreachable(f"{self.url} is not trusted: its certificate is not one of the authority's", hint)
        if isinstance(error, httpx.TimeoutException):
            return Unreachable(f"{self.url} did not answer in time", "the service may be busy; try again later")
        return Unreachable(
            f"{self.url} cannot be reached, or the connection was lost", "is the service up? is the URL right?"
        )


_JSON = {"Content-Type": media.JSON}


class _Fetch:
    """A download with its state beside it: `<target>.part`, and the ETag that its bytes belong to."""

    def __init__(self, client: Client, path: str, media: str, target: Path, progress: Progress | None) -> None:
        self._client = client
        self._path = path
        self._media = media
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self._tag = target.with_name(f"{target.name}.part.etag")
        self._progress = progress

    def run(self) -> Download:
        """The file, whole and checked."""
        begun = self._held()
        failures = 0
        while True:
            held = self._held()
            try:
                stated = self._attempt(held)
                break
            except httpx.TransportError as error:
                failures = 1 if self._held() > held else failures + 1
                self._client._pause(failures, error)
        digest = bytes.fromhex(digest_of(self._part))
        if not hmac.compare_digest(digest, stated):
            self._forget()
            raise AnswerRefused("the file that arrived has another digest than the service states; nothing was kept")
        size = self._part.stat().st_size
        self._part.replace(self._target)
        self._tag.unlink(missing_ok=True)
        return Download(self._target, size, digest.hex(), begun)

    def _attempt(self, held: int) -> bytes:
        """Read on from what is held, to the end. Returns the digest that the service states."""
        headers = {"Accept": self._media}
        if held:
            headers |= {"Range": f"bytes={held}-", "If-Range": self._tag.read_text()}
        try:
            with self._client._stream("GET", self._path, headers) as response:
                stated = _stated_digest(response)
                tag = response.headers.get("etag", "")
                resumed = response.status_code == 206
                if resumed and _range_start(response) != held:
                    raise AnswerRefused("the service sent another part of the file than was asked for")
                if not resumed and tag and not tag.startswith("W/"):
                    self._tag.write_text(tag)
                with self._part.open("ab" if resumed else "wb") as file:
                    done = held if resumed else 0
                    total = _total(response, done)
                    for chunk in response.iter_bytes(CHUNK):
                        file.write(chunk)
                        file.flush()
                        done += len(chunk)
                        if self._progress is not None:
                            self._progress(done, total)
                return stated
        except ProblemError as error:
            if error.status != 416 or not held:
                raise
            self._forget()
            return self._attempt(0)

    def _held(self) -> int:
        """Bytes that can be continued: none without the tag of the file they are part of."""
        if not self._tag.exists() or not self._part.exists():
            return 0
        return self._part.stat().st_size

    def _forget(self) -> None:
        self._part.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _context(authority: Path) -> ssl.SSLContext:
    try:
        return client_context(authority)
    except (OSError, ssl.SSLError):
        raise DomainError(f"{authority}: not a readable PEM file with an authority's certificate") from None


def _checked(response: httpx.Response) -> httpx.Response:
    """The response if it is a success. Raises ProblemError otherwise."""
    if response.is_success:
        return response
    document: dict[str, Any] = {}
    if "json" in response.headers.get("content-type", ""):
        with contextlib.suppress(ValueError):
            value = response.json()
            document = value if isinstance(value, dict) else {}
    raise ProblemError(document | {"status": response.status_code})


def _read(model: type[T] | TypeAdapter[T], content: str | bytes) -> T:
    """What a service sent, which must be such a model. Raises AnswerRefused, saying where it is not."""
    try:
        return (model if isinstance(model, TypeAdapter) else TypeAdapter(model)).validate_json(content)
    except (ValidationError, DomainError) as error:
        where = first_mistake(error) if isinstance(error, ValidationError) else str(error)
        raise AnswerRefused(f"the service's answer is not what the contract says: {where}") from None


def _stated_digest(response: httpx.Response) -> bytes:
    """The SHA-256 of the whole file, of Repr-Digest."""
    stated = digests.stated(response.headers.get("repr-digest", ""))
    if stated is None:
        raise AnswerRefused("the service states no SHA-256 of the file")
    return stated


def _range_start(response: httpx.Response) -> int:
    start = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else -1


def _total(response: httpx.Response, done: int) -> int | None:
    length = response.headers.get("content-length", "")
    return done + int(length) if length.isdigit() else None


def _is_distrust(error: BaseException) -> bool:
    """Whether TLS refused the other end: no repetition changes that."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
