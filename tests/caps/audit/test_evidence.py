"""Evidence of an abort proves something or says why not; a ledger's chain is checked without its server."""

from __future__ import annotations

from typing import Any

import pytest

from caps.audit.evidence import broken_at, examined
from caps.basics import canonical
from caps.study import Manifest
from caps.wire import Evidence, Signed
from tests.kit.study import AT, RUN, Keys, example_manifest


@pytest.fixture(scope="module")
def study() -> tuple[Manifest, Keys]:
    return example_manifest(scheme="rep4")


def evidence_of(study: tuple[Manifest, Keys], key: str = "S3", signer: str = "S3", **changes: Any) -> Signed[Evidence]:
    manifest, keys = study
    members: dict[str, Any] = {
        "study": manifest.study_id,
        "run": RUN,
        "step": None,
        "scheme": "rep4",
        "pair": ("S1", "S2"),
        "check": "keys",
        "server": "S3",
        "at": AT,
    }
    return Signed[Evidence].by(Evidence(**members | changes), signer, keys[key].signing)


def test_good_evidence_is_valid(study) -> None:
    (found,) = examined(study[0], RUN, [evidence_of(study)])
    assert (found.server, found.pair, found.step, found.check, found.signature) == (
        "S3",
        ("S1", "S2"),
        None,
        "keys",
        "valid",
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"key": "S4"}, "signature"),
        ({"signer": "S9"}, "no server 'S9'"),
        ({"key": "S4", "signer": "S4"}, "signed by S4 in the name of S3"),
        ({"run": "0" * 32}, "about another run"),
        ({"pair": ("S4", "S4")}, "must name two servers of the study"),
    ],
)
def test_evidence_that_proves_nothing_says_why(study, changes: dict[str, Any], said: str) -> None:
    (found,) = examined(study[0], RUN, [evidence_of(study, **changes)])
    assert said in found.signature


def chain(count: int) -> list[dict[str, Any]]:
    records, previous = [], "0" * 64
    for number in range(count):
        record = {"number": number, "previous": previous, "kind": "reserve", "run": RUN}
        previous = canonical.digest("ledger-record", {"record": record}).hex()
        records.append({**record, "hash": previous})
    return records


def test_a_whole_chain_holds_and_a_broken_one_is_seen_where_it_breaks() -> None:
    assert broken_at(chain(4)) is None
    assert broken_at([]) is None
    altered = chain(4)
    altered[2]["kind"] = "charge"
    assert broken_at(altered) == 2
    missing = chain(4)
    del missing[1]
    assert broken_at(missing) == 1
    rehashed = chain(4)
    rehashed[1]["hash"] = "1" * 64
    assert broken_at(rehashed) == 1
