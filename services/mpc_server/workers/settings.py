"""Which workers a server has, by its operator's settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from caps.errors import DomainError
from caps.service.environment import Variable
from services.mpc_server.engine.workers import IN_PROCESS, Workers
from services.mpc_server.workers.cluster import Cluster, ClusterSettings
from services.mpc_server.workers.leader import Crew
from services.mpc_server.workers.pool import Pool, can_share_memory, cores

WORKERS = Variable(
    "CAPS_WORKERS",
    "who does a server's large local work: a number of processes, and of threads for proofs, 0 for none; or the "
    "`tls://host:port` of the scheduler of a Dask cluster of its own",
    "as many processes as there are cores, once there is work that pays for them",
)
AUTHORITY = Variable("CAPS_WORKERS_CA", "certificate of the authority of the Dask cluster", "needed with a cluster")
CERTIFICATE = Variable("CAPS_WORKERS_CERT", "this server's certificate in the Dask cluster", "needed with a cluster")
KEY = Variable("CAPS_WORKERS_KEY", "the key of that certificate", "needed with a cluster")
STALL = Variable("CAPS_WORKERS_STALL", "seconds after which a worker that returns nothing is given up", "60")
VARIABLES = (WORKERS, AUTHORITY, CERTIFICATE, KEY, STALL)
_MOST = 1024


@dataclass(frozen=True, slots=True)
class WorkersSettings:
    """processes: how many at most; cluster: used instead, if there is one. stall: seconds that a range may take."""

    processes: int = 0
    cluster: ClusterSettings | None = None
    stall: float = 60.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> WorkersSettings:
        """Reads `VARIABLES`. Raises DomainError."""
        given = WORKERS.given(environment)
        stall = STALL.whole(environment, 60, least=1)
        files = {one.name: one.given(environment) for one in (AUTHORITY, CERTIFICATE, KEY)}
        if given is not None and "://" in given:
            return cls(0, _cluster(given, files), stall)
        if given is None:
            found = cores()
            return cls(found if found > 1 and can_share_memory() else 0, None, stall)
        if not given.isascii() or not given.isdigit() or len(given) > 4 or int(given) > _MOST:
            raise DomainError(f"{WORKERS.name} must be a number of processes, at most {_MOST}, or tls://host:port")
        if int(given) and not can_share_memory():
            raise DomainError(f"{WORKERS.name}: processes need memory that Linux shares; here it can only be 0")
        return cls(int(given), None, stall)

    def workers(self) -> Workers:
        """The workers themselves. Nothing is started, and nobody called, before there is work."""
        if self.cluster is not None:
            return Crew(Cluster(self.cluster), threads=cores(), stall=self.stall)
        return Crew(Pool(self.processes), threads=self.processes, stall=self.stall) if self.processes else IN_PROCESS


NO_WORKERS = WorkersSettings()


def _cluster(address: str, files: Mapping[str, str | None]) -> ClusterSettings:
    if not address.startswith("tls://"):
        raise DomainError(
            f"{WORKERS.name} must begin with tls://, because what workers are sent must not be read on the way"
        )
    for name, given in files.items():
        if given is None or not Path(given).is_file():
            raise DomainError(f"{WORKERS.name} names a Dask cluster, so {name} must name a file")
    return ClusterSettings(address, *(Path(given) for given in files.values() if given is not None))
