"""The holder's record of studies, tables and contributions. Every writing method is one transaction, synced to disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping

from caps.basics.recent import Recent
from caps.service.database import open_database, reading
from caps.service.problems import Problem
from caps.study import Manifest
from caps.study.manifest import MOST_KEPT
from caps.wire import Approval, Contribution, Decline, Receipt, Signed
from caps.wire.holder import Delivery, Goal, State, TableReport
from caps.wire.problems import Kind
from services.holder import tables
from services.holder.ledger import Given
from services.holder.state import Event, after, settled


@dataclass(frozen=True)
class StudyRecord:
    """A study at this holder. obtain: its manifest, which is slow to check, so lists do without. text: its JSON."""

    study: str
    obtain: Callable[[], Manifest]
    text: str
    state: State
    approval: Signed[Approval] | None
    approval_sent: bool
    decline: Signed[Decline] | None
    decline_sent: bool
    approval_problem: dict[str, Any] | None

    @property
    def manifest(self) -> Manifest:
        """What there is to agree to."""
        return self.obtain()

    @property
    def title(self) -> str:
        """Of the manifest, which was checked when it came."""
        return str(json.loads(self.text)["title"])


@dataclass(frozen=True)
class TableRecord:
    """A loaded table. media_type: as `Sent.kept` says. digest: SHA-256 of the file, to recognise it by."""

    file: str
    media_type: str
    digest: str
    size: int
    report: TableReport


@dataclass(frozen=True)
class DeliveryRecord:
    """A contribution at one server."""

    server: str
    state: Delivery
    accepted: Signed[Receipt] | None
    withdrawn: Signed[Receipt] | None
    problem: dict[str, Any] | None


@dataclass(frozen=True)
class ContributionRecord:
    """The latest contribution to a study."""

    contribution: str
    study: str
    folder: str
    document: Signed[Contribution]
    goal: Goal
    deliveries: tuple[DeliveryRecord, ...]


@dataclass(frozen=True)
class MatchingRecord:
    """How a study's rows get their positions. digest: of the table being matched. wanted: whether a contribution is to
    follow. problems: what servers objected to, by server name."""

    study: str
    folder: str
    digest: str
    wanted: bool
    problems: dict[str, dict[str, Any]]

    @property
    def goal(self) -> Goal:
        """The goal, in the terms of a contribution."""
        return Goal.MATCHING if self.wanted else Goal.WITHDRAWN


class Store:
    """The records, each change one transaction."""

    def __init__(self, url: str) -> None:
        self._engine: Engine = open_database(url, tables.metadata, migrations="services.holder.migrations")
        self._manifests: Recent[str, Manifest] = Recent(MOST_KEPT)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def add_study(self, manifest: Manifest) -> bool:
        """Keep a manifest. Returns whether the study is new here."""
        with self._engine.begin() as db:
            if _study_row(db, manifest.study_id) is not None:
                return False
            text = manifest.canonical_bytes().decode()
            db.execute(tables.studies.insert().values(study=manifest.study_id, manifest=text, state=State.KNOWN))
            return True

    def studies(self) -> list[StudyRecord]:
        """All studies."""
        with reading(self._engine) as db:
            return [
                self._study(row)
                for row in db.execute(tables.studies.select().order_by(tables.studies.c.study)).mappings()
            ]

    def study(self, study: str) -> StudyRecord:
        """One study. Raises a problem (404) if it is not known here."""
        with reading(self._engine) as db:
            return self._known(db, study)

    def approve(self, study: str, approval: Signed[Approval]) -> StudyRecord:
        """Keep the owner's approval; the first one counts."""
        with self._engine.begin() as db:
            record = self._known(db, study)
            if record.approval is None:
                state = after(record.state, Event.APPROVE)
                values = {"approval": approval.model_dump_json(), "decline": None, "state": state}
                db.execute(tables.studies.update().where(tables.studies.c.study == study).values(values))
            return self._known(db, study)

    def decline(self, study: str, decline: Signed[Decline]) -> StudyRecord:
        """Keep that the owner declines; the last one counts. Raises a problem once the study is approved."""
        with self._engine.begin() as db:
            state = after(self._known(db, study).state, Event.DECLINE)
            values = {"decline": decline.model_dump_json(), "decline_sent": False, "state": state}
            db.execute(tables.studies.update().where(tables.studies.c.study == study).values(values))
            return self._known(db, study)

    def told(self, told: StudyRecord, problem: Mapping[str, Any] | None, *, sent: bool) -> None:
        """Record the coordinator's reply to what it was told, unless there is something newer to tell."""
        with self._engine.begin() as db:
            record = self._known(db, told.study)
            if (record.approval, record.decline) == (told.approval, told.decline):
                which = "decline_sent" if record.approval is None else "approval_sent"
                values = {which: sent, "approval_problem": _json(problem)}
                db.execute(tables.studies.update().where(tables.studies.c.study == told.study).values(values))

    def table(self, study: str) -> TableRecord | None:
        """The study's table, if there is one here."""
        with reading(self._engine) as db:
            return _table(db, study)

    def load(self, study: str, table: TableRecord) -> TableRecord | None:
        """Keep a checked table; return the one it replaces. Raises a problem if the study takes no table now."""
        with self._engine.begin() as db:
            record, old = self._known(db, study), _table(db, study)
            _move(db, record, Event.LOAD)
            db.execute(tables.owner_tables.delete().where(tables.owner_tables.c.study == study))
            values = {"file": table.file, "media_type": table.media_type, "digest": table.digest, "size": table.size}
            db.execute(
                tables.owner_tables.insert().values(study=study, report=table.report.model_dump_json(), **values)
            )
            return old

    def forget_table(self, study: str) -> TableRecord | None:
        """Forget a table and return its record, so that the caller can erase its file."""
        with self._engine.begin() as db:
            record, table = self._known(db, study), _table(db, study)
            if table is not None:
                _move(db, record, Event.ERASE)
                db.execute(tables.owner_tables.delete().where(tables.owner_tables.c.study == study))
            return table

    def contribute(
        self, study: str, table: TableRecord, folder: str, document: Signed[Contribution]
    ) -> ContributionRecord:
        """Record a contribution made from this table; its files in `folder` are complete."""
        with self._engine.begin() as db:
            record = self._known(db, study)
            _move(db, record, Event.CONTRIBUTE)
            if _table(db, study) != table:
                raise Problem(Kind.CONFLICT, "the table was replaced in the meantime; contribute again")
            db.execute(tables.matchings.update().where(tables.matchings.c.study == study).values(wanted=False))
            name = document.document.digest()
            values = {"contribution": name, "study": study, "folder": folder, "goal": Goal.PUSHING}
            seen = {"document": document.model_dump_json(), "fingerprint": table.report.fingerprint}
            db.execute(tables.contributions.insert().values(**values, **seen))
            for server in record.manifest.servers:
                state = {"contribution": name, "server": server.name, "state": Delivery.PENDING}
                db.execute(tables.deliveries.insert().values(state))
            found = _contribution(db, study)
            assert found is not None
            return found

    def matching(self, study: str) -> MatchingRecord | None:
        """The study's matching, if one was begun."""
        with reading(self._engine) as db:
            return _matching(db, study)

    def begin_matching(self, study: str, table: TableRecord, folder: str) -> MatchingRecord:
        """Record that this table is being matched, to be contributed afterwards; its ids are in `folder`."""
        with self._engine.begin() as db:
            after(self._known(db, study).state, Event.CONTRIBUTE)
            values = {"study": study, "folder": folder, "digest": table.digest, "wanted": True, "problems": "{}"}
            db.execute(tables.matchings.insert().values(values))
            found = _matching(db, study)
            assert found is not None
            return found

    def want_matching(self, study: str, wanted: bool) -> MatchingRecord:
        """Record whether a contribution is to follow, and forget what servers objected to before."""
        with self._engine.begin() as db:
            db.execute(
                tables.matchings.update().where(tables.matchings.c.study == study).values(wanted=wanted, problems="{}")
            )
            found = _matching(db, study)
            assert found is not None
            return found

    def matching_told(self, study: str, problems: Mapping[str, Mapping[str, Any]]) -> None:
        """Record what servers objected to."""
        with self._engine.begin() as db:
            db.execute(
                tables.matchings.update().where(tables.matchings.c.study == study).values(problems=json.dumps(problems))
            )

    def forget_matching(self, study: str) -> MatchingRecord | None:
        """Forget a matching and return its record, so that the caller can erase its folder."""
        with self._engine.begin() as db:
            found = _matching(db, study)
            db.execute(tables.matchings.delete().where(tables.matchings.c.study == study))
            return found

    def given(self) -> list[Given]:
        """Every contribution ever made here, in order, withdrawn ones too."""
        listed = tables.contributions.join(tables.studies)
        with reading(self._engine) as db:
            rows = db.execute(listed.select().order_by(tables.contributions.c.number)).mappings().all()
        return [
            Given(
                self._manifest(row),
                row["contribution"],
                Signed[Contribution].model_validate_json(row["document"]).document.at,
                Goal(row["goal"]),
                row["fingerprint"],
            )
            for row in rows
        ]

    def contribution(self, study: str) -> ContributionRecord | None:
        """The latest contribution to a study."""
        with reading(self._engine) as db:
            self._known(db, study)
            return _contribution(db, study)

    def aim(self, study: str, goal: Goal) -> ContributionRecord:
        """Set the goal of the study's contribution, and forget what servers objected to before."""
        with self._engine.begin() as db:
            found = _contribution(db, study)
            assert found is not None
            of = tables.contributions.c.contribution == found.contribution
            db.execute(tables.contributions.update().where(of).values(goal=goal))
            db.execute(
                tables.deliveries.update()
                .where(tables.deliveries.c.contribution == found.contribution)
                .values(problem=None)
            )
            again = _contribution(db, study)
            assert again is not None
            return again

    def tell(
        self,
        study: str,
        server: str,
        *,
        state: Delivery | None = None,
        receipt: Signed[Receipt] | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> Goal:
        """Record news from a server. The contribution, and with it the study, moves on when all have signed."""
        with self._engine.begin() as db:
            found = _contribution(db, study)
            assert found is not None
            values: dict[str, Any] = {"problem": _json(problem)}
            if state is not None:
                values["state"] = state
            if receipt is not None:
                accepted = receipt.document.event == "accepted"
                values["accepted" if accepted else "withdrawn"] = receipt.model_dump_json()
            where = (tables.deliveries.c.contribution == found.contribution) & (tables.deliveries.c.server == server)
            db.execute(tables.deliveries.update().where(where).values(values))
            found = _contribution(db, study)
            assert found is not None
            refused = [one.problem is not None and not one.problem["retryable"] for one in found.deliveries]
            goal = settled(found.goal, [one.state for one in found.deliveries], refused)
            if goal is not found.goal:
                of = tables.contributions.c.contribution == found.contribution
                db.execute(tables.contributions.update().where(of).values(goal=goal))
                if goal is Goal.WITHDRAWN:
                    _move(db, self._known(db, study), Event.WITHDRAW)
            return goal

    def _known(self, db: Connection, study: str) -> StudyRecord:
        row = _study_row(db, study)
        if row is None:
            raise Problem(
                Kind.NOT_FOUND, "this holder does not know the study; have it fetch the manifest first", study=study
            )
        return self._study(row)

    def _study(self, row: RowMapping) -> StudyRecord:
        return StudyRecord(
            row["study"],
            lambda: self._manifest(row),
            row["manifest"],
            State(row["state"]),
            None if row["approval"] is None else Signed[Approval].model_validate_json(row["approval"]),
            bool(row["approval_sent"]),
            None if row["decline"] is None else Signed[Decline].model_validate_json(row["decline"]),
            bool(row["decline_sent"]),
            None if row["approval_problem"] is None else json.loads(row["approval_problem"]),
        )

    def _manifest(self, row: RowMapping) -> Manifest:
        """The manifest of a study. It never changes, and checking it is slow: it is kept."""
        return self._manifests.obtain(row["study"], lambda: Manifest.model_validate_json(row["manifest"]))


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _study_row(db: Connection, study: str) -> RowMapping | None:
    return db.execute(tables.studies.select().where(tables.studies.c.study == study)).mappings().one_or_none()


def _move(db: Connection, record: StudyRecord, event: Event) -> None:
    state = after(record.state, event)
    db.execute(tables.studies.update().where(tables.studies.c.study == record.study).values(state=state))


def _table(db: Connection, study: str) -> TableRecord | None:
    row = db.execute(tables.owner_tables.select().where(tables.owner_tables.c.study == study)).mappings().one_or_none()
    if row is None:
        return None
    report = TableReport.model_validate_json(row["report"])
    return TableRecord(row["file"], row["media_type"], row["digest"], row["size"], report)


def _matching(db: Connection, study: str) -> MatchingRecord | None:
    row = db.execute(tables.matchings.select().where(tables.matchings.c.study == study)).mappings().one_or_none()
    if row is None:
        return None
    return MatchingRecord(study, row["folder"], row["digest"], bool(row["wanted"]), json.loads(row["problems"]))


def _contribution(db: Connection, study: str) -> ContributionRecord | None:
    ours = tables.contributions.select().where(tables.contributions.c.study == study)
    row = db.execute(ours.order_by(tables.contributions.c.number.desc()).limit(1)).mappings().one_or_none()
    if row is None:
        return None
    of = tables.deliveries.c.contribution == row["contribution"]
    deliveries = db.execute(tables.deliveries.select().where(of).order_by(tables.deliveries.c.server)).mappings()
    return ContributionRecord(
        row["contribution"],
        study,
        row["folder"],
        Signed[Contribution].model_validate_json(row["document"]),
        Goal(row["goal"]),
        tuple(_delivery(one) for one in deliveries),
    )


def _delivery(row: RowMapping) -> DeliveryRecord:
    return DeliveryRecord(
        row["server"],
        Delivery(row["state"]),
        _receipt(row["accepted"]),
        _receipt(row["withdrawn"]),
        None if row["problem"] is None else json.loads(row["problem"]),
    )


def _receipt(text: str | None) -> Signed[Receipt] | None:
    return None if text is None else Signed[Receipt].model_validate_json(text)
