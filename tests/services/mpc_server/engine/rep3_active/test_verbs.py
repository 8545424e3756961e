"""Every protocol under `rep3-active`: its result and its cost, and that claims cover every byte that is sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from caps.basics.schemes import REP3_ACTIVE
from caps.errors import CapsError, CheatingDetected
from services.mpc_server.engine import verbs
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.testing.world import Failed, Outcome, Recorder, World
from services.mpc_server.transport.memory import Message
from tests.kit.cases.all import CASES
from tests.kit.cases.base import EXAMPLES, Call, Source, assert_equal, sources
from tests.kit.recorded_claims import Recorded, assert_alike, recorded, violated

pytestmark = pytest.mark.property

COMPARED = {verb.__name__ for verb in verbs.COMPARED}
NAMES = sorted(name for name in CASES if not REGISTRY[name].module.startswith("paper") and name not in COMPARED)
VERBS = sorted({verb.__name__ for verb in verbs.VERBS} - {"guard"})
OTHER_BYTES = {"addends", "alike", "cross_cells", "gram_cells", "shuffle"}
"""Verbs that send more or less than those of `rep3`; and so does `bilinear_bits` where it sums up ANDs."""


@pytest.fixture
def guards() -> Iterator[list[Recorded]]:
    with recorded() as found:
        yield found


def source(sizes: int, values: int, fill: str = "random") -> Source:
    return Source(np.random.default_rng(sizes), np.random.default_rng(values), fill)


def run(name: str, call: Call, world: World) -> Outcome:
    return world.run(CASES[name][0], *call.args, **call.kwargs)


def judge(call: Call, value: object) -> None:
    if call.check is not None:
        call.check(value)
    else:
        assert_equal(value, call.expect)


def test_every_verb_is_tried() -> None:
    assert set(VERBS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=sources())
def test_results_are_right_and_claims_hold(name: str, drawn: Source) -> None:
    with recorded() as guards:
        call = CASES[name][1](drawn)
        outcome = run(name, call, World(1, scheme=REP3_ACTIVE))
        judge(call, outcome.value)
        assert_alike(guards)
        assert violated(guards) == []
        declared = REGISTRY[name].costs[REP3_ACTIVE.name]
        assert outcome.rounds == declared.rounds_for(call.sizes)
        assert outcome.sent == tuple(declared.sent_by(party, call.sizes) for party in range(3))


@pytest.mark.parametrize("name", VERBS)
def test_most_verbs_send_what_rep3_sends(name: str) -> None:
    differ = False
    for seed in range(8):
        call = CASES[name][1](source(seed, seed))
        costs = REGISTRY[name].costs
        sent, usual = (
            [costs[scheme].sent_by(party, call.sizes) for party in range(3)] for scheme in ("rep3-active", "rep3")
        )
        differ |= sent != usual
    assert differ == (name in OTHER_BYTES)


class Altering:
    """An interceptor that changes one byte of one message."""

    def __init__(self, number: int, place: float, change: int) -> None:
        self.number, self.place, self.change = number, place, change
        self.seen = 0

    def __call__(self, message: Message) -> bytes:
        payload = bytearray(message.payload)
        if self.seen == self.number:
            payload[int(self.place * len(payload))] ^= self.change
        self.seen += 1
        return bytes(payload)


@pytest.mark.drawn(18)
@pytest.mark.parametrize("name", NAMES)
def test_no_altered_message_goes_unnoticed(name: str, guards: list[Recorded]) -> None:
    """Whichever byte of whichever message is changed, a claim fails, or a digest, or nothing that counts was changed.

    What does not count are bits above 2^k in words that hold elements of a smaller ring.
    """
    rng = np.random.default_rng(len(name))
    call = CASES[name][1](source(3, 3))
    recorder = Recorder()
    run(name, call, World(1, scheme=REP3_ACTIVE, interceptor=recorder))
    count, most = len(recorder.messages), 48 if name in VERBS else 12
    numbers = range(count) if count <= most else sorted(rng.choice(count, most, replace=False))
    noticed = 0
    for number in numbers:
        # The lowest byte of a word counts in every ring.
        for place in (0.0, rng.random()):
            altering = Altering(number, place, 1 << int(rng.integers(8)))
            call = CASES[name][1](source(3, 3))
            try:
                outcome = run(name, call, World(1, scheme=REP3_ACTIVE, interceptor=altering))
            except (Failed, CapsError, AssertionError) as error:
                found = isinstance(error, Failed) and any(isinstance(one, CheatingDetected) for one in error.errors)
                assert found or violated(guards), (name, number, place)
                noticed += 1
                continue
            if violated(guards):
                noticed += 1
            else:
                judge(call, outcome.value)
                assert place, (name, number, "the lowest byte counts")
    assert noticed >= len(numbers)


CLOSED = [name for name in NAMES if REGISTRY[name].leaks.rstrip(".") == "nothing" and name != "shuffle"]
"""Protocols that open nothing. The shuffle opens a random matrix and tells digests that the receivers know."""


@pytest.mark.drawn(40)
@pytest.mark.parametrize("fill", ["zeros", "ones", "random"])
@pytest.mark.parametrize("name", CLOSED)
def test_received_words_look_uniform_whatever_the_input(name: str, fill: str, guards: list[Recorded]) -> None:
    """Bytes, and bytes XORed with those before them, fit the uniform law at every party. Seeds are fixed."""
    received = {party: bytearray() for party in range(3)}
    for seed in range(60):
        recorder = Recorder()
        world = World(1000 + seed, scheme=REP3_ACTIVE, interceptor=recorder)
        run(name, CASES[name][1](source(seed, seed, fill)), world)
        for message in recorder.messages:
            received[message.dest] += message.payload
        if min(len(data) for data in received.values() if data) >= 4096:
            break
    streams = [np.frombuffer(data, np.uint8) for data in received.values() if len(data) >= 1280]
    assert streams
    for data in streams:
        assert stats.chisquare(np.bincount(data, minlength=256)).pvalue > 1e-6
        assert stats.chisquare(np.bincount(data[1:] ^ data[:-1], minlength=256)).pvalue > 1e-6


@pytest.mark.drawn(15)
@pytest.mark.parametrize("name", CLOSED)
def test_what_is_sent_is_masked_afresh(name: str, guards: list[Recorded]) -> None:
    """The same shares under other keys make other messages; a byte is the same by chance, 1 in 256."""
    same = total = 0
    for seed in range(5):
        transcripts = []
        for keys in (1, 2):
            recorder = Recorder()
            world = World(9, scheme=REP3_ACTIVE, keys=keys, interceptor=recorder)
            run(name, CASES[name][1](source(seed, seed)), world)
            transcripts.append(np.frombuffer(b"".join(bytes(m.payload) for m in recorder.messages), np.uint8))
        same += int((transcripts[0] == transcripts[1]).sum())
        total += transcripts[0].size
    assert total
    assert same / total < 1 / 256 + 5 / np.sqrt(256 * total)
