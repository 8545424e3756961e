"""The one-shot service of docker-compose.yml that makes every party's keys: an authority, homes, people's tokens.

Each home is a volume that only its party mounts, read-only; the authority's key stays in a volume that no service
mounts. What people need (authority.pem, tokens, the cards that studies quote) goes to the volume `people`. Complete
homes are not changed. One process sees all keys here, so this is only for trying things out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from caps.errors import party_name
from caps.service.tokens import Scope, Tokens
from caps.trust import home as party
from caps.trust import pki

PORT, MESH_PORT = 8443, 9443
HOLDERS = ("north-hospital", "south-hospital", "insurer")
PEOPLE = {
    "mpc-server": (Scope.OPERATOR, Scope.AUDITOR),
    "coordinator": (Scope.OPERATOR, Scope.ANALYST, Scope.AUDITOR),
    "holder": (Scope.OWNER, Scope.OPERATOR),
}
TOKEN_DAYS = 90
_COMPLETE = ".complete"


def parties_of(servers: int) -> dict[str, tuple[str, str]]:
    """Role, and name of the service in docker-compose.yml, by the party's name."""
    return {
        **{party_name(number): ("mpc-server", party_name(number).lower()) for number in range(servers)},
        "coordinator": ("coordinator", "coordinator"),
        **{name: ("holder", name) for name in HOLDERS},
    }


def provision(parties: Path, policy: Path, *, now: datetime, servers: int = 3) -> list[str]:
    """Fill the homes that are not complete. Returns their parties' names."""
    everybody = parties_of(servers)
    directory = parties / "authority"
    if (directory / party.AUTHORITY_KEY).exists():
        authority = party.read_authority(directory)
    else:
        authority = party.create_authority(directory, "CaPS on one host", now=now)
    people = parties / "people"
    shutil.copy(directory / party.AUTHORITY, people)
    made = [name for name, (_, service) in everybody.items() if not (parties / service / _COMPLETE).exists()]
    for name in made:
        _fill(parties, authority, name, everybody[name], policy, now)
    cards = {name: _card(parties / service, role, service) for name, (role, service) in everybody.items()}
    (people / "cards.json").write_text(json.dumps(cards, indent=1) + "\n")
    return made


def _fill(
    parties: Path, authority: pki.Authority, name: str, place: tuple[str, str], policy: Path, now: datetime
) -> None:
    role, service = place
    home, hosts = parties / service, [service, "localhost", "127.0.0.1"]
    party.request_party(home, role, name, hosts)
    asked = party.read_request(home / party.REQUEST)
    issued = parties / "authority" / f"{role}-{name}.pem"
    party.write_certificate(issued, party.approve_request(authority, asked, role, name, hosts, now=now))
    party.install(home, issued, parties / "authority" / party.AUTHORITY, now=now)
    (home / party.TOKENS).unlink(missing_ok=True)
    tokens = Tokens(home / party.TOKENS)
    for scope in PEOPLE[role]:
        token = tokens.create(f"{scope} of {name}", [scope], expires=now + timedelta(days=TOKEN_DAYS))
        _write(parties / "people" / service / f"{scope}.token", f"{token}\n".encode())
    if role == "mpc-server":
        shutil.copy(policy, home / party.POLICY)
    (home / _COMPLETE).touch()


def _card(home: Path, role: str, service: str) -> dict[str, Any]:
    url = None if role == "holder" else f"https://{service}:{PORT}"
    mesh = f"{service}-mesh:{MESH_PORT}" if role == "mpc-server" else None
    card = party.card(home, url=url, mesh=mesh).to_json()
    return {key: value for key, value in card.items() if value is not None}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main() -> int:
    """Provision the volumes mounted under /parties. CAPS_SERVERS: how many MPC servers there are."""
    servers = int(os.environ.get("CAPS_SERVERS", "3"))
    policy = Path(__file__).with_name("policy.yaml")
    made = provision(Path("/parties"), policy, now=datetime.now(UTC), servers=servers)
    print(f"keys, certificates and tokens made for {', '.join(made)}" if made else "every party has its keys already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
