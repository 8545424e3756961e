"""Every check of `caps verify` passes for a good certificate, and fails when the one thing it looks at is altered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from caps.audit.verification import Check, accepted, verify
from caps.basics import canonical
from caps.basics.schemes import SCHEMES
from caps.dp.privacy import BOUNDED, GaussianErrors, PrivacyStatement, Releases
from caps.errors import DomainError
from caps.study.manifest import Manifest
from caps.wire.documents import Approval, Attestation, Certificate, LedgerRange, ReleaseBody, Signed, inputs_digest
from tests.kit.study import (
    COLUMNS,
    DATA,
    MIXED,
    NOW,
    Keys,
    example_manifest,
    example_release,
    honest_walk,
    transcript_of,
)

PAPER = {"name": "aim", "noise": "paper:irwin-hall"}


@pytest.fixture(scope="module")
def study() -> tuple[Manifest, Keys]:
    return example_manifest()


@pytest.fixture(scope="module")
def certificate(study: tuple[Manifest, Keys]) -> Certificate:
    return example_release(*study).certificate


def failed(certificate: Certificate, **files: Any) -> set[str]:
    return {check.name for check in verify(certificate, now=NOW, **files) if check.passed is False}


def attested(certificate: Certificate, keys: Keys, servers: tuple[int, ...] = (0, 1, 2), **changes: Any) -> Certificate:
    """The certificate with attestations altered, and signed anew by the servers themselves."""
    attestations = list(certificate.attestations)
    for i in servers:
        document = Attestation(**dict(attestations[i].document) | changes)
        attestations[i] = Signed[Attestation].by(document, f"S{i + 1}", keys[f"S{i + 1}"].signing)
    return altered(certificate, attestations=tuple(attestations))


def released(certificate: Certificate, keys: Keys, signer: str = "coordinator", **changes: Any) -> Certificate:
    document = ReleaseBody(**dict(certificate.release.document) | changes)
    signed = Signed[ReleaseBody].by(document, certificate.release.signer, keys[signer].signing)
    return altered(certificate, release=signed)


def test_a_holder_that_was_left_out_is_named_as_such(tmp_path: Path) -> None:
    manifest, keys = example_manifest(holders=MIXED, inputs={"refused": "leave-out"})
    release = example_release(manifest, keys, refused=["clinic-a"])
    files = release.write(tmp_path)
    checks = {check.name: check for check in verify(release.certificate, now=NOW, **files)}
    assert accepted(list(checks.values()))
    assert checks["holders"].explanation == (
        "the data come from registry, lab; clinic-a failed the checks and was left out"
    )
    everybody = tuple(holder.name for holder in manifest.holders)
    for changes, caught in (
        ({"holders": everybody, "refused": ()}, {"steps"}),  # as if all had taken part
        ({"holders": everybody[1:], "refused": ()}, {"holders", "holder approvals", "steps"}),  # it is not mentioned
        ({"holders": ("clinic-a", "lab"), "refused": ("registry",)}, {"holders", "steps"}),  # it was another one
        ({"holders": everybody, "refused": everybody[:1]}, {"holders", "steps"}),
        ({"holders": everybody[1:], "refused": ("stranger",)}, {"holders", "holder approvals", "steps"}),
    ):
        found = failed(attested(release.certificate, keys, **changes), **files)
        assert caught <= found <= caught | {"charges", "measurements"}, (changes, found)


def test_there_is_no_release_after_a_refusal_unless_the_study_says_so(study: tuple[Manifest, Keys]) -> None:
    manifest, keys = study
    certificate = attested(
        example_release(manifest, keys).certificate, keys, holders=("clinic-a",), refused=("clinic-b",)
    )
    checks = {check.name: check for check in verify(certificate, now=NOW)}
    assert not checks["holders"].passed
    assert "clinic-b failed the servers' checks, and the study agreed to stop" in checks["holders"].explanation


def approved(certificate: Certificate, keys: Keys, index: int, signer: str = "", **changes: Any) -> Certificate:
    approvals = list(certificate.approvals)
    name = approvals[index].signer
    document = Approval(**dict(approvals[index].document) | changes)
    approvals[index] = Signed[Approval].by(document, name, keys[signer or name].signing)
    return altered(certificate, approvals=tuple(approvals))


def altered(certificate: Certificate, **changes: Any) -> Certificate:
    return Certificate(**dict(certificate) | changes)


def stated(certificate: Certificate, keys: Keys, **changes: Any) -> Certificate:
    statement = PrivacyStatement.from_json(canonical.dump(certificate.attestations[0].document.statement))
    value = canonical.parse(replace(statement, **changes).to_json())
    return attested(certificate, keys, statement=value)


@pytest.mark.parametrize("holders", [COLUMNS, MIXED])
@pytest.mark.parametrize("algorithm", ["aim", "mst", "swift"])
def test_a_good_certificate_passes(tmp_path: Path, holders: Any, algorithm: str) -> None:
    release = example_release(*example_manifest(holders=holders, algorithm=algorithm))
    certificate = release.certificate
    checks = verify(certificate, now=NOW, **release.write(tmp_path))
    assert [check for check in checks if check.passed is not True] == []
    assert accepted(checks)
    again = Certificate.from_canonical(canonical.dump(certificate.to_json()))
    assert again == certificate
    assert accepted(verify(again, now=NOW))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_certificate_of_every_scheme_passes_and_says_which(tmp_path: Path, scheme: str) -> None:
    manifest, keys = example_manifest(scheme=scheme)
    release = example_release(manifest, keys)
    paths = release.write(tmp_path)
    checks = {check.name: check for check in verify(release.certificate, now=NOW, **paths)}
    assert {check.name for check in checks.values() if check.passed is not True} == set()
    assert checks["scheme"].explanation.startswith(f"{scheme}: {len(manifest.servers)} servers")
    assert ("does anything" in checks["scheme"].explanation) == manifest.sharing.active
    assert manifest.sharing.servers_listed in checks["answers"].explanation
    fewer = altered(release.certificate, attestations=release.certificate.attestations[:-1])
    assert failed(fewer) >= {"scheme", "attestations"}


def test_an_answer_with_the_signatures_of_another_scheme_is_found(tmp_path: Path) -> None:
    manifest, keys = example_manifest(scheme="rep4")
    _, steps = honest_walk(manifest)
    lines = transcript_of(manifest, keys, steps)
    short = lines[1].model_copy(update={"signatures": lines[1].signatures[:3]})
    release = example_release(manifest, keys, transcript=[lines[0], short, *lines[2:]])
    paths = release.write(tmp_path)
    checks = {check.name: check for check in verify(release.certificate, now=NOW, **paths)}
    assert checks["answers"].passed is False
    assert checks["answers"].explanation == "step 1: the answer has 3 signatures, not 4"


def test_a_statement_for_another_scheme_is_found() -> None:
    manifest, keys = example_manifest(scheme="rep3")
    active = Manifest.from_json(manifest.to_json() | {"scheme": "rep3-active"})
    account, _ = honest_walk(active)
    release = example_release(manifest, keys, statement=account.statement())
    assert failed(release.certificate) == {"assumptions"}


@pytest.mark.parametrize(
    ("step", "changed", "reason"),
    [
        (1, lambda asked: {"parts": asked.parts * 2}, "more than the 4096 parts"),
        (1, lambda asked: {"parts": asked.parts - 1}, "a batch other than the initial marginals"),
        (2, lambda asked: {"candidates": asked.candidates[::-1]}, "a comparison of cliques that are not all"),
        (2, lambda asked: {"mechanism": GaussianErrors(asked.mechanism.sigma_squared / 4)}, "is not due"),
        (3, lambda asked: {"parts": asked.parts * 2}, "more than the 4096 parts"),
    ],
)
def test_a_batch_or_a_comparison_that_was_not_due_is_found(
    tmp_path: Path, step: int, changed: Any, reason: str
) -> None:
    """All servers signed it, and charged what the schedule says."""
    manifest, keys = example_manifest(algorithm="swift")
    _, steps = honest_walk(manifest)
    asked, value = steps[step]
    lines = transcript_of(
        manifest, keys, [*steps[:step], (replace(asked, **changed(asked)), value), *steps[step + 1 :]]
    )
    release = example_release(manifest, keys, transcript=lines)
    checks = {check.name: check for check in verify(release.certificate, now=NOW, **release.write(tmp_path))}
    assert checks["steps"].passed is False
    assert checks["steps"].explanation.startswith(f"step {step}: ")
    assert reason in checks["steps"].explanation


def test_pure_accounting_passes(tmp_path: Path) -> None:
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}
    manifest, keys = example_manifest(algorithm="mwem", privacy=privacy)
    release = example_release(manifest, keys)
    assert failed(release.certificate, **release.write(tmp_path)) == set()


def test_files_that_are_not_given_are_said_not_to_be_checked(certificate: Certificate) -> None:
    checks = {check.name: check for check in verify(certificate, now=NOW)}
    unchecked = {name for name, check in checks.items() if check.passed is None}
    assert unchecked == {"transcript", "answers", "steps", "charges", "measurements", "data"}
    assert checks["transcript"].explanation == "the transcript was not given"
    assert accepted(list(checks.values()))
    assert not accepted([Check("x", False, "")])


STATEMENT = {"privacy statement", "guarantee", "assumptions", "noise"}
LEDGER = {"first_hash": "11" * 32, "last_hash": "22" * 32}

ALTERATIONS: list[tuple[str, set[str], Callable[[Certificate, Keys], Certificate]]] = [
    ("approval of another study", {"study"}, lambda c, k: approved(c, k, 0, study="00" * 32)),
    (
        "attestations of another study",
        {"study", "inputs"},
        lambda c, k: attested(c, k, study="00" * 32),
    ),
    ("release of another study", {"study"}, lambda c, k: released(c, k, study="00" * 32)),
    (
        "a server's approval is missing",
        {"scheme", "server approvals"},
        lambda c, _: altered(c, approvals=c.approvals[1:]),
    ),
    (
        "a server approves twice",
        {"scheme", "server approvals"},
        lambda c, _: altered(c, approvals=(c.approvals[0], *c.approvals)),
    ),
    ("a server's approval by another key", {"server approvals"}, lambda c, k: approved(c, k, 0, "S2")),
    (
        "a server's approval without an exchange key's digest",
        {"server approvals"},
        lambda c, k: approved(c, k, 1, exchange_digest=None),
    ),
    (
        "a server approves as a holder",
        {"scheme", "server approvals", "holder approvals"},
        lambda c, k: approved(c, k, 1, role="holder"),
    ),
    ("a holder's approval is missing", {"holder approvals"}, lambda c, _: altered(c, approvals=c.approvals[:-1])),
    ("a holder's approval by another key", {"holder approvals"}, lambda c, k: approved(c, k, 3, "clinic-b")),
    (
        "a holder approves twice",
        {"holder approvals"},
        lambda c, _: altered(c, approvals=(*c.approvals, c.approvals[-1])),
    ),
    (
        "holders before servers",
        {"server approvals"},
        lambda c, _: altered(c, approvals=(*c.approvals[3:], *c.approvals[:3])),
    ),
    (
        "attestations in another order",
        {"attestations"},
        lambda c, _: altered(c, attestations=c.attestations[::-1]),
    ),
    ("an attestation is missing", {"scheme", "attestations"}, lambda c, _: altered(c, attestations=c.attestations[:2])),
    (
        "one server attests twice",
        {"attestations"},
        lambda c, _: altered(c, attestations=(*c.attestations[:2], c.attestations[0])),
    ),
    (
        "an attestation changed after it was signed",
        {"attestations"},
        lambda c, _: altered(
            c,
            attestations=(
                *c.attestations[:2],
                Signed[Attestation](
                    document=Attestation(**dict(c.attestations[2].document) | {"at": "2030-05-17T12:00:01Z"}),
                    signer="S3",
                    signature=c.attestations[2].signature,
                ),
            ),
        ),
    ),
    ("a server attests for another", {"attestations"}, lambda c, k: attested(c, k, (1,), server="S1")),
    ("servers disagree on the transcript", {"agreement"}, lambda c, k: attested(c, k, (2,), transcript="00" * 32)),
    ("servers disagree on the software", {"agreement"}, lambda c, k: attested(c, k, (1,), software="other")),
    ("servers disagree on the steps", {"agreement"}, lambda c, k: attested(c, k, (1,), steps=7)),
    ("inputs are not the contributions", {"inputs"}, lambda c, k: attested(c, k, inputs="00" * 32)),
    (
        "a contribution twice",
        {"inputs"},
        lambda c, k: attested(
            c,
            k,
            contributions=("11" * 32,) * 2,
            inputs=inputs_digest(c.manifest.study_id, ("11" * 32,) * 2),
        ),
    ),
    ("a stranger's data", {"holder approvals", "holders"}, lambda c, k: attested(c, k, holders=("stranger",))),
    ("a holder twice", {"holder approvals", "holders"}, lambda c, k: attested(c, k, holders=("clinic-a", "clinic-a"))),
    ("no holder", {"holder approvals", "holders"}, lambda c, k: attested(c, k, holders=())),
    (
        "more holders than contributions",
        {"holders"},
        lambda c, k: attested(
            c, k, contributions=("11" * 32,), inputs=inputs_digest(c.manifest.study_id, ("11" * 32,))
        ),
    ),
    (
        "a statement that is not true of itself",
        STATEMENT,
        lambda c, k: attested(c, k, statement=c.attestations[0].document.statement | {"epsilon": "1/2"}),
    ),
    ("no statement", STATEMENT, lambda c, k: attested(c, k, statement={})),
    ("epsilon exceeds", {"guarantee"}, lambda c, k: stated(c, k, epsilon=Fraction(11, 10))),
    ("delta exceeds", {"guarantee"}, lambda c, k: stated(c, k, delta=Fraction(1, 1000))),
    ("another relation", {"guarantee"}, lambda c, k: stated(c, k, neighbouring=BOUNDED)),
    ("another unit", {"assumptions"}, lambda c, k: stated(c, k, unit="one visit")),
    ("an assumption concealed", {"assumptions"}, lambda c, k: stated(c, k, assumptions=("all is well",))),
    ("no release", {"noise"}, lambda c, k: stated(c, k, releases=())),
    (
        "noise that is not certified",
        {"noise"},
        lambda c, k: stated(c, k, releases=(Releases("gaussian", "paper:irwin-hall", False, 1),)),
    ),
    (
        "a ledger backwards",
        {"ledgers"},
        lambda c, k: attested(c, k, (0,), ledger=LedgerRange(first=9, last=3, **LEDGER)),
    ),
    (
        "a ledger of one record with two hashes",
        {"ledgers"},
        lambda c, k: attested(c, k, (0,), ledger=LedgerRange(first=3, last=3, **LEDGER)),
    ),
    ("a release signed by another", {"release"}, lambda c, k: released(c, k, "S1")),
    ("a release of another run", {"release"}, lambda c, k: released(c, k, run="0" * 32)),
    ("a release without transcript", {"release"}, lambda c, k: released(c, k, files={"data.csv": "00" * 32})),
    ("a release of other answers", {"release"}, lambda c, k: released(c, k, transcript="00" * 32)),
    ("a release from the future", {"times"}, lambda c, k: released(c, k, at="2031-01-01T00:00:00Z")),
    ("an approval from the future", {"times"}, lambda c, k: approved(c, k, 4, at="2031-01-01T00:00:00Z")),
    ("no such day", {"times"}, lambda c, k: released(c, k, at="2030-02-30T00:00:00Z")),
    ("approved after it attested", {"times"}, lambda c, k: approved(c, k, 0, at="2030-05-17T12:00:01Z")),
]


@pytest.mark.parametrize(
    ("expected", "alter"), [case[1:] for case in ALTERATIONS], ids=[case[0] for case in ALTERATIONS]
)
def test_an_alteration_is_found(
    study: tuple[Manifest, Keys],
    certificate: Certificate,
    expected: set[str],
    alter: Callable[[Certificate, Keys], Certificate],
) -> None:
    assert failed(alter(certificate, study[1])) == expected


def test_another_manifest_is_found(certificate: Certificate) -> None:
    """With the same keys, so that only the digest tells."""
    value = certificate.to_json()
    value["manifest"]["privacy"]["epsilon"] = "2"
    assert failed(Certificate.from_canonical(canonical.dump(value))) == {"study"}


def test_agreed_rows_are_compared(study: tuple[Manifest, Keys]) -> None:
    manifest, keys = example_manifest(publication={"rows": 5})
    assert failed(example_release(manifest, keys).certificate) == {"release"}


def test_a_larger_budget_with_a_smaller_delta_is_found(study: tuple[Manifest, Keys]) -> None:
    """epsilon may not hide that rho, at the delta agreed, gives more: the pure figure is worth nothing there."""
    manifest, keys = study
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}
    pure = example_manifest(algorithm="mwem", privacy=privacy)[0]
    statement = honest_walk(pure)[0].statement()
    assert failed(example_release(manifest, keys, statement=statement).certificate) == {"guarantee"}


def test_pure_accounting_wants_a_pure_statement(study: tuple[Manifest, Keys]) -> None:
    privacy = {"epsilon": "1", "delta": "1e-6", "accounting": "pure", "population": "patients"}
    manifest, keys = example_manifest(algorithm="mwem", privacy=privacy)
    statement = honest_walk(study[0])[0].statement()
    assert failed(example_release(manifest, keys, statement=statement).certificate) == {"guarantee"}


def test_noise_agreed_to_be_uncertified_passes_with_a_warning(study: tuple[Manifest, Keys], tmp_path: Path) -> None:
    manifest, keys = example_manifest(algorithm=PAPER)
    release = example_release(manifest, keys)
    checks = verify(release.certificate, now=NOW, **release.write(tmp_path))
    assert accepted(checks)
    assert "NO PROVEN GUARANTEE" in next(check.explanation for check in checks if check.name == "noise")
    certified = replace(honest_walk(manifest)[0].statement(), releases=honest_walk(study[0])[0].statement().releases)
    assert failed(example_release(manifest, keys, statement=certified).certificate) == {"noise"}


def test_the_files_are_compared(tmp_path: Path, study: tuple[Manifest, Keys]) -> None:
    release = example_release(*study)
    files = release.write(tmp_path)
    assert failed(release.certificate, data=tmp_path / "data.ndjson") == set()
    assert failed(release.certificate, data=tmp_path / "model.caps") == {"data"}
    assert failed(release.certificate, data=tmp_path / "absent") == {"data"}
    assert failed(release.certificate, measurements=tmp_path / "absent") == {"measurements"}
    assert failed(release.certificate, transcript=tmp_path / "absent") == {"transcript"}
    assert failed(release.certificate, **files | {"measurements": tmp_path / "absent"}) == {"measurements"}
    other = example_release(*study, data=DATA.replace(b"north", b"south")).write(tmp_path / "other")["data"]
    checks = {check.name: check for check in verify(release.certificate, data=other, now=NOW)}
    assert checks["data"].passed is False
    assert str(other) in checks["data"].explanation
    files["measurements"].write_bytes(files["measurements"].read_bytes() + b" ")
    assert failed(release.certificate, measurements=files["measurements"]) == {"measurements"}
    assert failed(release.certificate, **files) == {"measurements"}


def test_clocks_may_differ_a_little(certificate: Certificate) -> None:
    assert accepted(verify(certificate, now=NOW - timedelta(minutes=5)))
    assert not accepted(verify(certificate, now=NOW - timedelta(minutes=15)))


def test_what_is_no_certificate_is_refused(certificate: Certificate) -> None:
    with pytest.raises(DomainError, match="JSON"):
        Certificate.from_canonical(b"nothing")
    text = canonical.dump(certificate.to_json())
    with pytest.raises(DomainError, match=r"^byte 12: "):
        Certificate.from_canonical(text[:12] + b" " + text[12:])
    value = certificate.to_json()
    del value["release"]
    with pytest.raises(DomainError, match="release"):
        Certificate.from_canonical(canonical.dump(value))


def test_a_transcript_that_is_not_published_is_said_to_be_so() -> None:
    manifest, keys = example_manifest(publication={"measurements": False})
    checks = verify(example_release(manifest, keys).certificate, now=NOW)
    assert accepted(checks)
    assert "agreed not to publish" in next(check.explanation for check in checks if check.name == "transcript")
