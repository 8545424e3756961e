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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caps.errors import party_name
from caps.federation.parties import equip, make_authority
from caps.trust import home as party

PORT, MESH_PORT = 8443, 9443
HOLDERS = ("north-hospital", "south-hospital", "insurer")
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
    make_authority(directory, now=now)
    people = parties / "people"
    shutil.copy(directory / party.AUTHORITY, people)
    made = [name for name, (_, service) in everybody.items() if not (parties / service / _COMPLETE).exists()]
    for name in made:
        role, service = everybody[name]
        equip(
            parties / service,
            role,
            name,
            [service, "localhost", "127.0.0.1"],
            authority=directory,
            tokens=people / service,
            token_days=TOKEN_DAYS,
            policy=policy.read_text(),
            now=now,
        )
        (parties / service / _COMPLETE).touch()
    cards = {name: _card(parties / service, role, service) for name, (role, service) in everybody.items()}
    (people / "cards.json").write_text(json.dumps(cards, indent=1) + "\n")
    return made


def _card(home: Path, role: str, service: str) -> dict[str, Any]:
    url = None if role == "holder" else f"https://{service}:{PORT}"
    mesh = f"{service}-mesh:{MESH_PORT}" if role == "mpc-server" else None
    card = party.card(home, url=url, mesh=mesh).to_json()
    return {key: value for key, value in card.items() if value is not None}


def main() -> int:
    """Provision the volumes mounted under /parties. CAPS_SERVERS: how many MPC servers there are."""
    servers = int(os.environ.get("CAPS_SERVERS", "3"))
    policy = Path(__file__).with_name("policy.yaml")
    made = provision(Path("/parties"), policy, now=datetime.now(UTC), servers=servers)
    print(f"keys, certificates and tokens made for {', '.join(made)}" if made else "every party has its keys already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
