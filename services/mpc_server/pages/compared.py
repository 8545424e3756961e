"""The ledgers side by side: the signed heads that this server keeps, its own and its peers', checked and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caps.errors import CapsError
from caps.wire import LedgerHead, Signed
from services.mpc_server.intake.studies import Studies
from services.mpc_server.runs.runs import Runs
from services.mpc_server.storage.ledger import Ledger, LedgerBroken


@dataclass(frozen=True)
class Head:
    """A head of one server's ledger. verdict: what can be said of it, in words."""

    number: int
    hash: str
    at: str
    sound: bool
    verdict: str


@dataclass(frozen=True)
class Compared:
    """By run, the newest first, the heads that the servers gave each other when it began."""

    servers: tuple[str, ...]
    runs: tuple[tuple[str, str, dict[str, Head]], ...]
    wrong: tuple[str, ...]
    all_runs: int


def compare(
    heads: Sequence[Signed[LedgerHead]], own: str, ledger: Ledger, runs: Runs, studies: Studies, *, most: int = 50
) -> Compared:
    """Check each head against its server's key in the run's study, this ledger, and the heads before it."""
    try:
        begun = {one.run: one for one in runs.listed()}
    except LedgerBroken:  # the heads are shown all the same: they tell what is lost
        begun = {}
    wrong: list[str] = []
    by_run: dict[str, dict[str, Head]] = {}
    seen: dict[tuple[str, int], str] = {}
    for signed in heads:
        head = signed.document
        verdict, sound = "kept as it was given", True
        if head.run in begun:
            party = studies.manifest(begun[head.run].study).server(head.server)
            try:
                signed.verify(party)
                verdict = "signature holds"
            except CapsError:
                verdict, sound = "signature does not hold", False
            key = (party.signing_key, head.number)
        else:
            key = (head.server, head.number)
        if head.server == own and sound:
            sound = ledger.contains(head.number, head.hash)
            verdict = "in this ledger as signed" if sound else "signed, but not in this ledger"
        if seen.setdefault(key, head.hash) != head.hash:
            verdict, sound = "contradicts another head with this number", False
        if not sound:
            wrong.append(f"{head.server}, record {head.number}: {verdict}")
        by_run.setdefault(head.run, {})[head.server] = Head(head.number, head.hash, head.at, sound, verdict)
    servers = tuple(sorted({name for found in by_run.values() for name in found}))
    order = [run for run in begun if run in by_run] + [run for run in by_run if run not in begun]
    listed = tuple((run, begun[run].at if run in begun else "", by_run[run]) for run in order[:most])
    return Compared(servers, listed, tuple(wrong), len(order))
