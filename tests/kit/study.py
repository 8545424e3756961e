"""A complete study for tests: a small schema, fresh keys, and every document up to the certificate, in the clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from caps.audit.measurements import noisy_marginals
from caps.basics import canonical
from caps.basics.schemes import SCHEMES
from caps.dp.oracle import Batch, Comparison, Compute, Measurement, Selection, StepRequest, request_digest
from caps.dp.privacy import GaussianBatch, PrivacyStatement, Role
from caps.study.account import Account
from caps.study.manifest import Holder, Manifest
from caps.trust import pki, signing
from caps.trust.exchange import ExchangeKey, public_digest
from caps.wire.documents import (
    Approval,
    Attestation,
    Certificate,
    Contribution,
    LedgerRange,
    ReleaseBody,
    Signed,
    commitment,
    inputs_digest,
)
from caps.wire.releases import MEASUREMENTS, TRANSCRIPT, Measurements
from caps.wire.steps import Answer, TranscriptStep, transcript_digest

NOW = datetime(2030, 5, 17, 12, 0, 0, tzinfo=UTC)
AT = "2030-05-17T12:00:00Z"
SERVERS = ("S1", "S2", "S3")
POPULATIONS = {"patients": 3.0}
"""Whom the example is about, as a policy registers them."""

SCHEMA: dict[str, Any] = {
    "version": 1,
    "columns": [
        {"name": "age", "kind": "numeric", "integer": True, "bin_edges": [0, 20, 40, 60, 80]},
        {"name": "smoker", "kind": "boolean", "false": "no", "true": "yes"},
        {"name": "region", "kind": "categorical", "categories": ["north", "east", "south"]},
        {"name": "diagnosis", "kind": "categorical", "categories": ["none", "A", "B", "C"], "missing": "null"},
    ],
}
"""Sizes 4, 2, 3 and 4: every pair of columns together has 61 cells."""

ROWS = (("clinic-a", None), ("clinic-b", None))
"""Holders of whole rows."""
COLUMNS = (("registry", ("age", "smoker")), ("lab", ("region", "diagnosis")))
"""Holders of some columns each, of the same persons."""
MIXED = (("clinic-a", None), *COLUMNS)
"""Both."""


@dataclass(frozen=True)
class PartyKeys:
    """What one organisation keeps to itself, and the public names of it."""

    name: str
    tls: pki.PrivateKey
    signing: signing.SigningKey

    @property
    def pin(self) -> str:
        """SHA-256 of the TLS key, as manifests spell it."""
        return sha256(_spki(self.tls)).hexdigest()

    @property
    def signing_key(self) -> str:
        """The public half of the signing key, as manifests spell it."""
        return signing.public_hex(self.signing)

    def party(self) -> dict[str, Any]:
        """The members that every party of a manifest has."""
        return {"name": self.name, "pin": self.pin, "signing_key": self.signing_key}


Keys = dict[str, PartyKeys]
"""By name: the servers, `coordinator`, and every holder."""


def make_keys(names: Sequence[str]) -> Keys:
    """Fresh keys for these parties."""
    return {name: PartyKeys(name, pki.generate_key(), signing.generate_signing_key()) for name in names}


def example_json(
    *,
    holders: Sequence[tuple[str, Sequence[str] | None]] = ROWS,
    algorithm: str | Mapping[str, Any] = "aim",
    epsilon: str | float = "1",
    delta: str | float = "1e-6",
    slots: int = 64,
    urls: Mapping[str, str] | None = None,
    meshes: Mapping[str, str] | None = None,
    keys: Keys | None = None,
    schema: Mapping[str, Any] = SCHEMA,
    population: str = "patients",
    capacity: int | None = None,
    scheme: str = "rep3",
    **others: Any,
) -> tuple[dict[str, Any], Keys]:
    """A manifest as an object of JSON, and all keys. `holders` are pairs of a name and its columns; None for rows.

    urls and meshes: by name (S1, S2, ..., coordinator); those not given lead nowhere. `others` are further members of
    the manifest, or replace those made here. capacity: of each holder of columns, if there is a `join`.
    """
    servers = SCHEMES[scheme].server_names
    names = [*servers, "coordinator", *(name for name, _ in holders)]
    keys = make_keys(names) if keys is None else keys
    urls, meshes = urls or {}, meshes or {}
    document: dict[str, Any] = {
        "title": "Smoking and diagnoses",
        "schema": dict(schema),
        "holders": [
            {**keys[name].party(), "brings": "rows"}
            if columns is None
            else {**keys[name].party(), "brings": "columns", "columns": list(columns), "capacity": capacity}
            for name, columns in holders
        ],
        "algorithm": {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm),
        "privacy": {"epsilon": epsilon, "delta": delta, "population": population},
        "servers": [
            {
                **keys[name].party(),
                "url": urls.get(name, f"https://{name.lower()}.example:8443"),
                "mesh": meshes.get(name, f"{name.lower()}.example:9443"),
            }
            for name in servers
        ],
        "scheme": scheme,
        "coordinator": {
            **keys["coordinator"].party(),
            "url": urls.get("coordinator", "https://coordinator.example:8443"),
        },
    }
    if any(columns is not None for _, columns in holders) and "join" not in others:
        document["alignment"] = {"slots": slots}
    return document | others, keys


def example_manifest(**choices: Any) -> tuple[Manifest, Keys]:
    """A valid manifest and all keys; the choices are those of `example_json`."""
    document, keys = example_json(**choices)
    return Manifest.from_json(document), keys


def holder_of(manifest: Manifest, index: int = 0) -> Holder:
    """One of the holders."""
    return manifest.holders[index]


def certificate_of(
    authority: pki.Authority,
    keys: PartyKeys,
    role: str,
    *,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    now: datetime = NOW,
) -> x509.Certificate:
    """A TLS certificate of a party's key in a role (mpc-server, coordinator or holder); its pin is the manifest's."""
    return authority.issue(
        keys.tls.public_key(),
        subject=keys.name,
        uris=[pki.role_uri(role, keys.name)],
        hosts=list(hosts),
        not_before=now - timedelta(days=1),
        not_after=now + timedelta(days=1),
    )


def write_site(home: Path, authority: pki.Authority, keys: PartyKeys, role: str, *, now: datetime = NOW) -> None:
    """A party's directory, as `caps.service.site` reads it; without tokens."""
    home.mkdir(parents=True, exist_ok=True)
    pki.write_pem(home / "certificate.pem", certificate_of(authority, keys, role, now=now))
    pki.write_key(home / "private-key.pem", keys.tls)
    signing.write_signing_key(home / "signing-key.pem", keys.signing)
    pki.write_pem(home / "authority.pem", authority.certificate)


def approvals_of(manifest: Manifest, keys: Keys) -> tuple[Signed[Approval], ...]:
    """The approvals of all servers and holders, in the order of certificates."""
    study = manifest.study_id
    servers = [
        Signed[Approval].by(
            Approval(
                study=study,
                role="mpc-server",
                exchange_digest=public_digest(ExchangeKey.generate().public),
                at=AT,
            ),
            server.name,
            keys[server.name].signing,
        )
        for server in manifest.servers
    ]
    holders = [
        Signed[Approval].by(Approval(study=study, role="holder", at=AT), holder.name, keys[holder.name].signing)
        for holder in sorted(manifest.holders, key=lambda holder: holder.name)
    ]
    return (*servers, *holders)


def contribution_of(manifest: Manifest, holder: Holder, /, **changes: Any) -> Contribution:
    """A contribution as the manifest expects it, with commitments to nothing much."""
    columns = holder.brings == "columns"
    slots = manifest.alignment.slots if manifest.alignment is not None else 0
    members: dict[str, Any] = {
        "study": manifest.study_id,
        "holder": holder.name,
        "form": "columns" if columns else "marginals",
        "bits": 32 if holder.brings == "rows" else 16 if slots < 1 << 16 else 24,
        "shape": (slots, manifest.columns_of(holder).domain().width) if columns else (manifest.layout.cells,),
        "commitments": tuple(commitment(bytes([i]) * 32, b"component") for i in range(manifest.sharing.components)),
        "chunk_bytes": 1 << 20,
        "at": AT,
    }
    if holder.capacity is not None:
        members |= manifest.form_of(holder)._asdict()
    return Contribution(**members | changes)


RUN = "0123456789abcdef" * 2
DATA = b"age,smoker,region,diagnosis\n13,no,north,A\n"
"""The rows that `example_release` says were released."""


def honest_walk(
    manifest: Manifest, refused: Sequence[str] = ()
) -> tuple[Account, list[tuple[StepRequest, int | tuple[int, ...]]]]:
    """The account of a run to its end, and its requests with answers. What they say is of no interest.

    refused: holders whose contributions fail the checks.
    """
    account = Account(manifest, [holder.name for holder in manifest.holders])
    task, program = manifest.task, manifest.program
    steps: list[tuple[StepRequest, int | tuple[int, ...]]] = []
    offered, selected, initial = program.candidates(task), [], iter(program.initial(task))
    measured = iter(selected)  # each selection is measured after it
    request: StepRequest = Compute()
    value: int | tuple[int, ...] = tuple(int(holder.name not in refused) for holder in manifest.holders)
    while not account.ended:
        if steps and isinstance(batch := account.enforcer._branches[0].step.mechanism, GaussianBatch):
            first = account.enforcer._branches[0].step.role is Role.INITIAL
            cliques = program.initial(task) if first else tuple(offered)
            parts = np.full(len(cliques), batch.PARTS // len(cliques))
            request = Batch("initial1" if first else "round1-measure", cliques, parts, batch)
            value = tuple(range(-1, request.draws(manifest.layout) - 1))
        elif steps:
            due = account.enforcer.upcoming()[0]
            if due.step.endswith(Role.COMPARE):
                cells = sum(manifest.domain.cells_of(offered))
                request = Comparison(due.step, tuple(offered), np.zeros(cells, np.int64), due.mechanism)
                value = tuple(range(-2, len(offered) - 2))
            elif due.selects:
                cells = sum(manifest.domain.cells(clique) for clique in offered)
                arrays = [np.array(x, np.int64) for x in ([0] * cells, [0] * len(offered), list(offered.values()))]
                request = Selection(due.step, tuple(offered), *arrays, due.mechanism)
                value = len(selected) % len(offered)
                selected.append(request.candidates[value])
            else:
                first = due.step.startswith(Role.INITIAL)
                clique = next(initial) if first else next(measured)
                request = Measurement(due.step, clique, due.mechanism, None if first else program.draws(task))
                value = tuple(range(-1, manifest.domain.cells(clique) - 1))
        account.charge(account.check(request))
        account.answered(value)
        steps.append((request, value))
    return account, steps


def transcript_of(
    manifest: Manifest, keys: Keys, steps: Sequence[tuple[StepRequest, int | tuple[int, ...]]], run: str = RUN
) -> list[TranscriptStep]:
    """The lines of a transcript, signed by the servers."""
    found = []
    for number, (request, value) in enumerate(steps):
        digest = request_digest(request).hex()
        answer = Answer(study=manifest.study_id, run=run, step=number, request=digest, value=value)
        signatures = tuple(
            signing.sign(keys[name].signing, answer.kind, answer.to_json()) for name in manifest.sharing.server_names
        )
        found.append(TranscriptStep(request=request, answer=answer, signatures=signatures))
    return found


@dataclass(frozen=True)
class ExampleRelease:
    """A certificate, and the files that it is about."""

    certificate: Certificate
    files: Mapping[str, bytes]

    def write(self, folder: Path) -> dict[str, Path]:
        """Lay the files down. Returns what `caps.audit.verification.verify` takes."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        names = {"transcript": TRANSCRIPT, "measurements": MEASUREMENTS, "data": "data.csv"}
        return {argument: folder / name for argument, name in names.items()}


def example_release(
    manifest: Manifest,
    keys: Keys,
    *,
    statement: PrivacyStatement | None = None,
    transcript: Sequence[TranscriptStep] | None = None,
    data: bytes = DATA,
    refused: Sequence[str] = (),
) -> ExampleRelease:
    """A release of a run to which all holders contributed. Every signature is good, whatever was signed."""
    account, steps = honest_walk(manifest, refused)
    statement = statement or account.statement()
    lines = transcript_of(manifest, keys, steps) if transcript is None else transcript
    contributions = tuple(contribution_of(manifest, holder).digest() for holder in manifest.holders)
    inputs = inputs_digest(manifest.study_id, contributions)
    digest = inputs
    for line in lines:
        digest = transcript_digest(digest, line.answer.request, line.answer.digest())
    common: dict[str, Any] = {
        "study": manifest.study_id,
        "inputs": inputs,
        "run": RUN,
        "transcript": digest,
        "steps": len(lines),
        "contributions": contributions,
        "holders": account.accepted,
        "refused": account.refused,
        "statement": canonical.parse(statement.to_json()),
        "software": "caps 0.1.0",
        "at": AT,
    }
    ledger = LedgerRange(first=3, last=9, first_hash=sha256(b"3").hexdigest(), last_hash=sha256(b"9").hexdigest())
    attestations = tuple(
        Signed[Attestation].by(Attestation(server=name, ledger=ledger, **common), name, keys[name].signing)
        for name in manifest.sharing.server_names
    )
    measured = [
        one for line in lines for one in noisy_marginals(manifest, line.answer.step, line.request, line.answer.value)
    ]
    files = {
        "model.caps": b"model",
        "data.csv": data,
        "data.ndjson": b"{}\n" + data,
        MEASUREMENTS: canonical.dump(
            Measurements(study=manifest.study_id, run=RUN, measurements=tuple(measured)).to_json()
        ),
        TRANSCRIPT: b"".join(line.line() for line in lines),
    }
    release = ReleaseBody(
        study=manifest.study_id,
        run=RUN,
        transcript=digest,
        files={name: sha256(content).hexdigest() for name, content in files.items()},
        rows=1,
        seed="ab" * 32,
        software="caps 0.1.0",
        at=AT,
    )
    certificate = Certificate(
        manifest=manifest,
        approvals=approvals_of(manifest, keys),
        attestations=attestations,
        release=Signed[ReleaseBody].by(release, manifest.coordinator.name, keys["coordinator"].signing),
    )
    return ExampleRelease(certificate, files)


def _spki(key: pki.PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


Edit = Callable[[dict[str, Any]], object]


def put(*place: str | int, value: object) -> Edit:
    """What sets one member of a document."""

    def edit(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value

    return edit


KEY: dict[str, Any] = {
    "columns": [
        {"name": "number", "kind": "text", "remove": "-", "whitespace": "remove"},
        {"name": "born", "kind": "date", "formats": ["%Y-%m-%d", "%d.%m.%Y"]},
    ]
}
SHARED = (("north", ("age", "smoker")), ("south", ("age", "smoker")), ("insurer", ("region", "diagnosis")))
"""Two share columns and split rows; the third adds columns."""


def joined_json(*, capacity: int = 200, join: dict[str, Any] | None = None, **choices: Any) -> dict[str, Any]:
    """A manifest as JSON, in which holders of columns are joined by KEY."""
    document, _ = example_json(**{"holders": SHARED} | choices)
    document = deepcopy(document)
    document.pop("alignment", None)
    document["join"] = {"key": deepcopy(KEY)} | (join or {})
    for holder in document["holders"]:
        if holder["brings"] == "columns":
            holder["capacity"] = capacity
    return document


def joined_manifest(**choices: Any) -> Manifest:
    return Manifest.from_json(joined_json(**choices))
