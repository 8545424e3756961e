"""The secrets of components: known to exactly the servers that hold them, the same each time, and dealt honestly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

import pytest

from caps.basics.schemes import REP4, SCHEMES, Scheme
from caps.errors import CheatingDetected, PeerAborted
from services.mpc_server.transport.components import component_secrets
from services.mpc_server.transport.memory import Interceptor, Message, memory_channels

ALL = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))


def met(
    scheme: Scheme,
    interceptor: Interceptor | None = None,
    pair: Callable[[int, int], bytes] = lambda one, other: sha256(bytes((one, other))).digest(),
) -> tuple[list[object], list[int]]:
    """What every server comes to, or the error it ends with; and the rounds it took. `pair`: the secret of a pair."""

    async def one(channel) -> object:
        party = channel.party
        secrets = {peer: pair(min(party, peer), max(party, peer)) for peer in channel.peers}
        try:
            return await component_secrets(channel, scheme, secrets)
        except CheatingDetected as error:
            await channel.abort(str(error), error.party)
            return error
        except PeerAborted as error:
            return error

    async def scenario() -> tuple[list[object], list[int]]:
        channels = memory_channels(scheme=scheme, interceptor=interceptor, stall=5.0)
        found = await asyncio.gather(*map(one, channels))
        return found, [channel.traffic.rounds for channel in channels]

    return asyncio.run(scenario())


@ALL
def test_every_holder_of_a_component_has_its_secret_and_nobody_else(scheme: Scheme) -> None:
    found, rounds = met(scheme)
    for component in range(scheme.components):
        secrets = {one[component] for one in found if component in one}  # type: ignore[index, operator]
        assert len(secrets) == 1
    assert [set(one) for one in found] == [set(held) for held in scheme.held]  # type: ignore[call-overload]
    everything = {one[component] for one in found for component in one}  # type: ignore[attr-defined, index]
    assert len(everything) == scheme.components
    assert set(rounds) == {0 if scheme.parties == 3 else 1}


@ALL
def test_a_session_that_is_repeated_has_the_same_secrets_and_messages(scheme: Scheme) -> None:
    seen: list[list[Message]] = [[], []]
    found = []
    for sent in seen:

        def listen(message: Message, sent: list[Message] = sent) -> bytes:
            sent.append(message)
            return message.payload

        found.append(met(scheme, listen)[0])
    assert found[0] == found[1]
    assert sorted(seen[0]) == sorted(seen[1])


def test_the_server_that_lacks_a_component_sees_nothing_of_its_secret() -> None:
    """Nor does a message carry a secret as it is."""
    got: dict[int, bytes] = dict.fromkeys(range(4), b"")

    def listen(message: Message) -> bytes:
        got[message.dest] += message.payload
        return message.payload

    found, _ = met(REP4, listen)
    secrets = {component: one[component] for one in found for component in one}  # type: ignore[attr-defined, index]
    assert all(secret not in seen for seen in got.values() for secret in secrets.values())


@pytest.mark.parametrize(
    ("component", "liar"), [(component, liar) for component in range(4) for liar in REP4.holders_of(component)[:2]]
)
def test_a_dealer_that_tells_something_else_is_caught_by_the_third_who_names_the_pair(
    component: int, liar: int
) -> None:
    first, second, third = REP4.holders_of(component)
    told = [one for one in REP4.held[liar] if REP4.holders_of(one)[-1] == third]
    place = 32 * told.index(component) + 7

    def alter(message: Message) -> bytes:
        payload = bytearray(message.payload)
        if (message.source, message.dest) == (liar, third):
            payload[place] ^= 0x10
        return bytes(payload)

    found, _ = met(REP4, alter)
    error = found[third]
    assert isinstance(error, CheatingDetected)
    assert error.pair == (first, second)
    assert all(not isinstance(one, CheatingDetected) for party, one in enumerate(found) if party != third)


def test_secrets_depend_on_the_pairs_that_deal_them() -> None:
    def other(one: int, two: int) -> bytes:
        return sha256(bytes((one, two, 1 if (one, two) == (0, 1) else 0))).digest()

    def plain(one: int, two: int) -> bytes:
        return sha256(bytes((one, two, 0))).digest()

    mine, its = met(REP4, pair=plain)[0], met(REP4, pair=other)[0]
    dealt = {component for component in range(4) if REP4.holders_of(component)[:2] == (0, 1)}
    assert dealt
    for one, two in zip(mine, its, strict=True):
        assert {c for c in one if one[c] != two[c]} == dealt & set(one)  # type: ignore[attr-defined, index]
