"""From the secrets of pairs of servers to the secrets of components, each known to exactly the component's holders.

Where a component has two holders, it is what these two share. Where it has three, it follows from what the first two
share, and both tell the third, each under what it shares with the third. If they tell different things one of the two
lies, so the third gives up and names them. Nothing here is random: what servers share in a study is the same when a
run is taken up again. What they share in a session also depends on what each pair drew for that session alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from caps.basics.schemes import Scheme
from caps.errors import CheatingDetected
from services.mpc_server.channel import Channel, trade

_SECRET = b"caps/v1/component/secret"
_PAD = b"caps/v1/component/pad"
_SESSION = b"caps/v1/component/session"
_BYTES = 32


def session_pairs(channel: Channel, pairs: Mapping[int, bytes]) -> dict[int, bytes]:
    """What this party shares with each peer in this session: it follows from the study's secret and from fresh ones."""
    return {peer: _mixed(secret, channel.secret_with(peer)) for peer, secret in pairs.items()}


def _mixed(lasting: bytes, fresh: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=_BYTES, salt=fresh, info=_SESSION).derive(lasting)


async def component_secrets(channel: Channel, scheme: Scheme, pairs: Mapping[int, bytes]) -> dict[int, bytes]:
    """The secret of each component that this party holds, given what it shares with each peer.

    Costs one round if components have three holders, and none otherwise. Raises CheatingDetected, naming the pair.
    """
    party = channel.party
    holders = {component: scheme.holders_of(component) for component in scheme.held[party]}
    if all(len(parties) == 2 for parties in holders.values()):
        return {component: pairs[_other(parties, party)] for component, parties in holders.items()}
    found, told = {}, {peer: bytearray() for peer in scheme.peers_of(party)}
    for component, (first, second, third) in holders.items():
        if party != third:
            found[component] = _derived(pairs[second if party == first else first], _SECRET, component)
            told[third] += _xor(found[component], _derived(pairs[third], _PAD, component))
    heard = await trade(channel, "components", {peer: bytes(told[peer].ljust(_longest(scheme))) for peer in told})
    for component, (first, second, third) in holders.items():
        if party == third:
            one, other = (
                _xor(_piece(heard[teller], scheme, teller, component), _derived(pairs[teller], _PAD, component))
                for teller in (first, second)
            )
            if not hmac.compare_digest(one, other):
                raise CheatingDetected((first, second))
            found[component] = one
    return {component: found[component] for component in holders}


def _taught(scheme: Scheme, teller: int, pupil: int) -> list[int]:
    """The components whose secret a party tells another, in order."""
    return [c for c in scheme.held[teller] if scheme.holders_of(c)[-1] == pupil]


def _longest(scheme: Scheme) -> int:
    """Bytes of every message: as long as the longest, so that all have the same length."""
    parties = range(scheme.parties)
    return _BYTES * max(len(_taught(scheme, teller, pupil)) for teller in parties for pupil in parties)


def _piece(message: bytes, scheme: Scheme, teller: int, component: int) -> bytes:
    pupil = scheme.holders_of(component)[-1]
    start = _BYTES * _taught(scheme, teller, pupil).index(component)
    return message[start : start + _BYTES]


def _other(holders: tuple[int, ...], party: int) -> int:
    (other,) = set(holders) - {party}
    return other


def _derived(secret: bytes, purpose: bytes, component: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=_BYTES, salt=None, info=purpose + bytes([component])).derive(secret)


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
