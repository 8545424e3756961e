"""Replays a release's transcript: every signature, every charge, and the measurements that follow from it.

It takes one pass, a step at a time, because a transcript may be larger than memory. Every mistake found names its step.
"""

from __future__ import annotations

from collections.abc import Iterable

from caps.audit.measurements import noisy_marginals
from caps.dp.oracle import Compute, request_digest
from caps.errors import DomainError, LocalError
from caps.study.account import Account
from caps.study.manifest import Manifest
from caps.trust import signing
from caps.wire import Attestation, TranscriptStep, transcript_digest
from caps.wire.releases import NoisyMarginal


class Replay:
    """What a transcript shows about the attested run. Raises DomainError if a line is not a step of a transcript.

    digest, steps: what the servers attest, if this is their transcript. unsigned: why not all servers signed the answer
    to a step, for the first such step. undue: why a step could not be requested, for the first such step. Both are None
    if there is no such step. measured: what was measured, as `caps.audit.measurements` publishes it.
    """

    def __init__(self, manifest: Manifest, attested: Attestation, lines: Iterable[bytes]) -> None:
        self._manifest = manifest
        self._attested = attested
        self.account = Account(manifest, attested.contributors(manifest))
        self.digest = attested.inputs
        self.steps = 0
        self.unsigned: str | None = None
        self.undue: str | None = None
        self.measured: list[NoisyMarginal] = []
        for line in lines:
            self._walk(line)
        if self.undue is None and not self.account.ended:
            self.undue = f"after {self.steps} steps the run has not ended; due now: {self.account.due}"

    def _walk(self, line: bytes) -> None:
        number = self.steps
        try:
            step = TranscriptStep.from_line(line)
        except DomainError as error:
            raise DomainError(f"line {number + 1}, step {number}: {error}") from None
        if step.answer.step != number:
            raise DomainError(f"line {number + 1} must be step {number}, but is step {step.answer.step}")
        self.unsigned = self.unsigned or self._not_signed(step)
        self.undue = self.undue or self._not_due(step)
        self.digest = transcript_digest(self.digest, step.answer.request, step.answer.digest())
        self.steps += 1

    def _not_signed(self, step: TranscriptStep) -> str | None:
        """Why this is not an answer that all servers gave to this request; None if it is."""
        answer, document = step.answer, step.answer.to_json()
        servers, strangers = self._manifest.servers, []
        if len(step.signatures) != len(servers):
            return f"step {answer.step}: the answer has {len(step.signatures)} signatures, not {len(servers)}"
        for server, signature in zip(servers, step.signatures, strict=True):
            try:
                signing.verify(server.signing_key, answer.kind, document, signature)
            except signing.SignatureRefused:
                strangers.append(server.name)
        if strangers:
            return f"step {answer.step}: the answer lacks a valid signature of {' and '.join(strangers)}"
        if (answer.study, answer.run) != (self._attested.study, self._attested.run):
            return f"step {answer.step}: the answer belongs to another run"
        if answer.request != request_digest(step.request).hex():
            return f"step {answer.step}: the servers answered another request than the one listed"
        return None

    def _not_due(self, step: TranscriptStep) -> str | None:
        """Charge the step and note its answer; returns why that is impossible, or None."""
        number, request, value = step.answer.step, step.request, step.answer.value
        try:
            admission = self.account.check(request)
            self.account.charge(admission)
            self.account.answered(value)
            self.measured += noisy_marginals(self._manifest, number, request, value)
        except LocalError as error:
            return f"step {number}: {error}"
        if isinstance(request, Compute):
            if self.account.stopped is not None:
                return f"step {number}: the run should have ended here: {self.account.stopped}"
            attested = self._attested
            if (self.account.accepted, self.account.refused) != (attested.holders, attested.refused):
                return f"step {number}: the servers accepted other contributions than they attest"
        return None
