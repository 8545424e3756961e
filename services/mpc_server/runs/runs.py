"""All runs of a server: begun by a study's coordinator, within the policy and the budget, alive until they end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWorking
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, Row, func, select, update

from caps import __version__
from caps.dp.oracle import Compute, StepRequest, request_digest
from caps.errors import LocalError, party_name
from caps.service import logs
from caps.service.database import reading
from caps.service.identity import Caller
from caps.service.metrics import Reading
from caps.service.problems import Problem
from caps.service.site import Site, confirm
from caps.shares.ring import Z64
from caps.study import Manifest, Policy
from caps.wire import Answer, Attestation, RunRequest, RunStatus, Signed
from caps.wire.problems import Kind
from services.mpc_server.build import brief
from services.mpc_server.contributions import Contributions
from services.mpc_server.ledger import Ledger
from services.mpc_server.pairs import Pairs
from services.mpc_server.runs.live import LiveRun, Seat, Share, Verdicts
from services.mpc_server.runs.record import Record
from services.mpc_server.runs.thread import EngineThread
from services.mpc_server.store import ShareStore
from services.mpc_server.studies import Sealed, Studies
from services.mpc_server.tables import runs, steps
from services.mpc_server.transport.keeper import MeshKeeper

WAIT = 10.0
"""Seconds that a request for a step is held before the caller is told to ask again."""

AGAIN = 3.0
"""Seconds until a run is taken up again that an error of this server interrupted."""

log = logging.getLogger("caps.runs")


class Material:
    """The stores, as one live run sees them."""

    def __init__(
        self,
        manifest: Manifest,
        run: str,
        sealed: Sealed,
        studies: Studies,
        contributions: Contributions,
        store: ShareStore,
    ) -> None:
        self._manifest = manifest
        self._sealed = sealed
        self._studies = studies
        self._contributions = contributions
        self._store = store
        self._name = _counts_name(manifest.study_id, run)

    @property
    def _key(self) -> bytes:
        return self._studies.data_key(self._manifest.study_id)

    def inputs(self) -> Sequence[tuple[str, str, tuple[str, ...], Share]]:
        """As `live.Material` says."""
        found = []
        for contribution in self._sealed.contributions:
            attributes = self._manifest.columns_of(self._manifest.holder(contribution.holder)).domain().names
            share = self._contributions.load(contribution.digest())
            found.append((contribution.holder, contribution.form, attributes, share))
        return found

    def counts(self) -> tuple[Share, Verdicts] | None:
        """As `live.Material` says."""
        try:
            data = self._store.get(self._name, self._key)
        except LocalError:  # never written, or damaged: they are computed again, and come out the same
            return None
        cells, flags = self._manifest.layout.cells, len(self._sealed.contributions)
        words = np.frombuffer(data, Z64.dtype, 2 * cells)
        verdicts = tuple(data[16 * cells : 16 * cells + flags])
        return (words[:cells], words[cells:]), verdicts

    def keep_counts(self, counts: Share, verdicts: Verdicts) -> None:
        """As `live.Material` says."""
        self._store.put(self._name, self._key, counts[0].tobytes() + counts[1].tobytes() + bytes(verdicts))


@dataclass
class _Run:
    record: Record
    live: LiveRun
    task: Future[None] | None = field(default=None)

    @property
    def alive(self) -> bool:
        """Whether a session is kept. If not, the run may have ended, or this server may be ending."""
        return self.task is not None and not self.task.done()


class Runs:
    """The runs of this server. Methods are called from the threads of the REST interface.

    A run goes on only in the `build` that began it, for another could send other messages under the same masks. In any
    other it waits, untouched: its steps are refused, and nothing of it is read but what can be told of every run.
    """

    def __init__(
        self,
        site: Site,
        policy: Policy,
        database: Engine,
        ledger: Ledger,
        studies: Studies,
        contributions: Contributions,
        store: ShareStore,
        engine: EngineThread,
        keeper: MeshKeeper,
        *,
        build: str,
        patience: float,
    ) -> None:
        self._site = site
        self._policy = policy
        self._database = database
        self._ledger = ledger
        self._studies = studies
        self._contributions = contributions
        self._store = store
        self._engine = engine
        self._keeper = keeper
        self._build = build
        self._patience = patience
        self._alive: dict[str, _Run] = {}
        self._lock = Lock()

    def resume(self) -> None:
        """Bring every run that has not ended back to life. Raises LedgerBroken if the record cannot be trusted."""
        self._ledger.verify()
        with reading(self._database) as connection:
            going = connection.execute(select(runs).where(runs.c.state == "going")).all()
        for row in going:
            if self._foreign(row):
                logs.say(log, "waiting", run=row.run, study=row.study, party=self._site.name, reason=self._why(row))
                continue
            try:
                self._studies.exchange_key(row.study)  # is gone if the shares were erased meanwhile: their time was up
                self._find(row.run)
            except LocalError as error:
                self._fail(row.run, str(error))

    def figures(self) -> Iterator[Reading]:
        """For the operator: runs by state; and of those under way, steps, rounds, bytes, and whom they wait for."""
        with reading(self._database) as connection:
            counted = connection.execute(select(runs.c.state, func.count()).group_by(runs.c.state)).all()
            going = {row.run: row for row in connection.execute(select(runs).where(runs.c.state == "going"))}
        states = {str(row[0]): int(row[1]) for row in counted}
        with self._lock:
            alive = {run: found for run, found in self._alive.items() if run in going}
        for state in ("going", "ended", "failed"):
            yield Reading("caps_runs", states.get(state, 0), (state,))
        for run, found in alive.items():
            rounds, sent = found.live.traffic
            yield Reading("caps_run_steps", found.record.answered, (run,))
            yield Reading("caps_run_rounds", rounds, (run,))
            yield Reading("caps_run_sent_bytes", sent, (run,))
            if (trouble := found.live.trouble) is not None:
                yield Reading("caps_run_waiting", 1, (run, party_name(trouble.party)))
        for run, row in going.items():
            if self._foreign(row):
                yield Reading("caps_run_waiting", 1, (run, self._site.name))

    def begin(self, run: str, asked: RunRequest, caller: Caller) -> RunStatus:
        """Reserve the study's budget for a run, once; connect with the peers."""
        manifest = self._studies.manifest(asked.study)
        confirm(caller, manifest.coordinator)
        sealed = self._sealed(asked.study)
        if sealed.inputs != asked.inputs:
            raise Problem(Kind.CONFLICT, "the inputs sealed here are others")
        objections = self._policy.judge(manifest)
        if objections:
            raise Problem(Kind.POLICY_REFUSED, objections[0], objections=objections)
        with self._database.begin() as transaction:
            row = transaction.execute(select(runs).where(runs.c.run == run)).first()
            if row is None:
                self._studies.require_sealed(transaction, asked.study, asked.inputs)
                for earlier in transaction.execute(select(runs).where(runs.c.study == asked.study)).all():
                    if _charged(transaction, earlier.run, manifest) or earlier.state != "failed":
                        raise Problem(Kind.BUDGET_EXCEEDED, f"run {earlier.run} has the budget of this study")
                limit = self._policy.population_budget(manifest.privacy.population)
                assert limit is not None  # or the policy would have objected
                self._ledger.reserve(transaction, run, manifest, manifest.reservation, limit=limit, at=self._now())
                begun = {"run": run, "study": asked.study, "inputs": asked.inputs, "build": self._build}
                transaction.execute(runs.insert().values(**begun, state="going"))
            elif (row.study, row.inputs) != (asked.study, asked.inputs):
                raise Problem(Kind.CONFLICT, "there is another run of this id")
        return self.status(run)

    def status(self, run: str) -> RunStatus:
        """How a run stands."""
        row = self._row(run)
        state, reason, party = row.state, row.reason, None
        if self._foreign(row):
            if state == "going":
                state, reason, party = "waiting", self._why(row), self._site.name
            position, due, traffic = self._answered(run), "nothing by this build", (0, 0)
        else:
            found = self._find(run)
            record, trouble, traffic = found.record, found.live.trouble, found.live.traffic
            if state == "going" and trouble is not None:
                state, reason, party = "waiting", str(trouble), party_name(trouble.party)
            position, due = record.answered, record.account.due
        return RunStatus(
            run=run,
            study=row.study,
            inputs=row.inputs,
            state=state,
            reason=reason,
            party=party,
            position=position,
            due=due,
            rounds=traffic[0],
            bytes_sent=traffic[1],
        )

    def step(self, run: str, number: int, request: StepRequest, caller: Caller) -> Signed[Answer] | None:
        """The answer of a step; None if it is still being computed."""
        row = self._row(run)
        confirm(caller, self._studies.manifest(row.study).coordinator)
        self._require_own(row)
        found = self._find(run)
        if isinstance(request, Compute) != (number == 0):
            raise Problem(Kind.NOT_DUE, "step 0 is to compute the answers, and no other step is")
        digest = request_digest(request).hex()
        recorded = found.record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            return recorded.answer
        if not found.alive and self._row(run).state != "going":
            raise Problem(Kind.CONFLICT, "the run has ended")
        try:
            return self._engine.submit(found.live.step(number, request, digest)).result(WAIT).answer
        except StillWorking:
            return None

    def answer(self, run: str, number: int) -> Signed[Answer]:
        """The recorded answer of a step."""
        self._row(run)
        with reading(self._database) as connection:
            found = select(steps.c.answer).where(steps.c.run == run, steps.c.step == number)
            answer = connection.execute(found).scalar()
        if answer is None:
            raise Problem(Kind.NOT_FOUND, f"step {number} has no answer yet")
        return Signed[Answer].model_validate_json(answer)

    def attest(self, run: str, caller: Caller) -> Signed[Attestation]:
        """This server's word on a run that has ended."""
        manifest = self._studies.manifest(self._row(run).study)
        confirm(caller, manifest.coordinator)
        if (attested := self._attestation(run)) is not None:
            return attested
        self._require_own(self._row(run))
        found = self._find(run)
        record = found.record
        with self._lock:
            if (attested := self._attestation(run)) is not None:
                return attested
            if not record.account.ended:
                raise Problem(Kind.NOT_READY, f"the run has not ended: due is {record.account.due}")
            sealed = self._sealed(manifest.study_id)
            document = Attestation(
                study=manifest.study_id,
                inputs=record.inputs,
                run=run,
                server=self._site.name,
                transcript=record.transcript(),
                steps=len(record.steps),
                contributions=tuple(contribution.digest() for contribution in sealed.contributions),
                holders=tuple(contribution.holder for contribution in sealed.contributions),
                statement=json.loads(record.account.statement().to_json()),
                ledger=self._ledger.range_of(run),
                software=f"caps {__version__} (build {self._build})",
                at=self._now(),
            )
            signed = Signed[Attestation].by(document, self._site.name, self._site.signing_key)
            record.end(signed.model_dump_json(), self._now())
            self._let_go(run, manifest)
            return signed

    def abandon(self, run: str, caller: Caller) -> RunStatus:
        """The coordinator gives a run up: what it charged is spent, what it did not charge is given back."""
        manifest = self._studies.manifest(self._row(run).study)
        confirm(caller, manifest.coordinator)
        with self._lock:
            if self._row(run).state == "going":
                with self._database.begin() as transaction:
                    if not _charged(transaction, run, manifest):
                        self._ledger.release(transaction, run, manifest, self._now())
                    changed = update(runs).where(runs.c.run == run)
                    transaction.execute(changed.values(state="failed", reason="given up by the coordinator"))
                self._let_go(run, manifest)
        return self.status(run)

    def _let_go(self, run: str, manifest: Manifest) -> None:
        """Of a run that is over: end its session, and forget the counts."""
        found = self._alive.get(run)
        if found is not None and found.task is not None:
            found.task.cancel()
        self._store.erase(_counts_name(manifest.study_id, run))

    def _foreign(self, row: Row[Any]) -> bool:
        """Whether another build began a run."""
        return bool(row.build != self._build)

    def _why(self, row: Row[Any]) -> str:
        return (
            f"begun by build {brief(row.build)}, and this is {brief(self._build)}: go back to that build or give the "
            "run up"
        )

    def _require_own(self, row: Row[Any]) -> None:
        """Raises a problem if another build began the run."""
        if self._foreign(row):
            if row.state != "going":
                raise Problem(Kind.CONFLICT, "the run has ended")
            raise Problem(Kind.NOT_READY, self._why(row), party=self._site.name)

    def _fail(self, run: str, reason: str) -> None:
        logs.say(log, "failed", level=logging.ERROR, run=run, reason=reason)
        with self._database.begin() as transaction:
            transaction.execute(update(runs).where(runs.c.run == run).values(state="failed", reason=reason))

    def _find(self, run: str) -> _Run:
        with self._lock:
            if run not in self._alive:
                self._alive[run] = self._bring_to_life(run)
            return self._alive[run]

    def _bring_to_life(self, run: str) -> _Run:
        row = self._row(run)
        manifest = self._studies.manifest(row.study)
        sealed = self._sealed(row.study)
        record = Record(self._database, self._ledger, manifest, run, row.inputs)
        material = Material(manifest, run, sealed, self._studies, self._contributions, self._store)
        seat = Seat(
            self._studies.party(row.study),
            self._site.name,
            self._site.signing_key,
            Pairs(self._studies, self._database, self._store.vault, row.study, sealed.exchange_digests),
            self._now,
            bytes.fromhex(self._build),
        )
        live = LiveRun(record, seat, material, self._keeper, patience=self._patience, metrics=self._site.metrics)
        found = _Run(record, live)
        if row.state == "going":
            found.task = self._engine.submit(self._keep_alive(live, run))
        return found

    async def _keep_alive(self, live: LiveRun, run: str) -> None:
        with logs.bound(run=run, study=live.record.manifest.study_id, request_id=logs.new_id(run)):
            while True:
                try:
                    await live.live()
                except LocalError as error:
                    return self._fail(run, str(error))
                except Exception as error:  # noqa: BLE001
                    # A disk that is full, say: nothing of the run is wrong, and nobody else would ever hear of it.
                    where = logs.frames(error)
                    logs.say(log, "interrupted", level=logging.ERROR, error=type(error).__name__, where=where)
                    await asyncio.sleep(AGAIN)

    def _sealed(self, study: str) -> Sealed:
        sealed = self._studies.sealed(study)
        if sealed is None:
            raise Problem(Kind.NOT_READY, "the inputs of this study are not sealed here")
        return sealed

    def _attestation(self, run: str) -> Signed[Attestation] | None:
        given = self._row(run).attestation
        return None if given is None else Signed[Attestation].model_validate_json(given)

    def _answered(self, run: str) -> int:
        with reading(self._database) as connection:
            count = select(func.count()).select_from(steps).where(steps.c.run == run, steps.c.answer.is_not(None))
            return connection.execute(count).scalar_one()

    def _row(self, run: str) -> Row[Any]:
        with reading(self._database) as connection:
            row = connection.execute(select(runs).where(runs.c.run == run)).first()
        if row is None:
            raise Problem(Kind.NOT_FOUND, f"there is no run {run} here")
        return row

    def _now(self) -> str:
        return self._site.instant()


def _counts_name(study: str, run: str) -> str:
    return f"{study}/{run}/counts"


def _charged(transaction: Connection, run: str, manifest: Manifest) -> int:
    """How many steps of a run were charged: COMPUTE ANSWERS, too, if it shows servers something of a join."""
    first = 1 if manifest.overlaps is None else 0
    charged = select(func.count()).select_from(steps).where(steps.c.run == run, steps.c.step >= first)
    return transaction.execute(charged).scalar_one()
