"""Writes the wire contract from the code: `python -m deploy.proto [--check] proto/`.

It writes OpenAPI of the three services, JSON Schemas of all documents, and test vectors of documents; proto/README.md
describes them. Frames have their own page and vectors, which are written by hand. With `--check` nothing is written,
and any difference is an error.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, TypeAdapter

from caps.dp.oracle import STEP_REQUEST
from caps.service.database import sqlite_url
from caps.service.site import Settings, Site
from caps.study import Manifest, Policy
from caps.trust import pki, signing
from caps.trust.cards import Card
from caps.wire import (
    Answer,
    Approval,
    Attestation,
    Certificate,
    Contribution,
    ContributionState,
    Decline,
    Evidence,
    EvidenceRequest,
    LedgerHead,
    Offer,
    Receipt,
    ReleaseBody,
    RunRequest,
    RunStatus,
    Seal,
    SealRequest,
    Signed,
    TranscriptStep,
)
from caps.wire.problems import ProblemDocument
from caps.wire.releases import Measurements, Report
from deploy.vectors import document_vectors
from services.coordinator.service import Coordinator
from services.holder.api import holder_app
from services.holder.service import HolderService
from services.mpc_server.service import MpcServer
from services.mpc_server.settings import ServerSettings
from services.mpc_server.transport.tls import Endpoint, Limits

SCHEMAS: dict[str, type[BaseModel] | TypeAdapter[Any]] = {
    "manifest": Manifest,
    "card": Card,
    "policy": Policy,
    "approval": Signed[Approval],
    "decline": Signed[Decline],
    "contribution": Signed[Contribution],
    "offer": Offer,
    "contribution-state": ContributionState,
    "receipt": Signed[Receipt],
    "seal-request": SealRequest,
    "seal": Signed[Seal],
    "run-request": RunRequest,
    "run-status": RunStatus,
    "step-request": STEP_REQUEST,
    "answer": Signed[Answer],
    "attestation": Signed[Attestation],
    "evidence": Signed[Evidence],
    "evidence-request": EvidenceRequest,
    "ledger-head": Signed[LedgerHead],
    "release": Signed[ReleaseBody],
    "certificate": Certificate,
    "transcript-step": TranscriptStep,
    "measurements": Measurements,
    "report": Report,
    "problem": ProblemDocument,
}
"""By file name. What a party signs is described as it is sent, with its signature."""


def throw_away_site(folder: Path, role: str, name: str) -> Site:
    """A party with throw-away keys, only to build its service."""
    now = datetime.now(UTC)
    span = {"not_before": now - timedelta(hours=1), "not_after": now + timedelta(hours=1)}
    authority, key, home = pki.Authority.create("throw-away", **span), pki.generate_key(), folder / name
    home.mkdir()
    certificate = authority.issue(
        key.public_key(), subject=name, uris=[pki.role_uri(role, name)], hosts=["localhost"], **span
    )
    pki.write_pem(home / "authority.pem", authority.certificate)
    pki.write_pem(home / "certificate.pem", certificate)
    pki.write_key(home / "private-key.pem", key)
    signing.write_signing_key(home / "signing-key.pem", signing.generate_signing_key())
    data = home / "state"
    return Site(Settings(home, data, "127.0.0.1", 0, sqlite_url(data / "state.db")), role=role)


def mpc_server_settings(site: Site) -> ServerSettings:
    """The settings of a server without peers."""
    policy = site.settings.home / "policy.yaml"
    policy.write_text("approval: automatic\npopulations: {patients: 3}\n")
    mesh = (Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2), Endpoint("127.0.0.1", 3))
    return ServerSettings(site.settings, mesh, None, policy, Limits(), 1.0)


def _holder(folder: Path) -> dict[str, Any]:
    service = HolderService(throw_away_site(folder, "holder", "holder"))
    try:
        return holder_app(service).openapi()
    finally:
        service.close()


def _mpc_server(folder: Path) -> dict[str, Any]:
    return MpcServer(mpc_server_settings(throw_away_site(folder, "mpc-server", "S1"))).app.openapi()


def _coordinator(folder: Path) -> dict[str, Any]:
    coordinator = Coordinator.of(throw_away_site(folder, "coordinator", "coordinator"))
    try:
        return coordinator.app().openapi()
    finally:
        coordinator.close()


SERVICES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "holder": _holder,
    "mpc-server": _mpc_server,
    "coordinator": _coordinator,
}


def render() -> dict[str, str]:
    """Every file that is exported, by its path below proto/."""
    files = {"vectors/documents.json": _text(document_vectors())}
    with TemporaryDirectory() as folder:
        for name, openapi in SERVICES.items():
            files[f"openapi/{name}.json"] = _text(openapi(Path(folder)))
    for name, model in SCHEMAS.items():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"urn:caps:schema:v1:{name}"}
        described = model.json_schema() if isinstance(model, TypeAdapter) else model.model_json_schema()
        files[f"schemas/{name}.json"] = _text(schema | described)
    return files


def differences(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The lines of a diff from the folder to what the code writes; empty if they agree."""
    there = {
        str(path.relative_to(folder)): path.read_text()
        for pattern in ("openapi/*", "schemas/*", "vectors/documents.json")
        for path in sorted(folder.glob(pattern))
    }
    found: list[str] = []
    for name in sorted(there.keys() | files.keys()):
        old, new = there.get(name, "").splitlines(), files.get(name, "").splitlines()
        found += difflib.unified_diff(old, new, f"proto/{name}", f"{name} as the code has it", lineterm="")
    return found


def main(arguments: list[str]) -> int:
    """Returns 0, or 1 if the folder differs from the code."""
    match arguments:
        case ["--check", target]:
            found = differences(Path(target), render())
            if found:
                print("\n".join(found[:200]))
                print(f"{target} is out of date: run `python -m deploy.proto {target}`, and look at what changed")
            return 1 if found else 0
        case [target] if not target.startswith("-"):
            files = render()
            for old in (*Path(target).glob("openapi/*"), *Path(target).glob("schemas/*")):
                old.unlink()
            for name, text in files.items():
                path = Path(target) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return 0
    print(__doc__)
    return 2


def _text(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
