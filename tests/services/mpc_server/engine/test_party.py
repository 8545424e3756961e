"""A party with keys of its own: a step that is run again repeats its transcript to the byte."""

import asyncio
from secrets import token_bytes

import numpy as np
import pytest

from caps.basics.schemes import REP3
from caps.errors import DomainError
from caps.shares.ring import Z64
from services.mpc_server.channel import swap
from services.mpc_server.engine.context import Runtime
from services.mpc_server.engine.verbs import multiply
from services.mpc_server.testing.world import STUDY, World
from services.mpc_server.transport.memory import memory_channels

KEYS = {component: bytes([component + 1]) * 32 for component in range(REP3.components)}
FRESH = {component: token_bytes(32) for component in range(REP3.components)}
INPUT = np.arange(1, 41, dtype=Z64.dtype)


def session(scope, keys=KEYS):
    """Transcript and outputs of two multiplications with a control message between, on a channel of fresh secrets."""
    transcript = []

    def record(message):
        transcript.append(message)
        return message.payload

    async def everyone(party, x):
        product = await party.execute(multiply(party.context.step("first"), x, x))
        await swap(party.channel, "between", b"acknowledged")
        product = await party.execute(multiply(party.context.step("second"), product, x))
        return tuple(part.tobytes() for part in product.components)

    async def main():
        channels = memory_channels(interceptor=record)
        parties = [
            Runtime(
                channel,
                study=STUDY,
                scheme=REP3,
                scope=scope,
                secrets={component: keys[component] for component in REP3.held[channel.party]},
            )
            for channel in channels
        ]
        shares = World(7).share([party.context for party in parties], INPUT)
        return await asyncio.gather(*map(everyone, parties, shares))

    outputs = asyncio.run(main())
    return sorted(transcript), outputs


def test_same_secrets_and_scope_repeat_the_transcript():
    assert session(b"run 1/step 3") == session(b"run 1/step 3")


@pytest.mark.parametrize("other", [{"scope": b"run 1/step 4"}, {"scope": b"run 1/step 3", "keys": FRESH}])
def test_another_scope_or_fresh_secrets_change_every_masked_message(other):
    (first, outputs), (second, others) = session(b"run 1/step 3"), session(**other)
    assert [message[:4] for message in first] == [message[:4] for message in second]
    masked = [(a.payload, b.payload) for a, b in zip(first, second, strict=True) if a.payload != b"acknowledged"]
    assert len(masked) == 6
    assert all(a != b for a, b in masked)
    assert all(mine != other for mine, other in zip(outputs, others, strict=True))

    def total(parts):
        return sum(np.frombuffer(mine, Z64.dtype) for mine, _ in parts)

    assert np.array_equal(total(outputs), INPUT**3)
    assert np.array_equal(total(others), INPUT**3)


@pytest.mark.parametrize(
    "secrets", [{}, {1: bytes(32)}, {0: bytes(32), 1: bytes(32), 2: bytes(32)}, {0: bytes(32), 1: bytes(31)}]
)
def test_secrets_must_be_those_of_the_components_held(secrets):
    with pytest.raises(DomainError):
        Runtime(memory_channels()[0], study=STUDY, scheme=REP3, scope=b"", secrets=secrets)
