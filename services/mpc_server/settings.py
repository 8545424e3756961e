"""What an operator sets for an MPC server beyond `caps.service.site.Settings`; read from the environment here only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caps.basics.schemes import SCHEMES
from caps.errors import DomainError
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
        """CAPS_MESH, the servers' addresses in the order S1, S2, ...; and CAPS_MESH_LISTEN, CAPS_POLICY, CAPS_STALL.

        There are as many addresses as some scheme has servers. Four servers also serve studies of the first three.
        """
        base = Settings.from_environment(environment)
        mesh = tuple(map(_endpoint, environment.get("CAPS_MESH", "").split()))
        sizes = sorted({scheme.parties for scheme in SCHEMES.values()})
        if len(mesh) not in sizes:
            numbers = " or ".join(map(str, sizes))
            raise DomainError(f"CAPS_MESH must list {numbers} addresses, host:port, in the order S1, S2, ...")
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
