"""How parties of a federation on one machine get their homes: keys, certificate, policy, and tokens of their people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from caps.basics.files import private_directory, write_private
from caps.basics.schemes import Scheme
from caps.federation.ports import free_ports
from caps.service.tokens import Scope, Tokens
from caps.trust import home as party

AUTHORITY_NAME = "CaPS on one host"
COORDINATOR = "coordinator"
HOST = "127.0.0.1"
POLICY = """\
# For invented data: a real server decides by hand, and `caps policy new` writes its policy.
approval: automatic
largest_epsilon: 10
largest_delta: 1.0e-5
least_holders: 1
certified_only: true
"""
POPULATIONS = {"invented-patients": 20.0}
"""The populations of studies, with epsilon over all studies: invented persons have nothing to lose."""
MODULES = {"mpc-server": "services.mpc_server", "coordinator": "services.coordinator", "holder": "services.holder"}
"""What `python -m` runs for each role."""
PEOPLE = {
    "mpc-server": (Scope.OPERATOR, Scope.AUDITOR),
    "coordinator": (Scope.OPERATOR, Scope.ANALYST, Scope.AUDITOR),
    "holder": (Scope.OWNER, Scope.OPERATOR),
}
"""Whose tokens are made, by the party's role."""


@dataclass(frozen=True)
class Place:
    """A party: its role and name, its home, and its ports for REST and for MPC peers."""

    role: str
    name: str
    home: Path
    port: int
    mesh_port: int | None

    @property
    def url(self) -> str:
        """The URL of its REST interface."""
        return f"https://{HOST}:{self.port}"

    @property
    def mesh(self) -> str | None:
        """The address where its MPC peers connect."""
        return None if self.mesh_port is None else f"{HOST}:{self.mesh_port}"

    @property
    def public_url(self) -> str | None:
        """The URL in its card; a holder has none, because no party calls it."""
        return None if self.role == "holder" else self.url

    def settings(self, mesh: Iterable[str]) -> dict[str, str]:
        """The environment of its service, given the addresses of all MPC servers."""
        return {
            "CAPS_HOME": str(self.home.absolute()),
            "CAPS_LISTEN": f"{HOST}:{self.port}",
            "CAPS_MESH": " ".join(mesh),
        }

    def entry(self) -> dict[str, Any]:
        """What a manifest says about it."""
        card = party.card(self.home, url=self.public_url, mesh=self.mesh).to_json()
        return {key: value for key, value in card.items() if key != "role" and value is not None}


def places_in(homes: Path, scheme: Scheme, holders: Sequence[str]) -> dict[str, Place]:
    """All parties by name, on ports that are free now: the scheme's servers, a coordinator, the holders."""
    roles = [
        *(("mpc-server", name) for name in scheme.server_names),
        ("coordinator", COORDINATOR),
        *(("holder", name) for name in holders),
    ]
    ports = iter(free_ports(len(roles) + scheme.parties))
    return {
        name: Place(role, name, homes / name, next(ports), next(ports) if role == "mpc-server" else None)
        for role, name in roles
    }


def mesh_of(places: Mapping[str, Place]) -> list[str]:
    """The addresses of all MPC servers, in order."""
    return [place.mesh for place in places.values() if place.mesh is not None]


def manifest_parties(
    places: Mapping[str, Place], scheme: Scheme, holders: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """A manifest's `scheme`, `servers`, `coordinator` and `holders`; the argument says what each holder brings."""
    return {
        "scheme": scheme.name,
        "servers": [places[name].entry() for name in scheme.server_names],
        "coordinator": places[COORDINATOR].entry(),
        "holders": [{**places[str(holder["name"])].entry(), **holder} for holder in holders],
    }


def policy_text(rules: str = POLICY, populations: Mapping[str, float] = POPULATIONS) -> str:
    """The policy of servers on one machine."""
    budgets = ", ".join(f"{name}: {epsilon}" for name, epsilon in populations.items())
    return f"{rules}populations: {{{budgets}}}\n"


def make_authority(directory: Path, *, now: datetime) -> None:
    """An authority in `directory`; one that is there stays."""
    if not (directory / party.AUTHORITY_KEY).exists():
        party.create_authority(directory, AUTHORITY_NAME, now=now)


def equip(
    home: Path,
    role: str,
    name: str,
    hosts: Sequence[str],
    *,
    authority: Path,
    tokens: Path,
    token_days: int,
    policy: str,
    now: datetime,
) -> None:
    """Make a party's home complete. `tokens` is where its people's tokens go; only MPC servers get the policy.

    Both sides of the request are played here, so nobody compares pins: this is only for parties of one machine.
    """
    party.request_party(home, role, name, hosts)
    asked = party.read_request(home / party.REQUEST)
    issuer = party.read_authority(authority)
    issued = authority / f"{role}-{name}.pem"
    party.write_certificate(issued, party.approve_request(issuer, asked, role, name, hosts, now=now))
    party.install(home, issued, authority / party.AUTHORITY, now=now)
    (home / party.TOKENS).unlink(missing_ok=True)
    digests = Tokens(home / party.TOKENS)
    private_directory(tokens)
    for scope in PEOPLE[role]:
        token = digests.create(f"{scope} of {name}", [scope], expires=now + timedelta(days=token_days))
        path = tokens / f"{scope}.token"
        path.unlink(missing_ok=True)
        write_private(path, f"{token}\n".encode())
    if role == "mpc-server":
        (home / party.POLICY).write_text(policy)
