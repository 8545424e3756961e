"""The client for people's programs: thin, typed, on the public REST interfaces only (docs/services.md).

    with Client.from_site("coordinator") as client:
        client.download(release, Path("synthetic.parquet"))
        client.estimate(release, where={"smoker": "yes"}, group_by="diagnosis")

One client talks to one service: a coordinator, a holder or an MPC server, each of which has some of the routes. Its
errors are those of `caps.client.calls`.

Requests that may be repeated are repeated when a connection fails, with growing pauses, and any request when the
service is too busy, after the time it states. The environment is ignored: no proxy, no netrc; only `from_site` reads
where the configuration is.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from caps.basics import canonical
from caps.basics.document import first_mistake
from caps.basics.files import digest_of
from caps.basics.retry import Backoff, Retries
from caps.client import calls, estimates, frames, sites
from caps.client.calls import AnswerRefused, ClientError, NotTrusted, ProblemError, Unreachable
from caps.errors import DomainError
from caps.study import Manifest
from caps.trust.tls import client_context
from caps.wire import (
    Approval,
    Certificate,
    ContributionState,
    Decline,
    LedgerHead,
    Receipt,
    RunStatus,
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
from caps.wire.holder import ContributionView, HolderLedger, Invitation, Preview, SourceView, TableReport
from caps.wire.releases import Measurements, Report
from caps.wire.server import LedgerRecord

Study = coordinator.StudyView | holder.StudyView | server.StudyState
"""A study, as the called service sees it."""
_STUDY: TypeAdapter[Study] = TypeAdapter(Study)
_STUDIES: TypeAdapter[list[Study]] = TypeAdapter(list[Study])
_DECLINED: TypeAdapter[holder.StudyView | Signed[Decline]] = TypeAdapter(holder.StudyView | Signed[Decline])
_APPROVED: TypeAdapter[holder.StudyView | Signed[Approval]] = TypeAdapter(holder.StudyView | Signed[Approval])
_BUDGET: TypeAdapter[holder.StudyBudget | server.PopulationState] = TypeAdapter(
    holder.StudyBudget | server.PopulationState
)
T = TypeVar("T")
Progress = Callable[[int, int | None], None]
"""Called with the bytes transferred so far, and the total if it is known."""

CHUNK = 1 << 18
_HARMLESS = re.compile(
    rb"<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    rb'<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; '
    rb"style-src &#39;sha256-[A-Za-z0-9+/=]{44}&#39;; base-uri &#39;none&#39;; form-action &#39;none&#39;\">\n"
)
"""How a report begins. Browsers apply the policy to all that follows it."""
MAX_DOCUMENT = 1 << 28
"""The most bytes of a release's document: measurements may have as many numbers as the study has cells."""
RELEASE_DIGITS = 32
ATTEMPTS = 5
BACKOFF = Backoff(first=0.25, longest=4.0, attempts=ATTEMPTS)
POLL = 1.0
ENDED = frozenset({"released", "failed"})
"""States that a run does not leave."""
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_READING = httpx.Timeout(calls.TIMEOUT, read=600.0)
"""Of requests that a holder answers only when it has read and checked a whole table."""


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

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
        if len(rest) > calls.MAX_ANSWER:
            raise AnswerRefused(f"a line of the answer is longer than {calls.MAX_ANSWER} bytes")
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
    """A complete file, with the digest that the service stated."""

    path: Path
    bytes: int
    sha256: str
    resumed_from: int


class Client:
    """A person's access to one service.

    token: a bearer token, as `caps token create` made it. authority: PEM file of the federation's authority; if not
    given, those that the system trusts. transport: another way to the service, for tests of programs.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authority: Path | str | None = None,
        timeout: float = calls.TIMEOUT,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not url.startswith("https://"):
            raise DomainError("a service's URL must begin with https://: tokens and tables are not sent in the clear")
        headers = {"User-Agent": "caps-client/1"}
        if token is not None:
            if not token.isascii() or not token.isprintable() or not token.strip():
                raise DomainError("a token must be one line of ASCII")
            headers["Authorization"] = f"Bearer {token.strip()}"
        self.url = url.rstrip("/")
        self._sleep = sleep
        self._releases: dict[str, estimates.Release] = {}
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout,
            transport=transport,
            trust_env=False,
            verify=True if authority is None else _context(Path(authority)),
        )

    @classmethod
    def from_site(cls, site: str = "coordinator", *, config: Path | str | None = None) -> Self:
        """A client for a site of the configuration, with its token and authority (`caps.client.sites`).

        config: the file; if not given, that in CAPS_CONFIG, or else ~/.config/caps/config.toml. Raises DomainError.
        """
        path = Path(config or os.environ.get("CAPS_CONFIG") or sites.CONFIG).expanduser()
        known = sites.read_sites(path)
        if site not in known:
            names = f"it has {', '.join(known)}" if known else "it has no sites, or does not exist"
            raise DomainError(f"{path} has no site {site}; {names}")
        found = known[site]
        if "url" not in found:
            raise DomainError(f"{path}: sites.{site}: url is missing")
        token = Path(found["token_file"]).read_text().strip() if "token_file" in found else None
        return cls(found["url"], token=token, authority=found.get("authority"))

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
        """Whether the service is ready and, if not, why."""
        return _read(Health, self._send("GET", "/readyz", also=(503,)).content)

    def studies(self) -> list[Study]:
        """The studies this service knows."""
        return self._ask(_STUDIES, "GET", "/v1/studies")

    def study(self, study: str) -> Study:
        """A study's state here."""
        return self._ask(_STUDY, "GET", _path("studies", study))

    def budget(self, study: str) -> holder.StudyBudget | server.PopulationState:
        """What a study costs its population: at a holder, with what all servers say; at an MPC server, there."""
        return self._ask(_BUDGET, "GET", _path("studies", study, "budget"))

    def approve(self, study: str) -> holder.StudyView | Signed[Approval]:
        """At a holder, its owner's signature; at an MPC server, its operator's consent."""
        return self._ask(_APPROVED, "POST", _path("studies", study, "approval"))

    def decline(self, study: str, reason: str) -> holder.StudyView | Signed[Decline]:
        """At a holder, its owner does not take part; at an MPC server, its operator. Approving takes it back."""
        return self._ask(_DECLINED, "POST", _path("studies", study, "decline"), body={"reason": reason})

    # The coordinator.

    def propose(self, manifest: Manifest | Mapping[str, Any]) -> coordinator.StudyView:
        """Propose a study. The same manifest again is the same study."""
        value = dict(manifest) if isinstance(manifest, Mapping) else manifest.to_json()
        return self._ask(coordinator.StudyView, "POST", "/v1/studies", body=value, repeat=True)

    def manifest(self, study: str) -> Manifest:
        """A study's manifest, whose digest is the study's id."""
        found = Manifest.from_json(self._ask(dict[str, Any], "GET", _path("studies", study, "manifest")))
        if found.study_id != study:
            raise AnswerRefused("the service sent the manifest of another study")
        return found

    def refresh(self, study: str) -> coordinator.StudyView:
        """Let the coordinator ask the servers again."""
        return self._ask(coordinator.StudyView, "POST", _path("studies", study, "refresh"), repeat=True)

    def participation(self, study: str) -> ParticipationView:
        """For each holder, whether it approved and which servers hold its contribution."""
        return self._ask(ParticipationView, "GET", _path("studies", study, "participation"))

    def start(self, study: str, *, holders: Sequence[str] | None = None) -> RunView:
        """Seal the study and run it on the contributions of all or of these holders. A run in progress is returned."""
        body = StartBody(holders=None if holders is None else tuple(holders)).model_dump(exclude_none=True)
        return self._ask(RunView, "POST", _path("studies", study, "runs"), body=body, repeat=True)

    def run(self, run: str) -> RunView:
        """A run's state and progress."""
        return self._ask(RunView, "GET", _path("runs", run))

    def events(self, run: str, *, after: str | None = None) -> Iterator[Event]:
        """A run's events as they happen, after the one with that id, until the service ends the stream.

        A broken connection is made again and continues after the last event.
        """
        retries = BACKOFF.begin()
        while True:
            opened = False
            headers = {"Accept": media.EVENTS} | ({} if after is None else {"Last-Event-ID": after})
            try:
                with self._opened("GET", _path("runs", run, "events"), headers) as response:
                    if response.status_code == 204:
                        return  # no further events
                    if not response.headers.get("content-type", "").startswith(media.EVENTS):
                        raise AnswerRefused("the service does not send events")
                    opened = True
                    for event in parse_events(_lines(response.iter_bytes())):
                        retries.reset()
                        after = event.id or after
                        yield event
                return
            except ClientError as error:
                if opened and isinstance(error, Unreachable) and error.timed_out:
                    continue  # a long step; if the service is gone, connecting again will tell
                self._pause(retries, error)

    def watch(self, run: str) -> Iterator[RunChanged | RunProgress]:
        """The events of a run until it has ended; the last is the final state.

        Polls if the service does not send events. Unknown kinds of events are ignored.
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
        """The published releases."""
        return self._ask(list[ReleaseView], "GET", "/v1/releases")

    def release(self, release: str) -> ReleaseView:
        """One release."""
        return self._ask(ReleaseView, "GET", _path("releases", release))

    def sample(
        self,
        release: str,
        *,
        rows: int | None = None,
        seed: str | None = None,
        where: estimates.Where | None = None,
    ) -> SampleView:
        """Draw another sample from the release's model; with `where`, as in `estimate`, only rows that meet it."""
        names = None
        if where:
            schema = self.certificate(release).manifest.schema_
            names = estimates.names_of(schema, estimates.cells_of(schema, where))
        body = SampleBody(rows=rows, seed=seed, where=names).model_dump(exclude_none=True)
        return self._ask(SampleView, "POST", _path("releases", release, "samples"), body=body)

    def delete_sample(self, release: str, sample: str) -> None:
        """Delete a sample, to make room for another."""
        self._send("DELETE", _path("releases", release, "samples", sample))

    def measurements(self, release: str) -> Measurements:
        """The noisy counts, with sigma and error bars."""
        return _read(Measurements, self.document(release, "measurements"))

    def report(self, release: str) -> Report:
        """The privacy guarantee in words, and the estimated quality."""
        return _read(Report, self.document(release, "report"))

    def report_page(self, release: str) -> bytes:
        """The report as one HTML file with all figures.

        Raises AnswerRefused unless its head forbids every script and every request, so that opening the file is safe
        whoever made it.
        """
        found = self.document(release, "report", accept=media.HTML)
        if not _HARMLESS.match(found):
            raise AnswerRefused("the report that arrived does not forbid scripts, so it is not one that CaPS made")
        return found

    def certificate(self, release: str) -> Certificate:
        """The certificate with which an auditor checks a release: `caps verify`."""
        return _read(Certificate, self.document(release, "certificate"))

    def transcript(self, release: str, target: Path, *, progress: Progress | None = None) -> Download:
        """Fetch every request and signed answer of a release into a file, as `download` does with the rows."""
        return _Fetch(self, _path("releases", release, "transcript"), media.NDJSON, target, progress).run()

    def document(self, release: str, name: str, *, accept: str = media.JSON) -> bytes:
        """A release's `measurements`, `report` or `certificate`, byte for byte, checked if a digest is stated."""
        headers = {"Accept": accept}
        response = self._send("GET", _path("releases", release, name), headers=headers, limit=MAX_DOCUMENT)
        stated = _stated_digest(response) if "repr-digest" in response.headers else None
        if stated is not None and not hmac.compare_digest(sha256(response.content).digest(), stated):
            raise AnswerRefused(f"the {name} that arrived does not have the digest that the service states")
        return response.content

    def download(
        self,
        release: str,
        target: Path,
        *,
        format: str | None = None,  # noqa: A002  the word of every reader and writer of tables
        sample: str | None = None,
        progress: Progress | None = None,
    ) -> Download:
        """Fetch a release's rows into a file, or those of one of its samples.

        The format is that of the file's suffix; a `format` that contradicts the suffix is refused.
        A partial file `<target>.part` of an earlier attempt is continued. The file appears under its name only when its
        bytes have the digest that the service states. In `csv`, texts that a spreadsheet might take for formulas are
        escaped; `raw.csv` has the values as the owners write them.
        """
        format = format_of(target, format)  # noqa: A001
        parts = ("releases", release, *(() if sample is None else ("samples", sample)), "data")
        return _Fetch(self, f"{_path(*parts)}?format={format}", media.TABLES[format], target, progress).run()

    def frame(self, release: str | None = None, *, sample: str | None = None, library: str | None = None) -> Any:
        """A release's rows, or those of a sample, as a data frame of polars or pandas, whichever is installed.

        release: its id or the beginning of it; not needed if the coordinator has one release only.
        library: `polars` or `pandas`, if both are there. Raises DomainError if none is. The frame has typed columns;
        missing values are null. What rows are good for, and what not, is in docs/analyst.md.
        """
        chosen = frames.chosen(library)
        with TemporaryDirectory(prefix="caps-") as folder:
            target = Path(folder) / f"rows.{chosen.format}"
            self.download(self._one_release(release), target, sample=sample)
            return chosen.read(target)

    def estimate(
        self,
        release: str | None = None,
        where: estimates.Where | None = None,
        group_by: Sequence[str] | str = (),
        *,
        level: float = 0.95,
    ) -> list[estimates.Estimate]:
        """How many persons meet these conditions, by groups, each with a confidence interval for the noise and model.

        release: as in `frame`. where: by column, a value, a list of values, or a range (from, to) between edges of
        bins. The release's measurements and rows are fetched once for a client. Raises DomainError if the question has
        a mistake.
        """
        release = self._one_release(release)
        if release not in self._releases:
            self._releases[release] = self._studied(release)
        return self._releases[release].estimate(where, group_by, level=level)

    def _one_release(self, asked: str | None) -> str:
        """The release with this id or beginning of an id, or the only one there is. Raises DomainError."""
        if asked is not None and len(asked) == RELEASE_DIGITS:
            return asked
        found = [one.release for one in self.releases() if one.release.startswith(asked or "")]
        if len(found) != 1:
            begin = "" if asked is None else f" whose id begins with {asked}"
            raise DomainError(f"there are {len(found) or 'no'} releases{begin}; `releases()` lists them")
        return found[0]

    def _studied(self, release: str) -> estimates.Release:
        manifest, view = self.certificate(release).manifest, self.release(release)
        measurements = self.measurements(release) if view.measurements else None
        with TemporaryDirectory(prefix="caps-") as folder:
            target = Path(folder) / "rows.ndjson"
            self.download(release, target)
            with target.open("rb") as lines:
                rows = estimates.read_rows(manifest, lines)
        return estimates.Release(manifest, measurements, rows, persons=self.report(release).estimated_total)

    # A holder.

    def fetch(self, coordinator: str, study: str) -> holder.StudyView:
        """Let the holder fetch a study's manifest from its coordinator."""
        body = Invitation(coordinator=coordinator, study=study).to_json()
        return self._ask(holder.StudyView, "POST", "/v1/studies", body=body, repeat=True)

    def put_table(
        self,
        study: str,
        table: Path,
        *,
        encoding: str | None = None,
        ignore_extra: bool = False,
        progress: Progress | None = None,
    ) -> TableReport:
        """Stream a file (CSV, gzip of it, Excel, Parquet) to the holder, which validates it and keeps it at its site.

        encoding: of a CSV, if it is not UTF-8 and has no byte order mark. ignore_extra: it may have other columns.
        """
        path = _path("studies", study, "table")
        return self._upload(TableReport, "PUT", path, table, encoding, ignore_extra, progress)

    def sources(self) -> list[SourceView]:
        """The sources that the holder's operator declares, by name."""
        return self._ask(TypeAdapter(list[SourceView]), "GET", _path("sources"))

    def use_source(self, study: str, source: str) -> TableReport:
        """Use a table where it is, in a source that the holder's operator declares; the holder checks it there."""
        path = _path("studies", study, "table", "source")
        return self._ask(TableReport, "PUT", path, body={"source": source}, timeout=_READING)

    def table_report(self, study: str) -> TableReport:
        """What the holder counted when it checked the table: counts, never values."""
        return self._ask(TableReport, "GET", _path("studies", study, "table"))

    def erase_table(self, study: str) -> None:
        """Erase the table at the holder."""
        self._send("DELETE", _path("studies", study, "table"))

    def preview(self, study: str) -> Preview:
        """Exactly what would leave the site, to whom, and how many bytes. Nothing is sent."""
        return self._ask(Preview, "GET", _path("studies", study, "preview"))

    def contribute(
        self,
        study: str,
        table: Path | None = None,
        *,
        encoding: str | None = None,
        ignore_extra: bool = False,
        progress: Progress | None = None,
    ) -> ContributionView:
        """Contribute the holder's table, or this file, to the study. Done when every server has given a receipt."""
        path = _path("studies", study, "contribution")
        if table is None:
            return self._ask(ContributionView, "PUT", path, timeout=_READING)
        return self._upload(ContributionView, "POST", path, table, encoding, ignore_extra, progress)

    def contribution(self, study: str) -> ContributionView:
        """The state of the contribution, with receipts."""
        return self._ask(ContributionView, "GET", _path("studies", study, "contribution"))

    def withdraw(self, study: str) -> ContributionView:
        """Withdraw the contribution, before the study is sealed."""
        return self._ask(ContributionView, "DELETE", _path("studies", study, "contribution"))

    def table_ledger(self) -> HolderLedger:
        """Which tables went to which studies and populations, and what that costs the persons in them."""
        return self._ask(HolderLedger, "GET", "/v1/ledger")

    # An MPC server.

    def contributions(self, study: str) -> list[ContributionState]:
        """The complete contributions to a study."""
        return self._ask(list[ContributionState], "GET", _path("studies", study, "contributions"))

    def erase_shares(self, study: str) -> list[Signed[Receipt]]:
        """Erase the shares of a study; returns the server's receipts."""
        return self._ask(list[Signed[Receipt]], "DELETE", _path("studies", study, "shares"))

    def run_here(self, run: str) -> RunStatus:
        """The state of a run on the server, with evidence if it was aborted."""
        return self._ask(RunStatus, "GET", _path("runs", run))

    def ledger(self) -> Iterator[LedgerRecord]:
        """Every record of the server's ledger, in order. Raises Unreachable if the stream breaks."""
        with self._opened("GET", "/v1/ledger", {"Accept": media.NDJSON}) as response:
            for line in _lines(response.iter_bytes()):
                if line:
                    yield _read(LedgerRecord, line)

    def ledger_heads(self) -> list[Signed[LedgerHead]]:
        """The signed heads of ledgers that the server keeps: its own and its peers'."""
        return self._ask(list[Signed[LedgerHead]], "GET", "/v1/ledger/heads")

    # How requests are sent.

    def _ask(
        self,
        model: type[T] | TypeAdapter[T],
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """The service's answer, which must be of this model. options: as `_send` has them."""
        content, headers = (None, None) if body is None else (canonical.dump(body), media.JSON_BODY)
        return _read(model, self._send(method, path, lambda: content, headers, **options).content)

    def _upload(
        self,
        model: type[T],
        method: str,
        path: str,
        table: Path,
        encoding: str | None,
        ignore_extra: bool,
        progress: Progress | None,
    ) -> T:
        kind = media.table_type(table)
        if encoding is not None and kind in (media.CSV, media.GZIP):
            kind = f"{kind}; charset={encoding}"
        path = f"{path}?ignore_extra=true" if ignore_extra else path
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

        return _read(model, self._send(method, path, body, headers, timeout=_READING).content)

    def _send(
        self,
        method: str,
        path: str,
        body: Callable[[], bytes | Iterator[bytes] | None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        *,
        repeat: bool = False,
        **options: Any,
    ) -> httpx.Response:
        """One request, repeated after failed connections if nothing was sent or if sending it twice does no harm."""
        safe = repeat or method in _REPEATABLE
        retries = BACKOFF.begin()
        while True:
            try:
                return calls.send(self._http, self.url, method, path, content=body(), headers=headers, **options)
            except ClientError as error:
                if isinstance(error, Unreachable) and error.sent and not safe:
                    raise
                self._pause(retries, error)

    def _opened(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        """A response whose body is read as it comes. Raises Unreachable if it breaks off."""
        return calls.opened(self._http, self.url, method, path, headers=headers)

    def _pause(self, retries: Retries, error: ClientError) -> None:
        """Wait before the next attempt. Raises the error if there were enough attempts, or another cannot help."""
        busy = isinstance(error, ProblemError) and error.status == calls.TOO_MANY_REQUESTS
        lost = isinstance(error, Unreachable) and not isinstance(error, NotTrusted)
        if retries.exhausted or not (busy or lost):
            raise error from None
        self._sleep(retries.pause(asked=error.retry_after))


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
        """Download the file and check it."""
        begun = self._held()
        retries = BACKOFF.begin()
        while True:
            held = self._held()
            try:
                stated = self._attempt(held)
                break
            except ClientError as error:
                if self._held() > held:
                    retries.reset()
                self._client._pause(retries, error)
        digest = bytes.fromhex(digest_of(self._part))
        if not hmac.compare_digest(digest, stated):
            self._forget()
            raise AnswerRefused("the file that arrived does not have the digest that the service states; deleted")
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
            with self._client._opened("GET", self._path, headers) as response:
                stated = _stated_digest(response)
                tag = response.headers.get("etag", "")
                resumed = response.status_code == 206
                if resumed and _range_start(response) != held:
                    raise AnswerRefused("the service sent another part of the file than requested")
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


def format_of(target: Path, asked: str | None = None) -> str:
    """The format of a file of rows, by its suffix, or csv if the suffix says nothing. Raises DomainError.

    asked: the format that was named, which must not contradict the suffix.
    """
    if asked is not None and asked not in media.TABLES:
        raise DomainError(f"the format must be one of {', '.join(media.TABLES)}, not {asked}")
    name = target.name.lower()
    fitting = [one for one in media.TABLES if name.endswith(f".{one}")]
    if asked is None:
        if not fitting and target.suffix:
            known = ", ".join(f".{one}" for one in media.TABLES)
            raise DomainError(f"{target.name}: there is no format with this suffix; choose {known}, or name a format")
        return max(fitting, key=len, default="csv")
    if fitting and asked not in fitting and not (asked == "raw.csv" and "csv" in fitting):
        raise DomainError(f"{target.name}: the suffix is that of {max(fitting, key=len)}, but {asked} is asked for")
    return asked


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _context(authority: Path) -> ssl.SSLContext:
    try:
        return client_context(authority)
    except (OSError, ssl.SSLError):
        raise DomainError(f"{authority}: not a readable PEM file with an authority's certificate") from None


def _read(model: type[T] | TypeAdapter[T], content: str | bytes) -> T:
    """A service's answer, which must be of this model. Raises AnswerRefused with the place if it is not."""
    try:
        return (model if isinstance(model, TypeAdapter) else TypeAdapter(model)).validate_json(content)
    except (ValidationError, DomainError) as error:
        where = first_mistake(error) if isinstance(error, ValidationError) else str(error)
        raise AnswerRefused(f"the service's answer does not match the interface: {where}") from None


def _stated_digest(response: httpx.Response) -> bytes:
    """The SHA-256 digest of the whole file in Repr-Digest."""
    stated = digests.stated(response.headers.get("repr-digest", ""))
    if stated is None:
        raise AnswerRefused("the service does not state the file's SHA-256 digest")
    return stated


def _range_start(response: httpx.Response) -> int:
    start = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else -1


def _total(response: httpx.Response, done: int) -> int | None:
    length = response.headers.get("content-length", "")
    return done + int(length) if length.isdigit() else None
