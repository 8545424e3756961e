"""A complete study for tests: a small schema, fresh keys, and every document up to the certificate, in the clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from caps import canonical, pki, signing
from caps.exchange import ExchangeKey, public_digest
from caps.oracle import Measurement
from caps.privacy import ETA_MAX, Entry, Filter, Gaussian, PrivacyStatement
from caps.study.documents import (
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
from caps.study.manifest import Holder, Manifest

NOW = datetime(2030, 5, 17, 12, 0, 0, tzinfo=UTC)
AT = "2030-05-17T12:00:00Z"
SERVERS = ("S1", "S2", "S3")

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
"""By name: S1, S2, S3, `coordinator`, and every holder."""


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
    **others: Any,
) -> tuple[dict[str, Any], Keys]:
    """A manifest as an object of JSON, and all keys. `holders` are pairs of a name and its columns; None for rows.

    urls and meshes: by name (S1, S2, S3, coordinator); those not given lead nowhere. `others` are further members of
    the manifest, or replace those made here. capacity: of each holder of columns, if there is a `join`.
    """
    names = [*SERVERS, "coordinator", *(name for name, _ in holders)]
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
            for name in SERVERS
        ],
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
    """The approvals of all servers and holders."""
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
        for holder in manifest.holders
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
        "commitments": tuple(commitment(bytes([i]) * 32, b"component") for i in range(3)),
        "chunk_bytes": 1 << 20,
        "at": AT,
    }
    if holder.capacity is not None:
        members |= manifest.form_of(holder)._asdict()
    return Contribution(**members | changes)


def filter_of(manifest: Manifest) -> Filter:
    """A filter with the study's budget and one measurement charged."""
    task = manifest.task
    pure = manifest.privacy.accounting == "pure"
    step = manifest.program.schedule(task).step
    assert step is not None
    spent = Filter(
        manifest.budget,
        task.neighbouring,
        allowance=manifest.allowance,
        pure_epsilon=manifest.privacy.exact_epsilon if pure else None,
    )
    if isinstance(step.mechanism, Gaussian):
        spent.charge(Measurement("initial1", manifest.layout.cliques[0], step.mechanism).entry(manifest.layout))
    else:
        spent.charge(Entry("round1-select", step.mechanism, 1, "geometric", 1, ETA_MAX / 1000, certified=True))
    return spent


DATA, MEASUREMENTS = b"age,smoker,region,diagnosis\n13,no,north,A\n", b'{"measurements":[]}'
"""What `example_certificate` says was released."""


def example_certificate(manifest: Manifest, keys: Keys, *, statement: PrivacyStatement | None = None) -> Certificate:
    """A certificate of a run that all holders took part in. Every signature is good."""
    statement = statement or PrivacyStatement.of(filter_of(manifest), manifest.privacy.exact_delta)
    contributions = tuple(contribution_of(manifest, holder).digest() for holder in manifest.holders)
    common: dict[str, Any] = {
        "study": manifest.study_id,
        "inputs": inputs_digest(manifest.study_id, contributions),
        "run": "0123456789abcdef" * 2,
        "transcript": sha256(b"transcript").hexdigest(),
        "steps": 2,
        "contributions": contributions,
        "holders": tuple(holder.name for holder in manifest.holders),
        "statement": canonical.parse(statement.to_json()),
        "software": "caps 0.1.0",
        "at": AT,
    }
    ledger = LedgerRange(first=3, last=9, first_hash=sha256(b"3").hexdigest(), last_hash=sha256(b"9").hexdigest())
    attestations = tuple(
        Signed[Attestation].by(Attestation(server=name, ledger=ledger, **common), name, keys[name].signing)
        for name in SERVERS
    )
    release = ReleaseBody(
        study=manifest.study_id,
        run=common["run"],
        transcript=common["transcript"],
        measurements=sha256(MEASUREMENTS).hexdigest(),
        model=sha256(b"model").hexdigest(),
        data=sha256(DATA).hexdigest(),
        rows=1,
        seed="ab" * 32,
        software="caps 0.1.0",
        at=AT,
    )
    return Certificate(
        manifest=manifest,
        approvals=approvals_of(manifest, keys),
        attestations=attestations,
        release=Signed[ReleaseBody].by(release, manifest.coordinator.name, keys["coordinator"].signing),
    )


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
