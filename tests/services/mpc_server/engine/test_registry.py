"""Every protocol of the registry against numpy and against its own declaration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from caps.errors import PeerViolation
from caps.shares.ring import Z64
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.engine.verbs import multiply, reveal
from services.mpc_server.testing.world import Failed, Recorder, World
from tests.kit.cases.all import CASES
from tests.kit.cases.base import EXAMPLES, Call, Source, assert_equal, sources

pytestmark = pytest.mark.property

NAMES = sorted(CASES)
OPENINGS = {name for name, declared in REGISTRY.items() if declared.leaks.rstrip(".") != "nothing"}


def test_every_protocol_has_a_case() -> None:
    assert set(REGISTRY) == set(CASES)


def run(world: World, name: str, call: Call):
    return world.run(CASES[name][0], *call.args, **call.kwargs)


def source(sizes: int, values: int, fill: str = "random") -> Source:
    return Source(np.random.default_rng(sizes), np.random.default_rng(values), fill)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=sources())
def test_result_and_cost_are_as_declared(name: str, drawn: Source) -> None:
    call = CASES[name][1](drawn)
    outcome = run(World(1), name, call)
    if call.check is not None:
        call.check(outcome.value)
    else:
        assert_equal(outcome.value, call.expect)
    if call.in_world is not None:
        call.in_world(outcome.value)
    declared = REGISTRY[name].costs["rep3"]
    assert outcome.rounds == declared.rounds_for(call.sizes)
    assert outcome.sent == tuple(declared.sent_by(party, call.sizes) for party in range(3))


@pytest.mark.drawn(40)
@pytest.mark.parametrize("name", NAMES)
def test_shape_of_the_transcript_does_not_depend_on_secrets(name: str) -> None:
    shapes = []
    for fill in ("zeros", "ones", "random"):
        recorder = Recorder()
        run(World(2, interceptor=recorder), name, CASES[name][1](source(7, 11, fill)))
        shapes.append([(m.source, m.dest, m.round, m.tag, len(m.payload)) for m in recorder.messages])
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.drawn(75)
@pytest.mark.parametrize("fill", ["zeros", "ones", "random"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - OPENINGS))
def test_received_words_look_uniform_whatever_the_input(name: str, fill: str) -> None:
    """Bytes, and bytes XORed with those the receiver knows already, fit the uniform law at every party.

    Seeds are fixed, so the test is deterministic; p-values below 1e-6 in some 300 tests would be a defect, not luck.
    """
    received = {party: bytearray() for party in range(3)}
    for seed in range(60):
        recorder = Recorder()
        run(World(1000 + seed, interceptor=recorder), name, CASES[name][1](source(seed, seed, fill)))
        for message in recorder.messages:
            received[message.dest] += message.payload
        if min(len(data) for data in received.values() if data) >= 4096:
            break
    streams = [np.frombuffer(data, np.uint8) for data in received.values()]
    assert max(stream.size for stream in streams) >= 1280
    for data in streams:
        if data.size < 1280:
            continue
        assert stats.chisquare(np.bincount(data, minlength=256)).pvalue > 1e-6
        assert stats.chisquare(np.bincount(data[1:] ^ data[:-1], minlength=256)).pvalue > 1e-6


@pytest.mark.drawn(25)
@pytest.mark.parametrize("name", sorted(set(NAMES) - OPENINGS))
def test_what_is_sent_is_masked_afresh(name: str) -> None:
    """The same shares under other keys make other messages, word for word: a missing mask looks uniform, not fresh.

    Where a message is a few bytes, two masks may agree by chance; over all messages and sizes that is 1 byte in 256.
    """
    same = total = 0
    for seed in range(5):
        transcripts = []
        for keys in (1, 2):
            recorder = Recorder()
            call = CASES[name][1](source(seed, seed))
            run(World(9, keys=keys, interceptor=recorder), name, call)
            transcripts.append(np.frombuffer(b"".join(bytes(m.payload) for m in recorder.messages), np.uint8))
        same += int((transcripts[0] == transcripts[1]).sum())
        total += transcripts[0].size
    assert total
    assert same / total < 1 / 256 + 5 / np.sqrt(256 * total)


@pytest.mark.parametrize("fill", ["zeros", "ones"])
def test_a_product_message_is_masked_from_what_its_receiver_holds(fill: str) -> None:
    """Not only uniform by itself: also after subtracting either component the receiver has of either input."""
    recorder = Recorder()
    call = CASES["multiply"][1](source(5, 5, fill))
    x = np.broadcast_to(call.args[0].reshape(-1)[:1], (4096,)).astype(Z64.dtype)
    outcome = World(3, interceptor=recorder).run(multiply, x, x)
    for message in recorder.messages:
        words = np.frombuffer(message.payload, Z64.dtype)
        for shares in outcome.inputs:
            held = shares[message.dest]
            for known in (*held.components, np.multiply(*held.components)):
                octets = (words - known).view(np.uint8)
                assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > 1e-6


async def product_then_open(ctx, x, y):
    return await reveal(ctx.step("open"), await multiply(ctx.step("product"), x, y))


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize(("step", "to", "position"), [("product", 2, 0), ("words", 1, 0), ("digest", 2, 1)])
def test_one_flipped_word_is_detected_and_its_sender_named(culprit: int, step: str, to: int, position: int) -> None:
    """A product goes to the previous party; an opening sends words to the next and a digest to the previous."""
    changed = []

    def flip_a_bit(message):
        payload = bytearray(message.payload)
        if (message.source, message.dest, message.round) == (culprit, (culprit + to) % 3, position):
            changed.append(message)
            payload[3] ^= 0x10
        return bytes(payload)

    x = np.arange(8, dtype=Z64.dtype)
    with pytest.raises(Failed) as caught:
        World(4, interceptor=flip_a_bit).run(product_then_open, x, x)
    assert len(changed) == 1
    noticed = [error for error in caught.value.errors if isinstance(error, PeerViolation)]
    assert noticed
    assert all(f"S{culprit + 1}" in str(error) for error in noticed)


def test_an_opening_without_a_flipped_word_is_quiet() -> None:
    x = np.arange(8, dtype=Z64.dtype)
    assert np.array_equal(World(4).run(product_then_open, x, x).value, x * x)
