"""What the holder knows, durably. No row of a table, no seed and no share is in here: those are files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    Text,
)

from caps.service.database import open_database, reading
from caps.service.problems import Problem
from caps.study import Manifest
from caps.wire import Approval, Contribution, Receipt, Signed
from caps.wire.holder import Delivery, Goal, State, TableReport
from caps.wire.problems import Kind
from services.holder.state import Event, after, settled

METADATA = MetaData()
STUDIES = Table(
    "holder_studies",
    METADATA,
    Column("study", String(64), primary_key=True),
    Column("manifest", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("approval", Text),
    Column("approval_sent", Boolean, nullable=False, default=False),
    Column("approval_problem", Text),
)
TABLES = Table(
    "holder_tables",
    METADATA,
    Column("study", ForeignKey(STUDIES.c.study), primary_key=True),
    Column("file", String(64), nullable=False),
    Column("media_type", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("report", Text, nullable=False),
)
CONTRIBUTIONS = Table(
    "holder_contributions",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("contribution", String(64), unique=True, nullable=False),
    Column("study", ForeignKey(STUDIES.c.study), nullable=False),
    Column("folder", String(64), nullable=False),
    Column("document", Text, nullable=False),
    Column("goal", String(16), nullable=False),
)
MATCHINGS = Table(
    "holder_matchings",
    METADATA,
    Column("study", ForeignKey(STUDIES.c.study), primary_key=True),
    Column("folder", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("wanted", Boolean, nullable=False),
    Column("problems", Text, nullable=False),
)
DELIVERIES = Table(
    "holder_deliveries",
    METADATA,
    Column("contribution", ForeignKey(CONTRIBUTIONS.c.contribution), primary_key=True),
    Column("server", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("accepted", Text),
    Column("withdrawn", Text),
    Column("problem", Text),
)


@dataclass(frozen=True)
class StudyRecord:
    """A study at this holder."""

    manifest: Manifest
    state: State
    approval: Signed[Approval] | None
    approval_sent: bool
    approval_problem: dict[str, Any] | None

    @property
    def study(self) -> str:
        """Its id."""
        return self.manifest.study_id


@dataclass(frozen=True)
class TableRecord:
    """A table that is here. digest: SHA-256 of the file, to recognise it."""

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
    """How a study's rows get their positions. digest: of the table they were asked for. wanted: whether a contribution
    is to follow. problems: what servers objected to, by their names."""

    study: str
    folder: str
    digest: str
    wanted: bool
    problems: dict[str, dict[str, Any]]

    @property
    def goal(self) -> Goal:
        """As of a contribution."""
        return Goal.MATCHING if self.wanted else Goal.WITHDRAWN


class Store:
    """The records, each change one transaction."""

    def __init__(self, url: str) -> None:
        self._engine: Engine = open_database(url, METADATA, migrations="services.holder.migrations")

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    def add_study(self, manifest: Manifest) -> bool:
        """Whether the study is new here."""
        with self._engine.begin() as db:
            if _study_row(db, manifest.study_id) is not None:
                return False
            text = manifest.canonical_bytes().decode()
            db.execute(STUDIES.insert().values(study=manifest.study_id, manifest=text, state=State.KNOWN))
            return True

    def studies(self) -> list[StudyRecord]:
        """All studies."""
        with reading(self._engine) as db:
            return [_study(row) for row in db.execute(STUDIES.select().order_by(STUDIES.c.study)).mappings()]

    def study(self, study: str) -> StudyRecord:
        """One study. Raises a problem, 404, if it is not known here."""
        with reading(self._engine) as db:
            return _known(db, study)

    def approve(self, study: str, approval: Signed[Approval]) -> StudyRecord:
        """Keep the owner's approval; the first one counts."""
        with self._engine.begin() as db:
            record = _known(db, study)
            if record.approval is None:
                values = {"approval": approval.model_dump_json(), "state": after(record.state, Event.APPROVE)}
                db.execute(STUDIES.update().where(STUDIES.c.study == study).values(values))
            return _known(db, study)

    def approval_told(self, study: str, problem: Mapping[str, Any] | None, *, sent: bool) -> None:
        """What the coordinator said to the approval."""
        with self._engine.begin() as db:
            values = {"approval_sent": sent, "approval_problem": _json(problem)}
            db.execute(STUDIES.update().where(STUDIES.c.study == study).values(values))

    def table(self, study: str) -> TableRecord | None:
        """The study's table, if there is one here."""
        with reading(self._engine) as db:
            return _table(db, study)

    def load(self, study: str, table: TableRecord) -> TableRecord | None:
        """Keep a table that was checked; the one whose place it takes. Raises a problem where none may come."""
        with self._engine.begin() as db:
            record, old = _known(db, study), _table(db, study)
            _move(db, record, Event.LOAD)
            db.execute(TABLES.delete().where(TABLES.c.study == study))
            values = {"file": table.file, "media_type": table.media_type, "digest": table.digest, "size": table.size}
            db.execute(TABLES.insert().values(study=study, report=table.report.model_dump_json(), **values))
            return old

    def forget_table(self, study: str) -> TableRecord | None:
        """Let go of a table; it is returned, for its file is to be erased next."""
        with self._engine.begin() as db:
            record, table = _known(db, study), _table(db, study)
            if table is not None:
                _move(db, record, Event.ERASE)
                db.execute(TABLES.delete().where(TABLES.c.study == study))
            return table

    def contribute(
        self, study: str, table: TableRecord, folder: str, document: Signed[Contribution]
    ) -> ContributionRecord:
        """From here on the study has this contribution of this table, whose files are complete in `folder`."""
        with self._engine.begin() as db:
            record = _known(db, study)
            _move(db, record, Event.CONTRIBUTE)
            if _table(db, study) != table:
                raise Problem(Kind.CONFLICT, "the table was replaced in the meantime")
            db.execute(MATCHINGS.update().where(MATCHINGS.c.study == study).values(wanted=False))
            name = document.document.digest()
            values = {"contribution": name, "study": study, "folder": folder, "goal": Goal.PUSHING}
            db.execute(CONTRIBUTIONS.insert().values(document=document.model_dump_json(), **values))
            for server in record.manifest.servers:
                state = {"contribution": name, "server": server.name, "state": Delivery.PENDING}
                db.execute(DELIVERIES.insert().values(state))
            found = _contribution(db, study)
            assert found is not None
            return found

    def matching(self, study: str) -> MatchingRecord | None:
        """How the study's rows get their positions, if that was begun."""
        with reading(self._engine) as db:
            return _matching(db, study)

    def begin_matching(self, study: str, table: TableRecord, folder: str) -> MatchingRecord:
        """From here on positions are asked for this table, whose ids are in `folder`, so as to contribute it."""
        with self._engine.begin() as db:
            after(_known(db, study).state, Event.CONTRIBUTE)
            values = {"study": study, "folder": folder, "digest": table.digest, "wanted": True, "problems": "{}"}
            db.execute(MATCHINGS.insert().values(values))
            found = _matching(db, study)
            assert found is not None
            return found

    def want_matching(self, study: str, wanted: bool) -> MatchingRecord:
        """Whether a contribution is to follow; what servers objected to before is forgotten."""
        with self._engine.begin() as db:
            db.execute(MATCHINGS.update().where(MATCHINGS.c.study == study).values(wanted=wanted, problems="{}"))
            found = _matching(db, study)
            assert found is not None
            return found

    def matching_told(self, study: str, problems: Mapping[str, Mapping[str, Any]]) -> None:
        """What servers objected to."""
        with self._engine.begin() as db:
            db.execute(MATCHINGS.update().where(MATCHINGS.c.study == study).values(problems=json.dumps(problems)))

    def forget_matching(self, study: str) -> MatchingRecord | None:
        """Let go of a matching; it is returned, for its folder is to be erased next."""
        with self._engine.begin() as db:
            found = _matching(db, study)
            db.execute(MATCHINGS.delete().where(MATCHINGS.c.study == study))
            return found

    def contribution(self, study: str) -> ContributionRecord | None:
        """The latest contribution to a study."""
        with reading(self._engine) as db:
            _known(db, study)
            return _contribution(db, study)

    def aim(self, study: str, goal: Goal) -> ContributionRecord:
        """Set the goal of the study's contribution, and forget what servers objected to before."""
        with self._engine.begin() as db:
            found = _contribution(db, study)
            assert found is not None
            of = CONTRIBUTIONS.c.contribution == found.contribution
            db.execute(CONTRIBUTIONS.update().where(of).values(goal=goal))
            db.execute(DELIVERIES.update().where(DELIVERIES.c.contribution == found.contribution).values(problem=None))
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
        """News of a server; the contribution, and with it the study, moves on when all three have signed."""
        with self._engine.begin() as db:
            found = _contribution(db, study)
            assert found is not None
            values: dict[str, Any] = {"problem": _json(problem)}
            if state is not None:
                values["state"] = state
            if receipt is not None:
                values[receipt.document.event] = receipt.model_dump_json()
            where = (DELIVERIES.c.contribution == found.contribution) & (DELIVERIES.c.server == server)
            db.execute(DELIVERIES.update().where(where).values(values))
            found = _contribution(db, study)
            assert found is not None
            refused = [one.problem is not None and not one.problem["retryable"] for one in found.deliveries]
            goal = settled(found.goal, [one.state for one in found.deliveries], refused)
            if goal is not found.goal:
                of = CONTRIBUTIONS.c.contribution == found.contribution
                db.execute(CONTRIBUTIONS.update().where(of).values(goal=goal))
                if goal is Goal.WITHDRAWN:
                    _move(db, _known(db, study), Event.WITHDRAW)
            return goal


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def _study_row(db: Connection, study: str) -> RowMapping | None:
    return db.execute(STUDIES.select().where(STUDIES.c.study == study)).mappings().one_or_none()


def _known(db: Connection, study: str) -> StudyRecord:
    row = _study_row(db, study)
    if row is None:
        raise Problem(Kind.NOT_FOUND, "this holder does not know the study", study=study)
    return _study(row)


def _study(row: RowMapping) -> StudyRecord:
    return StudyRecord(
        _manifest(row["manifest"]),
        State(row["state"]),
        None if row["approval"] is None else Signed[Approval].model_validate_json(row["approval"]),
        bool(row["approval_sent"]),
        None if row["approval_problem"] is None else json.loads(row["approval_problem"]),
    )


@lru_cache(maxsize=256)
def _manifest(text: str) -> Manifest:
    """Read once: a manifest never changes, and to check it costs more than all else here."""
    return Manifest.model_validate_json(text)


def _move(db: Connection, record: StudyRecord, event: Event) -> None:
    state = after(record.state, event)
    db.execute(STUDIES.update().where(STUDIES.c.study == record.study).values(state=state))


def _table(db: Connection, study: str) -> TableRecord | None:
    row = db.execute(TABLES.select().where(TABLES.c.study == study)).mappings().one_or_none()
    if row is None:
        return None
    report = TableReport.model_validate_json(row["report"])
    return TableRecord(row["file"], row["media_type"], row["digest"], row["size"], report)


def _matching(db: Connection, study: str) -> MatchingRecord | None:
    row = db.execute(MATCHINGS.select().where(MATCHINGS.c.study == study)).mappings().one_or_none()
    if row is None:
        return None
    return MatchingRecord(study, row["folder"], row["digest"], bool(row["wanted"]), json.loads(row["problems"]))


def _contribution(db: Connection, study: str) -> ContributionRecord | None:
    ours = CONTRIBUTIONS.select().where(CONTRIBUTIONS.c.study == study)
    row = db.execute(ours.order_by(CONTRIBUTIONS.c.number.desc()).limit(1)).mappings().one_or_none()
    if row is None:
        return None
    of = DELIVERIES.c.contribution == row["contribution"]
    deliveries = db.execute(DELIVERIES.select().where(of).order_by(DELIVERIES.c.server)).mappings()
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
