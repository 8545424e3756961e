"""The holder: studies, the owner's table, its contribution. Everything survives the end of the process at any point.

    data/state.db                                 records (services.holder.store)
    data/studies/<study>/table-<random>           the table, as the owner sent it, or the name of its source
    data/studies/<study>/shares-<random>/         seeds, nonces and component 2, until the servers have signed
    data/studies/<study>/matching-<random>/       if rows are joined by tags: ids and their positions
    data/studies/<study>/upload-<random>          a table on its way in
    data/studies/<study>/scratch-<random>         a release that is being compared with the table

A file counts from the moment a record names it. Files that no record names are erased at the next start.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from caps.basics import canonical
from caps.basics.files import erase, private_directory, sync_path, write_private
from caps.basics.recent import Recent
from caps.data.schema import Limits
from caps.service.metrics import Reading
from caps.service.news import News
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Coordinator, Holder, Manifest, Server
from caps.study.table import Rows
from caps.wire import Approval, Decline, Signed
from caps.wire.holder import Goal, HolderLedger, Preview, State, StudyBudget, StudyLoss, TableReport
from caps.wire.problems import Kind
from services.holder import matching, peers
from services.holder.counting import count_columns
from services.holder.ledger import ledger_of, study_loss
from services.holder.matching import Matcher, Unmatched
from services.holder.news import news as news_of
from services.holder.peers import PeerProblem
from services.holder.preview import preview
from services.holder.retry_queue import RetryQueue, TryLater
from services.holder.settings import Options
from services.holder.sharing import Counts, Parcel, prepare
from services.holder.sources import FILE as SOURCES
from services.holder.sources import Sources
from services.holder.state import GONE, Event, after
from services.holder.store import ContributionRecord, MatchingRecord, Store, StudyRecord, TableRecord
from services.holder.table import SOURCE, Sent, read_table, refusing, report_of
from services.holder.uploader import Uploader

_PATIENCE = 10.0
"""Seconds that a withdrawal waits for the servers before it goes on in the background."""
_MOST_PINS = 1 << 12
_APPROVAL, _MATCHING = "approval", "matching"
_ASKED = {_APPROVAL: "coordinator", _MATCHING: "servers"}
"""The other party of tasks that do not concern one server."""

Progress = ContributionRecord | MatchingRecord


class HolderService:
    """The work behind the routes. Methods block; they are called in threads."""

    def __init__(
        self, site: Site, options: Options | None = None, *, entropy: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self.site = site
        self.options = options or Options()
        self._entropy = entropy
        private_directory(site.settings.data)
        self._root = private_directory(site.settings.data / "studies")
        self.store = Store(site.settings.database)
        self._retries = RetryQueue(self.options.backoff, put_off=self._count_retry, supervisor=site.supervisor)
        site.metrics.read(self._figures)
        self.matcher = Matcher(site, self._retries)
        self.uploader = Uploader(site, self.store, self._retries, parcel=self._parcel, delivered=self._drop)
        self._news = News(site, self.options.news, lambda: news_of(site, self.store))
        self._pins: Recent[str, tuple[tuple[str, str], ...]] = Recent(_MOST_PINS)
        self._heavy = threading.Lock()  # one table in memory at a time, and nobody erases it in the meantime
        self.sources = Sources(site.settings.home / SOURCES)
        self.sources.declared()  # an error is found at the start
        self._limits = Limits(bytes=self.options.max_upload, expansion=self.options.max_expansion)

    def start(self) -> None:
        """Erase what a crash left behind and resume what it interrupted."""
        self._sweep()
        for record in self.store.studies():
            self._tell_coordinator(record)
            if self.store.contribution(record.study) is not None:
                self.uploader.start(record.manifest)
            self._match_soon(record)
        self._news.open()

    def close(self) -> None:
        """Stop at the current point; `start` resumes from there."""
        self._news.close()
        self._retries.stop()
        self.store.close()
        self.site.sessions.dispose()

    def _count_retry(self, key: Hashable) -> None:
        _, party = cast(tuple[str, str], key)
        self.site.metrics.count("caps_retries", party=_ASKED.get(party, party))

    def _figures(self) -> Iterator[Reading]:
        found = self.store.studies()
        states = Counter(record.state for record in found)
        contributions = [self.store.contribution(record.study) for record in found]
        goals = Counter(one.goal for one in contributions if one is not None)
        matchings = [self.store.matching(record.study) for record in found]
        goals[Goal.MATCHING] = sum(one is not None and one.wanted for one in matchings)
        for state in State:
            yield Reading("caps_studies", states[state], (state,))
        for goal in Goal:
            yield Reading("caps_contributions", goals[goal], (goal,))

    def know(self, coordinator: str, study: str) -> tuple[StudyRecord, bool]:
        """Fetch a manifest. Returns the study and whether it is new here."""
        manifest = peers.fetch_manifest(self.site, coordinator, study)
        self.me(manifest)
        new = self.store.add_study(manifest)
        return self.store.study(study), new

    def me(self, manifest: Manifest) -> Holder:
        """This holder's entry in a manifest. Raises a problem if no entry has its name and keys."""
        for holder in manifest.holders:
            if self.site.is_me(holder):
                return holder
        raise Problem(Kind.INVALID, f"the study lists no holder {self.site.name} with this site's keys")

    def approve(self, study: str) -> StudyRecord:
        """Sign the study on the owner's behalf and send the signature to the coordinator."""
        self._check_keys(self.store.study(study).manifest)
        approval = Approval(study=study, role="holder", at=self.site.instant())
        record = self.store.approve(study, Signed[Approval].by(approval, self.site.name, self.site.signing_key))
        self._tell_coordinator(record)
        return record

    def decline(self, study: str, reason: str) -> StudyRecord:
        """Sign that the owner does not take part, and send that to the coordinator. Approving takes it back."""
        decline = Decline(study=study, role="holder", reason=reason, at=self.site.instant())
        record = self.store.decline(study, Signed[Decline].by(decline, self.site.name, self.site.signing_key))
        self._tell_coordinator(record)
        return record

    def _check_keys(self, manifest: Manifest) -> None:
        if objections := self.site.denials.objections(manifest.parties):
            raise Problem(Kind.POLICY_REFUSED, objections[0], study=manifest.study_id, objections=objections)

    def key_warnings(self, record: StudyRecord) -> list[str]:
        """Servers and coordinators that had another key in a study that the owner approved before."""
        worked_with = [one for one in self.store.studies() if one.approval is not None and one.study != record.study]
        found = []
        for party in _called(record.manifest):
            before = [(one.study, pin) for one in worked_with for role, pin in self._keys(one) if role == party.role]
            if before and party.pin not in {pin for _, pin in before}:
                found.append(
                    f"{party.name} has the key {party.pin[:16]}..., but had {before[-1][1][:16]}... in study "
                    f"{before[-1][0][:12]}: ask its operator, by another channel, whether it has a new key"
                )
        return found

    def _keys(self, record: StudyRecord) -> tuple[tuple[str, str], ...]:
        """Roles and pins of those that a study has this holder call, kept for more studies than manifests are."""
        found = self._pins.find(record.study)
        return found or self._pins.keep(record.study, tuple((one.role, one.pin) for one in _called(record.manifest)))

    def _tell_coordinator(self, record: StudyRecord) -> None:
        if _untold(record) is not None:
            self._retries.start((record.study, _APPROVAL), partial(self._tell, record.study))

    def _tell(self, study: str) -> None:
        """Send what the coordinator has not been told: the approval or, unless there is one, the decline."""
        record = self.store.study(study)
        untold = _untold(record)
        if untold is None:
            return
        try:
            peers.send_word(self.site, record.manifest.coordinator, study, untold)
        except PeerProblem as problem:
            self.store.told(record, problem.document, sent=False)
            if problem.retryable:
                raise TryLater(problem.retry_after) from None
        else:
            self.store.told(record, None, sent=True)

    def upload_path(self, study: str) -> Path:
        """Where to write an uploaded table. Raises a problem if the study takes no table now."""
        record = self.store.study(study)
        if record.state is not State.CONTRIBUTED:  # sending the same table again is not a conflict
            after(record.state, Event.LOAD)
        return private_directory(self._root / study) / f"upload-{secrets.token_hex(8)}"

    def load(self, study: str, upload: Path, sent: Sent, digest: str) -> TableReport:
        """Check an uploaded file and keep it as the study's table. A refused file is erased."""
        with self._heavy:
            return self._load(study, upload, sent, digest)[0]

    def load_and_contribute(self, study: str, upload: Path, sent: Sent, digest: str) -> Progress:
        """`load` followed by `contribute`, with the table read only once."""
        with self._heavy:
            _, rows = self._load(study, upload, sent, digest)
            record, found = self._contribute(study, rows)
        return self._pursue(record, found)

    def load_source(self, study: str, name: str) -> TableReport:
        """Check a table where it is, and keep its source as the study's table. None of its rows is kept here."""
        with self._heavy:
            path = self.upload_path(study)
            try:
                source = self.sources.find(name)
                identity = source.identity()
                digest = sha256(canonical.dump({"source": name, "identity": identity})).hexdigest()
                if (report := self._same(study, digest)) is not None:
                    return report
                manifest = self.store.study(study).manifest
                with refusing():
                    read = source.read(manifest, self.me(manifest), self._limits, path.parent, share=False)
                described = {"source": name, "identity": identity, "queries": read.queries}
                write_private(path, json.dumps(described).encode())
                report = report_of(read.counted, read.fingerprint)
                self._keep(study, path, TableRecord(_new(), SOURCE, digest, path.stat().st_size, report))
                return report
            finally:
                erase(path)

    def _load(self, study: str, upload: Path, sent: Sent, digest: str) -> tuple[TableReport, Rows | None]:
        """The report and the rows that were read for it; no rows if the same table is already here."""
        try:
            if (report := self._same(study, digest)) is not None:
                return report, None
            manifest = self.store.study(study).manifest
            rows, report = read_table(upload, sent, manifest, self.me(manifest), self._limits, recognise=True)
            self._keep(study, upload, TableRecord(_new(), sent.kept, digest, upload.stat().st_size, report))
            return report, rows
        finally:
            erase(upload)

    def _same(self, study: str, digest: str) -> TableReport | None:
        """The report of the study's table if it is in use and is this one. Raises a problem if another is in use."""
        record, old = self.store.study(study), self.store.table(study)
        asked = self.store.matching(study)
        if record.state is not State.CONTRIBUTED and (asked is None or not asked.wanted):
            return None
        if old is not None and old.digest == digest:
            return old.report
        what = "has been contributed" if record.state is State.CONTRIBUTED else "is being matched"
        raise Problem(Kind.CONFLICT, f"another table {what}; withdraw it before loading a new one")

    def _keep(self, study: str, upload: Path, table: TableRecord) -> None:
        """Keep a file as the study's table, in place of the one before."""
        kept = upload.with_name(table.file)
        upload.rename(kept)
        sync_path(kept.parent)
        old = self.store.load(study, table)
        if old is not None:
            erase(kept.with_name(old.file))

    def report(self, study: str) -> TableReport:
        """The counts from checking the study's table. Raises a problem if no table is here."""
        self.store.study(study)
        table = self.store.table(study)
        if table is None:
            raise Problem(Kind.NOT_FOUND, "no table is loaded for this study")
        return table.report

    def column_counts(self, study: str) -> list[npt.NDArray[np.int64]]:
        """How many rows of the study's table have each value of each column, for this site's eyes.

        Raises a problem if there is no table.
        """
        with self._heavy:
            record, table = self.store.study(study), self.store.table(study)
            if table is None:
                raise Problem(Kind.NOT_FOUND, "no table is loaded for this study")
            columns = record.manifest.columns_of(self.me(record.manifest))
            brought = self._brought(record, table)
            if isinstance(brought, Rows):
                return count_columns((column.size for column in columns.columns), brought.codes)
            return [brought.column(record.manifest.layout, column.name) for column in columns.columns]

    def scratch_path(self, study: str) -> Path:
        """Where to write a file that is only looked at, such as a release; whoever writes it erases it."""
        self.store.study(study)
        return private_directory(self._root / study) / f"scratch-{secrets.token_hex(8)}"

    def fetch_release(self, study: str, path: Path) -> bool:
        """Write the study's released rows, as its coordinator has them, to a file; whether there are any yet."""
        coordinator = self.store.study(study).manifest.coordinator
        return peers.fetch_release(self.site, coordinator, study, path, most=self.options.max_upload)

    @property
    def limits(self) -> Limits:
        """Of the files that are read here."""
        return self._limits

    def erase_table(self, study: str) -> None:
        """Erase the table here; a contribution made from it stays. The record goes first: none names a lost file.

        If the rows were joined by tags, their hashed ids are erased as well.
        """
        with self._heavy:
            asked = self.store.matching(study)
            if asked is not None and asked.wanted:
                raise Problem(Kind.CONFLICT, "the table is being matched; withdraw it before erasing it")
            table = self.store.forget_table(study)
            if table is not None:
                erase(self._root / study / table.file)
            asked = self.store.forget_matching(study)
            if asked is not None:
                erase(self._root / study / asked.folder)

    def preview(self, study: str) -> Preview:
        """What would leave the site."""
        record = self.store.study(study)
        loaded, loss = self.store.table(study) is not None, self.loss(record)
        found = preview(self.site, record.manifest, self.me(record.manifest), loss, loaded=loaded)
        described = self._described(study, self.store.table(study))
        asked = {} if described is None else {name: described[name] for name in ("source", "queries")}
        return found.model_copy(update={"key_warnings": self.key_warnings(record), **asked})

    def _described(self, study: str, table: TableRecord | None) -> dict[str, Any] | None:
        """How a table is read from a source; None if it was sent, or there is none."""
        if table is None or table.media_type != SOURCE:
            return None
        found: dict[str, Any] = json.loads((self._root / study / table.file).read_bytes())
        return found

    def loss(self, record: StudyRecord) -> StudyLoss:
        """What a study adds to what this holder's studies of the same persons cost."""
        table = self.store.table(record.study)
        found = None if table is None else table.report.fingerprint
        return study_loss(self.store.given(), record.manifest, found, loaded=table is not None)

    def budget(self, study: str) -> StudyBudget:
        """What a study costs its population here, and what the servers say is left of it there."""
        record = self.store.study(study)
        servers = [peers.ask_budget(self.site, server, study) for server in record.manifest.servers]
        return StudyBudget(loss=self.loss(record), servers=servers)

    def ledger(self) -> HolderLedger:
        """Which tables went to which studies, and what that costs the persons in them."""
        return ledger_of(self.store.given())

    def contribute(self, study: str) -> Progress:
        """Share the table and push it; if rows are joined by tags, match them first. Resumes what was already begun."""
        with self._heavy:
            record, found = self._contribute(study, None)
        return self._pursue(record, found)

    def _contribute(self, study: str, rows: Rows | None) -> tuple[StudyRecord, Progress]:
        """Record what is to be done. `rows`, if given, are those of the study's table, which is then not read again."""
        record, found = self.store.study(study), self.store.contribution(study)
        self._check_keys(record.manifest)
        if record.state is State.CONTRIBUTED:
            assert found is not None
            if found.goal is Goal.WITHDRAWING:
                raise Problem(Kind.CONFLICT, "the contribution is being withdrawn; contribute again once that is done")
            if found.goal is Goal.PUSHING:
                found = self.store.aim(study, Goal.PUSHING)
            return record, found
        after(record.state, Event.CONTRIBUTE)
        table = self.store.table(study)
        if table is None:  # erased after a withdrawal
            raise Problem(Kind.NOT_READY, f"the study is {record.state}: load a table first")
        if matching.joins_by_tags(record.manifest, self.me(record.manifest)):
            return record, self._begin_matching(record, table, rows)
        return record, self._share(record, table, rows or self._brought(record, table))

    def _pursue(self, record: StudyRecord, found: Progress) -> Progress:
        if isinstance(found, MatchingRecord):
            self._match_soon(record)
        else:
            self.uploader.start(record.manifest)
        return found

    def _begin_matching(self, record: StudyRecord, table: TableRecord, rows: Rows | None) -> MatchingRecord:
        study, found = record.study, self.store.matching(record.study)
        if found is not None:
            if found.digest != table.digest:  # it may contain people whose positions were never asked for
                matching.places(self._root / study / found.folder, rows or self._read(record, table), same_table=False)
            return self.store.want_matching(study, True)
        folder = self._root / study / f"matching-{secrets.token_hex(8)}"
        try:
            matching.begin(self.me(record.manifest), rows or self._read(record, table), folder, self._entropy)
            return self.store.begin_matching(study, table, folder.name)
        except Exception:
            erase(folder)
            raise

    def _match_soon(self, record: StudyRecord) -> None:
        found = self.store.matching(record.study)
        if found is not None and found.wanted:
            self._retries.start((record.study, _MATCHING), partial(self._match, record.study))

    def _match(self, study: str) -> None:
        """Get the positions of the table's rows, then contribute the table."""
        record, found = self.store.study(study), self.store.matching(study)
        if found is None or not found.wanted:
            return
        folder = self._root / study / found.folder
        try:
            positions = self.matcher.positions(record.manifest, self.me(record.manifest), folder)
        except Unmatched as error:
            self.store.matching_told(study, error.problems)
            if error.retryable:
                raise TryLater(error.retry_after) from None
            return
        with self._heavy:
            record, found = self.store.study(study), self.store.matching(study)
            if found is None or not found.wanted:
                return
            table = self.store.table(study)
            assert table is not None
            rows = self._read(record, table)
            same_table = found.digest == table.digest and self._ordered(record, table)
            places = matching.places(folder, rows, same_table=same_table)
            self._share(record, table, replace(rows, slots=positions[places]))
        self.uploader.start(record.manifest)

    def evaluated(self, record: MatchingRecord) -> dict[str, int]:
        """Bytes of evaluations received so far, by server."""
        manifest, folder = self.store.study(record.study).manifest, self._root / record.study / record.folder
        return {server.name: self.matcher.evaluated(folder, server.name) for server in manifest.servers}

    def _ordered(self, record: StudyRecord, table: TableRecord) -> bool:
        """Whether a table's rows come in the same order each time it is read."""
        described = self._described(record.study, table)
        return described is None or self.sources.find(described["source"]).ordered

    def _read(self, record: StudyRecord, table: TableRecord) -> Rows:
        """The rows of a table whose persons are matched by them."""
        rows = self._brought(record, table)
        assert isinstance(rows, Rows)
        return rows

    def _brought(self, record: StudyRecord, table: TableRecord) -> Rows | Counts:
        """The rows of a table; of one in an engine, their counts if that is what is shared."""
        path, manifest = self._root / record.study / table.file, record.manifest
        described = self._described(record.study, table)
        if described is None:
            return read_table(path, Sent.kept_as(table.media_type), manifest, self.me(manifest), self._limits)[0]
        source = self.sources.find(described["source"])
        if source.identity() != described["identity"]:
            raise Problem(Kind.CONFLICT, f"source {source.name} is not what was checked any more; load it again")
        with refusing():
            found = source.read(manifest, self.me(manifest), self._limits, path.parent, share=True).brought
        assert found is not None
        return found

    def _share(self, record: StudyRecord, table: TableRecord, rows: Rows | Counts) -> ContributionRecord:
        holder = self.me(record.manifest)
        folder = self._root / record.study / f"shares-{secrets.token_hex(8)}"
        try:
            document = prepare(self.site, record.manifest, holder, rows, folder, self._entropy)
            return self.store.contribute(record.study, table, folder.name, document)
        except Exception:
            erase(folder)
            raise

    def contribution(self, study: str) -> ContributionRecord:
        """The latest contribution. Raises a problem (404) if there is none."""
        found = self.store.contribution(study)
        if found is None:
            raise Problem(Kind.NOT_FOUND, "nothing has been contributed to this study", study=study)
        return found

    def progress(self, study: str) -> Progress:
        """The latest contribution, or the matching that precedes it. Raises a problem (404) if there is neither."""
        asked = self.store.matching(study)
        return asked if asked is not None and asked.wanted else self.contribution(study)

    def withdraw(self, study: str) -> Progress:
        """Withdraw the contribution from all servers, those out of reach later. Raises the problem if all refuse."""
        manifest = self.store.study(study).manifest
        with self._heavy:  # so that an abandoned matching cannot turn into a contribution
            asked = self.store.matching(study)
            if asked is not None and asked.wanted:
                return self.store.want_matching(study, False)
        found = self.contribution(study)
        if found.goal is Goal.WITHDRAWN:
            return found
        self.store.aim(study, Goal.WITHDRAWING)
        self.uploader.start(manifest)
        self.uploader.wait(manifest, _PATIENCE)
        found = self.contribution(study)
        if GONE.isdisjoint(one.state for one in found.deliveries):
            for delivery in found.deliveries:
                if delivery.problem is not None and not delivery.problem["retryable"]:
                    raise PeerProblem(delivery.problem).passed_on()
        return found

    def _parcel(self, record: ContributionRecord) -> Parcel:
        return Parcel(self._root / record.study / record.folder, self.store.study(record.study).manifest.sharing)

    def _drop(self, record: ContributionRecord) -> None:
        erase(self._parcel(record).folder)

    def _sweep(self) -> None:
        named: set[Path] = set()
        for record in self.store.studies():
            folder = self._root / record.study
            if (table := self.store.table(record.study)) is not None:
                named.add(folder / table.file)
            if (asked := self.store.matching(record.study)) is not None:
                named.add(folder / asked.folder)
            found = self.store.contribution(record.study)
            if found is not None and found.goal in (Goal.PUSHING, Goal.WITHDRAWING):
                named.add(folder / found.folder)
        for path in self._root.glob("*/*"):
            if path not in named:
                erase(path)


def _untold(record: StudyRecord) -> Signed[Approval] | Signed[Decline] | None:
    if record.approval is not None:
        return None if record.approval_sent else record.approval
    return None if record.decline_sent else record.decline


def _new() -> str:
    """A name for a file with a table."""
    return f"table-{secrets.token_hex(8)}"


def _called(manifest: Manifest) -> list[Server | Coordinator]:
    """The parties that a holder calls."""
    return [*manifest.servers, manifest.coordinator]
