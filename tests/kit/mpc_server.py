"""MPC servers without their engine, for tests: sites and callers with real keys, contributions as holders deal them."""

from __future__ import annotations

import asyncio
import base64
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding
from fastapi import FastAPI
from sqlalchemy import select

from caps.basics.schemes import REP3, Scheme
from caps.service.app import create_app
from caps.service.database import open_database, sqlite_url
from caps.service.identity import CERTIFICATE, Caller, machine_of
from caps.service.site import Settings, Site
from caps.service.tokens import Scope
from caps.shares.ring import SHARED_RINGS, Words
from caps.shares.sharing import DealtShare, Explicit, Seeded, deal
from caps.study import Policy
from caps.wire import Approval, Contribution, Offer, Opening, Signed, commitment
from services.mpc_server.intake import matching_api
from services.mpc_server.intake.contributions import Contributions
from services.mpc_server.intake.matching import Matching
from services.mpc_server.intake.studies import Studies
from services.mpc_server.intake.studies_api import limits, router
from services.mpc_server.storage import tables
from services.mpc_server.storage.shares import Hook, ShareStore, Vault
from tests.kit.study import AT, NOW, POPULATIONS, Keys, certificate_of, example_manifest, make_keys, write_site
from tests.kit.tls import make_authority

SMALL = 10_000
"""Bytes of a chunk, so that vectors of tests have several."""
AUTOMATIC = Policy(approval="automatic", populations=POPULATIONS)


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


class Parties:
    """A manifest, the keys of all its parties, and an authority."""

    def __init__(self, folder: Path, **choices: Any) -> None:
        self.folder = folder
        self.clock = Clock()
        self.manifest, self.keys = example_manifest(**choices)
        self.authority = make_authority(NOW)
        for name in self.manifest.sharing.server_names:
            write_site(folder / name, self.authority, self.keys[name], "mpc-server")
        self.roles = {"coordinator": "coordinator"} | {holder.name: "holder" for holder in self.manifest.holders}
        self.others: Keys = make_keys([*self.roles, *self.manifest.sharing.server_names])
        self._certificates: dict[tuple[str, str | None, bool], bytes] = {}

    @property
    def study(self) -> str:
        return self.manifest.study_id

    def certificate(self, name: str, role: str | None = None, *, impostor: bool = False) -> bytes:
        """A certificate of the authority for a party; with another key than the manifest's for an impostor."""
        place = (name, role, impostor)
        if place not in self._certificates:
            keys = (self.others if impostor else self.keys)[name]
            certificate = certificate_of(self.authority, keys, role or self.roles.get(name, "mpc-server"))
            self._certificates[place] = certificate.public_bytes(Encoding.DER)
        return self._certificates[place]

    def caller(self, name: str) -> Caller:
        return Caller(machine_of(self.certificate(name)))

    def desk(self, name: str = "S2", **choices: Any) -> Desk:
        return Desk(self, name, **choices)

    def approval(self, name: str, **changes: Any) -> Signed[Approval]:
        """A holder's approval."""
        document = Approval(**({"study": self.study, "role": "holder", "at": AT} | changes))
        return Signed[Approval].by(document, name, self.keys[name].signing)


class Desk:
    """One server's studies and contributions, and a way to call its routes. Another on the same folder is a restart."""

    def __init__(
        self,
        federation: Parties,
        name: str,
        *,
        policy: Policy = AUTOMATIC,
        before: Hook = lambda _: None,
        mesh: int | None = None,
    ) -> None:
        self.federation, self.name = federation, name
        self.home = federation.folder / name
        data = self.home / "state"
        settings = Settings(self.home, data, "127.0.0.1", 0, sqlite_url(data / "state.db"))
        self.site = Site(settings, role="mpc-server", clock=federation.clock)
        self.database = open_database(settings.database, tables.metadata)
        self.store = ShareStore(data / "shares", Vault(self.home), before=before)
        self.studies = Studies(
            self.site, policy, self.database, self.store, mesh=mesh or federation.manifest.sharing.parties
        )
        self.contributions = Contributions(self.site, self.studies, self.database, self.store)
        self.matching = Matching(self.site, self.studies, self.database, self.store)
        self._tokens: dict[Scope, str] = {}

    @cached_property
    def app(self) -> FastAPI:
        return create_app(
            service="mpc-server",
            name=self.name,
            description="",
            routers=[router(self.studies, self.contributions), matching_api.router(self.matching)],
            tokens=self.site.tokens,
            clock=self.federation.clock,
            limits=(*limits(self.studies, self.contributions), *matching_api.limits(self.matching)),
        )

    def call(
        self,
        who: str | bytes | Scope | None,
        method: str,
        path: str = "",
        document: Any = None,
        **choices: Any,
    ) -> httpx.Response:
        """A request under /v1/studies/STUDY by a party (a name, or a certificate) or by a person."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if isinstance(who, Scope) or who is None:
                scope[CERTIFICATE] = None
            else:
                scope[CERTIFICATE] = who if isinstance(who, bytes) else self.federation.certificate(who)
            await self.app(scope, receive, send)

        headers = dict(choices.pop("headers", {}))
        if isinstance(who, Scope):
            headers["Authorization"] = f"Bearer {self.token(who)}"
        if document is not None:
            choices["json"] = document.to_json() if hasattr(document, "to_json") else document
        url = path if path.startswith("/v1") else f"/v1/studies/{self.federation.study}{path}"

        async def exchange() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://server.test") as client:
                return await client.request(method, url, headers=headers, **choices)

        return asyncio.run(exchange())

    def token(self, scope: Scope) -> str:
        if scope not in self._tokens:
            self._tokens[scope] = self.site.tokens.create(scope.value, [scope], expires=NOW + timedelta(days=4000))
        return self._tokens[scope]

    def propose(self) -> httpx.Response:
        return self.call("coordinator", "PUT", "", self.federation.manifest)

    def contribute(self, dealt: Dealt) -> httpx.Response:
        """All of a contribution: offer, chunks, receipt."""
        response = self.call(dealt.holder, "PUT", dealt.path, dealt.offer(self.name))
        assert response.status_code in (200, 201), response.text
        for first, last in response.json()["missing"]:
            for number in range(first, last + 1):
                assert self.put_chunk(dealt, number).status_code == 204
        return self.call(dealt.holder, "POST", f"{dealt.path}/receipt")

    def put_chunk(self, dealt: Dealt, number: int, data: bytes | None = None, **choices: Any) -> httpx.Response:
        data = dealt.chunk(number) if data is None else data
        choices.setdefault("headers", content_digest(data))
        who = choices.pop("who", dealt.holder)
        return self.call(who, "PUT", f"{dealt.path}/chunks/{number}", content=data, **choices)

    def snapshot(self) -> tuple[Any, Any]:
        """Everything durable: every row, every file of shares."""
        with self.database.begin() as connection:
            rows = {
                table.name: sorted(map(repr, connection.execute(select(table)).all()))
                for table in tables.metadata.sorted_tables
            }
        shares = self.home / "state" / "shares"
        files = {
            str(path.relative_to(shares)): sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for path in shares.rglob("*")
        }
        return rows, files


def content_digest(data: bytes) -> dict[str, str]:
    return {"Content-Digest": f"sha-256=:{base64.b64encode(sha256(data).digest()).decode()}:"}


@dataclass(frozen=True)
class Dealt:
    """A holder's contribution, and all its secrets."""

    holder: str
    signed: Signed[Contribution]
    values: Words
    shares: tuple[DealtShare, ...]
    nonces: tuple[str, ...]
    scheme: Scheme = REP3

    @property
    def id(self) -> str:
        return self.signed.document.digest()

    @property
    def path(self) -> str:
        return f"/contributions/{self.id}"

    @property
    def secrets(self) -> list[str]:
        """What no answer may repeat."""
        return [*self.nonces, *(self.opening(component).seed or "" for component in self.scheme.seeded)]

    def vector(self) -> bytes:
        part = self.part(self.scheme.vector)
        assert isinstance(part, Explicit)
        return SHARED_RINGS[self.signed.document.bits].to_bytes(part.vector)

    def chunk(self, number: int) -> bytes:
        size = self.signed.document.chunk_bytes
        return self.vector()[number * size : (number + 1) * size]

    def part(self, component: int) -> Seeded | Explicit:
        server = self.scheme.holders_of(component)[0]
        return self.shares[server].parts[self.scheme.held[server].index(component)]

    def opening(self, component: int) -> Opening:
        part = self.part(component)
        seed = part.seed.hex() if isinstance(part, Seeded) else None
        return Opening(component=component, nonce=self.nonces[component], seed=seed)

    def offer(self, server: str) -> Offer:
        held = self.scheme.held[self.scheme.server_names.index(server)]
        return Offer(contribution=self.signed, openings=tuple(map(self.opening, held)))


def dealt(federation: Parties, holder: str, *, chunk_bytes: int = SMALL, **changes: Any) -> Dealt:
    """A contribution of arbitrary values, as the study expects it but for `changes` of the document."""
    manifest = federation.manifest
    party = manifest.holder(holder)
    form, shape, bits = "marginals", (manifest.layout.cells,), 32
    if party.brings == "columns":
        assert manifest.slots is not None
        form, shape = "columns", (manifest.slots, manifest.columns_of(party).domain().width)
        bits = 16 if manifest.slots < 1 << 16 else 24
    ring = SHARED_RINGS[bits]
    values = ring.encode(np.arange(int(np.prod(shape))).reshape(shape))
    scheme = manifest.sharing
    shares = deal(values, entropy=secrets.token_bytes, ring=ring, scheme=scheme)
    nonces = tuple(secrets.token_hex(32) for _ in range(scheme.components))
    whole = Dealt(holder, None, values, shares, nonces, scheme)  # type: ignore[arg-type]
    parts = [whole.part(component) for component in range(scheme.components)]
    contents = [part.seed if isinstance(part, Seeded) else ring.to_bytes(part.vector) for part in parts]
    document = Contribution(
        **(
            {
                "study": manifest.study_id,
                "holder": holder,
                "form": form,
                "bits": bits,
                "shape": shape,
                "commitments": tuple(commitment(bytes.fromhex(n), c) for n, c in zip(nonces, contents, strict=True)),
                "chunk_bytes": chunk_bytes,
                "at": AT,
            }
            | changes
        )
    )
    signed = Signed[Contribution].by(document, holder, federation.keys[holder].signing)
    return Dealt(holder, signed, values, shares, nonces, scheme)


def approvals(federation: Parties, desks: dict[str, Desk], holders: list[str] | None = None) -> list[Signed[Approval]]:
    """Of all servers, and of these holders (all if not given)."""
    servers = federation.manifest.sharing.server_names
    found = [Signed[Approval].model_validate(desks[name].propose().json()) for name in servers]
    names = [holder.name for holder in federation.manifest.holders] if holders is None else holders
    return [*found, *map(federation.approval, names)]


def seal_request(contributions: list[Dealt], given: list[Signed[Approval]]) -> dict[str, Any]:
    return {"contributions": [one.id for one in contributions], "approvals": [one.to_json() for one in given]}


class Sealable:
    """Servers that hold the contributions of some holders."""

    def __init__(self, folder, contributors=None, policies=None, **choices):
        self.federation = Parties(folder, **choices)
        names = self.federation.manifest.sharing.server_names
        self.desks = {name: self.federation.desk(name, **(policies or {})) for name in names}
        self.approvals = approvals(self.federation, self.desks)
        names = [holder.name for holder in self.federation.manifest.holders]
        self.dealt = {name: dealt(self.federation, name) for name in (contributors or names)}
        for one in self.dealt.values():
            for desk in self.desks.values():
                assert desk.contribute(one).status_code == 200

    def request(self, names=None, given=None):
        chosen = [self.dealt[name] for name in (names or self.dealt)]
        return seal_request(chosen, self.approvals if given is None else given)

    def seal(self, names=None, given=None, desk="S2", who="coordinator"):
        return self.desks[desk].call(who, "PUT", "/seal", self.request(names, given))


def wrapped_keys(desk):
    with desk.database.begin() as connection:
        found = [
            *connection.execute(tables.studies.select()).all(),
            *connection.execute(tables.contributions.select()).all(),
        ]
    return [row.wrapped_key for row in found]


class Unchanged:
    """Compares everything durable before and after."""

    def __init__(self, *desks):
        self.desks = desks

    def __enter__(self):
        self.before = [desk.snapshot() for desk in self.desks]

    def __exit__(self, kind, *_):
        if kind is None:
            assert [desk.snapshot() for desk in self.desks] == self.before


def refused(response, kind, *dealt):
    """A problem of this kind, which repeats nothing secret."""
    assert response.status_code == kind.value.status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"] == kind.urn
    for one in dealt:
        assert not any(secret in response.text for secret in one.secrets if secret)
    return document
