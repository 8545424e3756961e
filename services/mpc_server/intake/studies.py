"""The studies a server takes part in: judged by its own policy, approved by its signature, sealed, and erased in time.

`states` says what may happen when. A study's secrets (its exchange key, and the key of what runs store) are made with
the approval and wrapped by the vault; what its pairs draw (`pairs`), when servers first meet for a run. Those of a join
by tags (`matching`) are made on first use, and forgotten when the inputs are sealed.
Every change is one transaction; files are unlinked only after the keys they were encrypted with are forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import TypeAdapter
from sqlalchemy import Connection, Engine, Row

from caps.basics import canonical
from caps.basics.document import Document
from caps.basics.recent import Recent
from caps.errors import LocalError
from caps.service.database import reading
from caps.service.identity import Caller
from caps.service.problems import Problem
from caps.service.quotas import too_many
from caps.service.site import Site, confirm, speaks_for, takes_part
from caps.service.tokens import Scope
from caps.study import Coordinator, Holder, Manifest, Policy, Server
from caps.study.manifest import MOST_KEPT
from caps.trust.exchange import PRIVATE_BYTES, ExchangeKey, public_digest
from caps.wire import Approval, Contribution, Decline, Receipt, Seal, SealRequest, Signed, inputs_digest
from caps.wire.problems import Kind
from caps.wire.server import StudyState
from services.mpc_server.storage import states
from services.mpc_server.storage.rows import contributions as contribution_rows
from services.mpc_server.storage.rows import matching as matching_rows
from services.mpc_server.storage.rows import pairs as pair_rows
from services.mpc_server.storage.rows import runs as run_rows
from services.mpc_server.storage.rows import studies as rows
from services.mpc_server.storage.shares import ShareStore, forgotten, new_key

_APPROVALS = TypeAdapter(tuple[Signed[Approval], ...])
_SIGNED_BYTES = 2048
"""More than a signed approval takes, and the id of a contribution."""
_MOST_COORDINATORS = 1 << 12
_OBSERVERS = frozenset({Scope.OPERATOR, Scope.AUDITOR})


@dataclass(frozen=True)
class Sealed:
    """The inputs all servers compute on: contributions in the manifest's order of holders.

    exchange_digests: of the servers' exchange keys, by name.
    """

    inputs: str
    contributions: tuple[Contribution, ...]
    exchange_digests: dict[str, str]


@dataclass(frozen=True)
class BriefStudy:
    """A study in a list."""

    study: str
    state: str
    at: str


class Studies:
    """All studies of one server, in its database."""

    def __init__(self, site: Site, policy: Policy, database: Engine, store: ShareStore, *, mesh: int) -> None:
        """`mesh`: how many servers this one is connected with, itself included."""
        self._site = site
        self._policy = policy
        self._mesh = mesh
        self._database = database
        self._store = store
        self._manifests: Recent[str, Manifest] = Recent(MOST_KEPT)
        self._coordinators: Recent[str, Coordinator] = Recent(_MOST_COORDINATORS)

    def receive(self, study: str, manifest: Manifest, caller: Caller) -> tuple[StudyState, bool]:
        """A coordinator proposes a study. It is judged, and approved at once if the policy says so.

        Also returns whether it is new. An earlier approval is returned as it is, whatever the policy says today.
        """
        if manifest.study_id != study:
            raise Problem(Kind.INVALID, "the id in the address is not the id of the manifest sent")
        confirm(caller, manifest.coordinator)
        if not any(map(self._site.is_me, manifest.servers)):
            raise Problem(Kind.INVALID, f"the manifest does not list {self._site.name} with this server's keys")
        known = self._find(study)
        if known is not None and known.approval is not None:
            return _state(known), False
        if known is None:  # before the work of judging it
            with reading(self._database) as connection:
                self._require_room(connection, caller)
        self._judge(manifest)
        automatic = self._policy.approval == "automatic"
        with self._database.begin() as connection:
            found = rows.lock(connection, study)
            if found is None:
                self._require_room(connection, caller)
                rows.add(connection, study, manifest.canonical_bytes().decode(), self._site.instant())
            elif found.state == states.Study.DECLINED:
                raise _declined(found)
            if automatic:
                self._approve(connection, study)
        return self.status(study), known is None

    def _require_room(self, connection: Connection, caller: Caller) -> None:
        """Require that a coordinator may propose another study. Raises a problem."""
        kept = sum(speaks_for(caller, self._coordinator(row.study)) for row in rows.kept(connection))
        if kept >= self._policy.most_studies:
            detail = (
                f"{caller} has {kept} studies here, as many as this server keeps of one coordinator (most_studies); "
                "they end with their retention time, or when the operator erases their shares"
            )
            raise too_many(detail, seconds=3600)

    def _coordinator(self, study: str) -> Coordinator:
        """Who coordinates a study known here. It is kept for many more studies than manifests are."""
        return self._coordinators.find(study) or self._coordinators.keep(study, self.manifest(study).coordinator)

    def approve(self, study: str) -> Signed[Approval]:
        """The operator approves. The policy must still agree. An earlier approval is returned as it is."""
        self._judge(self.manifest(study))
        with self._database.begin() as connection:
            return self._approve(connection, study)

    def decline(self, study: str, reason: str) -> Signed[Decline]:
        """The operator does not take part, and says why. The last word counts; an approval cannot be taken back."""
        decline = Signed[Decline].by(
            Decline(study=study, role="mpc-server", reason=reason, at=self._site.instant()),
            self._site.name,
            self._site.signing_key,
        )
        with self._database.begin() as connection:
            row = self._locked(connection, study)
            if row.state == states.Study.ERASED:
                raise _gone(study)
            if row.state not in states.UNDECIDED:
                detail = "this server has approved the study, and its signature stands; you may erase its shares"
                raise Problem(Kind.CONFLICT, detail, study=study)
            rows.change(connection, study, states.StudyEvent.DECLINE, decline=text_of(decline))
        return decline

    def _judge(self, manifest: Manifest) -> None:
        objections = [*self._policy.judge(manifest), *self._site.denials.objections(manifest.parties)]
        if manifest.sharing.parties > self._mesh:
            objections.append(
                f"{manifest.scheme} needs {manifest.sharing.parties} servers, but this one is connected with "
                f"{self._mesh - 1} others (CAPS_MESH)"
            )
        if objections:
            raise Problem(Kind.POLICY_REFUSED, objections[0], study=manifest.study_id, objections=objections)

    def _approve(self, connection: Connection, study: str) -> Signed[Approval]:
        row = self._locked(connection, study)
        if row.approval is not None:
            return Signed[Approval].model_validate_json(row.approval)
        if row.state not in states.UNDECIDED:
            raise _gone(study)
        key = ExchangeKey.generate()
        approval = Signed[Approval].by(
            Approval(
                study=study,
                role="mpc-server",
                exchange_digest=public_digest(key.public),
                at=self._site.instant(),
            ),
            self._site.name,
            self._site.signing_key,
        )
        wrapped = self._store.vault.wrap(_secrets_name(study), key.to_bytes() + new_key())
        values = {"approval": text_of(approval), "decline": None, "wrapped_key": wrapped}
        rows.change(connection, study, states.StudyEvent.APPROVE, **values)
        return approval

    def manifest(self, study: str) -> Manifest:
        """The manifest of a study known here. It never changes, and checking it is slow: it is kept."""
        if (found := self._manifests.find(study)) is not None:
            return found
        self._row(study)  # it exists

        def read() -> Manifest:
            with reading(self._database) as connection:
                return Manifest.model_validate_json(rows.manifest(connection, study))

        return self._manifests.obtain(study, read)

    def party(self, study: str) -> int:
        """This server's place among the study's servers, counted from 0."""
        return [server.name for server in self.manifest(study).servers].index(self._site.name)

    def exchange_key(self, study: str) -> ExchangeKey:
        """This server's exchange key in a study. Raises LocalError if it is not made yet, or erased."""
        return ExchangeKey.from_bytes(self._secrets(study)[:PRIVATE_BYTES])

    def data_key(self, study: str) -> bytes:
        """The key for blobs of a study's runs, which are named `STUDY/...` and erased with its shares."""
        return self._secrets(study)[PRIVATE_BYTES:]

    def status(self, study: str, caller: Caller | None = None) -> StudyState:
        """How far a study is, as a caller may see it."""
        return _seen(_state(self._row(study)), caller)

    def listed(self, caller: Caller) -> list[StudyState]:
        """All studies that a caller may see."""
        with reading(self._database) as connection:
            found = rows.listed(connection)
        return [_seen(_state(row), caller) for row in found if _sees(caller, self.manifest(row.study))]

    def brief(self) -> list[BriefStudy]:
        """All studies of this server, the oldest first, without their documents."""
        with reading(self._database) as connection:
            return [BriefStudy(row.study, row.state, row.created_at) for row in rows.brief(connection)]

    def newest(self, count: int) -> list[Manifest]:
        """The manifests of the newest studies."""
        return [self.manifest(one.study) for one in self.brief()[::-1][:count]]

    def show_to(self, study: str, caller: Caller) -> Manifest:
        """The manifest, for a caller who takes part in the study or oversees this server."""
        manifest = self.manifest(study)
        if not _sees(caller, manifest):
            raise Problem(Kind.FORBIDDEN, f"{caller} does not take part in this study", study=study)
        return manifest

    def require_open(self, connection: Connection, study: str) -> None:
        """Within a transaction that changes contributions: require that the study takes them. Raises a problem."""
        state = self._locked(connection, study).state
        if state in states.UNDECIDED:
            raise Problem(Kind.NOT_READY, "this server has not approved the study yet", study=study)
        if state == states.Study.SEALED:
            raise Problem(Kind.CONFLICT, "the study's inputs are sealed and can no longer change", study=study)
        if state == states.Study.ERASED:
            raise _gone(study)

    def require_unsealed(self, connection: Connection, study: str, contribution: str) -> None:
        """Within the transaction that withdraws a contribution: require that no sealed inputs contain it."""
        row = self._locked(connection, study)
        sealed = () if row.seal is None else Signed[Seal].model_validate_json(row.seal).document.contributions
        if contribution in sealed:
            raise Problem(Kind.CONFLICT, "the contribution is one of the study's sealed inputs", study=study)

    def require_room(self, connection: Connection, study: str, holder: str) -> None:
        """Within the transaction that adds a contribution: require that the holder may still make one."""
        made = contribution_rows.made(connection, study, holder)
        if made >= self._policy.most_contributions:
            objection = f"{holder} has made {made} contributions to this study, as many as it may (most_contributions)"
            raise Problem(Kind.POLICY_REFUSED, objection, study=study, objections=[objection])

    def require_sealed(self, connection: Connection, study: str, inputs: str) -> None:
        """Within the transaction that begins a run: require that these inputs are sealed here, and not erased."""
        row = self._locked(connection, study)
        if row.state == states.Study.ERASED:
            raise _gone(study)
        if row.state != states.Study.SEALED:
            raise Problem(Kind.NOT_READY, "the study's inputs are not sealed here", study=study)
        if Signed[Seal].model_validate_json(row.seal).document.inputs != inputs:
            raise Problem(Kind.CONFLICT, "different inputs are sealed here", study=study)

    def require_secrets(self, connection: Connection, study: str) -> None:
        """Within a transaction that adds to them: require that the study's secrets exist. Raises LocalError."""
        self._unwrapped(self._locked(connection, study))

    def seal_length(self, study: str, caller: Caller) -> int:
        """The most bytes of a request to seal a study. Raises a problem if the caller may not send it."""
        manifest = self.manifest(study)
        confirm(caller, manifest.coordinator)
        return (1 + len(manifest.holders) + len(manifest.servers)) * _SIGNED_BYTES

    def seal(self, study: str, request: SealRequest, caller: Caller) -> Signed[Seal]:
        """The coordinator declares which contributions take part. Until a run exists it may choose others.

        Every server requires the approvals of all servers and of every contributor, contributions that are complete
        here, enough holders, and every column.
        """
        manifest = self.manifest(study)
        confirm(caller, manifest.coordinator)
        inputs = inputs_digest(study, request.contributions)
        known = self._row(study)
        if known.state == states.Study.SEALED:
            seal = Signed[Seal].model_validate_json(known.seal)
            if seal.document.inputs == inputs:
                return seal
        approvals = _approvals(manifest, request.approvals)
        with self._database.begin() as connection:
            row = self._locked(connection, study)
            self._may_seal(connection, row, approvals)
            chosen = self._chosen(connection, manifest, request.contributions)
            self._suffices(manifest, list(chosen), approvals)
            at = self._site.instant()
            seal = Signed[Seal].by(
                Seal(
                    study=study,
                    server=self._site.name,
                    inputs=inputs,
                    contributions=tuple(chosen.values()),
                    at=at,
                ),
                self._site.name,
                self._site.signing_key,
            )
            # The retention time starts with the first seal: a later one must not prolong it.
            rows.change(
                connection,
                study,
                states.StudyEvent.SEAL,
                seal=text_of(seal),
                approvals=canonical.dump([one.to_json() for one in request.approvals]).decode(),
                sealed_at=row.sealed_at or at,
            )
            joined = self._forget_join(connection, row)
        if joined:
            forgotten(self._database)
            self._store.erase(f"{study}/join")
        return seal

    def _forget_join(self, connection: Connection, row: Row[Any]) -> bool:
        """Within a transaction: drop the keys and counts of a join by tags. Returns whether there were any.

        From then on nobody can test a guess of an identifier, and stored tags are unreadable.
        """
        matching_rows.forget(connection, row.study)
        rows.set_join_key(connection, row.study, None)
        return row.join_key is not None

    def sealed(self, study: str) -> Sealed | None:
        """The inputs, if they are sealed."""
        row = self._row(study)
        if row.seal is None:
            return None
        seal = Signed[Seal].model_validate_json(row.seal).document
        with reading(self._database) as connection:
            found = contribution_rows.chosen(connection, seal.contributions)
        offers = {one.contribution: Signed[Contribution].model_validate_json(one.offer).document for one in found}
        digests = {
            approval.signer: approval.document.exchange_digest
            for approval in _APPROVALS.validate_json(row.approvals)
            if approval.document.role == "mpc-server" and approval.document.exchange_digest is not None
        }
        return Sealed(seal.inputs, tuple(offers[one] for one in seal.contributions), digests)

    def _may_seal(self, connection: Connection, row: Row[Any], approvals: dict[tuple[str, str], Approval]) -> None:
        if row.state in states.UNDECIDED:
            raise Problem(Kind.NOT_READY, "this server has not approved the study yet", study=row.study)
        if row.state == states.Study.ERASED:
            raise _gone(row.study)
        if row.state == states.Study.SEALED and run_rows.of_study(connection, row.study):
            raise Problem(Kind.CONFLICT, "a run has begun on the sealed inputs", study=row.study)
        own = Signed[Approval].model_validate_json(row.approval).document
        if approvals["mpc-server", self._site.name].exchange_digest != own.exchange_digest:
            raise Problem(
                Kind.CONFLICT, "the approval sent for this server has a different exchange key", study=row.study
            )

    def _chosen(self, connection: Connection, manifest: Manifest, ids: Sequence[str]) -> dict[str, str]:
        """Contribution by holder, in the manifest's order; all of them complete."""
        found = {row.contribution: row for row in contribution_rows.of_study(connection, manifest.study_id)}
        gone = [one for one in ids if one in found and found[one].state in states.GONE]
        if gone:
            raise Problem(
                Kind.CONFLICT, "some contributions were withdrawn", study=manifest.study_id, contributions=gone
            )
        absent = [one for one in ids if one not in found or found[one].state != states.Contribution.COMPLETE]
        if absent:
            raise Problem(
                Kind.NOT_READY,
                "some contributions are not complete here",
                study=manifest.study_id,
                contributions=absent,
            )
        by_holder = {found[one].holder: one for one in ids}
        if len(by_holder) != len(ids):
            raise Problem(Kind.INVALID, "a holder may take part with only one contribution", study=manifest.study_id)
        return {holder.name: by_holder[holder.name] for holder in manifest.holders if holder.name in by_holder}

    def _suffices(
        self, manifest: Manifest, holders: Collection[str], approvals: dict[tuple[str, str], Approval]
    ) -> None:
        study = manifest.study_id
        without = [name for name in holders if ("holder", name) not in approvals]
        if without:
            raise Problem(Kind.NOT_READY, "the approvals of some holders are missing", study=study, holders=without)
        least = self._policy.least_holders
        if len(holders) < least:
            objection = f"{len(holders)} holders contribute; at least {least} must"
            raise Problem(Kind.POLICY_REFUSED, objection, study=study, objections=[objection])
        if lacking := manifest.columns_lacking(holders):
            raise Problem(
                Kind.NOT_READY, "some columns have not been contributed by anybody", study=study, columns=lacking
            )

    def erase(self, study: str) -> list[Signed[Receipt]]:
        """Forget now the keys of all shares of a study and what its pairs share. Returns a receipt per contribution.

        Refused while a run is going. Repeated, this returns the same receipts.
        """
        return self._erase(study, spare_runs=True)

    def sweep(self, now: datetime) -> list[str]:
        """Erase shares whose retention time is over, and return their studies. Called at the start and every hour.

        Shares are not kept for a run that is still going: holders were promised this time. Files that a crash kept from
        being unlinked are unlinked as well.
        """
        with reading(self._database) as connection:
            kept = rows.kept(connection)
        due = [
            row.study
            for row in kept
            if datetime.fromisoformat(row.sealed_at or row.created_at)
            + timedelta(days=self.manifest(row.study).retention_days)
            <= now
        ]
        for study in due:
            self._erase(study, spare_runs=False)
        self._unlink_forgotten()
        return due

    def _erase(self, study: str, *, spare_runs: bool) -> list[Signed[Receipt]]:
        self._row(study)
        with ExitStack() as held:
            for contribution in self._contributions(study):
                held.enter_context(self._store.guard(contribution))
            with self._database.begin() as connection:
                receipts = self._forget(connection, study, spare_runs)
            forgotten(self._database)
            for contribution in self._contributions(study):
                self._store.erase_chunks(contribution)
            self._store.erase(study)
        return receipts

    def _forget(self, connection: Connection, study: str, spare_runs: bool) -> list[Signed[Receipt]]:
        self._forget_join(connection, self._locked(connection, study))
        going = [run for run in run_rows.of_study(connection, study) if run.state == states.Run.GOING]
        if spare_runs and going:
            raise Problem(Kind.CONFLICT, "a run of this study is under way; wait for it to end", study=study)
        receipts = []
        for row in contribution_rows.of_study(connection, study):
            if row.state in states.PRESENT:
                receipts.append(forget(connection, self._site, row, states.ContributionEvent.ERASE))
            elif row.state == states.Contribution.ERASED:
                receipts.append(Signed[Receipt].model_validate_json(row.receipt))
        pair_rows.forget(connection, study)
        rows.change(connection, study, states.StudyEvent.ERASE, wrapped_key=None)
        return receipts

    def _unlink_forgotten(self) -> None:
        """Unlink only what the database says was forgotten: a file it does not know may belong to another database."""
        present = set(self._store.contributions())
        with reading(self._database) as connection:
            unneeded = sorted(present.intersection(contribution_rows.gone(connection)))
            erased = rows.names(connection, states.Study.ERASED)
            sealed = rows.names(connection, states.Study.SEALED)
        for contribution in unneeded:
            with self._store.guard(contribution):
                self._store.erase_chunks(contribution)
        for study in erased:
            self._store.erase(study)
        for study in sealed:
            self._store.erase(f"{study}/join")
        forgotten(self._database)

    def _contributions(self, study: str) -> list[str]:
        with reading(self._database) as connection:
            return [row.contribution for row in contribution_rows.of_study(connection, study)]

    def _secrets(self, study: str) -> bytes:
        return self._unwrapped(self._row(study))

    def _unwrapped(self, row: Row[Any]) -> bytes:
        if row.wrapped_key is None:
            what = "are erased" if row.state == states.Study.ERASED else "do not exist yet"
            raise LocalError(f"the keys of study {row.study} {what}")
        return self._store.vault.unwrap(_secrets_name(row.study), row.wrapped_key)

    def _find(self, study: str) -> Row[Any] | None:
        with reading(self._database) as connection:
            return rows.find(connection, study)

    def _row(self, study: str) -> Row[Any]:
        return _known(self._find(study))

    def _locked(self, connection: Connection, study: str) -> Row[Any]:
        return _known(rows.lock(connection, study))


def forget(connection: Connection, site: Site, row: Row[Any], event: states.ContributionEvent) -> Signed[Receipt]:
    """Within a transaction: drop a contribution's key, openings and list of chunks, and sign a receipt for that."""
    receipt = receipt_of(site, row, event)
    contribution_rows.drop_chunks(connection, row.contribution)
    forgotten_now = {"wrapped_key": None, "openings": None, "receipt": text_of(receipt)}
    contribution_rows.change(connection, row.contribution, event, **forgotten_now)
    return receipt


_RECEIPTS: dict[states.ContributionEvent, Literal["accepted", "withdrawn", "erased"]] = {
    states.ContributionEvent.COMPLETE: "accepted",
    states.ContributionEvent.WITHDRAW: "withdrawn",
    states.ContributionEvent.ERASE: "erased",
}


def receipt_of(site: Site, row: Row[Any], event: states.ContributionEvent) -> Signed[Receipt]:
    """A signed receipt for what was done with a contribution."""
    receipt = Receipt(
        study=row.study,
        contribution=row.contribution,
        holder=row.holder,
        server=site.name,
        event=_RECEIPTS[event],
        at=site.instant(),
    )
    return Signed[Receipt].by(receipt, site.name, site.signing_key)


def text_of(document: Document) -> str:
    """A document as the database holds it."""
    return canonical.dump(document.to_json()).decode()


def _approvals(manifest: Manifest, given: Sequence[Signed[Approval]]) -> dict[tuple[str, str], Approval]:
    """Every approval, verified, by role and name. All servers must be among them, with different exchange keys."""
    study = manifest.study_id
    parties: dict[tuple[str, str], Server | Holder] = {
        **{("mpc-server", server.name): server for server in manifest.servers},
        **{("holder", holder.name): holder for holder in manifest.holders},
    }
    found: dict[tuple[str, str], Approval] = {}
    for signed in given:
        place = (signed.document.role, signed.signer)
        if place not in parties or place in found:
            raise Problem(
                Kind.INVALID,
                "only the study's servers and holders give approvals, and each gives one",
                study=study,
            )
        approval = signed.verify(parties[place])
        if approval.study != study:
            raise Problem(Kind.INVALID, f"the approval of {signed.signer} is for a different study", study=study)
        found[place] = approval
    servers = [server.name for server in manifest.servers]
    absent = [name for name in servers if ("mpc-server", name) not in found]
    if absent:
        raise Problem(Kind.NOT_READY, "the approvals of some servers are missing", study=study, servers=absent)
    digests = {found["mpc-server", name].exchange_digest for name in servers}
    if None in digests or len(digests) != len(servers):
        raise Problem(Kind.INVALID, "every server must have its own exchange key; two are the same", study=study)
    return found


def _sees(caller: Caller, manifest: Manifest) -> bool:
    observes = caller.person is not None and bool(caller.person.scopes & _OBSERVERS)
    return observes or takes_part(caller, manifest)


def _seen(state: StudyState, caller: Caller | None) -> StudyState:
    """Why an operator declines is between this server and the coordinator: holders see that it did."""
    holder = caller is not None and caller.machine is not None and caller.machine.role == "holder"
    return state.model_copy(update={"decline": None}) if holder else state


def _declined(row: Row[Any]) -> Problem:
    decline = Signed[Decline].model_validate_json(row.decline).to_json()
    return Problem(Kind.POLICY_REFUSED, "the server's operator declined the study", study=row.study, decline=decline)


def _state(row: Row[Any]) -> StudyState:
    return StudyState(
        study=row.study,
        state=row.state,
        approval=row.approval and Signed[Approval].model_validate_json(row.approval),
        decline=row.decline and Signed[Decline].model_validate_json(row.decline),
        seal=row.seal and Signed[Seal].model_validate_json(row.seal),
    )


def _known(row: Row[Any] | None) -> Row[Any]:
    if row is None:
        # A holder may be ahead of the coordinator, which proposes the study again when either of them has restarted.
        raise Problem(Kind.NOT_FOUND, "this server does not know the study yet", retryable=True)
    return row


def _gone(study: str) -> Problem:
    return Problem(Kind.CONFLICT, "the shares of this study are erased", study=study)


def _secrets_name(study: str) -> str:
    return f"study/{study}"
