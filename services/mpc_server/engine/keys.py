"""Where the randomness that parties share comes from: the one verb that a context is made with."""

from __future__ import annotations

from collections.abc import Mapping

from caps.shares.prss import Prss
from services.mpc_server.engine.registry import verb
from services.mpc_server.engine.shares import Owner


@verb
def randomness(owner: Owner, secrets: Mapping[int, bytes], scope: bytes) -> Prss:
    """The keys of the components that a party holds, from the secrets that it shares with each of its peers. Local."""
    raise NotImplementedError
