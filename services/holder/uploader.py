"""Bringing a contribution to the servers, or withdrawing it: one task of the retry queue for each server.

    PUT offer -> chunks the server lacks -> PUT each of them -> POST receipt -> verify it, write it down

Each task reads its goal from the store, so one that was interrupted, or overtaken by a withdrawal, does the right thing
the next time. Servers answer a repeated request as they did the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from hashlib import sha256

import httpx

from caps.service import logs
from caps.service.site import Site
from caps.study import Manifest, Server
from caps.trust.signing import SignatureRefused
from caps.wire import ContributionState, Receipt, Signed, digests, media
from caps.wire.holder import Delivery, Goal
from caps.wire.problems import Kind
from services.holder.peers import LONG_TIMEOUT, PeerProblem, ask, read
from services.holder.retry_queue import RetryQueue, TryLater
from services.holder.sharing import Parcel
from services.holder.state import GONE
from services.holder.store import ContributionRecord, Store

log = logging.getLogger("caps.holder")


class Uploader:
    """`parcel` finds the files of a contribution; `delivered` is called when they are no longer needed."""

    def __init__(
        self,
        site: Site,
        store: Store,
        retries: RetryQueue,
        *,
        parcel: Callable[[ContributionRecord], Parcel],
        delivered: Callable[[ContributionRecord], None],
    ) -> None:
        self._site = site
        self._store = store
        self._retries = retries
        self._parcel = parcel
        self._delivered = delivered
        self._sent: dict[tuple[str, str], int] = {}

    def start(self, manifest: Manifest) -> None:
        """Pursue the goal of the study's contribution at all servers."""
        for party in range(len(manifest.servers)):
            self._retries.start(self._key(manifest, party), partial(self._visit, manifest, party))

    def wait(self, manifest: Manifest, seconds: float) -> None:
        """Wait for the servers' answers, for at most so many seconds."""
        self._retries.wait([self._key(manifest, party) for party in range(len(manifest.servers))], seconds)

    def sent(self, contribution: str, server: str) -> int:
        """Bytes of the vector that the server is known to have."""
        return self._sent.get((contribution, server), 0)

    def _key(self, manifest: Manifest, party: int) -> tuple[str, str]:
        return manifest.study_id, manifest.servers[party].name

    def _visit(self, manifest: Manifest, party: int) -> None:
        """Do what the goal demands at one server, and record how it went."""
        with logs.bound(study=manifest.study_id, party=manifest.servers[party].name):
            self._do(manifest, party)

    def _do(self, manifest: Manifest, party: int) -> None:
        record, server = self._record(manifest), manifest.servers[party]
        state = record.deliveries[party].state
        try:
            if record.goal is Goal.PUSHING and state is Delivery.PENDING:
                with self._site.calls(server, timeout=LONG_TIMEOUT) as client:
                    receipt = self._push(client, manifest, record, party)
                goal = self._store.tell(record.study, server.name, state=Delivery.ACCEPTED, receipt=receipt)
            elif record.goal is Goal.WITHDRAWING and state not in GONE:
                with self._site.calls(server, timeout=LONG_TIMEOUT) as client:
                    withdrawn = self._withdraw(client, record, server, state)
                state = Delivery.ABSENT if withdrawn is None else Delivery.WITHDRAWN
                goal = self._store.tell(record.study, server.name, state=state, receipt=withdrawn)
            else:
                return
        except PeerProblem as problem:
            logs.say(log, "not done", reason=problem.document["detail"], retryable=problem.retryable)
            goal = self._store.tell(record.study, server.name, problem=problem.document)
            if problem.retryable or (goal is Goal.WITHDRAWING and self._given_up(manifest)):
                raise TryLater(problem.retry_after) from None
            if record.goal is not goal is Goal.PUSHING:
                self.start(manifest)  # all refuse to withdraw it, and not all have sent their receipts
            return
        if goal in (Goal.COMPLETE, Goal.WITHDRAWN) or self._given_up(manifest):
            self._delivered(record)
        if goal is Goal.WITHDRAWING:
            self.start(manifest)  # those that refused before are asked again

    def _given_up(self, manifest: Manifest) -> bool:
        """Whether a server has withdrawn the contribution, so that nobody can compute on it any more."""
        return not GONE.isdisjoint(one.state for one in self._record(manifest).deliveries)

    def _record(self, manifest: Manifest) -> ContributionRecord:
        record = self._store.contribution(manifest.study_id)
        assert record is not None
        return record

    def _push(
        self, client: httpx.Client, manifest: Manifest, record: ContributionRecord, party: int
    ) -> Signed[Receipt]:
        server, parcel, statement = manifest.servers[party], self._parcel(record), record.document.document
        path = _path(record)
        offer = parcel.offer(record.document, party).model_dump_json().encode()
        answer = ask(client, server.name, "PUT", path, content=offer, headers=media.JSON_BODY)
        has = read(ContributionState, answer, server.name)
        if has.contribution != record.contribution or has.state in ("withdrawn", "erased"):
            raise _unexpected(server, "no longer takes this contribution")
        if manifest.sharing.vector in manifest.sharing.held[party]:
            if any(last >= statement.chunks for _, last in has.missing):
                raise _unexpected(server, "asks for chunks that the contribution does not have")
            lacking = sorted({number for first, last in has.missing for number in range(first, last + 1)})
            self._sent[record.contribution, server.name] = max(
                0, statement.vector_bytes - len(lacking) * statement.chunk_bytes
            )
            for number in lacking:
                self._retries.check()
                if self._record(manifest).goal is not Goal.PUSHING:
                    raise TryLater  # retried at once: whoever changed the goal has nudged this task
                chunk = parcel.chunk(number, statement.chunk_bytes)
                headers = {**media.BYTES_BODY, "Content-Digest": digests.spelled(sha256(chunk).digest())}
                ask(client, server.name, "PUT", f"{path}/chunks/{number}", content=chunk, headers=headers)
                self._sent[record.contribution, server.name] += len(chunk)
                self._site.metrics.count("caps_pushed_bytes", len(chunk), party=server.name)
            self._sent[record.contribution, server.name] = statement.vector_bytes
        receipt = has.receipt
        if receipt is None:
            receipt = read(Signed[Receipt], ask(client, server.name, "POST", f"{path}/receipt"), server.name)
        return _verified(receipt, ("accepted",), record, server)

    def _withdraw(
        self, client: httpx.Client, record: ContributionRecord, server: Server, state: Delivery
    ) -> Signed[Receipt] | None:
        """The receipt, also of shares that were erased before; None if the server never had the contribution."""
        try:
            answer = ask(client, server.name, "DELETE", _path(record))
        except PeerProblem as problem:
            if problem.document["type"] == Kind.NOT_FOUND.urn and state is Delivery.PENDING:
                return None
            raise
        return _verified(read(Signed[Receipt], answer, server.name), ("withdrawn", "erased"), record, server)


def _path(record: ContributionRecord) -> str:
    return f"/v1/studies/{record.study}/contributions/{record.contribution}"


def _unexpected(server: Server, what: str) -> PeerProblem:
    return PeerProblem.own(Kind.CONFLICT, f"{server.name} {what}", party=server.name, retryable=False)


def _verified(
    receipt: Signed[Receipt], events: Collection[str], record: ContributionRecord, server: Server
) -> Signed[Receipt]:
    """The receipt, if it is the server's and says what it should. Raises PeerProblem."""
    try:
        told = receipt.verify(server)
    except SignatureRefused:
        raise PeerProblem.own(
            Kind.SIGNATURE_REFUSED, f"the receipt is not signed by {server.name}", party=server.name, retryable=False
        ) from None
    holder = record.document.document.holder
    subject = (told.study, told.contribution, told.holder, told.server)
    if subject != (record.study, record.contribution, holder, server.name) or told.event not in events:
        raise _unexpected(server, "sent a receipt for something else")
    return receipt
