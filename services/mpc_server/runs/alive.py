"""The runs that are alive in this process: brought to life on first use, kept alive until they are over.

A run goes on only in the `build` that began it, because another could send different messages under the same masks. In
any other build it waits, untouched: its steps are refused, and only what every build can read of a run is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Engine, Row

from caps.basics.recent import Recent
from caps.errors import DomainError, LocalError
from caps.service import logs
from caps.service.database import reading
from caps.service.problems import Problem
from caps.service.site import Site
from caps.study import Manifest
from caps.study.manifest import MOST_KEPT
from caps.wire.problems import Kind
from services.mpc_server.build import brief, with_mechanism
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.studies import Sealed, Studies
from services.mpc_server.runs.live import LiveRun
from services.mpc_server.runs.material import Material, counts_name
from services.mpc_server.runs.pairs import Pairs
from services.mpc_server.runs.record import Record, RunAborted, charged
from services.mpc_server.runs.session import Seat
from services.mpc_server.runs.thread import EngineThread
from services.mpc_server.storage import states
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger
from services.mpc_server.storage.rows import runs as rows
from services.mpc_server.storage.shares import ShareStore
from services.mpc_server.transport.keeper import MeshKeeper

log = logging.getLogger("caps.runs")


@dataclass
class Alive:
    """A run in this process."""

    record: Record
    live: LiveRun
    task: Future[None] | None = field(default=None)

    @property
    def keeps_a_session(self) -> bool:
        """Whether the run keeps a session open; if not, it may have ended, or this server may be stopping."""
        return self.task is not None and not self.task.done()


class AliveRuns:
    """All runs alive in this process. Methods are called from the threads of the REST interface."""

    def __init__(
        self,
        site: Site,
        database: Engine,
        ledger: Ledger,
        studies: Studies,
        contributions: Contributions,
        store: ShareStore,
        engine: EngineThread,
        keeper: MeshKeeper,
        heads: Heads,
        *,
        build: str,
        patience: float,
        least_holders: int = 1,
        workers: Workers = IN_PROCESS,
    ) -> None:
        """`least_holders`: how many contributions must pass the checks of a run."""
        self._site = site
        self._database = database
        self._ledger = ledger
        self._studies = studies
        self._contributions = contributions
        self._store = store
        self._engine = engine
        self._keeper = keeper
        self._heads = heads
        self.build = build
        self._patience = patience
        self._least_holders = least_holders
        self._workers = workers
        self._alive: dict[str, Alive] = {}
        self._past: Recent[str, tuple[int, int]] = Recent(MOST_KEPT)
        """The traffic of runs that are over."""
        self._lock = RLock()  # a task may be over before it is kept

    def resume(self) -> None:
        """Bring every run that has not ended back to life."""
        with reading(self._database) as connection:
            going = rows.going(connection)
        for row in going:
            if self.is_foreign(row):
                reason = self.why_foreign(row)
                logs.say(log, "waiting", run=row.run, study=row.study, party=self._site.name, reason=reason)
                continue
            try:
                self._studies.exchange_key(row.study)  # raises if the shares were erased because their time was up
                self.get(row.run)
            except LocalError as error:
                self._fail(row.run, str(error))

    def get(self, run: str) -> Alive:
        """A run that this build began; brought to life if it is going. One that is over is read, and not kept."""
        with self._lock:
            found = self._alive.get(run)
            if found is None:
                found = self._bring_to_life(run)
                if found.task is not None:
                    self._alive[run] = found
                    found.task.add_done_callback(lambda _: self._forget(run))
            return found

    def _forget(self, run: str) -> None:
        """A run is over: what is in memory of it, such as all its requests, goes."""
        with self._lock:
            found = self._alive.pop(run, None)
            if found is not None:
                self._past.keep(run, found.live.traffic)

    def traffic(self, run: str) -> tuple[int, int]:
        """Rounds run and bytes sent for a run since this process began, as far as it remembers."""
        with self._lock:
            found = self._alive.get(run)
        return found.live.traffic if found is not None else self._past.find(run) or (0, 0)

    def all(self) -> Mapping[str, Alive]:
        """The runs brought to life here, by id."""
        with self._lock:
            return dict(self._alive)

    def let_go(self, run: str, study: str, *, aborted: bool = False) -> None:
        """End the session of a run that is over, and forget its counts."""
        with self._lock:  # a run being brought to life may have been read as still going
            found = self._alive.get(run)
        if found is not None:
            found.record.aborted = found.record.aborted or aborted
            if found.task is not None:
                found.task.cancel()
        self._store.erase(counts_name(study, run))

    def stop(self, run: str) -> None:
        """Record that a run has failed if contributions were refused and the study agreed to stop then.

        Its session stays for a while: a peer may not have written down the same answer yet.
        """
        found = self.get(run)
        if (reason := found.record.account.stopped) is not None:
            self._fail(run, reason, manifest=found.record.manifest)

    def is_foreign(self, row: Row[Any]) -> bool:
        """Whether another build began a run."""
        if row.build == self.build:  # only runs of algorithms of other packages have a build of their own
            return False
        try:
            return bool(row.build != self.build_for(self._studies.manifest(row.study)))
        except (DomainError, ValidationError):  # the package that brought its algorithm is gone
            return True

    def build_for(self, manifest: Manifest) -> str:
        """The build for runs of a study: it depends on the package that brings its algorithm, if that is another."""
        return with_mechanism(self.build, manifest.algorithm.name)

    def why_foreign(self, row: Row[Any]) -> str:
        """Why a run that another build began does not go on, and what to do."""
        return (
            f"begun by build {brief(row.build)}, and this is {brief(self.build)}: go back to that build or give the "
            "run up"
        )

    def require_own(self, row: Row[Any]) -> None:
        """Raises a problem if another build began the run."""
        if self.is_foreign(row):
            if row.state != states.Run.GOING:
                raise Problem(Kind.CONFLICT, "the run has ended")
            raise Problem(Kind.NOT_READY, self.why_foreign(row), party=self._site.name)

    def row(self, run: str) -> Row[Any]:
        """A run's row in the database. Raises a problem if there is no such run."""
        with reading(self._database) as connection:
            row = rows.find(connection, run)
        if row is None:
            raise unknown(run)
        return row

    def sealed(self, study: str) -> Sealed:
        """The inputs of a study. Raises a problem if they are not sealed."""
        sealed = self._studies.sealed(study)
        if sealed is None:
            raise Problem(Kind.NOT_READY, "the inputs of this study are not sealed here")
        return sealed

    def _bring_to_life(self, run: str) -> Alive:
        row = self.row(run)
        manifest = self._studies.manifest(row.study)
        sealed = self.sealed(row.study)
        holders = [contribution.holder for contribution in sealed.contributions]
        record = Record(
            self._database, self._ledger, manifest, run, row.inputs, holders, least_holders=self._least_holders
        )
        material = Material(manifest, run, sealed, self._studies, self._contributions, self._store)
        seat = Seat(
            self._studies.party(row.study),
            self._site.name,
            self._site.signing_key,
            Pairs(self._studies, self._database, self._store.vault, row.study, sealed.exchange_digests),
            self._site.instant,
            bytes.fromhex(self.build_for(manifest)),
            self._site.supervisor,
            self._workers,
        )
        live = LiveRun(
            record, seat, material, self._keeper, self._heads, patience=self._patience, metrics=self._site.metrics
        )
        found = Alive(record, live)
        if row.state == states.Run.GOING:
            found.task = self._engine.submit(self._kept_alive(live, run))
        return found

    async def _kept_alive(self, live: LiveRun, run: str) -> None:
        """Keep a run alive until it is over. A full disk, for example, interrupts it: nothing is wrong with the run."""
        with logs.bound(run=run, study=live.record.manifest.study_id, request_id=logs.new_id(run)):
            await self._site.supervisor.keep("run", partial(self._keep_alive, live, run))

    async def _keep_alive(self, live: LiveRun, run: str) -> None:
        try:
            await live.live()
        except RunAborted as error:
            logs.say(log, "aborted", level=logging.ERROR, run=run, reason=str(error))
        except LocalError as error:
            stopped = live.record.account.stopped is not None
            self._fail(run, str(error), manifest=live.record.manifest if stopped else None)

    def _fail(self, run: str, reason: str, *, manifest: Manifest | None = None) -> None:
        """Record that this server cannot go on with a run. A run that is over by now stays as it is.

        If a manifest is given, what the run reserved is given back unless it has charged something.
        """
        with self._database.begin() as transaction:
            row = rows.find(transaction, run)
            if row is None or row.state != states.Run.GOING:
                return
            if manifest is not None and not charged(transaction, run, manifest):
                self._ledger.release(transaction, run, manifest, self._site.instant())
            rows.change(transaction, run, states.RunEvent.FAIL, reason=reason)
        logs.say(log, "failed", level=logging.ERROR, run=run, reason=reason)


def unknown(run: str) -> Problem:
    """The problem for a run that does not exist, or that the caller must not know of."""
    return Problem(Kind.NOT_FOUND, f"this server has no run {run}")
