"""The coordinator's record of studies, runs and releases. Every writing method is one transaction, synced to disk."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from threading import Lock
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    RowMapping,
    Select,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from caps.basics import canonical
from caps.basics.recent import Recent
from caps.service.app import instant
from caps.service.database import reading
from caps.study import Manifest
from caps.study.manifest import MOST_KEPT
from caps.wire import Answer, Approval, Attestation, Certificate, Decline, Evidence, SealRequest, Signed
from caps.wire.coordinator import Judged
from services.coordinator import tables
from services.coordinator.notifier import Notifier
from services.coordinator.states import JUDGEMENTS, Answered, RunEvent, State, after

log = logging.getLogger("caps.coordinator")


@dataclass(frozen=True)
class Judgement:
    """A server's verdict on a study, or why there is none."""

    server: str
    state: Judged
    reason: str | None = None
    objections: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run as recorded. `contributions` maps each to its holder; `sealed` has them in the servers' order.

    sealing: the request to seal, as text: it has an approval of every holder, and whoever asks how a run is has no use
    for them.
    """

    run: str
    study: str
    state: State
    party: str | None
    reason: str | None
    contributions: Mapping[str, str]
    sealing: str
    inputs: str | None
    sealed: tuple[str, ...]
    seed: str | None
    published_at: str | None
    created_at: str

    @property
    def seal_request(self) -> SealRequest:
        """The contributions to seal, and all approvals."""
        return SealRequest.model_validate_json(self.sealing)


@dataclass(frozen=True)
class StepRecord:
    """A step as recorded, without answers until all servers have agreed."""

    step: int
    request: Mapping[str, Any]
    digest: str
    answers: tuple[Signed[Answer], ...]


@dataclass(frozen=True)
class News:
    """What happened in a run and is not recorded yet: progress, and answers to steps on which all servers agree."""

    answers: dict[int, Sequence[Signed[Answer]]] = field(default_factory=dict)
    progress: list[Mapping[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers or self.progress)


@dataclass(frozen=True)
class Event:
    """Something that happened in a run, numbered from 1."""

    number: int
    kind: str
    body: Mapping[str, Any]
    at: str


@dataclass(frozen=True)
class Told:
    """The events of a run so far, and the store's mark when they were read."""

    mark: object
    events: tuple[Event, ...]


@dataclass(frozen=True)
class FileEntry:
    """A file of a release."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Release:
    """A published release."""

    release: str
    certificate: Certificate
    files: Mapping[str, FileEntry]
    created_at: str


@dataclass(frozen=True)
class Sample:
    """Further rows from a release's model."""

    sample: str
    release: str
    rows: int
    seed: str
    files: Mapping[str, FileEntry]
    created_at: str
    where: Mapping[str, list[str]] | None = None


class Store:
    """Reads and writes the tables. `written` is notified after every write."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine = engine
        self._clock = clock
        self._manifests: Recent[str, Manifest] = Recent(MOST_KEPT)
        self._releases: Recent[str, Release] = Recent(MOST_KEPT)
        """Their certificates take long to read where many holders took part; a release does not change."""
        self._told: Recent[str, Told] = Recent(MOST_KEPT)
        self._reading = Lock()
        self._mark = object()
        """Another one after every write."""
        self.written = Notifier()

    def now(self) -> str:
        """The current time, as written in documents."""
        return instant(self._clock())

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection
        self._mark = object()
        self.written.notify()

    def _all(self, statement: Any) -> Sequence[RowMapping]:
        with reading(self._engine) as connection:
            return connection.execute(statement).mappings().all()

    def _one(self, statement: Any) -> RowMapping | None:
        with reading(self._engine) as connection:
            return connection.execute(statement).mappings().first()

    def add_study(self, manifest: Manifest) -> bool:
        """Keep a manifest. False if it was known before."""
        row = {
            "study": manifest.study_id,
            "manifest": manifest.canonical_bytes().decode(),
            "created_at": self.now(),
        }
        with self._write() as connection:
            added = _insert_once(connection, tables.studies, row)
            for server in manifest.servers:
                pending = {"study": manifest.study_id, "server": server.name, "state": Judged.PENDING}
                _insert_once(connection, tables.judgements, pending | {"objections": "[]"})
        self._manifests.keep(manifest.study_id, manifest)
        return added

    def studies(self) -> list[str]:
        """The ids of all studies, the oldest first."""
        order = (tables.studies.c.created_at, tables.studies.c.study)
        return [row["study"] for row in self._all(select(tables.studies.c.study).order_by(*order))]

    def manifest(self, study: str) -> Manifest | None:
        """The manifest of a study, if it is known. It never changes, and checking it is slow: it is kept."""
        if (found := self._manifests.find(study)) is not None:
            return found
        row = self._one(select(tables.studies.c.manifest).where(tables.studies.c.study == study))
        if row is None:
            return None
        return self._manifests.obtain(study, lambda: Manifest.model_validate_json(row["manifest"]))

    def proposed_at(self, study: str) -> str:
        """When a study became known here."""
        row = self._one(select(tables.studies.c.created_at).where(tables.studies.c.study == study))
        return "" if row is None else str(row["created_at"])

    def add_approval(self, study: str, name: str, approval: Signed[Approval]) -> bool:
        """Keep a verified approval, in place of a decline. False if this party had approved: its first one stays."""
        role = approval.document.role
        row = {"study": study, "role": role, "name": name, "approval": _text(approval.to_json())}
        with self._write() as connection:
            connection.execute(delete(tables.declines).where(_of(tables.declines, study, role, name)))
            return _insert_once(connection, tables.approvals, row)

    def add_decline(self, study: str, name: str, decline: Signed[Decline]) -> bool:
        """Keep a verified decline: the latest. False if the party has approved, which stands."""
        role, at = decline.document.role, decline.document.at
        row = {"study": study, "role": role, "name": name, "decline": _text(decline.to_json())}
        with self._write() as connection:
            if connection.execute(select(tables.approvals).where(_of(tables.approvals, study, role, name))).first():
                return False
            mine = _of(tables.declines, study, role, name)
            before = connection.execute(select(tables.declines.c.decline).where(mine)).scalar_one_or_none()
            if before is None:
                connection.execute(insert(tables.declines).values(row))
            elif Signed[Decline].model_validate_json(before).document.at < at:
                connection.execute(update(tables.declines).where(mine).values(row))
            return True

    def declines(self, study: str) -> dict[tuple[str, str], Decline]:
        """Who declined a study and has not approved it since, by role and name."""
        rows = self._all(select(tables.declines).where(tables.declines.c.study == study))
        return {
            (row["role"], row["name"]): Signed[Decline].model_validate_json(row["decline"]).document for row in rows
        }

    def approvals(self, study: str) -> dict[tuple[str, str], Signed[Approval]]:
        """The approvals of a study, by role and name."""
        rows = self._all(select(tables.approvals).where(tables.approvals.c.study == study))
        return {(row["role"], row["name"]): Signed[Approval].model_validate_json(row["approval"]) for row in rows}

    def approved(self, study: str) -> set[tuple[str, str]]:
        """Who has approved a study, by role and name."""
        found = select(tables.approvals.c.role, tables.approvals.c.name).where(tables.approvals.c.study == study)
        return {(row["role"], row["name"]) for row in self._all(found)}

    def judge(
        self, study: str, server: str, answer: Answered, reason: str | None = None, objections: Sequence[str] = ()
    ) -> None:
        """Record a server's answer. An approval stays as it is."""
        place = (tables.judgements.c.study == study) & (tables.judgements.c.server == server)
        with self._write() as connection:
            judged = Judged(connection.execute(select(tables.judgements.c.state).where(place)).scalar_one())
            if judged is not Judged.APPROVED:
                values = {"state": JUDGEMENTS[judged, answer], "reason": reason, "objections": json.dumps(objections)}
                connection.execute(update(tables.judgements).where(place).values(values))

    def unjudged(self) -> list[str]:
        """Studies on which a server has not decided, or could not be asked."""
        open_ = tables.judgements.c.state.in_([Judged.PENDING, Judged.WAITING])
        return [row["study"] for row in self._all(select(tables.judgements.c.study).where(open_).distinct())]

    def standing(self) -> list[tuple[str, list[Judged], State | None]]:
        """Every study, the newest first, with its servers' verdicts and the state of its last run: in three queries."""
        order = (tables.studies.c.created_at.desc(), tables.studies.c.study)
        judged: dict[str, list[Judged]] = {}
        for row in self._all(select(tables.judgements.c.study, tables.judgements.c.state)):
            judged.setdefault(row["study"], []).append(Judged(row["state"]))
        last = select(tables.runs.c.study, tables.runs.c.state).order_by(tables.runs.c.number)
        ran = {row["study"]: State(row["state"]) for row in self._all(last)}
        found = [row["study"] for row in self._all(select(tables.studies.c.study).order_by(*order))]
        return [(study, judged.get(study, []), ran.get(study)) for study in found]

    def judgements(self, study: str) -> dict[str, Judgement]:
        """By server."""
        rows = self._all(select(tables.judgements).where(tables.judgements.c.study == study))
        return {
            row["server"]: Judgement(
                row["server"], Judged(row["state"]), row["reason"], tuple(json.loads(row["objections"]))
            )
            for row in rows
        }

    def add_run(self, run: str, study: str, contributions: Mapping[str, str], request: SealRequest) -> None:
        """Record a run, before any server hears of it."""
        with self._write() as connection:
            number = connection.execute(select(func.coalesce(func.max(tables.runs.c.number), 0) + 1)).scalar_one()
            row = {
                "run": run,
                "number": number,
                "study": study,
                "state": State.QUEUED,
                "contributions": json.dumps(dict(contributions)),
                "seal_request": _text(request.to_json()),
                "created_at": self.now(),
            }
            connection.execute(insert(tables.runs).values(row))
            self._add_event(connection, run, "state", {"state": State.QUEUED, "party": None, "reason": None})

    def run(self, run: str) -> Run | None:
        """A run, if it is known."""
        row = self._one(select(tables.runs).where(tables.runs.c.run == run))
        return None if row is None else _run(row)

    def runs(self, study: str | None = None) -> list[Run]:
        """The runs of one study, or all runs, the oldest first."""
        statement = select(tables.runs).order_by(tables.runs.c.number)
        if study is not None:
            statement = statement.where(tables.runs.c.study == study)
        return [_run(row) for row in self._all(statement)]

    def change_state(self, run: str, event: RunEvent, *, party: str | None = None, reason: str | None = None) -> None:
        """Enter the state that an event leads to, and record that as an event. Writes nothing if nothing changes."""
        was = self._one(_state_of(run))
        if was is None or _changed(was, event, party, reason) != was:
            with self._write() as connection:
                self._enter(connection, run, event, party, reason)

    def _enter(
        self, connection: Connection, run: str, event: RunEvent, party: str | None = None, reason: str | None = None
    ) -> None:
        new = _changed(connection.execute(_state_of(run)).mappings().one(), event, party, reason)
        connection.execute(update(tables.runs).where(tables.runs.c.run == run).values(new))
        self._add_event(connection, run, "state", new)
        log.info(json.dumps({"run": run, **new}))

    def seal(self, run: str, inputs: str, sealed: Sequence[str]) -> None:
        """Record what the servers sealed."""
        self._set(run, {"inputs": inputs, "sealed": json.dumps(list(sealed))})

    def begin_publishing(self, run: str, seed: str) -> None:
        """Fix the seed and the time of the release, so that it is the same when repeated after a crash."""
        self._set(run, {"seed": seed, "published_at": self.now()})

    def _set(self, run: str, values: Mapping[str, object]) -> None:
        with self._write() as connection:
            connection.execute(update(tables.runs).where(tables.runs.c.run == run).values(values))

    def steps(self, run: str) -> Iterator[StepRecord]:
        """All steps begun, in order. They are read one by one, because together they may be large."""
        for number in count():
            row = self._one(select(tables.steps).where(tables.steps.c.run == run, tables.steps.c.step == number))
            if row is None:
                return
            yield _step(row)

    def answered(self, run: str) -> int:
        """How many steps have answers."""
        answers = (tables.steps.c.run == run) & tables.steps.c.answers.is_not(None)
        row = self._one(select(func.count().label("count")).select_from(tables.steps).where(answers))
        return 0 if row is None else int(row["count"])

    def add_step(self, run: str, step: int, request: Mapping[str, Any], digest: str, news: News) -> None:
        """Record a request before any server hears of it, together with what happened before."""
        row = {"run": run, "step": step, "request": _text(request), "digest": digest}
        with self._write() as connection:
            self._add_news(connection, run, news)
            connection.execute(insert(tables.steps).values(row))

    def add_news(self, run: str, news: News) -> None:
        """Record what happened, in one transaction."""
        with self._write() as connection:
            self._add_news(connection, run, news)

    def _add_news(self, connection: Connection, run: str, news: News) -> None:
        for step, answers in news.answers.items():
            place = (tables.steps.c.run == run) & (tables.steps.c.step == step)
            text = _text([answer.to_json() for answer in answers])
            connection.execute(update(tables.steps).where(place).values(answers=text))
        for progress in news.progress:
            self._add_event(connection, run, "progress", progress)

    def add_attestations(self, run: str, attestations: Sequence[Signed[Attestation]]) -> None:
        """Keep the servers' attestations of a run, in one transaction."""
        with self._write() as connection:
            for attestation in attestations:
                row = {"run": run, "server": attestation.signer, "attestation": _text(attestation.to_json())}
                connection.execute(insert(tables.attestations).values(row))

    def attestations(self, run: str) -> list[Signed[Attestation]]:
        """The attestations of a run, in the order of the servers; empty until all of them are there."""
        statement = select(tables.attestations).where(tables.attestations.c.run == run)
        rows = self._all(statement.order_by(tables.attestations.c.server))
        return [Signed[Attestation].model_validate_json(row["attestation"]) for row in rows]

    def add_evidence(self, run: str, evidence: Sequence[Signed[Evidence]]) -> None:
        """Keep what servers signed about a run that they aborted: of each server the first."""
        with self._write() as connection:
            for one in evidence:
                row = {"run": run, "server": one.signer, "evidence": _text(one.to_json())}
                _insert_once(connection, tables.evidence, row)

    def evidence(self, run: str) -> list[Signed[Evidence]]:
        """What servers signed about a run that they aborted, in the order of the servers."""
        statement = select(tables.evidence).where(tables.evidence.c.run == run)
        rows = self._all(statement.order_by(tables.evidence.c.server))
        return [Signed[Evidence].model_validate_json(row["evidence"]) for row in rows]

    def _add_event(self, connection: Connection, run: str, kind: str, body: Mapping[str, Any]) -> None:
        last = func.coalesce(func.max(tables.events.c.number), 0)
        number = connection.execute(select(last + 1).where(tables.events.c.run == run)).scalar_one()
        # Steps take less than a second each on small studies, and lanes show each of them.
        at = self._clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        row = {"run": run, "number": number, "kind": kind, "body": json.dumps(body), "at": at}
        connection.execute(insert(tables.events).values(row))

    def events(self, run: str, *, after: int = 0) -> list[Event]:
        """The events of a run after event number `after`. What hundreds of listeners ask for at once is read once."""
        with self._reading:
            told = self._told.find(run)
            if told is None or told.mark is not self._mark:
                mark, known = self._mark, () if told is None else told.events
                place = (tables.events.c.run == run) & (tables.events.c.number > (known[-1].number if known else 0))
                rows = self._all(select(tables.events).where(place).order_by(tables.events.c.number))
                more = [Event(row["number"], row["kind"], json.loads(row["body"]), row["at"]) for row in rows]
                told = self._told.keep(run, Told(mark, (*known, *more)))
        return [event for event in told.events if event.number > after]

    def events_known(self, run: str, *, after: int = 0) -> list[Event] | None:
        """The same from memory, for an event loop; None if anything was written since they were read."""
        told = self._told.find(run)
        if told is None or told.mark is not self._mark:
            return None
        return [event for event in told.events if event.number > after]

    def add_release(self, run: str, certificate: Certificate, files: Mapping[str, FileEntry]) -> None:
        """Publish: record the release and the end of its run, in one transaction."""
        row = {
            "release": run,
            "certificate": _text(certificate.to_json()),
            "files": _files_text(files),
            "created_at": certificate.release.document.at,
        }
        with self._write() as connection:
            connection.execute(insert(tables.releases).values(row))
            self._enter(connection, run, RunEvent.RELEASE)
        self._releases.keep(run, Release(run, certificate, dict(files), row["created_at"]))

    def release(self, release: str) -> Release | None:
        """A release, if it is published."""
        if known := self._releases.find(release):
            return known
        row = self._one(select(tables.releases).where(tables.releases.c.release == release))
        return None if row is None else self._release(row)

    def releases(self) -> list[Release]:
        """All releases, the oldest first."""
        order = (tables.releases.c.created_at, tables.releases.c.release)
        return [self._release(row) for row in self._all(select(tables.releases).order_by(*order))]

    def _release(self, row: RowMapping) -> Release:
        return self._releases.obtain(row["release"], lambda: _release(row))

    def add_sample(self, sample: Sample) -> None:
        """Record a sample whose files are complete."""
        row = {name: getattr(sample, name) for name in ("sample", "release", "rows", "seed", "created_at")}
        with self._write() as connection:
            told = {"files": _files_text(sample.files), "conditions": sample.where and json.dumps(sample.where)}
            _insert_once(connection, tables.samples, row | told)

    def drop_sample(self, sample: str) -> None:
        """Forget a sample whose files are about to be erased."""
        with self._write() as connection:
            connection.execute(delete(tables.samples).where(tables.samples.c.sample == sample))

    def samples(self, release: str) -> list[Sample]:
        """The samples of one release, the oldest first."""
        order = (tables.samples.c.created_at, tables.samples.c.sample)
        rows = self._all(select(tables.samples).where(tables.samples.c.release == release).order_by(*order))
        return [
            Sample(
                sample=row["sample"],
                release=release,
                rows=row["rows"],
                seed=row["seed"],
                files=_files(row["files"]),
                created_at=row["created_at"],
                where=row["conditions"] and json.loads(row["conditions"]),
            )
            for row in rows
        ]


def _of(table: Table, study: str, role: str, name: str) -> ColumnElement[bool]:
    return (table.c.study == study) & (table.c.role == role) & (table.c.name == name)


def _insert_once(connection: Connection, table: Any, row: Mapping[str, object]) -> bool:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(row).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount)


def _text(value: object) -> str:
    return canonical.dump(value).decode()


def _state_of(run: str) -> Select[Any]:
    return select(tables.runs.c.state, tables.runs.c.party, tables.runs.c.reason).where(tables.runs.c.run == run)


def _changed(was: RowMapping, event: RunEvent, party: str | None, reason: str | None) -> dict[str, str | None]:
    return {"state": after(State(was["state"]), event), "party": party, "reason": reason}


def _run(row: RowMapping) -> Run:
    return Run(
        row["run"],
        row["study"],
        State(row["state"]),
        row["party"],
        row["reason"],
        json.loads(row["contributions"]),
        row["seal_request"],
        row["inputs"],
        tuple(json.loads(row["sealed"] or "[]")),
        row["seed"],
        row["published_at"],
        row["created_at"],
    )


def _step(row: RowMapping) -> StepRecord:
    answers = tuple(Signed[Answer].model_validate(answer) for answer in json.loads(row["answers"] or "[]"))
    return StepRecord(row["step"], json.loads(row["request"]), row["digest"], answers)


def _release(row: RowMapping) -> Release:
    certificate = Certificate.model_validate_json(row["certificate"])
    return Release(row["release"], certificate, _files(row["files"]), row["created_at"])


def _files_text(files: Mapping[str, FileEntry]) -> str:
    return json.dumps({name: [entry.size, entry.sha256] for name, entry in files.items()})


def _files(text: str) -> dict[str, FileEntry]:
    return {name: FileEntry(size, sha256) for name, (size, sha256) in json.loads(text).items()}
