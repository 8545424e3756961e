"""What servers say about a run that they aborted, and a server's own ledger: checked without their help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from caps.basics import canonical
from caps.errors import CapsError
from caps.study import Manifest
from caps.wire import Evidence, Signed

_GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Accusation:
    """A server's evidence, and whether its signature and what it says hold."""

    server: str
    pair: tuple[str, str] | None
    step: int | None
    check: str
    at: str
    signature: str


def examined(manifest: Manifest, run: str, evidence: Sequence[Signed[Evidence]]) -> list[Accusation]:
    """Every piece of evidence about a run, with the verdict on it: `valid`, or why it proves nothing."""
    return [_examined(manifest, run, one) for one in evidence]


def _examined(manifest: Manifest, run: str, signed: Signed[Evidence]) -> Accusation:
    said, verdict = signed.document, "valid"
    try:
        signed.verify(manifest.server(signed.signer)).matches(manifest, run)
        if said.server != signed.signer:
            verdict = f"signed by {signed.signer} in the name of {said.server}"
    except CapsError as error:
        verdict = str(error)
    return Accusation(said.server, said.pair, said.step, said.check, said.at, verdict)


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
