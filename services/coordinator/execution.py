"""One run, from the seal to the attestations: what the servers are asked, and how their answers are checked.

A request is recorded before it is sent, together with the answers that led to it. After a crash the loop is run again:
recorded steps are answered from the record, or by the servers as before; models are fitted again; and the loop must ask
exactly the same questions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from caps.basics import canonical
from caps.basics.retry import Backoff
from caps.dp.oracle import (
    Batch,
    Comparison,
    Compute,
    Integers,
    Measurement,
    Selection,
    StepRequest,
    request_digest,
)
from caps.dp.privacy import PrivacyStatement
from caps.errors import CapsError, DomainError
from caps.service import logs
from caps.service.metrics import Metrics
from caps.study import Manifest
from caps.wire import (
    Answer,
    Attestation,
    RunRequest,
    RunStatus,
    Seal,
    Signed,
    inputs_digest,
    request_to_json,
    transcript_digest,
)
from services.coordinator.algorithms import Outcome, Progress, Stage, algorithm
from services.coordinator.generate import create_estimator
from services.coordinator.servers import Misbehaved, Servers, Unavailable, agree, signed
from services.coordinator.states import RunEvent, State
from services.coordinator.store import News, Run, Store

PATIENCE = Backoff(first=0.5, longest=30.0)
"""Pauses between attempts to reach a party that is out of reach, which go on without end."""
_OWN_WORDS = frozenset({"server", "ledger", "at"})
_FOLLOWED = frozenset({Stage.COMPARE, Stage.SELECT, Stage.GENERATE})
"""Stages that the next request follows at once, taking their news along. After the others, a fit may take long."""
T = TypeVar("T")

log = logging.getLogger("caps.coordinator")


class RunFailed(CapsError):
    """The run can never go on. `party` is to blame, if anybody is."""

    def __init__(self, what: str, party: str | None = None) -> None:
        super().__init__(what)
        self.party = party


class Stopped(Exception):
    """The service is stopping; the run goes on when it starts again."""


@dataclass(frozen=True)
class Attested:
    """A run that has ended: its outcome, and the servers' attestations."""

    outcome: Outcome
    transcript: str
    attestations: tuple[Signed[Attestation], ...]
    statement: PrivacyStatement


class Execution:
    """Takes one run through its steps. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        servers: Servers,
        manifest: Manifest,
        run: Run,
        *,
        patience: Backoff,
        stop: Event,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._store = store
        self._servers = servers
        self._manifest = manifest
        self._run = run
        self._patience = patience
        self._stop = stop
        self._steps = {step.step: step for step in store.steps(run.run)}
        self._told = sum(event.kind == "progress" for event in store.events(run.run))
        self._reported = 0
        self._news = News()

    def perform(self) -> Attested:
        """Seal, begin, walk the algorithm to its end, have it attested. Raises RunFailed, Misbehaved, ServerRefused."""
        self._go_on()
        inputs, sealed = self._sealed()
        self._begin(inputs)
        contributors = [self._run.contributions[one] for one in sealed]
        oracle = ServersOracle(self, self._manifest, contributors, inputs)
        choice, task = self._manifest.algorithm, self._manifest.task
        estimator = create_estimator("kernel", task.domain, groups=self._manifest.absent_together)
        try:
            outcome = algorithm(choice.name, choice.parameters).run(task, oracle, estimator, self._report)
        except RunFailed:  # keep the record that shows why
            self._write_down()
            raise
        self._write_down()
        attestations = self._attested(inputs, sealed, oracle)
        statement = _statement(self._manifest, attestations[0].document)
        return Attested(outcome, oracle.transcript, tuple(attestations), statement)

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Try until every party that is needed is there. Between attempts the run waits, and says for which party."""
        retries, said = self._patience.begin(), None
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                with logs.bound(request_id=logs.new_id(self._run.run)):
                    result = attempt()
            except Unavailable as error:
                self._metrics.count("caps_retries", party=error.party)
                if said != (error.party, error.what):
                    logs.say(log, "waiting", party=error.party, reason=error.what)
                    said = error.party, error.what
                self._store.change_state(self._run.run, RunEvent.WAIT, party=error.party, reason=error.what)
                pause = retries.pause(asked=error.retry_after)
            else:
                if said is not None:
                    logs.say(log, "goes on", party=said[0])
                    self._go_on()
                return result
            self.pause(pause)

    def _go_on(self) -> None:
        record = self._store.run(self._run.run)
        if record is not None and record.state in (State.QUEUED, State.WAITING):
            self._store.change_state(self._run.run, RunEvent.PROCEED)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Stopped if the service stops in the meantime."""
        if self._stop.wait(seconds):
            raise Stopped

    def _sealed(self) -> tuple[str, tuple[str, ...]]:
        if self._run.inputs is not None:
            return self._run.inputs, self._run.sealed
        study, request = self._manifest.study_id, self._run.seal_request
        path, body = f"/v1/studies/{study}/seal", request.to_json()
        seals = self.patiently(lambda: self._documents(Seal, path, body))
        agree(seals, "seal", apart_from=frozenset({"server", "at"}))
        for seal in seals:
            if seal.document.server != seal.signer or seal.document.study != study:
                raise Misbehaved(seal.signer, "sealed something other than this study")
        seal = seals[0].document
        expected = inputs_digest(study, request.contributions)
        if seal.inputs != expected or sorted(seal.contributions) != sorted(request.contributions):
            raise RunFailed("the servers have sealed contributions other than those they were asked to seal")
        contributors = [self._run.contributions[one] for one in seal.contributions]
        if contributors != [one.name for one in self._manifest.holders if one.name in contributors]:
            raise RunFailed("the servers have sealed contributions in another order than the manifest's")
        self._store.seal(self._run.run, seal.inputs, seal.contributions)
        return seal.inputs, seal.contributions

    def _begin(self, inputs: str) -> None:
        body = RunRequest(study=self._manifest.study_id, inputs=inputs).to_json()
        self._request_run = body
        self.patiently(self._enter)

    def _enter(self) -> None:
        """Begin the run on all servers, or begin it again. Raises RunFailed if it has failed on one of them."""
        for reply in self._replies(f"/v1/runs/{self._run.run}", self._request_run):
            try:
                status = RunStatus.model_validate(reply.body)
            except ValidationError:
                raise Misbehaved(reply.server.name, "sent something other than the state of a run") from None
            if status.state == "failed":
                raise RunFailed(status.reason or "the run has failed there", reply.server.name)

    def obtain(self, step: int, digest: str, body: Mapping[str, Any]) -> list[Signed[Answer]]:
        """The servers' answers to a step, which must agree."""
        path, again = f"/v1/runs/{self._run.run}/steps/{step}", False

        def attempt() -> list[Signed[Answer]]:
            nonlocal again
            if again:  # a server that was away may have to connect to the others first
                self._enter()
            again = True
            return self._documents(Answer, path, body)

        answers = self.patiently(attempt)
        agree(answers, f"answer to step {step}")
        said = answers[0].document
        if (said.study, said.run, said.step) != (self._manifest.study_id, self._run.run, step):
            raise RunFailed(f"the servers answered something other than step {step} of this run")
        if said.request != digest:
            raise RunFailed(f"the servers answered a different request than the one sent for step {step}")
        return answers

    def step(self, step: int, request: StepRequest, digest: str) -> Answer:
        """The answer to a step, recorded or asked for now. Raises RunFailed if a different request is recorded."""
        record, body = self._steps.get(step), request_to_json(request)
        if record is None:
            self._store.add_step(self._run.run, step, body, digest, self._news)
            self._news = News()
        elif record.digest != digest:
            raise RunFailed(
                f"step {step}, repeated after a restart, differs from the recorded one: the software, or the machine "
                "it runs on, has changed"
            )
        elif record.answers:
            return record.answers[0].document
        started, kind = perf_counter(), request.kind
        with logs.bound(step=step):
            answers = self.obtain(step, digest, body)
            self._news.answers[step] = answers
            seconds = perf_counter() - started
            logs.say(log, "answered", kind=kind, seconds=round(seconds, 3))
        self._metrics.count("caps_steps", kind=kind)
        self._metrics.observe("caps_step_seconds", seconds, kind=kind)
        return answers[0].document

    def _report(self, progress: Progress) -> None:
        self._reported += 1
        if self._reported > self._told:  # the others were reported before a restart
            told = progress.view().model_dump(mode="json", exclude={"at"})
            if not self._manifest.publication.measurements:  # how far the model is from an answer tells of the answer
                told["error"] = None
            self._news.progress.append(told)
            if progress.stage not in _FOLLOWED or progress.fit_seconds is not None:
                self._write_down()

    def _write_down(self) -> None:
        if self._news:
            self._store.add_news(self._run.run, self._news)
            self._news = News()

    def _attested(self, inputs: str, sealed: tuple[str, ...], oracle: ServersOracle) -> list[Signed[Attestation]]:
        attestations = self._store.attestations(self._run.run)
        if attestations:
            return attestations
        path = f"/v1/runs/{self._run.run}/attestation"
        attestations = self.patiently(lambda: self._documents(Attestation, path, {}))
        agree(attestations, "attestation", apart_from=_OWN_WORDS)
        said = attestations[0].document
        expected = {
            "study": self._manifest.study_id,
            "inputs": inputs,
            "run": self._run.run,
            "transcript": oracle.transcript,
            "steps": oracle.position,
            "contributions": list(sealed),
            "holders": oracle.accepted,
            "refused": oracle.refused,
        }
        found = said.to_json()
        for name, value in expected.items():
            if found[name] != value:
                raise RunFailed(f"the servers' attestations differ from the coordinator's record: {name}")
        for attestation in attestations:
            if attestation.document.server != attestation.signer:
                raise Misbehaved(attestation.signer, "attests in another server's name")
        _statement(self._manifest, said)
        self._store.add_attestations(self._run.run, attestations)
        return attestations

    def _documents(self, document: type[Any], path: str, body: object) -> list[Signed[Any]]:
        return [signed(document, reply) for reply in self._replies(path, body)]

    def _replies(self, path: str, body: object) -> list[Any]:
        """All servers' replies to the same PUT, once none is still computing."""
        while True:
            replies = self._servers.ask_all(self._manifest, "PUT", path, body)
            pauses = [reply.pending for reply in replies if reply.pending is not None]
            if not pauses:
                return replies
            self.pause(min(pauses))


class ServersOracle:
    """The servers as the loop sees them. Steps are numbered in the order they are asked; COMPUTE ANSWERS is 0."""

    def __init__(self, execution: Execution, manifest: Manifest, contributors: Sequence[str], inputs: str) -> None:
        """`contributors`: the holders of the sealed contributions, in the servers' order."""
        self.layout = manifest.layout
        self.position = 0
        self.transcript = inputs
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self._execution = execution
        self._manifest = manifest
        self._contributors = contributors

    def answers(self) -> None:
        """See `Oracle.answers`. Raises RunFailed if servers refused contributions without which the run must stop."""
        value = self._ask(Compute()).value
        if not isinstance(value, tuple) or len(value) != len(self._contributors) or not {0, 1}.issuperset(value):
            raise RunFailed("the servers do not say for every contribution whether it is valid")
        judged = list(zip(self._contributors, value, strict=True))
        self.accepted = [holder for holder, valid in judged if valid]
        self.refused = [holder for holder, valid in judged if not valid]
        if stop := self._manifest.why_stop(self.accepted, self.refused):
            raise RunFailed(stop, ", ".join(self.refused))

    def compare(self, comparison: Comparison) -> Integers:
        """As Oracle.compare."""
        value = self._ask(comparison).value
        if not isinstance(value, tuple) or len(value) != len(comparison.candidates):
            raise RunFailed(f"the servers did not compare every candidate in {comparison.step}")
        return np.array(value, np.int64)

    def select(self, selection: Selection) -> int:
        """As Oracle.select."""
        value = self._ask(selection).value
        if isinstance(value, tuple) or not 0 <= value < len(selection.candidates):
            raise RunFailed(f"the servers selected none of the candidates in {selection.step}")
        return value

    def measure(self, measurement: Measurement) -> Integers:
        """As Oracle.measure."""
        value = self._ask(measurement).value
        if not isinstance(value, tuple) or len(value) != self.layout.sizes[self.layout.index(measurement.clique)]:
            raise RunFailed(f"the servers did not measure every cell in {measurement.step}")
        return np.array(value, np.int64)

    def measure_batch(self, batch: Batch) -> Integers:
        """As Oracle.measure_batch."""
        value = self._ask(batch).value
        if not isinstance(value, tuple) or len(value) != batch.draws(self.layout):
            raise RunFailed(f"the servers did not measure every cell in {batch.step}")
        return np.array(value, np.int64)

    def _ask(self, request: StepRequest) -> Answer:
        digest = request_digest(request).hex()
        answer = self._execution.step(self.position, request, digest)
        self.position += 1
        self.transcript = transcript_digest(self.transcript, digest, answer.digest())
        return answer


def _statement(manifest: Manifest, attestation: Attestation) -> PrivacyStatement:
    """The servers' statement of what was spent, which must stay within the manifest's budget."""
    try:
        statement = PrivacyStatement.from_json(canonical.dump(attestation.statement))
    except DomainError as error:
        raise RunFailed(f"the servers' privacy statement does not hold: {error}") from None
    privacy = manifest.privacy
    if statement.epsilon > privacy.exact_epsilon or statement.delta > privacy.exact_delta:
        raise RunFailed("the servers state a greater privacy loss than the study allows")
    if statement.neighbouring != manifest.neighbouring or statement.certified != manifest.algorithm.certified:
        raise RunFailed("the servers' privacy statement is about a different kind of privacy than the study's")
    return statement
