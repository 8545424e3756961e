"""Small parts of the wire: digests in headers, media types, one place for every problem."""

import base64
from hashlib import sha256

import pytest

from caps.wire import digests, media
from caps.wire.problems import Kind

DIGEST = sha256(b"rows").digest()
SPELLED = "sha-256=:" + base64.b64encode(DIGEST).decode() + ":"


def test_a_digest_is_spelled_as_rfc_9530_has_it() -> None:
    assert digests.spelled(DIGEST) == SPELLED
    assert digests.stated(SPELLED) == DIGEST


@pytest.mark.parametrize("header", [f" {SPELLED} ", f"sha-512=:AAAA:, {SPELLED}", f"{SPELLED},md5=:AAAA:"])
def test_other_algorithms_are_passed_over(header: str) -> None:
    assert digests.stated(header) == DIGEST


@pytest.mark.parametrize(
    "header",
    [
        "",
        "sha-256",
        "sha-256=",
        "sha-256=:",
        "sha-256=::",
        "sha-256=:AAAA:",
        "sha-256=:!:",
        "sha-256=:\u00e9:",
        SPELLED[:-1],
        SPELLED.replace(":", ""),
        SPELLED.replace("sha-256", "SHA-256"),
        f"{SPELLED}, {SPELLED}",
    ],
)
def test_anything_but_one_sha_256_states_none(header: str) -> None:
    assert digests.stated(header) is None


def test_media_types_differ_but_for_the_two_forms_of_csv() -> None:
    assert len(set(media.TABLES.values())) == len(media.TABLES) - 1 == 4
    assert media.TABLES["csv"] == media.TABLES["raw.csv"]


def test_problems_have_urns_of_their_own() -> None:
    assert Kind.NOT_FOUND.urn == "urn:caps:problem:not-found"
    assert len({kind.urn for kind in Kind}) == len(Kind)
