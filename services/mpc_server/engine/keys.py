"""The keys from which parties draw randomness in common."""

from __future__ import annotations

from collections.abc import Mapping

from caps.errors import DomainError, party_name
from caps.shares.prss import Prss, component_key
from services.mpc_server.engine.shares import Owner


def randomness(owner: Owner, secrets: Mapping[int, bytes], scope: bytes) -> Prss:
    """The keys of the components that a party holds, each from the secret that this component's holders share."""
    held = owner.scheme.held[owner.party]
    if secrets.keys() != set(held):
        raise DomainError(f"{party_name(owner.party)} needs a secret for each of its components, and no other")
    return Prss({component: component_key(secrets[component], component, scope) for component in held})
