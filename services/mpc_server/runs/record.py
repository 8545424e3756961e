"""What a server has recorded about a run: requests, charges, answers. All that is needed to go on after a crash.

Steps are numbered from 0, which is COMPUTE ANSWERS. A step's request is written with its charge, in one transaction,
and never changes; its answer is written once. The state of the run, its `Account`, follows from these alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, Engine, select, update

from caps.basics import canonical
from caps.dp.bounds import MOST_SESSIONS
from caps.dp.oracle import Compute, StepRequest
from caps.errors import DomainError, LocalError, NotDue
from caps.service.database import reading
from caps.study import Manifest
from caps.study.account import Account
from caps.wire import Answer, Evidence, Signed, request_from_json, request_to_json, transcript_digest
from services.mpc_server.storage import states
from services.mpc_server.storage.ledger import FREE, Ledger
from services.mpc_server.storage.rows.runs import change as change_run
from services.mpc_server.storage.rows.runs import count_interrupted, interrupted, steps_from
from services.mpc_server.storage.tables import runs, steps


class RunAborted(LocalError):
    """A server deviates from the protocol: the run is over, and its record says which two are in question."""


class RequestChanged(LocalError):
    """A different request than the one recorded for this step: a step's request never changes."""


@dataclass(frozen=True)
class Recorded:
    """A step as written down."""

    number: int
    request: StepRequest
    digest: str
    answer: Signed[Answer] | None


class Record:
    """One run's part of the database, and what follows from it."""

    def __init__(
        self,
        database: Engine,
        ledger: Ledger,
        manifest: Manifest,
        run: str,
        inputs: str,
        holders: Sequence[str],
        *,
        least_holders: int = 1,
    ) -> None:
        """`holders` and `least_holders`: see `caps.study.account.Account`."""
        self._database = database
        self._ledger = ledger
        self.manifest = manifest
        self.run = run
        self.inputs = inputs
        self.account = Account(manifest, holders, least_holders=least_holders)
        self.steps: list[Recorded] = []
        self.aborted = False
        """Whether this process has recorded evidence that ends the run."""
        with reading(database) as connection:
            for row in connection.execute(select(steps).where(steps.c.run == run).order_by(steps.c.step)):
                request = Compute() if row.request == FREE else request_from_json(json.loads(row.request))
                self.account.charge(self.account.check(request))
                answer = None if row.answer is None else Signed[Answer].model_validate_json(row.answer)
                if answer is not None:
                    self.account.answered(answer.document.value)
                self.steps.append(Recorded(row.step, request, row.digest, answer))

    @property
    def answered(self) -> int:
        """How many steps have answers."""
        return len(self.steps) - (self.steps != [] and self.steps[-1].answer is None)  # no step begins before that

    def head(self, count: int) -> bytes:
        """A digest over the requests of the first `count` steps; equal on all servers that recorded the same."""
        head = self.inputs
        for step in self.steps[:count]:
            head = transcript_digest(head, step.digest, "")
        return bytes.fromhex(head)

    def transcript(self) -> str:
        """The digest over all requests and answers."""
        head = self.inputs
        for step in self.steps:
            assert step.answer is not None
            head = transcript_digest(head, step.digest, step.answer.document.digest())
        return head

    def find(self, number: int, digest: str) -> Recorded | None:
        """The step as written down; None if it is the next one. Raises RequestChanged or NotDue otherwise."""
        if number < len(self.steps):
            if self.steps[number].digest != digest:
                raise RequestChanged(f"step {number} was recorded with a different request")
            return self.steps[number]
        if number > len(self.steps) or number > self.answered:
            raise NotDue(f"step {self.answered} is due, but step {number} was asked for")
        return None

    def write(self, number: int, request: StepRequest, digest: str, at: str) -> Recorded:
        """Record a step and charge the ledger for it, in one transaction."""
        if number != len(self.steps):
            raise DomainError(f"step {number} is not the next step")
        admission = self.account.check(request)
        text = FREE if admission.entry is None else canonical.dump(request_to_json(request)).decode()
        with self._database.begin() as transaction:
            # Checked here, not earlier: a run abandoned in the meantime may have had its reservation released.
            if transaction.execute(select(runs.c.state).where(runs.c.run == self.run)).scalar_one() != states.Run.GOING:
                raise LocalError("the run has ended")
            transaction.execute(steps.insert().values(run=self.run, step=number, request=text, digest=digest))
            if admission.entry is not None:
                self._ledger.charge(
                    transaction,
                    self.run,
                    self.manifest.study_id,
                    number,
                    digest,
                    admission.entry,
                    self.manifest.task.neighbouring,
                    at,
                )
        self.account.charge(admission)
        self.steps.append(Recorded(number, request, digest, None))
        return self.steps[-1]

    def answer(self, number: int, answer: Signed[Answer], acknowledgements: Mapping[str, str]) -> Recorded:
        """Record the answer to a step, with the peers' signatures on its charge.

        Raises LocalError if it was answered differently before.
        """
        step = self.steps[number]
        if step.answer is not None:
            if step.answer.document != answer.document:
                raise LocalError(f"step {number} was given a different answer before")
            return step
        signatures = canonical.dump(dict(acknowledgements)).decode()
        changed = update(steps).where(steps.c.run == self.run, steps.c.step == number)
        with self._database.begin() as transaction:
            transaction.execute(changed.values(answer=answer.model_dump_json(), acknowledgements=signatures))
        self.steps[number] = Recorded(number, step.request, step.digest, answer)
        self.account.answered(answer.document.value)
        return self.steps[number]

    def require_sessions(self) -> None:
        """Raises LocalError if no further session may compute, because too many ended in the middle of it."""
        with reading(self._database) as connection:
            count = interrupted(connection, self.manifest.study_id)
        if self.manifest.sharing.active and count >= MOST_SESSIONS:
            raise LocalError(
                f"{count} sessions of this study ended in the middle of a computation: a server that ends them before "
                "it is judged must not be able to try again and again"
            )

    def count_session(self, more: int) -> None:
        """Count a session as interrupted before it computes (1), and take that back if it was not (-1)."""
        if self.manifest.sharing.active:
            with self._database.begin() as transaction:
                count_interrupted(transaction, self.run, more)

    def abort(self, evidence: Signed[Evidence], at: str) -> None:
        """End the run for good, because of evidence."""
        with self._database.begin() as transaction:
            self.aborted = abort(transaction, self._ledger, self.manifest, evidence, at)

    def end(self, attestation: str, at: str) -> None:
        """Close the run."""
        with self._database.begin() as transaction:
            self._ledger.close(transaction, self.run, self.manifest.study_id, self.account.filter.spent, at)
            change_run(transaction, self.run, states.RunEvent.END, attestation=attestation)


def abort(within: Connection, ledger: Ledger, manifest: Manifest, evidence: Signed[Evidence], at: str) -> bool:
    """Within a transaction: keep a server's evidence and end its run for good. Returns whether the run is aborted.

    What was charged stays charged; what was only reserved is given back if nothing was charged. A run that is over for
    another reason stays as it is, with the evidence beside it.
    """
    run = evidence.document.run
    ledger.abort(within, evidence, at)
    state = within.execute(select(runs.c.state).where(runs.c.run == run)).scalar_one()
    if state == states.Run.GOING:
        if not charged(within, run, manifest):
            ledger.release(within, run, manifest, at)
        change_run(within, run, states.RunEvent.ABORT, reason=evidence.document.words)
        return True
    return bool(state == states.Run.ABORTED)


def charged(within: Connection, run: str, manifest: Manifest) -> int:
    """How many steps of a run were charged, including COMPUTE ANSWERS if it shows servers something of a join."""
    return steps_from(within, run, 1 if manifest.overlaps is None else 0)


def value_of(opened: int | np.ndarray) -> int | tuple[int, ...]:
    """An opened value as an answer carries it."""
    return int(opened) if np.ndim(opened) == 0 else tuple(int(x) for x in np.asarray(opened))
