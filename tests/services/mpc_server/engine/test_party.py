"""A party with keys of its own: a step that is run again has the same noise, under other masks."""

import asyncio
from secrets import token_bytes

import numpy as np
import pytest

from caps.basics.schemes import REP3
from caps.errors import DomainError
from caps.shares.ring import Z64
from services.mpc_server.channel import swap
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.verbs import multiply, reveal_bits
from services.mpc_server.testing.world import STUDY, World
from services.mpc_server.transport.memory import memory_channels

LASTING = {component: bytes([component + 1]) * 32 for component in range(REP3.components)}
INPUT = np.arange(1, 41, dtype=Z64.dtype)


def held(party, keys):
    return {component: keys[component] for component in REP3.held[party]}


def session(scope):
    """Transcript, shares of a product and opened noise of a session with fresh secrets of its own."""
    transcript = []

    def record(message):
        transcript.append(message)
        return message.payload

    async def everyone(party, x):
        product = await party.execute(multiply(party.context.step("first"), x, x))
        await swap(party.channel, "between", b"acknowledged")
        drawn = party.context.step("noise").noise_bits(64, (8,))
        noise = await party.execute(reveal_bits(party.context.step("open"), drawn, ring=Z64))
        return tuple(part.tobytes() for part in product.components), noise.tobytes()

    async def main():
        channels = memory_channels(interceptor=record)
        fresh = {component: token_bytes(32) for component in range(REP3.components)}
        parties = [
            Runtime(
                channel,
                study=STUDY,
                scheme=REP3,
                scope=scope,
                secrets=held(channel.party, LASTING),
                session=held(channel.party, fresh),
            )
            for channel in channels
        ]
        shares = World(7).share([party.context for party in parties], INPUT)
        return await asyncio.gather(*map(everyone, parties, shares))

    outputs = asyncio.run(main())
    products, noises = zip(*outputs, strict=True)
    assert len(set(noises)) == 1
    return sorted(transcript), products, noises[0]


def test_a_repeated_step_has_the_same_noise_and_fresh_masks():
    (first, products, noise), (second, others, same) = session(b"run 1/step 3"), session(b"run 1/step 3")
    assert noise == same
    assert [message[:4] for message in first] == [message[:4] for message in second]
    masked = [(a.payload, b.payload) for a, b in zip(first, second, strict=True) if len(a.payload) == INPUT.nbytes]
    assert len(masked) == 3
    assert all(a != b for a, b in masked)
    assert all(mine != other for mine, other in zip(products, others, strict=True))

    def total(parts):
        return sum(np.frombuffer(mine, Z64.dtype) for mine, _ in parts)

    assert np.array_equal(total(products), INPUT**2)
    assert np.array_equal(total(others), INPUT**2)


def test_another_scope_has_another_noise():
    assert session(b"run 1/step 3")[2] != session(b"run 1/step 4")[2]


@pytest.mark.parametrize(
    "secrets", [{}, {1: bytes(32)}, {0: bytes(32), 1: bytes(32), 2: bytes(32)}, {0: bytes(32), 1: bytes(31)}]
)
def test_secrets_must_be_those_of_the_components_held(secrets):
    with pytest.raises(DomainError):
        Runtime(memory_channels()[0], study=STUDY, scheme=REP3, scope=b"", secrets=held(0, LASTING), session=secrets)
    with pytest.raises(DomainError):
        Runtime(memory_channels()[0], study=STUDY, scheme=REP3, scope=b"", secrets=secrets, session=held(0, LASTING))
