"""What servers signed about a run that they aborted: collected from each, checked, kept, and brought to all others.

A server ends a run when a check on shares fails, and signs which two servers are in question. Every honest server, and
everybody who asks for the run here, must be able to see that, also if some are out of reach at the moment.
"""

from __future__ import annotations

import json
import logging

from pydantic import ValidationError

from caps.errors import CapsError
from caps.study import Manifest
from caps.wire import Evidence, EvidenceRequest, RunStatus, Signed
from caps.wire.problems import Kind
from services.coordinator.servers import Misbehaved, Reply, ServerRefused, Servers, Unavailable
from services.coordinator.store import Store

log = logging.getLogger("caps.coordinator")


def tells_of_abort(refusal: ServerRefused) -> bool:
    """Whether a server refuses because the run was aborted."""
    return bool(refusal.problem.get("type") == Kind.ABORTED.urn)


def exchange(store: Store, servers: Servers, manifest: Manifest, run: str) -> set[str]:
    """Collect the servers' evidence about a run and bring it to all of them. Returns those that were out of reach."""
    while True:
        known = store.evidence(run)
        body = EvidenceRequest(evidence=tuple(known)).to_json()
        unreached = set()
        for server, reply in zip(
            manifest.servers, servers.ask_each(manifest, "PUT", f"/v1/runs/{run}/evidence", body), strict=True
        ):
            if isinstance(reply, Unavailable):
                unreached.add(server.name)
            elif isinstance(reply, Reply):
                try:
                    store.add_evidence(run, _stated(manifest, run, reply))
                except Misbehaved as error:
                    log.warning(json.dumps({"run": run, "party": error.party, "reason": error.what}))
        if len(store.evidence(run)) == len(known):
            return unreached


def in_words(evidence: list[Signed[Evidence]]) -> tuple[str | None, str]:
    """Who is in question, if anybody was named, and what the servers say."""
    named = sorted({name for one in evidence for name in one.document.pair or ()})
    return ", ".join(named) or None, "; ".join(one.document.words for one in evidence)


def _stated(manifest: Manifest, run: str, reply: Reply) -> list[Signed[Evidence]]:
    """The evidence in a server's reply, each with a valid signature of the server that gives it. Raises Misbehaved."""
    try:
        found = RunStatus.model_validate(reply.body).evidence
        for one in found:
            document = one.verify(manifest.server(one.signer))
            document.matches(manifest, run)
            if document.server != one.signer:
                raise Misbehaved(reply.server.name, "sent evidence in another server's name")
    except ValidationError:
        raise Misbehaved(reply.server.name, "sent something other than the state of a run") from None
    except CapsError as error:
        raise Misbehaved(reply.server.name, f"sent evidence that does not hold: {error}") from None
    return list(found)
