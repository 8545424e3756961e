"""All runs of a server: begun by a study's coordinator within the policy and the budget, and alive until they end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from fractions import Fraction
from threading import Lock
from typing import Any

from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError
from sqlalchemy import Engine, Row

from caps import __version__
from caps.basics.recent import Recent
from caps.dp.oracle import STEP_REQUEST, Compute, StepRequest, request_digest
from caps.dp.privacy import together
from caps.errors import CheatingDetected, party_name
from caps.service import logs
from caps.service.app import DOCUMENT_LIMIT
from caps.service.bodies import invalid, parsed
from caps.service.database import reading
from caps.service.identity import Caller
from caps.service.metrics import Reading
from caps.service.problems import Problem
from caps.service.site import Site, confirm, speaks_for
from caps.service.tokens import Scope
from caps.study import Manifest, Policy
from caps.study.manifest import MOST_KEPT
from caps.wire import Answer, Attestation, EvidenceRequest, RunRequest, RunStatus, Signed
from caps.wire.problems import Kind
from caps.wire.server import PopulationState
from caps.wire.steps import Extent, largest_request
from services.mpc_server.intake.studies import Studies
from services.mpc_server.runs.alive import AliveRuns, unknown
from services.mpc_server.runs.meters import Meter, epsilon_of, meter
from services.mpc_server.runs.record import Recorded, RunAborted, abort, charged
from services.mpc_server.runs.thread import EngineThread
from services.mpc_server.storage import states
from services.mpc_server.storage.heads import Heads
from services.mpc_server.storage.ledger import Ledger, LedgerBroken
from services.mpc_server.storage.rows import runs as rows

log = logging.getLogger("caps.runs")

WAIT = 10.0
"""Seconds that a request for a step is held open before the caller is told to ask again."""


@dataclass(frozen=True)
class ListedRun:
    """A run in a list."""

    run: str
    study: str
    state: str
    reason: str | None
    at: str


class Runs:
    """What a coordinator can do with runs. Methods are called from the threads of the REST interface."""

    def __init__(
        self,
        site: Site,
        policy: Policy,
        database: Engine,
        ledger: Ledger,
        studies: Studies,
        engine: EngineThread,
        alive: AliveRuns,
        heads: Heads,
    ) -> None:
        self._site = site
        self._policy = policy
        self._database = database
        self._ledger = ledger
        self._studies = studies
        self._engine = engine
        self._alive = alive
        self._heads = heads
        self._ending = Lock()
        self._extents: Recent[str, Extent] = Recent(MOST_KEPT)

    def resume(self) -> None:
        """Bring every run that has not ended back to life. Raises LedgerBroken if the record cannot be trusted."""
        try:
            self._ledger.verify()
            self._heads.verify()
        except LedgerBroken as error:
            logs.say(log, "the ledger cannot be trusted", level=logging.CRITICAL, reason=str(error))
            raise
        self._alive.resume()

    def figures(self) -> Iterator[Reading]:
        """For the operator: runs by state; for runs under way, steps, rounds, bytes, and which party they wait for."""
        with reading(self._database) as connection:
            counted, going = rows.counted(connection), {row.run: row for row in rows.going(connection)}
        for state, count in counted.items():
            yield Reading("caps_runs", count, (state.value,))
        for run, found in self._alive.all().items():
            if run not in going:
                continue
            rounds, sent = found.live.traffic
            yield Reading("caps_run_steps", found.record.answered, (run,))
            yield Reading("caps_run_rounds", rounds, (run,))
            yield Reading("caps_run_sent_bytes", sent, (run,))
            if (trouble := found.live.trouble) is not None:
                yield Reading("caps_run_waiting", 1, (run, party_name(trouble.party)))
        for run, row in going.items():
            if self._alive.is_foreign(row):
                yield Reading("caps_run_waiting", 1, (run, self._site.name))

    def begin(self, run: str, asked: RunRequest, caller: Caller) -> RunStatus:
        """Reserve the study's budget for a run, once, and connect with the peers."""
        self._heads.require_sound()
        manifest = self._studies.manifest(asked.study)
        confirm(caller, manifest.coordinator)
        sealed = self._alive.sealed(asked.study)
        if sealed.inputs != asked.inputs:
            raise Problem(Kind.CONFLICT, "different inputs are sealed here than the run asks for")
        objections = [*self._policy.judge(manifest), *self._site.denials.objections(manifest.parties)]
        if objections:
            raise Problem(Kind.POLICY_REFUSED, objections[0], objections=objections)
        with self._database.begin() as transaction:
            row = rows.find(transaction, run)
            if row is None:
                self._studies.require_sealed(transaction, asked.study, asked.inputs)
                begun = rows.of_study(transaction, asked.study)
                for earlier in begun:
                    if earlier.state == states.Run.ABORTED:
                        raise self._aborted(earlier.run)
                    if charged(transaction, earlier.run, manifest) or earlier.state != states.Run.FAILED:
                        raise Problem(Kind.BUDGET_EXCEEDED, f"run {earlier.run} already has this study's budget")
                if len(begun) >= self._policy.most_runs:
                    objection = (
                        f"{len(begun)} runs of this study were begun and given up, as many as may be (most_runs)"
                    )
                    raise Problem(Kind.POLICY_REFUSED, objection, objections=[objection])
                limit = self._policy.population_budget(manifest.privacy.population)
                assert limit is not None  # or the policy would have objected
                self._ledger.reserve(
                    transaction, run, manifest, manifest.reservation, limit=limit, at=self._site.instant()
                )
                rows.add(transaction, run, asked.study, asked.inputs, self._alive.build_for(manifest))
            elif (row.study, row.inputs) != (asked.study, asked.inputs):
                raise Problem(Kind.CONFLICT, "a different run already has this id")
        return self._status(run)

    def budget(self, study: str, caller: Caller) -> PopulationState:
        """What the study's population has left here, for whoever takes part in the study or oversees this server."""
        manifest = self._studies.show_to(study, caller)
        population, own = manifest.privacy.population, manifest.reservation
        limit = self._policy.population_budget(population)
        taken = self._ledger.taken().get(population, [])
        total, delta = together(taken), Fraction(repr(self._policy.population_delta))
        left = Fraction(0) if limit is None else limit.left(taken, own.neighbouring, own.allowance)
        return PopulationState(
            server=self._site.name,
            population=population,
            epsilon=None if limit is None else float(limit.epsilon),
            delta=float(delta),
            used=epsilon_of(total.rho, total.allowance, delta) if taken else 0.0,
            left=(epsilon_of(left, own.allowance, delta) or 0.0) if left else 0.0,
        )

    def populations(self) -> list[Meter]:
        """What each population may cost, what is spent and set aside of it, and what is left, on this server."""
        standing = self._ledger.standing()
        names = sorted({*self._policy.populations, *(name for name, taken in standing.items() if taken)})
        with reading(self._database) as connection:
            going = {row.run for row in rows.going(connection)}
        return [meter(name, standing.get(name, {}), going, self._policy) for name in names]

    def listed(self) -> list[ListedRun]:
        """All runs, the newest first: with their studies, states, and when they began."""
        begun = self._ledger.begun()
        with reading(self._database) as connection:
            found = {row.run: row for row in rows.listed(connection)}
        return [
            ListedRun(run, found[run].study, found[run].state, found[run].reason, at)
            for run, at in reversed(begun.items())
            if run in found
        ]

    def _known(self, run: str, caller: Caller, *scopes: Scope) -> tuple[Row[Any], Manifest]:
        """A run and its study, for the study's coordinator and for people of this server with one of these scopes.

        To other coordinators it does not exist: they get the same problem as for a run that nobody began.
        """
        row = self._alive.row(run)
        manifest = self._studies.manifest(row.study)
        is_person = caller.person is not None and not caller.person.scopes.isdisjoint(scopes)
        if not is_person and not speaks_for(caller, manifest.coordinator):
            raise unknown(run)
        return row, manifest

    def status(self, run: str, caller: Caller) -> RunStatus:
        """The state of a run."""
        self._known(run, caller, Scope.OPERATOR, Scope.AUDITOR)
        return self._status(run)

    def _status(self, run: str) -> RunStatus:
        row = self._alive.row(run)
        state, reason, party, traffic = row.state, row.reason, None, self._alive.traffic(run)
        going, foreign = state == states.Run.GOING, self._alive.is_foreign(row)
        if foreign or not going:  # what it was asked is not read again: nothing is due
            if going:
                state, reason, party = "waiting", self._alive.why_foreign(row), self._site.name
            due = "nothing by this build" if foreign else "nothing"
            with reading(self._database) as connection:
                position = rows.answered(connection, run)
        else:
            found = self._alive.get(run)
            record, trouble = found.record, found.live.trouble
            if trouble is not None:
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
            interrupted=row.interrupted,
            evidence=tuple(self._ledger.evidence(run)),
        )

    def step_length(self, run: str, caller: Caller) -> int:
        """The most bytes of a step's request. Raises a problem if the caller may not send one."""
        return self._largest(self._known(run, caller)[1]).bytes

    def evidence_length(self, run: str, caller: Caller) -> int:
        """The most bytes of evidence. Raises a problem if the caller may not send any."""
        self._known(run, caller)
        return DOCUMENT_LIMIT

    def _largest(self, manifest: Manifest) -> Extent:
        known = self._extents.find(manifest.study_id)
        return known or self._extents.keep(manifest.study_id, largest_request(manifest))

    async def answer_to(self, run: str, number: int, body: bytes, caller: Caller) -> Signed[Answer] | None:
        """The answer to a step's request, from the record or computed now; None if it is still being computed.

        While it waits it holds no thread: there may be many who wait.
        """
        found = await run_in_threadpool(self._asked, run, number, body, caller)
        if isinstance(found, Signed):
            return found
        try:
            async with asyncio.timeout(WAIT):
                answer = (await asyncio.wrap_future(found)).answer
        except TimeoutError:
            return None
        except (CheatingDetected, RunAborted):
            raise await run_in_threadpool(self._aborted, run) from None
        await run_in_threadpool(self._alive.stop, run)
        return answer

    def _asked(self, run: str, number: int, body: bytes, caller: Caller) -> Signed[Answer] | Future[Recorded]:
        """The recorded answer to a step's request, or else what will come to know it."""
        row, manifest = self._known(run, caller)
        request = _request(body, self._largest(manifest).elements)
        self._alive.require_own(row)
        self._heads.require_sound()
        found = self._alive.get(run)
        if isinstance(request, Compute) != (number == 0):
            raise Problem(Kind.NOT_DUE, "step 0 must be the request to compute the answers, and no other step may be")
        digest = request_digest(request).hex()
        recorded = found.record.find(number, digest)
        if recorded is not None and recorded.answer is not None:
            self._alive.stop(run)
            return recorded.answer
        row = self._alive.row(run)
        if row.state == states.Run.ABORTED:
            raise self._aborted(run)
        if not found.keeps_a_session and row.state != states.Run.GOING:
            failed = f"failed: {row.reason}" if row.state == states.Run.FAILED else "ended"
            raise Problem(Kind.CONFLICT, f"the run has {failed}")
        return self._engine.submit(found.live.ask(number, request, digest))

    def take_evidence(self, run: str, given: EvidenceRequest, caller: Caller) -> RunStatus:
        """Keep what other servers signed about a run, which is over with it; the status shows all evidence kept here.

        Only evidence is passed on: a run ends on a server's signed word, but no contribution is refused on it.
        """
        _, manifest = self._known(run, caller)
        for evidence in given.evidence:
            document = evidence.verify(manifest.server(evidence.signer))
            if document.server != evidence.signer:
                raise Problem(Kind.INVALID, "a server gives evidence in its own name only")
            document.matches(manifest, run)
        with self._ending:
            with self._database.begin() as transaction:
                over = [abort(transaction, self._ledger, manifest, one, self._site.instant()) for one in given.evidence]
            if any(over):
                self._alive.let_go(run, manifest.study_id, aborted=True)
        return self._status(run)

    def _aborted(self, run: str) -> Problem:
        """The problem that answers every request to go on with an aborted run."""
        evidence = self._ledger.evidence(run)
        detail = "; ".join(one.document.words for one in evidence)
        return Problem(Kind.ABORTED, f"run {run} was aborted: {detail}", evidence=[one.to_json() for one in evidence])

    def recorded_answer(self, run: str, number: int, caller: Caller) -> Signed[Answer]:
        """The recorded answer to a step: for the coordinator at any time, for auditors once it may be published."""
        row, manifest = self._known(run, caller, Scope.AUDITOR)
        if not speaks_for(caller, manifest.coordinator):
            if not manifest.publication.measurements:
                raise Problem(Kind.FORBIDDEN, "the study's manifest forbids publishing the answers", run=run)
            if row.state == states.Run.GOING:
                raise Problem(Kind.NOT_READY, "answers are published when the run has ended", run=run)
            if row.state != states.Run.ENDED:
                raise Problem(Kind.FORBIDDEN, f"the run is {row.state}, so its answers are not published", run=run)
        with reading(self._database) as connection:
            answer = rows.answer(connection, run, number)
        if answer is None:
            raise Problem(Kind.NOT_FOUND, f"step {number} has no answer yet")
        return Signed[Answer].model_validate_json(answer)

    def attest(self, run: str, caller: Caller) -> Signed[Attestation]:
        """This server's attestation of a run that has ended."""
        row, manifest = self._known(run, caller)
        if (attested := self._attestation(run)) is not None:
            return attested
        self._alive.require_own(row)
        record = self._alive.get(run).record
        with self._ending:
            if (attested := self._attestation(run)) is not None:
                return attested
            if (row := self._alive.row(run)).state == states.Run.ABORTED:
                raise self._aborted(run)
            if row.state == states.Run.FAILED:
                raise Problem(Kind.CONFLICT, f"the run has failed: {row.reason}")
            if not record.account.ended:
                raise Problem(Kind.NOT_READY, f"the run has not ended yet; due: {record.account.due}")
            sealed = self._alive.sealed(manifest.study_id)
            document = Attestation(
                study=manifest.study_id,
                inputs=record.inputs,
                run=run,
                server=self._site.name,
                transcript=record.transcript(),
                steps=len(record.steps),
                contributions=tuple(contribution.digest() for contribution in sealed.contributions),
                holders=record.account.accepted,
                refused=record.account.refused,
                statement=json.loads(record.account.statement().to_json()),
                ledger=self._ledger.range_of(run),
                software=f"caps {__version__} (build {self._alive.build_for(record.manifest)})",
                at=self._site.instant(),
            )
            signed = Signed[Attestation].by(document, self._site.name, self._site.signing_key)
            record.end(signed.model_dump_json(), self._site.instant())
            self._alive.let_go(run, manifest.study_id)
            return signed

    def abandon(self, run: str, caller: Caller) -> RunStatus:
        """The coordinator abandons a run: what it charged is spent, what it did not charge is given back."""
        _, manifest = self._known(run, caller)
        with self._ending:
            if self._alive.row(run).state == states.Run.GOING:
                with self._database.begin() as transaction:
                    if not charged(transaction, run, manifest):
                        self._ledger.release(transaction, run, manifest, self._site.instant())
                    rows.change(transaction, run, states.RunEvent.FAIL, reason="abandoned by the coordinator")
            self._alive.let_go(run, manifest.study_id)
        return self._status(run)

    def _attestation(self, run: str) -> Signed[Attestation] | None:
        given = self._alive.row(run).attestation
        return None if given is None else Signed[Attestation].model_validate_json(given)


def _request(body: bytes, elements: int) -> StepRequest:
    try:
        return STEP_REQUEST.validate_python(parsed(body, elements=elements))
    except ValidationError as error:
        raise invalid(error) from None
