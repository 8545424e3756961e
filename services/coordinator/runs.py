"""Runs: starting them, resuming them after a restart, and reporting how far they are. One thread for each."""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Any

from pydantic import ValidationError

from caps.basics.retry import LONGEST_ASKED, Backoff
from caps.errors import CapsError
from caps.service import logs
from caps.service.metrics import Metrics, Reading
from caps.service.problems import Problem
from caps.service.supervision import Supervisor
from caps.study import Manifest
from caps.wire import RunStatus, SealRequest
from caps.wire.coordinator import Judged, ServerRunView
from caps.wire.problems import Kind
from services.coordinator.algorithms import Stage
from services.coordinator.evidence import exchange, in_words, tells_of_abort
from services.coordinator.execution import PATIENCE, Attested, Execution, RunFailed, Stopped
from services.coordinator.publish import Publisher
from services.coordinator.servers import ServerError, ServerRefused, Servers, Unavailable
from services.coordinator.states import ENDED, RunEvent, State
from services.coordinator.store import Run, Store
from services.coordinator.studies import HOLDER, SERVER, Studies

_ATTEND_EVERY = 10.0
_MEASURED = frozenset({Stage.INITIAL, Stage.MEASURE})

log = logging.getLogger("caps.coordinator")


@dataclass(frozen=True)
class Position:
    """How far a run is. `percent` is the part of the privacy budget spent, all of which every algorithm spends.

    fit_seconds: if a model was about to be fitted at the last report, about how long that takes in all.
    """

    percent: float
    round: int | None
    stage: str | None
    measured: tuple[tuple[str, ...], ...]
    model_bytes: int | None
    fit_seconds: float | None
    steps: int


class Runs:
    """All runs of this coordinator."""

    def __init__(
        self,
        store: Store,
        studies: Studies,
        servers: Servers,
        publisher: Publisher,
        *,
        patience: Backoff = PATIENCE,
        metrics: Metrics | None = None,
    ) -> None:
        self._metrics = metrics or Metrics()
        self._supervisor = Supervisor(self._metrics)
        self._store = store
        self._studies = studies
        self._servers = servers
        self._publisher = publisher
        self._patience = patience
        self._stop = Event()
        self._lock = Lock()
        self._threads: dict[str, Thread] = {}
        self._untold: dict[str, set[str]] = {}
        """For each aborted run, the servers that may lack evidence of the others."""
        self._attendant: Thread | None = None

    @property
    def stopping(self) -> bool:
        """Whether the service is stopping."""
        return self._stop.is_set()

    def open(self) -> None:
        """Resume unfinished runs, and keep asking servers that have not judged a study yet."""
        for run in self._store.runs():
            if run.state not in ENDED:
                self._spawn(run.run)
            elif self._store.evidence(run.run):
                self._untold[run.run] = set(self._studies.manifest(run.study).sharing.server_names)
        self._attendant = self._supervisor.thread("attendant", self._attend, stopping=self._stop)

    def close(self) -> None:
        """Stop at the next step boundary. Unfinished runs go on after the next start."""
        self._stop.set()
        threads = [*self._threads.values(), *([self._attendant] if self._attendant else [])]
        for thread in threads:
            thread.join(10)

    def start(self, study: str, holders: tuple[str, ...] | None = None) -> tuple[Run, bool]:
        """Begin a run on what all servers hold, or only what these holders gave. Also returns whether it is new."""
        with self._lock:
            earlier = self._store.runs(study)
            if earlier and earlier[-1].state not in ENDED:
                return earlier[-1], False
            if any(self._store.evidence(run.run) for run in earlier):
                _, said = in_words([one for run in earlier for one in self._store.evidence(run.run)])
                raise Problem(Kind.ABORTED, f"a run of this study was aborted: {said}", study=study)
            if any(run.state is State.RELEASED for run in earlier):
                raise Problem(Kind.CONFLICT, "the study is already released; its budget covers one", study=study)
            sealed = next((run for run in reversed(earlier) if run.inputs is not None), None)
            if sealed is not None:  # inputs are final: another attempt uses the same
                contributions, request = dict(sealed.contributions), sealed.seal_request
            else:
                contributions, request = self._gathered(study, holders)
            run = secrets.token_hex(16)
            self._store.add_run(run, study, contributions, request)
        self._spawn(run)
        begun = self._store.run(run)
        assert begun is not None
        return begun, True

    def run(self, run: str) -> Run:
        """A run. Raises Problem if there is no such run."""
        found = self._store.run(run)
        if found is None:
            raise Problem(Kind.NOT_FOUND, "this coordinator has no such run", run=run)
        return found

    def position(self, run: str) -> Position:
        """How far a run is, according to its reports."""
        told = [event.body for event in self._store.events(run) if event.kind == "progress"]
        measured = tuple(tuple(one["clique"]) for one in told if one["stage"] in _MEASURED)
        sizes = [one["model_bytes"] for one in told if one["model_bytes"] is not None]
        last: Mapping[str, Any] = told[-1] if told else {"rho": 1.0, "rho_spent": 0.0, "round": None, "stage": None}
        return Position(
            round(100 * last["rho_spent"] / last["rho"], 2),
            last["round"],
            last["stage"],
            measured,
            sizes[-1] if sizes else None,
            last.get("fit_seconds"),
            self._store.answered(run),
        )

    def at_servers(self, run: str) -> list[ServerRunView]:
        """A run as each of its servers sees it, asked now."""
        manifest = self._studies.manifest(self.run(run).study)
        replies = self._servers.ask_each(manifest, "GET", f"/v1/runs/{run}")
        found = []
        for server, reply in zip(manifest.servers, replies, strict=True):
            if isinstance(reply, ServerError):
                found.append(ServerRunView(server=server.name, problem=reply.what))
                continue
            try:
                said = RunStatus.model_validate(reply.body).model_dump(exclude={"run", "study", "inputs", "evidence"})
            except ValidationError:
                said = {"problem": "sent something other than the state of a run"}
            found.append(ServerRunView(server=server.name, **said))
        return found

    def refused(self, run: Run) -> list[str]:
        """The holders whose contributions the servers refused, according to the answer to step 0."""
        first = next(self._store.steps(run.run), None)
        value = first.answers[0].document.value if first is not None and first.answers else ()
        if isinstance(value, int) or len(value) != len(run.sealed):
            return []
        return sorted(run.contributions[one] for one, valid in zip(run.sealed, value, strict=True) if not valid)

    def figures(self) -> Iterator[Reading]:
        """For the operator: runs by state, which parties they wait for, and how far they are."""
        found = self._store.runs()
        states = Counter(run.state for run in found)
        yield Reading("caps_studies", len(self._store.studies()), ("known",))
        for state in State:
            yield Reading("caps_runs", states[state], (state,))
        for run in found:
            if run.state not in ENDED:
                if run.state is State.WAITING:
                    yield Reading("caps_run_waiting", 1, (run.run, run.party or "-"))
                yield Reading("caps_run_steps", self._store.answered(run.run), (run.run,))

    def perform(self, run: str) -> None:
        """Take a run to its end, in this thread. Raises Stopped if the service stops first."""
        record = self.run(run)
        if record.state in ENDED:
            return
        manifest = self._studies.manifest(record.study)
        for earlier in self._store.runs(record.study):
            if earlier.state is State.FAILED:
                self._abandon(earlier)
        execution = Execution(
            self._store,
            self._servers,
            manifest,
            record,
            patience=self._patience,
            stop=self._stop,
            metrics=self._metrics,
        )
        logs.say(log, "run taken up", state=record.state)
        try:
            attested = execution.perform()
            self._store.change_state(run, RunEvent.PUBLISH)
            execution.patiently(lambda: self._publish(run, attested))
            logs.say(log, "released")
        except Stopped:
            raise
        except RunFailed as error:
            self._fail(run, str(error), error.party)
        except ServerRefused as error:
            if tells_of_abort(error):
                self._abort(run, manifest, error)
            else:
                self._fail(run, error.what, error.party)
        except ServerError as error:
            self._fail(run, error.what, error.party)
        except CapsError as error:
            self._fail(run, str(error), None)
        except Exception as error:  # noqa: BLE001  a run that cannot go on must say so, and where, but quote no value
            if self.stopping:  # its connections are being closed
                raise Stopped from None
            self._supervisor.notice("run", error)
            self._fail(run, f"unexpected {type(error).__name__}; the coordinator's log says where", None)

    def _publish(self, run: str, attested: Attested) -> None:
        try:
            self._publisher.publish(run, attested)
        except OSError as error:
            raise Unavailable(self._publisher.name, f"cannot write the release ({error.strerror})") from None

    def _gathered(self, study: str, holders: tuple[str, ...] | None) -> tuple[dict[str, str], SealRequest]:
        manifest = self._studies.manifest(study)
        judged = self._store.judgements(study)
        missing = [name for name, one in judged.items() if one.state is not Judged.APPROVED]
        if missing:
            raise Problem(Kind.NOT_READY, f"{', '.join(missing)} must approve the study first", missing=missing)
        participation = self._studies.participation(study)
        for server, why in participation.unreached.items():
            raise Problem(Kind.PEER_FAILED, f"{server} {why}", party=server)
        complete = {
            part.holder: part.contribution for part in participation.parts if part.approved and part.contribution
        }
        wanted = sorted(complete) if holders is None else sorted(set(holders))
        absent = [name for name in wanted if name not in complete]
        if absent or not wanted:
            detail = (
                f"{', '.join(absent)} must approve and contribute first" if absent else "nobody has contributed yet"
            )
            raise Problem(Kind.NOT_READY, detail, missing=absent or [holder.name for holder in manifest.holders])
        lacking = manifest.columns_lacking(wanted)
        if lacking:
            detail = f"nobody has contributed the columns {', '.join(lacking)} yet"
            raise Problem(Kind.NOT_READY, detail, columns=lacking)
        approvals = self._store.approvals(study)
        signers = [(SERVER, server.name) for server in manifest.servers] + [(HOLDER, name) for name in wanted]
        contributions = {complete[name]: name for name in wanted}
        request = SealRequest(
            contributions=tuple(sorted(contributions)), approvals=tuple(approvals[signer] for signer in signers)
        )
        return contributions, request

    def _fail(self, run: str, reason: str, party: str | None) -> None:
        logs.say(log, "failed", level=logging.ERROR, party=party, reason=reason)
        self._store.change_state(run, RunEvent.FAIL, party=party, reason=reason)
        self._abandon(self.run(run))

    def _abort(self, run: str, manifest: Manifest, refusal: ServerRefused) -> None:
        """End a run that a server aborted, with all evidence that servers gave. Those out of reach are told later."""
        self._untold[run] = exchange(self._store, self._servers, manifest, run)
        evidence = self._store.evidence(run)
        if evidence:
            party, said = in_words(evidence)
            self._fail(run, said, party)
        else:
            self._fail(run, "says that the run was aborted, but gives no evidence that holds", refusal.party)

    def _abandon(self, run: Run) -> None:
        """Have the servers give back what a failed run did not charge. One out of reach is told before the next run."""
        manifest = self._studies.manifest(run.study)
        for reply in self._servers.ask_each(manifest, "DELETE", f"/v1/runs/{run.run}"):
            if isinstance(reply, ServerError):
                log.info(json.dumps({"run": run.run, "abandoned": False, "party": reply.party}))

    def _spawn(self, run: str) -> None:
        def work() -> None:
            record = self._store.run(run)
            with logs.bound(run=run, study=None if record is None else record.study):
                self._work(run)

        self._threads = {one: thread for one, thread in self._threads.items() if thread.is_alive()}
        self._threads[run] = self._supervisor.thread("run", work, name=f"run-{run[:8]}", stopping=self._stop)

    def _work(self, run: str) -> None:
        try:
            self.perform(run)
        except Stopped:
            logs.say(log, "stopped")

    def _attend(self) -> None:
        """Ask servers again that were out of reach or whose operators had not decided."""
        pause = _ATTEND_EVERY
        while not self._stop.wait(pause):
            pause = _ATTEND_EVERY
            for run in [run for run, servers in self._untold.items() if servers]:
                manifest = self._studies.manifest(self.run(run).study)
                self._untold[run] = exchange(self._store, self._servers, manifest, run)
            for study in self._store.unjudged():
                try:
                    pause = max(pause, min(self._studies.refresh(study), LONGEST_ASKED))
                except CapsError as error:
                    log.warning(json.dumps({"study": study, "error": type(error).__name__}))
