"""The account of a run: what it has been charged so far, and what may be requested next.

It follows from the manifest, the contributors, the requests and the answers alone. So a server keeps it during a run
and rebuilds it from its record after a crash, and anyone with a release's transcript can rebuild it too
(`caps.audit.verification`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from caps.dp.enforce import Enforcer
from caps.dp.oracle import Batch, Comparison, Compute, Selection, StepRequest
from caps.dp.privacy import Entry, Filter, PrivacyStatement
from caps.errors import DomainError, NotDue
from caps.study.manifest import Manifest

Value = int | tuple[int, ...]
"""What a step opens, in the form of `Answer.value`."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A step that is due and affordable: its request, what it is charged, and what may follow it."""

    request: StepRequest
    entry: Entry | None
    enforcer: Enforcer


class Account:
    """Works step by step: `check` says what a request costs, `charge` charges it, `answered` notes what it opened.

    Step 0, COMPUTE ANSWERS, is charged for what servers see of a join, if anything. Its answer says which contributions
    passed the servers' checks; if the agreement does not allow the run to go on without the others, nothing is due any
    more, and the run never ends. No I/O, no clock, no randomness.
    """

    def __init__(self, manifest: Manifest, holders: Sequence[str], *, least_holders: int = 1) -> None:
        """`holders`: of the sealed contributions, in order. `least_holders`: how many of them must be accepted."""
        pure = manifest.privacy.exact_epsilon if manifest.privacy.accounting == "pure" else None
        self._manifest = manifest
        self._unanswered: Admission | None = None
        self.filter = Filter(
            manifest.budget, manifest.task.neighbouring, allowance=manifest.allowance, pure_epsilon=pure
        )
        self.enforcer = Enforcer.start(manifest.program, manifest.task, manifest.layout)
        self.steps = 0
        self._holders = tuple(holders)
        self._least_holders = least_holders
        self.accepted: tuple[str, ...] = ()
        """Holders whose contributions passed the servers' checks, in order; empty until step 0 is answered."""
        self.refused: tuple[str, ...] = ()
        """Holders whose contributions did not."""
        self.stopped: str | None = None
        """Why the run must not go on, if contributions were refused."""

    @property
    def due(self) -> str:
        """What may be requested now, in words. Public."""
        if self._unanswered is not None:
            return f"the answer to step {self.steps - 1}"
        if self.stopped is not None:
            return f"nothing, because {self.stopped}"
        return self.enforcer.due() if self.steps else "compute"

    @property
    def ended(self) -> bool:
        """Whether every step of the program has been charged and answered."""
        return self.steps > 0 and self._unanswered is None and self.stopped is None and self.enforcer.ended

    def check(self, request: StepRequest) -> Admission:
        """What the next step would cost. Raises NotDue, DomainError or BudgetExceeded; changes nothing."""
        undue = self._unanswered is not None or self.stopped is not None
        if undue or isinstance(request, Compute) != (self.steps == 0):
            raise NotDue(f"step {request.step} is not due; due now: {self.due}")
        if isinstance(request, Compute):
            entry, following = self._manifest.overlaps_entry, self.enforcer
        else:
            admitted = self.enforcer.admit(request)
            entry, following = self._as_drawn(admitted.entry), admitted.enforcer
        if entry is not None:
            self.filter.check(entry)
        return Admission(request, entry, following)

    def charge(self, admission: Admission) -> None:
        """Charge a step that `check` admitted, and go on to it."""
        if admission.entry is not None:
            self.filter.charge(admission.entry)
        self.enforcer = admission.enforcer
        self.steps += 1
        self._unanswered = admission

    def answered(self, value: Value) -> None:
        """Note the answer to the step just charged. Raises DomainError if such a step cannot open this value."""
        if self._unanswered is None:
            raise DomainError("no step is waiting for an answer")
        request = self._unanswered.request
        if isinstance(request, Selection):
            if not isinstance(value, int):
                raise DomainError("the answer to a selection must be one position")
            self.enforcer = self.enforcer.answered(value)  # only what was selected may be measured for it
        elif isinstance(value, int):
            raise DomainError("only the answer to a selection is a single number")
        elif isinstance(request, Compute):
            if len(value) != len(self._holders) or not {0, 1}.issuperset(value):
                raise DomainError("the answer to COMPUTE ANSWERS must have 1 or 0 for each contribution")
            self._judge(value)
        elif isinstance(request, Comparison):
            if len(value) != len(request.candidates):
                raise DomainError("the answer to a comparison must have one value for every candidate")
        elif len(value) != sum(
            self._manifest.domain.cells_of(request.cliques if isinstance(request, Batch) else [request.clique])
        ):
            raise DomainError("the answer to a measurement must have one value for every cell of its marginals")
        self._unanswered = None

    def _judge(self, verdicts: Sequence[int]) -> None:
        """Note which contributions were accepted, and whether the run may go on."""
        judged = list(zip(self._holders, verdicts, strict=True))
        self.accepted = tuple(holder for holder, valid in judged if valid)
        self.refused = tuple(holder for holder, valid in judged if not valid)
        self.stopped = self._manifest.why_stop(self.accepted, self.refused)
        if self.stopped is None and len(self.accepted) < self._least_holders:
            self.stopped = (
                f"{len(self.accepted)} contributions passed the checks; this server requires {self._least_holders}"
            )

    def statement(self) -> PrivacyStatement:
        """The guarantee, and what has been spent so far."""
        return self._manifest.statement(self.filter)

    def _as_drawn(self, entry: Entry) -> Entry:
        """The entry with the sampler that the study agreed on. The paper's samplers have no proven distance."""
        noise = self._manifest.algorithm.noise
        if noise == "joint" or entry.mechanism.kind != "gaussian":
            return entry
        return Entry(entry.step, entry.mechanism, entry.count, noise, entry.draws, Fraction(0), certified=False)
