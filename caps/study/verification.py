"""`caps verify`: whether a certificate holds, checked offline. It needs nobody's help and nothing but the certificate.

What it cannot tell: whether the parties named in the manifest are who the reader believes, for their keys stand in the
manifest itself. Compare the pins with those the organisations publish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from caps import canonical
from caps.errors import DomainError
from caps.files import digest_of
from caps.privacy import UNIT, PrivacyStatement, satisfies
from caps.privacy.statement import shown
from caps.signing import SignatureRefused
from caps.study.documents import Approval, Attestation, Certificate, D, Signed, inputs_digest
from caps.study.manifest import Party

CLOCK_SKEW = timedelta(minutes=10)
_OWN = ("server", "ledger", "at")
"""What is each server's own in an attestation; all else must be alike."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. passed: None if it could not be looked at, because a file was not given."""

    name: str
    passed: bool | None
    explanation: str


class _Fails(Exception):
    """Says why a check fails."""


def read_certificate(data: bytes) -> Certificate:
    """The certificate of a file. Raises DomainError if it is none."""
    try:
        return Certificate.model_validate_json(canonical.dump(canonical.parse(data)))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DomainError(f"not a certificate: {place}: {first['msg']}") from None


def accepted(checks: Sequence[Check]) -> bool:
    """Whether no check failed."""
    return all(check.passed is not False for check in checks)


def verify(
    certificate: Certificate, *, data: Path | None = None, measurements: bytes | None = None, now: datetime
) -> list[Check]:
    """Every check, in order, whether or not earlier ones passed. data and measurements: the files released, if at hand.

    Pre-conditions: `now` has a timezone.
    """
    checks: list[tuple[str, Callable[[Certificate], str]]] = [
        ("study", _study),
        ("server approvals", _server_approvals),
        ("holder approvals", _holder_approvals),
        ("attestations", _attestations),
        ("agreement", _agreement),
        ("inputs", _inputs),
        ("holders", _holders),
        ("privacy statement", _statement),
        ("guarantee", _guarantee),
        ("assumptions", _assumptions),
        ("noise", _noise),
        ("ledgers", _ledgers),
        ("release", _release),
        ("times", lambda certificate: _times(certificate, now)),
    ]
    found = [_checked(name, check, certificate) for name, check in checks]
    release = certificate.release.document
    if data is None:
        found.append(Check("data", None, "the synthetic table was not given, so its digest was not compared"))
    else:
        path = data
        found.append(_checked("data", lambda _: _same("the synthetic table", _file_digest(path), release.data)))
    if measurements is None:
        found.append(Check("measurements", None, "the measurements were not given, so their digest was not compared"))
    else:
        content = sha256(measurements).hexdigest()
        found.append(_checked("measurements", lambda _: _same("the measurements", content, release.measurements)))
    return found


def _checked(name: str, check: Callable[[Certificate], str], certificate: Certificate | None = None) -> Check:
    try:
        return Check(name, True, check(certificate))  # type: ignore[arg-type]
    except (_Fails, SignatureRefused, DomainError) as error:
        return Check(name, False, str(error))


def _signed(signed: Signed[D], party: Party) -> None:
    try:
        signed.verify(party)
    except SignatureRefused:
        what = signed.document.kind
        raise _Fails(f"the {what} of {party.name} does not bear the signature of {party.name}'s key") from None


def _study(certificate: Certificate) -> str:
    study = certificate.manifest.study_id
    documents = [
        *((f"the approval of {one.signer}", one.document.study) for one in certificate.approvals),
        *((f"the attestation of {one.signer}", one.document.study) for one in certificate.attestations),
        ("the release", certificate.release.document.study),
    ]
    for name, found in documents:
        if found != study:
            raise _Fails(f"{name} is for study {found[:16]}..., and the manifest is study {study[:16]}...")
    return f"all {len(documents)} documents are about study {study}, which is the digest of the manifest"


def _approval(certificate: Certificate, role: str, name: str) -> Signed[Approval]:
    found = [one for one in certificate.approvals if one.signer == name and one.document.role == role]
    if len(found) != 1:
        raise _Fails(f"there {'is no approval' if not found else 'are several approvals'} of {role} {name}")
    return found[0]


def _server_approvals(certificate: Certificate) -> str:
    for server in certificate.manifest.servers:
        approval = _approval(certificate, "mpc-server", server.name)
        _signed(approval, server)
        if approval.document.exchange_digest is None:
            raise _Fails(f"the approval of {server.name} lacks the digest of its exchange key")
    return "S1, S2 and S3 approved the study, each with its own signature"


def _holder_approvals(certificate: Certificate) -> str:
    names = {name for one in certificate.attestations for name in one.document.holders}
    if not names:
        raise _Fails("the attestations name no holder")
    for name in sorted(names):
        _signed(_approval(certificate, "holder", name), certificate.manifest.holder(name))
    return f"every holder whose data took part approved the study: {', '.join(sorted(names))}"


def _attestations(certificate: Certificate) -> str:
    signers = sorted(one.signer for one in certificate.attestations)
    if signers != ["S1", "S2", "S3"]:
        raise _Fails(f"one attestation of each server is needed, and there are those of {', '.join(signers) or 'none'}")
    for one in certificate.attestations:
        _signed(one, certificate.manifest.server(one.signer))
        if one.document.server != one.signer:
            raise _Fails(f"the attestation signed by {one.signer} speaks for {one.document.server}")
    return "S1, S2 and S3 attest the run, each with its own signature"


def _common(certificate: Certificate) -> Attestation:
    """What the servers say; of the first, where they disagree, which `_agreement` reports."""
    if not certificate.attestations:
        raise _Fails("there is no attestation")
    return certificate.attestations[0].document


def _agreement(certificate: Certificate) -> str:
    first = _common(certificate).to_json()
    for one in certificate.attestations[1:]:
        for field, value in one.document.to_json().items():
            if field not in _OWN and value != first[field]:
                raise _Fails(f"{one.signer} and {certificate.attestations[0].signer} attest different {field}")
    return "all servers attest the same inputs, steps, answers and privacy statement"


def _inputs(certificate: Certificate) -> str:
    attested = _common(certificate)
    if len(set(attested.contributions)) < len(attested.contributions):
        raise _Fails("a contribution is counted twice")
    if inputs_digest(attested.study, attested.contributions) != attested.inputs:
        raise _Fails("the digest of the inputs is not that of the contributions listed")
    return f"the run computed on {len(attested.contributions)} contributions, fixed by digest {attested.inputs}"


def _holders(certificate: Certificate) -> str:
    attested, manifest = _common(certificate), certificate.manifest
    repeated = [name for name, count in Counter(attested.holders).items() if count > 1]
    if repeated:
        raise _Fails(f"holder {repeated[0]} is named twice")
    for name in attested.holders:
        manifest.holder(name)  # raises for a stranger
    if not attested.holders or len(attested.holders) > len(attested.contributions):
        raise _Fails(f"{len(attested.contributions)} contributions cannot be of {len(attested.holders)} holders")
    absent = [holder.name for holder in manifest.holders if holder.name not in attested.holders]
    return f"the data are of {', '.join(attested.holders)}" + (f"; {', '.join(absent)} took no part" if absent else "")


def _parsed_statement(certificate: Certificate) -> PrivacyStatement:
    return PrivacyStatement.from_json(canonical.dump(_common(certificate).statement))


def _statement(certificate: Certificate) -> str:
    statement = _parsed_statement(certificate)
    return (
        f"epsilon = {shown(statement.epsilon)} at delta = {shown(statement.delta)} follows from the budgets stated, "
        f"and what was spent is within them"
    )


def _guarantee(certificate: Certificate) -> str:
    statement, privacy = _parsed_statement(certificate), certificate.manifest.privacy
    if statement.epsilon > privacy.exact_epsilon:
        raise _Fails(f"epsilon = {shown(statement.epsilon)} exceeds the {privacy.epsilon} that was agreed")
    if statement.delta > privacy.exact_delta:
        raise _Fails(f"delta = {shown(statement.delta)} exceeds the {privacy.delta} that was agreed")
    if statement.neighbouring != privacy.relation:
        raise _Fails("the statement protects against another change of the data than was agreed (neighbouring)")
    if privacy.accounting == "pure":
        if statement.pure_epsilon is None or statement.pure_epsilon > privacy.exact_epsilon:
            raise _Fails(f"a pure epsilon of at most {privacy.epsilon} was agreed, and is not stated")
    elif not satisfies(statement.rho, statement.allowance, privacy.exact_epsilon, privacy.exact_delta):
        raise _Fails(f"a budget of rho = {shown(statement.rho)} is more than the agreed guarantee allows")
    return f"it is no weaker than agreed: epsilon = {privacy.epsilon} at delta = {privacy.delta}"


def _assumptions(certificate: Certificate) -> str:
    statement = _parsed_statement(certificate)
    if statement.unit != UNIT:
        raise _Fails(f"the protected unit is said to be {statement.unit!r}, and not {UNIT!r}")
    for assumption in certificate.manifest.premises:
        if assumption not in statement.assumptions:
            raise _Fails(f"the statement conceals an assumption: {assumption}")
    return f"the statement names its {len(statement.assumptions)} assumptions"


def _noise(certificate: Certificate) -> str:
    statement, algorithm = _parsed_statement(certificate), certificate.manifest.algorithm
    if not statement.releases:
        raise _Fails("the statement lists no release at all")
    if statement.certified != algorithm.certified:
        said, agreed = ("proven" if yes else "unproven" for yes in (statement.certified, algorithm.certified))
        raise _Fails(f"the noise is stated to be {said}, and {agreed} noise ({algorithm.noise}) was agreed")
    if not statement.certified:
        return "AS AGREED, THE NOISE CARRIES NO PROVEN GUARANTEE: do not rely on it for personal data"
    return "all noise came from samplers whose distance from the ideal law is proven"


def _ledgers(certificate: Certificate) -> str:
    for one in certificate.attestations:
        ledger = one.document.ledger
        if ledger.first > ledger.last or (ledger.first == ledger.last) != (ledger.first_hash == ledger.last_hash):
            raise _Fails(f"the part of {one.signer}'s ledger that is cited cannot be one")
    return "every server cites the part of its ledger in which the run stands"


def _release(certificate: Certificate) -> str:
    manifest, release, attested = certificate.manifest, certificate.release.document, _common(certificate)
    _signed(certificate.release, manifest.coordinator)
    if release.run != attested.run:
        raise _Fails("the release is of another run than the servers attest")
    if release.transcript != attested.transcript:
        raise _Fails("the release was made from other answers than the servers attest")
    if manifest.publication.rows not in (None, release.rows):
        raise _Fails(f"{release.rows} rows were released, and {manifest.publication.rows} were agreed")
    return (
        f"{manifest.coordinator.name} made {release.rows} rows from the answers of run {release.run}, and signed them"
    )


def _times(certificate: Certificate, now: datetime) -> str:
    for what, at in _instants(certificate):
        if at > now + CLOCK_SKEW:
            raise _Fails(f"{what} is dated {at:%Y-%m-%d %H:%M} UTC, which is yet to come")
    attested = {one.signer: _instant(one.document.at) for one in certificate.attestations}
    for approval in certificate.approvals:
        later = attested.get(approval.signer) if approval.document.role == "mpc-server" else None
        if later is not None and _instant(approval.document.at) > later:
            raise _Fails(f"{approval.signer} approved the study after it attested the run")
    return "nothing is dated later than now, and servers approved before they computed"


def _instants(certificate: Certificate) -> Iterator[tuple[str, datetime]]:
    for approval in certificate.approvals:
        yield f"the approval of {approval.signer}", _instant(approval.document.at)
    for attestation in certificate.attestations:
        yield f"the attestation of {attestation.signer}", _instant(attestation.document.at)
    yield "the release", _instant(certificate.release.document.at)


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _Fails(f"{text} is not a time") from None


def _same(what: str, found: str, expected: str) -> str:
    if found != expected:
        raise _Fails(f"{what} has digest {found[:16]}..., and {expected[:16]}... was released")
    return f"{what} is the file that was released"


def _file_digest(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError as error:
        raise _Fails(f"{path} cannot be read: {error.strerror}") from None
