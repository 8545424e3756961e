"""A server's ledger, checked without its help: its chain, and that it contains every head that the server signed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caps.basics import canonical
from caps.trust import signing
from caps.wire import LedgerHead, Signed

_GENESIS = "0" * 64


def broken_at(records: Iterable[dict[str, Any]]) -> int | None:
    """The number of the first record of a server's ledger that does not continue its chain; None if all do."""
    previous = _GENESIS
    for number, record in enumerate(records):
        content = {name: value for name, value in record.items() if name != "hash"}
        found = canonical.digest("ledger-record", {"record": content}).hex()
        if (record.get("number"), record.get("previous"), record.get("hash")) != (number, previous, found):
            return number
        previous = found
    return None


@dataclass(frozen=True, slots=True)
class HeadVerdict:
    """A head that somebody keeps of a server's ledger. holds: None if the server did not sign it: it proves nothing."""

    kept_by: str
    number: int
    at: str
    run: str
    holds: bool | None
    verdict: str


def compared(
    records: Sequence[Mapping[str, Any]], name: str, signing_key: str, kept: Mapping[str, Sequence[Signed[LedgerHead]]]
) -> list[HeadVerdict]:
    """Every head of this server's ledger, by who keeps it, with the verdict; heads of other servers are passed over."""
    hashes = {record.get("number"): record.get("hash") for record in records}
    verdicts = []
    for keeper, heads in kept.items():
        for head in heads:
            said = head.document
            if said.server != name:
                continue
            holds: bool | None = hashes.get(said.number) == said.hash
            verdict = "in the ledger" if holds else "NOT IN THE LEDGER, which was rolled back or rewritten"
            try:
                signing.verify(signing_key, said.kind, said.to_json(), head.signature)
            except signing.SignatureRefused:
                holds, verdict = None, f"not signed by {name}: it proves nothing"
            verdicts.append(HeadVerdict(keeper, said.number, said.at, said.run, holds, verdict))
    return verdicts
