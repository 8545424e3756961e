"""Studies: proposing them to the servers, collecting approvals, and who takes part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from caps.errors import DomainError
from caps.service.identity import Caller
from caps.service.problems import Problem
from caps.service.site import Site, speaks_for, takes_part
from caps.service.tokens import Scope
from caps.study import Holder, Manifest, Server
from caps.trust.signing import SignatureRefused
from caps.wire import Approval, ContributionState, Decline, Signed
from caps.wire.coordinator import Judged
from caps.wire.problems import Kind
from services.coordinator.algorithms import algorithm
from services.coordinator.servers import Misbehaved, Reply, ServerError, ServerRefused, Servers, Unavailable, signed
from services.coordinator.states import Answered, StudyState, study_state
from services.coordinator.store import Run, Store

SERVER, HOLDER = "mpc-server", "holder"
_MOST_ERRORS = 50
_LISTED = TypeAdapter(list[ContributionState])


@dataclass(frozen=True)
class Part:
    """What a holder has done: whether it has approved, and which contributions each server holds.

    contribution: the one that all servers hold, if there is one.
    """

    holder: str
    approved: bool
    held: Mapping[str, tuple[str, ...]]
    contribution: str | None


@dataclass(frozen=True)
class Participation:
    """The parts of all holders. `unreached` says why a server's answer is missing."""

    parts: tuple[Part, ...]
    unreached: Mapping[str, str]


class Studies:
    """The studies that this coordinator serves."""

    def __init__(self, site: Site, store: Store, servers: Servers) -> None:
        self._site = site
        self._store = store
        self._servers = servers

    def propose(self, document: object) -> tuple[Manifest, bool]:
        """Keep a manifest and ask the servers. Also returns whether it is new. Raises Problem if it is refused."""
        manifest = read_manifest(document)
        if not self._site.is_me(manifest.coordinator):
            raise Problem(
                Kind.INVALID,
                "the manifest names a different coordinator, or this one with different keys",
                errors=[{"place": "coordinator", "message": f"must be {self._site.name} with its keys"}],
            )
        if objections := self._site.denials.objections(manifest.parties):
            raise Problem(Kind.POLICY_REFUSED, objections[0], study=manifest.study_id, objections=objections)
        algorithm(manifest.algorithm.name, manifest.algorithm.parameters)  # its loop must be here, not only its program
        new = self._store.add_study(manifest)
        self.refresh(manifest.study_id)
        return manifest, new

    def manifest(self, study: str) -> Manifest:
        """The manifest of a study. Raises Problem if there is no such study."""
        manifest = self._store.manifest(study)
        if manifest is None:
            raise Problem(Kind.NOT_FOUND, "this coordinator has no such study; propose its manifest first", study=study)
        return manifest

    def shown(self, study: str, caller: Caller) -> Manifest:
        """The manifest, for people of this coordinator and for the study's own parties. Raises Problem otherwise."""
        manifest = self.manifest(study)
        if not _sees(caller, manifest):
            raise Problem(Kind.FORBIDDEN, f"{caller} does not take part in this study", study=study)
        return manifest

    def listed(self, caller: Caller) -> list[str]:
        """The studies that a caller may see, the oldest first."""
        return [study for study in self._store.studies() if _sees(caller, self.manifest(study))]

    def refresh(self, study: str) -> float:
        """Ask the servers, unless all have approved. Servers that cannot be reached stay pending.

        Returns the longest wait, in seconds, that a server asked for.
        """
        manifest, before = self.manifest(study), self._store.judgements(study)
        if all(before[server.name].state is Judged.APPROVED for server in manifest.servers):
            return 0.0
        replies = self._servers.ask_each(manifest, "PUT", f"/v1/studies/{study}", manifest.to_json())
        for server, reply in zip(manifest.servers, replies, strict=True):
            # A server that has approved is asked again only because another is; all it can do is repeat its approval.
            if before[server.name].state is not Judged.APPROVED:
                self._judge(manifest, server.name, reply)
        return max((reply.retry_after or 0.0 for reply in replies if isinstance(reply, Unavailable)), default=0.0)

    def _judge(self, manifest: Manifest, server: str, reply: Reply | ServerError) -> None:
        """Record what a server's reply says about a study, and the approval if it is one."""
        study = manifest.study_id
        match reply:
            case ServerRefused() if (decline := _decline(manifest.server(server), study, reply)) is not None:
                self._store.add_decline(study, server, decline)
                return self._store.judge(study, server, Answered.NO, "its operator declined the study")
            case ServerRefused():
                objections = _sentences(reply.problem.get("objections"))
                return self._store.judge(study, server, Answered.NO, reply.what, objections)
            case ServerError():
                return self._store.judge(study, server, Answered.NOTHING, reply.what)
        if reply.pending is not None:
            return self._store.judge(study, server, Answered.LATER, "its operator has not decided yet")
        try:
            approval = signed(Approval, reply)
            said = approval.document
            if (said.study, said.role) != (study, SERVER) or said.exchange_digest is None:
                raise Misbehaved(server, "approved something other than this study")
        except Misbehaved as error:
            return self._store.judge(study, server, Answered.NO, error.what)
        self._store.add_approval(study, server, approval)
        return self._store.judge(study, server, Answered.YES)

    def holder(self, study: str, name: str) -> Holder:
        """A study's holder by name. Raises Problem if there is none."""
        try:
            return self.manifest(study).holder(name)
        except DomainError:
            raise Problem(Kind.NOT_FOUND, f"the study has no holder {name}", study=study) from None

    def approve(self, study: str, holder: Holder, approval: Signed[Approval]) -> bool:
        """Keep a holder's approval. Returns whether it is new."""
        said = approval.verify(holder)
        if (said.study, said.role) != (study, HOLDER):
            raise Problem(Kind.INVALID, "this approval is for something other than this study", study=study)
        return self._store.add_approval(study, holder.name, approval)

    def decline(self, study: str, holder: Holder, decline: Signed[Decline]) -> None:
        """Keep that a holder declines. Raises Problem if it has approved."""
        said = decline.verify(holder)
        if (said.study, said.role) != (study, HOLDER):
            raise Problem(Kind.INVALID, "this decline is for something other than this study", study=study)
        if not self._store.add_decline(study, holder.name, decline):
            raise Problem(Kind.CONFLICT, f"{holder.name} has approved the study, and its signature stands", study=study)

    def participation(self, study: str) -> Participation:
        """What each holder has done, from what the servers say they hold."""
        manifest, approved = self.manifest(study), self._store.approved(study)
        replies = self._servers.ask_each(manifest, "GET", f"/v1/studies/{study}/contributions")
        held: dict[str, dict[str, tuple[str, ...]]] = {holder.name: {} for holder in manifest.holders}
        unreached = {}
        for server, reply in zip(manifest.servers, replies, strict=True):
            listed = _contributions(reply) if isinstance(reply, Reply) else None
            if listed is None:
                unreached[server.name] = (
                    reply.what if isinstance(reply, ServerError) else "sent no list of contributions"
                )
                continue
            for one in listed:
                if one.state == "complete" and one.holder in held:
                    mine = held[one.holder]
                    mine[server.name] = (*mine.get(server.name, ()), one.contribution)
        parts = tuple(
            Part(name, (HOLDER, name) in approved, servers, _common(servers, len(manifest.servers)))
            for name, servers in held.items()
        )
        return Participation(parts, unreached)

    def state(self, study: str, runs: list[Run]) -> StudyState:
        """The study's state in one word."""
        judged = self._store.judgements(study).values()
        return study_state((one.state for one in judged), runs[-1].state if runs else None)


def _sees(caller: Caller, manifest: Manifest) -> bool:
    """Whether a caller that the routes admit may see a study: any person may, a machine only as one of its parties."""
    return caller.person is not None or takes_part(caller, manifest)


def reasons_shown(caller: Caller, party: Server | Holder) -> bool:
    """Whether a caller may read why a party declined: operators and auditors here may, and the party itself."""
    overseer = caller.person is not None and bool(caller.person.scopes & {Scope.OPERATOR, Scope.AUDITOR})
    return overseer or speaks_for(caller, party)


def _decline(server: Server, study: str, refused: ServerRefused) -> Signed[Decline] | None:
    """What a server's operator signed, if that is why it refuses."""
    try:
        decline = Signed[Decline].model_validate(refused.problem.get("decline"))
        said = decline.verify(server)
    except (ValidationError, SignatureRefused):
        return None
    return decline if (said.study, said.role) == (study, SERVER) else None


def read_manifest(document: object) -> Manifest:
    """The manifest in a JSON object. Raises Problem with the place of each error."""
    if not isinstance(document, dict):
        raise Problem(Kind.INVALID, "a manifest must be a JSON object")
    try:
        return Manifest.from_json(document)
    except ValidationError as error:
        errors = [
            {"place": ".".join(map(str, one["loc"])), "message": one["msg"]}
            for one in error.errors(include_input=False, include_url=False)
        ][:_MOST_ERRORS]
        raise Problem(Kind.INVALID, errors[0]["message"], errors=errors) from None


def _sentences(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _contributions(reply: Reply) -> list[ContributionState] | None:
    """The contributions that a server lists; None if its reply is not such a list."""
    try:
        return _LISTED.validate_python(reply.body)
    except ValidationError:
        return None


def _common(held: Mapping[str, tuple[str, ...]], servers: int) -> str | None:
    if len(held) < servers:
        return None
    everywhere = set.intersection(*map(set, held.values()))
    return everywhere.pop() if len(everywhere) == 1 else None
