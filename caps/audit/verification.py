"""`caps verify`: checks offline, without anybody's help, that a certificate is valid and belongs to the given files.

The certificate says who agreed to what and who signed which files. With the transcript, all charges are computed again,
which detects servers that agreed among themselves on less than the manifest demands.

It cannot tell by itself whether the parties in the manifest are who the reader believes, because their keys are in the
manifest. With the organisations' cards, and certificates of their authority, it compares them (`caps.audit.parties`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from caps.audit.parties import differences, parties
from caps.audit.replay import Replay
from caps.basics import canonical
from caps.basics.files import digest_of
from caps.dp.privacy import UNIT, PrivacyStatement, satisfies
from caps.dp.privacy.statement import shown
from caps.errors import DomainError
from caps.trust.cards import Party
from caps.trust.signing import SignatureRefused
from caps.wire.documents import (
    Approval,
    Attestation,
    Certificate,
    D,
    Signed,
    inputs_digest,
)
from caps.wire.releases import MEASUREMENTS, ROWS, TRANSCRIPT, Measurements

CLOCK_SKEW = timedelta(minutes=10)
_OWN = ("server", "ledger", "at")
"""The members of an attestation in which servers differ; all others must be the same."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. passed: None if it was not possible, because a file was not given or is broken."""

    name: str
    passed: bool | None
    explanation: str


class _Fails(Exception):
    """Says why a check fails."""


def accepted(checks: Sequence[Check]) -> bool:
    """Whether no check failed."""
    return all(check.passed is not False for check in checks)


def verify(
    certificate: Certificate,
    *,
    transcript: Path | None = None,
    measurements: Path | None = None,
    data: Path | Sequence[Path] | None = None,
    cards: Path | None = None,
    authority: Path | None = None,
    now: datetime,
) -> list[Check]:
    """Every check, in order, whether or not earlier ones passed. The paths are of released files, where available.

    data: the rows, in one format or several. cards, authority: as `caps.audit.parties.parties` takes them.
    Pre-conditions: `now` has a timezone.
    """
    checks: list[tuple[str, Callable[[Certificate], str]]] = [
        ("study", _study),
        ("scheme", _scheme),
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
    found = [_checked(name, partial(check, certificate)) for name, check in checks]
    replayed, replay = _replayed(certificate, transcript)
    found += replayed
    files = certificate.release.document.files
    if measurements is None:
        found.append(Check("measurements", None, "the measurements were not given"))
    else:
        found.append(_checked("measurements", partial(_measurements, certificate, measurements, replay)))
    rows = [data] if isinstance(data, Path) else list(data or ())
    found += [_checked("data", partial(_rows, files, path)) for path in rows]
    if not rows:
        found.append(Check("data", None, "the synthetic rows were not given"))
    return found + _compared(certificate, cards, authority)


def _compared(certificate: Certificate, cards: Path | None, authority: Path | None) -> list[Check]:
    """Whether the manifest's keys are those of the organisations, as far as cards and certificates were given."""
    given = [name for name, path in (("cards", cards), ("authority", authority)) if path is not None]
    try:
        found = parties(certificate.manifest, cards=cards, authority=authority) if given else []
    except DomainError as error:
        return [Check(name, False, str(error)) for name in given]
    verdicts = {"cards": ("card", "the keys on their cards"), "authority": ("certified", "keys that it certified")}
    checks = []
    for name in given:
        sorted_out = differences(found, verdicts[name][0])
        if sorted_out["differs"]:
            where = "on the card" if name == "cards" else "that the authority certified"
            checks.append(Check(name, False, f"{', '.join(sorted_out['differs'])}: not the keys {where}"))
            continue
        same, unknown = ", ".join(sorted_out["same"]), ", ".join(sorted_out["unknown"])
        what = "card" if name == "cards" else "certificate"
        lacking = f"no {what} of {unknown} was given" if unknown else ""
        held = f"{same} have {verdicts[name][1]}" if same else ""
        checks.append(Check(name, None if unknown else True, "; ".join(filter(None, (held, lacking)))))
    return checks


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, True, check())
    except (_Fails, SignatureRefused, DomainError) as error:
        return Check(name, False, str(error))


def _signed(signed: Signed[D], party: Party) -> None:
    try:
        signed.verify(party)
    except SignatureRefused:
        what = signed.document.kind
        raise _Fails(f"the {what} of {party.name} does not have a valid signature of {party.name}'s key") from None


def _study(certificate: Certificate) -> str:
    study = certificate.manifest.study_id
    documents = [
        *((f"the approval of {one.signer}", one.document.study) for one in certificate.approvals),
        *((f"the attestation of {one.signer}", one.document.study) for one in certificate.attestations),
        ("the release", certificate.release.document.study),
    ]
    for name, found in documents:
        if found != study:
            raise _Fails(f"{name} is for study {found[:16]}..., but the manifest is that of study {study[:16]}...")
    return f"all {len(documents)} documents are about study {study}, which is the digest of the manifest"


def _scheme(certificate: Certificate) -> str:
    scheme = certificate.manifest.sharing
    signed = {
        "approvals of servers": sum(one.document.role == "mpc-server" for one in certificate.approvals),
        "attestations": len(certificate.attestations),
    }
    for what, count in signed.items():
        if count != scheme.parties:
            raise _Fails(f"{scheme.name} has {scheme.parties} servers, but the certificate has {count} {what}")
    trusted = "does anything it likes" if scheme.active else "follows the protocol, whatever it sees"
    return f"{scheme.name}: {scheme.parties} servers; the guarantee holds if one of them is corrupted and {trusted}"


def _approvals(certificate: Certificate, role: str, parties: Sequence[Party]) -> list[Approval]:
    """What the parties of a role approved: each once, in this order, and all signed."""
    found = {one.signer: one for one in certificate.approvals if one.document.role == role}
    for party in parties:
        if party.name not in found:
            raise _Fails(f"there is no approval of {role} {party.name}")
        _signed(found[party.name], party)
    signers = [one.signer for one in certificate.approvals if one.document.role == role]
    if signers != [party.name for party in parties]:
        raise _Fails(f"approvals of {role}s are not one of each in order: {', '.join(signers)}")
    return [found[party.name].document for party in parties]


def _server_approvals(certificate: Certificate) -> str:
    servers = certificate.manifest.servers
    for server, approval in zip(servers, _approvals(certificate, "mpc-server", servers), strict=True):
        if approval.exchange_digest is None:
            raise _Fails(f"the approval of {server.name} lacks the digest of its exchange key")
    if {one.document.role for one in certificate.approvals[: len(servers)]} != {"mpc-server"}:
        raise _Fails("approvals of holders precede those of servers")
    return f"{certificate.manifest.sharing.servers_listed} approved the study, each with its own signature"


def _holder_approvals(certificate: Certificate) -> str:
    attested = [one.document for one in certificate.attestations]
    names = {name for one in attested for name in (*one.holders, *one.refused)}
    if not names:
        raise _Fails("the attestations name no holder")
    _approvals(certificate, "holder", [certificate.manifest.holder(name) for name in sorted(names)])
    return f"every holder that contributed approved the study: {', '.join(sorted(names))}"


def _attestations(certificate: Certificate) -> str:
    signers = [one.signer for one in certificate.attestations]
    scheme = certificate.manifest.sharing
    if tuple(signers) != scheme.server_names:
        said = ", ".join(signers) or "none"
        raise _Fails(
            f"{scheme.name} needs one attestation of {scheme.servers_listed} each, in this order; found: {said}"
        )
    for one in certificate.attestations:
        _signed(one, certificate.manifest.server(one.signer))
        if one.document.server != one.signer:
            raise _Fails(f"the attestation signed by {one.signer} names {one.document.server} as its server")
    return f"{scheme.servers_listed} attest the run, each with its own signature"


def _common(certificate: Certificate) -> Attestation:
    """What the servers attest. Where they disagree, which `_agreement` reports, it is the first server's."""
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
        raise _Fails("a contribution is listed twice")
    if inputs_digest(attested.study, attested.contributions) != attested.inputs:
        raise _Fails("the digest of the inputs is not that of the listed contributions")
    return f"the run computed on {len(attested.contributions)} contributions, fixed by digest {attested.inputs}"


def _holders(certificate: Certificate) -> str:
    attested, manifest = _common(certificate), certificate.manifest
    named = (*attested.holders, *attested.refused)
    repeated = [name for name, count in Counter(named).items() if count > 1]
    if repeated:
        raise _Fails(f"holder {repeated[0]} is named twice")
    for name in named:
        manifest.holder(name)  # raises for a stranger
    if not attested.holders or len(named) != len(attested.contributions):
        raise _Fails(f"{len(attested.contributions)} contributions cannot come from {len(named)} holders")
    if stop := manifest.why_stop(attested.holders, attested.refused):
        raise _Fails(f"there should be no release: {stop}")
    absent = [holder.name for holder in manifest.holders if holder.name not in named]
    return "; ".join(
        (
            f"the data come from {', '.join(attested.holders)}",
            *([f"{', '.join(attested.refused)} failed the checks and was left out"] if attested.refused else ()),
            *([f"{', '.join(absent)} took no part"] if absent else ()),
        )
    )


def _parsed_statement(certificate: Certificate) -> PrivacyStatement:
    return _stated(_common(certificate))


def _stated(attestation: Attestation) -> PrivacyStatement:
    return PrivacyStatement.from_json(canonical.dump(attestation.statement))


def _statement(certificate: Certificate) -> str:
    statement = _parsed_statement(certificate)
    return (
        f"epsilon = {shown(statement.epsilon)} at delta = {shown(statement.delta)} follows from the stated budgets, "
        f"and the spending is within them"
    )


def _guarantee(certificate: Certificate) -> str:
    statement, privacy = _parsed_statement(certificate), certificate.manifest.privacy
    if statement.epsilon > privacy.exact_epsilon:
        raise _Fails(f"epsilon = {shown(statement.epsilon)} exceeds the agreed {privacy.epsilon}")
    if statement.delta > privacy.exact_delta:
        raise _Fails(f"delta = {shown(statement.delta)} exceeds the agreed {privacy.delta}")
    if statement.neighbouring != certificate.manifest.neighbouring:
        raise _Fails("the statement's definition of neighbouring data is not the agreed one (neighbouring)")
    if privacy.accounting == "pure":
        if statement.pure_epsilon is None or statement.pure_epsilon > privacy.exact_epsilon:
            raise _Fails(f"a pure epsilon of at most {privacy.epsilon} was agreed, but the statement has none")
    elif not satisfies(statement.rho, statement.allowance, privacy.exact_epsilon, privacy.exact_delta):
        raise _Fails(f"a budget of rho = {shown(statement.rho)} is more than the agreed guarantee allows")
    return f"the guarantee is no weaker than agreed: epsilon = {privacy.epsilon} at delta = {privacy.delta}"


def _assumptions(certificate: Certificate) -> str:
    statement = _parsed_statement(certificate)
    if statement.unit != UNIT:
        raise _Fails(f"the protected unit is stated as {statement.unit!r}, not {UNIT!r}")
    for assumption in certificate.manifest.premises:
        if assumption not in statement.assumptions:
            raise _Fails(f"the statement omits an assumption: {assumption}")
    if statement.views != certificate.manifest.views:
        raise _Fails("the statement does not say correctly what the guarantee covers of each party's view")
    if statement.allowance != certificate.manifest.allowance:
        raise _Fails("delta is not divided as the study's inputs and checks demand (allowance)")
    return f"the statement names its {len(statement.assumptions)} assumptions"


def _noise(certificate: Certificate) -> str:
    statement, algorithm = _parsed_statement(certificate), certificate.manifest.algorithm
    if not statement.releases:
        raise _Fails("the statement lists no releases")
    if statement.certified != algorithm.certified:
        said, agreed = ("proven" if yes else "unproven" for yes in (statement.certified, algorithm.certified))
        raise _Fails(f"the noise is stated to be {said}, but {agreed} noise ({algorithm.noise}) was agreed")
    if not statement.certified:
        return "AS AGREED, THE NOISE CARRIES NO PROVEN GUARANTEE: do not rely on it for personal data"
    return "all noise came from samplers whose distance from the ideal law is proven"


def _ledgers(certificate: Certificate) -> str:
    for one in certificate.attestations:
        ledger = one.document.ledger
        if ledger.first > ledger.last or (ledger.first == ledger.last) != (ledger.first_hash == ledger.last_hash):
            raise _Fails(f"the numbers and hashes that {one.signer} cites from its ledger contradict each other")
    return "every server cites the part of its ledger that records the run"


def _release(certificate: Certificate) -> str:
    manifest, release, attested = certificate.manifest, certificate.release.document, _common(certificate)
    _signed(certificate.release, manifest.coordinator)
    if release.run != attested.run:
        raise _Fails("the release belongs to another run than the servers attest")
    if release.transcript != attested.transcript:
        raise _Fails("the release was made from other answers than the servers attest")
    missing = [name for name in (TRANSCRIPT, MEASUREMENTS, f"{ROWS}csv") if name not in release.files]
    if missing:
        raise _Fails(f"the release does not name its {missing[0]}")
    if manifest.publication.rows not in (None, release.rows):
        raise _Fails(f"{release.rows} rows were released, but {manifest.publication.rows} were agreed")
    return (
        f"{manifest.coordinator.name} made {release.rows} rows from the answers of run {release.run}, and signed them"
    )


def _times(certificate: Certificate, now: datetime) -> str:
    for what, at in _instants(certificate):
        if at > now + CLOCK_SKEW:
            raise _Fails(f"{what} is dated {at:%Y-%m-%d %H:%M} UTC, which is in the future")
    attested = {one.signer: _instant(one.document.at) for one in certificate.attestations}
    for approval in certificate.approvals:
        later = attested.get(approval.signer) if approval.document.role == "mpc-server" else None
        if later is not None and _instant(approval.document.at) > later:
            raise _Fails(f"{approval.signer} approved the study after it attested the run")
    return "nothing is dated in the future, and servers approved before they computed"


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


def _replayed(certificate: Certificate, path: Path | None) -> tuple[list[Check], Replay | None]:
    """The checks that need the transcript, and what it shows."""
    if path is None:
        why = "the transcript was not given"
        if not certificate.manifest.publication.measurements:
            why += ", because the study agreed not to publish measurements"
        return [Check(name, None, why) for name in ("transcript", *_REPLAYS)], None
    try:
        with path.open("rb") as lines:
            replay = Replay(certificate.manifest, _common(certificate), lines)
    except (_Fails, DomainError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        broken = Check("transcript", False, f"{path}: {reason}")
        return [broken, *(Check(name, None, "the transcript cannot be read") for name in _REPLAYS)], None
    found = [_checked("transcript", partial(_transcript, certificate, replay, path))]
    found += [_checked(name, partial(check, certificate, replay)) for name, check in _REPLAYS.items()]
    return found, replay


def _transcript(certificate: Certificate, replay: Replay, path: Path) -> str:
    for one in certificate.attestations:
        attested = one.document
        if attested.steps != replay.steps:
            raise _Fails(f"{path} has {replay.steps} steps, but {one.signer} attests {attested.steps}")
        if attested.transcript != replay.digest:
            raise _Fails(f"{path} has other requests or answers than {one.signer} attests")
    _same(path, TRANSCRIPT, certificate.release.document.files)
    servers = certificate.manifest.sharing.servers_listed
    return f"{path} has the {replay.steps} steps that {servers} attest, and is {TRANSCRIPT} of this release"


def _answers(certificate: Certificate, replay: Replay) -> str:
    if replay.unsigned is not None:
        raise _Fails(replay.unsigned)
    return f"{certificate.manifest.sharing.servers_listed} signed the answer to each of {replay.steps} steps"


def _steps(certificate: Certificate, replay: Replay) -> str:
    if replay.undue is not None:
        raise _Fails(replay.undue)
    return "each step was due in the agreed program, with its noise, and within the budget; none is left out"


def _charges(certificate: Certificate, replay: Replay) -> str:
    if replay.undue is not None:
        raise _Fails("the charges do not add up to a run of the agreed program")
    statement = replay.account.statement()
    for one in certificate.attestations:
        attested = _stated(one.document)
        for field in fields(statement):
            said, due = getattr(attested, field.name), getattr(statement, field.name)
            if said != due:
                raise _Fails(f"{one.signer} attests {field.name} = {said}, but the steps give {due}")
    return (
        f"recomputed, the charges of all steps add up to rho = {shown(statement.rho_spent)} of "
        f"{shown(statement.rho)}, as attested"
    )


_REPLAYS: dict[str, Callable[[Certificate, Replay], str]] = {"answers": _answers, "steps": _steps, "charges": _charges}


def _measurements(certificate: Certificate, path: Path, replay: Replay | None) -> str:
    release = certificate.release.document
    if replay is not None and replay.undue is None:
        content = _content(path)
        follows = Measurements(study=release.study, run=release.run, measurements=tuple(replay.measured))
        expected = follows.to_json()
        if content != canonical.dump(expected):
            raise _Fails(f"{path}: {_difference(content, expected)}")
    return _same(path, MEASUREMENTS, release.files)


def _difference(content: bytes, expected: dict[str, Any]) -> str:
    """Where a file of measurements differs from what follows from the transcript."""
    try:
        found = canonical.parse(content)
    except DomainError as error:
        return str(error)
    listed = found.get("measurements") if isinstance(found, dict) else None
    if isinstance(listed, list):
        for one, due in zip_longest(listed, expected["measurements"]):
            if due is None:
                return "it has more measurements than the transcript"
            if not isinstance(one, dict):
                return f"step {due['step']} is missing"
            for name in {**due, **one}:
                if one.get(name) != due.get(name):
                    return f"step {due['step']}: {name} is not what follows from the transcript"
    return "it is not the file that follows from the transcript"


def _rows(files: Mapping[str, str], path: Path) -> str:
    digest = _file_digest(path)
    released = {name: sha256 for name, sha256 in files.items() if name.startswith(ROWS)}
    for name, sha256 in released.items():
        if sha256 == digest:
            return f"{path} is {name} of this release"
    raise _Fails(f"{path} has digest {digest[:16]}..., which is not that of any released file: {', '.join(released)}")


def _same(path: Path, name: str, files: Mapping[str, str]) -> str:
    found, expected = _file_digest(path), files.get(name, "")
    if found != expected:
        raise _Fails(f"{path} has digest {found[:16]}..., but the released {name} has {expected[:16]}...")
    return f"{path} is {name} of this release"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Fails(f"{path} cannot be read: {error.strerror}") from None


def _file_digest(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError as error:
        raise _Fails(f"{path} cannot be read: {error.strerror}") from None
