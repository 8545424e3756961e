"""Evidence of an abort proves something or says why not."""

from __future__ import annotations

from typing import Any

import pytest

from caps.audit.evidence import examined
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
