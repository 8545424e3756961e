"""The secrets of components: what exactly the servers that hold a component know, and draw common randomness from.

Where two servers hold a component, it is the secret of their pair. Where three do, the first two derive it from the
secret of theirs, and each sends it to the third, hidden by a key derived from its own secret with that server. The
third compares: if the two differ, one of them deviates, and the session ends with both named. Everything follows from
the secrets of pairs, so a session that is repeated sends the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from caps.basics.schemes import Scheme
from caps.errors import CheatingDetected
from services.mpc_server.channel import TAG_BYTES, Channel

SECRET_BYTES = 32
CHECK = "component secrets"
"""The name of the comparison, as evidence names it."""
_SECRET_LABEL = b"caps/v1/component-secret\0"
_MASK_LABEL = b"caps/v1/component-mask\0"
_TAG = hashlib.blake2b(b"component/secrets", digest_size=TAG_BYTES, person=b"caps/v1/swap").digest()


async def component_secrets(channel: Channel, scheme: Scheme, pairs: Mapping[int, bytes]) -> dict[int, bytes]:
    """The secrets of the components that this server holds, by component. `pairs[p]` is its secret with server p.

    Costs a round if some component has three holders. Raises CheatingDetected with the two servers that differ.
    """
    party = channel.party
    secrets: dict[int, bytes] = {}
    outgoing: dict[int, bytes] = {}
    awaited: dict[int, list[int]] = {}
    for component in sorted(scheme.held[party]):
        first, second, *third = scheme.holders_of(component)
        if not third:
            secrets[component] = pairs[second if party == first else first]
            continue
        (receiver,) = third
        if party == receiver:
            for sender in (first, second):
                awaited.setdefault(sender, []).append(component)
            continue
        secret = _derived(_SECRET_LABEL, pairs[second if party == first else first], component)
        secrets[component] = secret
        outgoing[receiver] = outgoing.get(receiver, b"") + _masked(secret, pairs[receiver], component)
    if all(len(scheme.holders_of(component)) == 2 for component in range(scheme.components)):
        return secrets
    got = await channel.exchange(
        _TAG,
        {peer: [memoryview(payload)] for peer, payload in outgoing.items()},
        {peer: SECRET_BYTES * len(components) for peer, components in awaited.items()},
    )
    received: dict[int, dict[int, bytes]] = {}
    for sender, components in awaited.items():
        for place, component in enumerate(components):
            wrapped = bytes(got[sender][SECRET_BYTES * place : SECRET_BYTES * (place + 1)])
            received.setdefault(component, {})[sender] = _masked(wrapped, pairs[sender], component)
    for component, by_sender in received.items():
        (first, one), (second, other) = by_sender.items()
        if not hmac.compare_digest(one, other):
            raise CheatingDetected((first, second), CHECK)
        secrets[component] = one
    return secrets


def _masked(secret: bytes, pair: bytes, component: int) -> bytes:
    """A secret hidden by a key that only a pair has and that hides nothing else; applied again, it is the secret."""
    mask = _derived(_MASK_LABEL, pair, component)
    return bytes(a ^ b for a, b in zip(secret, mask, strict=True))


def _derived(label: bytes, pair: bytes, component: int) -> bytes:
    return HKDF(SHA256(), SECRET_BYTES, salt=None, info=label + bytes((component,))).derive(pair)
