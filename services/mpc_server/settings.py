"""What an operator sets for an MPC server beyond `caps.service.site.Settings`; read from the environment here only."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caps.basics.schemes import SCHEMES
from caps.errors import DomainError
from caps.service.environment import Variable
from caps.service.news import SILENT, NewsSettings
from caps.service.site import Settings
from services.mpc_server.transport.tls import Endpoint, Limits
from services.mpc_server.workers import settings as workers
from services.mpc_server.workers.settings import NO_WORKERS, WorkersSettings

MESH = Variable("CAPS_MESH", "addresses where the servers meet, host:port each, in the order S1, S2, ...")
MESH_LISTEN = Variable("CAPS_MESH_LISTEN", "host:port where this server waits for the others", "its own in CAPS_MESH")
POLICY = Variable("CAPS_POLICY", "the file with this server's rules", "`policy.yaml` in CAPS_HOME")
STALL = Variable("CAPS_STALL", "seconds after which a silent peer is given up, and the run waits", "60")
VARIABLES = (MESH, MESH_LISTEN, POLICY, STALL, *workers.VARIABLES)


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
    news: NewsSettings = SILENT
    workers: WorkersSettings = NO_WORKERS

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """Reads `VARIABLES` and those of every service.

        There are as many addresses as some scheme has servers. Four servers also serve studies of the first three.
        """
        base = Settings.from_environment(environment)
        mesh = tuple(map(_endpoint, (MESH.given(environment) or "").split()))
        sizes = sorted({scheme.parties for scheme in SCHEMES.values()})
        if len(mesh) not in sizes:
            numbers = " or ".join(map(str, sizes))
            raise DomainError(f"CAPS_MESH must list {numbers} addresses, host:port, in the order S1, S2, ...")
        listen = MESH_LISTEN.given(environment)
        stall = _seconds(STALL.given(environment) or STALL.default)
        return cls(
            base,
            mesh,
            _endpoint(listen) if listen else None,
            Path(POLICY.given(environment) or base.home / "policy.yaml"),
            Limits(stall=stall, connect=min(30.0, stall), hello=min(30.0, stall)),
            min(15.0, stall),
            NewsSettings.from_environment(environment),
            WorkersSettings.from_environment(environment),
        )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise DomainError(f"{STALL.name} must be a number of seconds")
    return seconds


def _endpoint(text: str) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise DomainError(f"{text!r} is not an address of the form host:port")
    return Endpoint(host.strip("[]"), int(port))
