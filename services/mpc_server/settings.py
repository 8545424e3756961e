"""What an operator sets for an MPC server beyond `caps.service.site.Settings`; read from the environment here only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caps.basics.schemes import REP3
from caps.errors import DomainError, party_name
from caps.service.site import Settings
from services.mpc_server.transport.tls import Endpoint, Limits


@dataclass(frozen=True)
class ServerSettings:
    """base: as for every service. mesh: where the servers talk to each other, in the order S1, S2, ...

    mesh_listen: where this one listens, if not at its address in the mesh.
    patience: seconds that a step waits for a session before the answer is that a peer is missing.
    """

    base: Settings
    mesh: tuple[Endpoint, ...]
    mesh_listen: Endpoint | None
    policy: Path
    limits: Limits
    patience: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """CAPS_MESH, the servers' addresses in the order S1, S2, ...; and CAPS_MESH_LISTEN, CAPS_POLICY, CAPS_STALL."""
        base = Settings.from_environment(environment)
        mesh = tuple(map(_endpoint, environment.get("CAPS_MESH", "").split()))
        if len(mesh) != REP3.parties:
            names = ", ".join(map(party_name, range(REP3.parties)))
            raise DomainError(f"CAPS_MESH must list {REP3.parties} addresses, host:port, in the order {names}")
        listen = environment.get("CAPS_MESH_LISTEN")
        stall = float(environment.get("CAPS_STALL", "60"))
        return cls(
            base,
            mesh,
            _endpoint(listen) if listen else None,
            Path(environment.get("CAPS_POLICY", base.home / "policy.yaml")),
            Limits(stall=stall, connect=min(30.0, stall), hello=min(30.0, stall)),
            min(15.0, stall),
        )


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise DomainError(f"{text!r} is not an address of the form host:port")
    return Endpoint(host.strip("[]"), int(port))
