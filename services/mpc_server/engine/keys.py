"""The verbs that a session is made with: where shared randomness comes from, and what guards openings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from caps.errors import DomainError, party_name
from caps.shares.prss import Prss, component_key
from services.mpc_server.engine.registry import verb
from services.mpc_server.engine.shares import Owner

if TYPE_CHECKING:
    from services.mpc_server.engine.context import Context
    from services.mpc_server.engine.guard import Guard


def randomness(owner: Owner, secrets: Mapping[int, bytes], scope: bytes) -> Prss:
    """The keys of the components that a party holds, each from the secret that this component's holders share."""
    held = owner.scheme.held[owner.party]
    if secrets.keys() != set(held):
        raise DomainError(f"{party_name(owner.party)} needs a secret for each of its components, and no other")
    return Prss({component: component_key(secrets[component], component, scope) for component in held})


@verb
def guard(ctx: Context) -> Guard:
    """What checks a session's messages before anything is opened; `ctx` is where it has its own. Local."""
    raise NotImplementedError
