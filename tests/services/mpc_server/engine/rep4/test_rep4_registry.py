"""Every protocol that a study may run, by four servers: against numpy, its declared cost, and what servers see."""

from __future__ import annotations

import hashlib
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats

from caps.basics.schemes import REP4
from caps.shares.ring import Z16
from services.mpc_server.channel import TAG_BYTES
from services.mpc_server.engine import verbs
from services.mpc_server.engine.registry import REGISTRY
from services.mpc_server.engine.rep4 import matrices
from services.mpc_server.testing.world import Recorder, World
from services.mpc_server.transport.memory import Message
from tests.kit.cases.all import CASES
from tests.kit.cases.base import EXAMPLES, Call, Source, assert_equal, sources

pytestmark = pytest.mark.property

COMPARED = {one.__name__ for one in verbs.COMPARED}
VERBS = {one.__name__ for one in verbs.VERBS}
NAMES = sorted(
    name for name, declared in REGISTRY.items() if not declared.module.startswith("paper") and name not in COMPARED
)
CLOSED = [name for name in NAMES if REGISTRY[name].leaks.rstrip(".") == "nothing"]
PARTIES = range(REP4.parties)
WIDE = [*((name, matrices.NARROW) for name in NAMES), ("count", 0), ("gram_cells", 0)]
"""All protocols, and those with Gram matrices as if these were wide, so that backups are shown them."""


def run(name: str, call: Call, seed: int = 1, **choices):
    return World(seed, scheme=REP4, **choices).run(CASES[name][0], *call.args, **call.kwargs)


def tag(path: bytes) -> bytes:
    return hashlib.blake2b(path, digest_size=TAG_BYTES).digest()


CHECKS = {tag(b"/guard/check%d/all/%b" % (n, part)) for n in range(9) for part in (b"told", b"heard")}
"""Of messages in which totals are told and confirmed: words that every server is told three times. See test_checks."""


class Messages(Recorder):
    """An interceptor that keeps the messages of protocols, not of checks."""

    def __call__(self, message: Message) -> bytes:
        return message.payload if message.tag in CHECKS else super().__call__(message)


def source(sizes: int, values: int, fill: str = "random") -> Source:
    return Source(np.random.default_rng(sizes), np.random.default_rng(values), fill)


@pytest.mark.parametrize(("name", "narrow"), WIDE)
@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=sources())
def test_result_and_cost_are_as_declared(name: str, narrow: int, drawn: Source) -> None:
    """Checks share rounds with other branches where there are any, so only for verbs is the number of rounds exact."""
    call = CASES[name][1](drawn)
    with patch.object(matrices, "NARROW", narrow):
        outcome = run(name, call)
        sent = tuple(REGISTRY[name].costs[REP4.name].sent_by(party, call.sizes) for party in PARTIES)
    if call.check is not None:
        call.check(outcome.value)
    else:
        assert_equal(outcome.value, call.expect)
    if call.in_world is not None:
        call.in_world(outcome.value, REP4)
    declared = REGISTRY[name].costs[REP4.name]
    rounds = declared.rounds_for(call.sizes)
    assert rounds <= outcome.rounds <= rounds + outcome.check_rounds
    if name in VERBS:
        assert outcome.rounds == rounds + outcome.check_rounds
    assert outcome.sent == sent


@pytest.mark.parametrize(("name", "narrow"), WIDE)
def test_shape_of_the_transcript_does_not_depend_on_secrets(
    name: str, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "NARROW", narrow)
    shapes = []
    for fill in ("zeros", "ones", "random"):
        recorder = Recorder()
        run(name, CASES[name][1](source(7, 11, fill)), 2, interceptor=recorder)
        shapes.append([(m.source, m.dest, m.round, m.tag, len(m.payload)) for m in recorder.messages])
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.drawn(40)
@pytest.mark.parametrize("fill", ["zeros", "ones", "random"])
@pytest.mark.parametrize("name", CLOSED)
def test_received_words_look_uniform_whatever_the_input(name: str, fill: str) -> None:
    """Wide Gram matrices are shown to a server that could compute them; see `test_what_a_backup_is_shown`."""
    received = {party: bytearray() for party in PARTIES}
    for seed in range(60):
        recorder = Messages()
        run(name, CASES[name][1](source(seed, seed, fill)), 1000 + seed, interceptor=recorder)
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


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_sent_is_masked_afresh(name: str) -> None:
    """The same shares under other keys make other messages, word for word."""
    same = total = 0
    for seed in range(5):
        transcripts = []
        for keys in (1, 2):
            recorder = Messages()
            run(name, CASES[name][1](source(seed, seed)), 9, keys=keys, interceptor=recorder)
            transcripts.append(np.frombuffer(b"".join(bytes(m.payload) for m in recorder.messages), np.uint8))
        same += int((transcripts[0] == transcripts[1]).sum())
        total += transcripts[0].size
    assert total
    assert same / total < 1 / 256 + 5 / np.sqrt(256 * total)


@pytest.mark.parametrize("fill", ["zeros", "ones"])
def test_a_product_message_is_masked_from_what_its_receiver_holds(fill: str) -> None:
    recorder = Recorder()
    x = np.full(4096, {"zeros": 0, "ones": 2**64 - 1}[fill], np.uint64)
    outcome = World(3, scheme=REP4, interceptor=recorder).run(verbs.multiply, x, x)
    messages = [m for m in recorder.messages if len(m.payload) % x.nbytes == 0]
    assert sum(len(m.payload) for m in messages) == 6 * x.nbytes
    for message in messages:
        for start in range(0, len(message.payload), x.nbytes):
            words = np.frombuffer(message.payload, np.uint64, len(x), start)
            for shares in outcome.inputs:
                held = shares[message.dest].components
                for known in (*held, *(one * other for one in held for other in held)):
                    octets = (words - known).view(np.uint8)
                    assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > 1e-6


def test_what_a_backup_is_shown_it_could_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a wide Gram matrix, a server sees words that look random, or the matrix of two components that it holds."""
    monkeypatch.setattr(matrices, "NARROW", 7)
    recorder = Recorder()
    x = np.random.default_rng(1).integers(0, 2, (300, 8)).astype(np.uint16)
    cells = tuple(np.triu_indices(8))
    outcome = World(4, scheme=REP4, interceptor=recorder).run(verbs.gram_cells, x, cells=cells, modulo=Z16)
    assert np.array_equal(outcome.value, (x.T @ x)[cells])
    triangle = len(cells[0]) * 2
    shown = 0
    for message in recorder.messages:
        held = outcome.inputs[0][message.dest].components
        known = {
            sign(one).tobytes()
            for a in held
            for b in held
            for one, sign in (
                (((a + b).T @ (a + b))[cells], lambda g: g),
                (((a - b).T @ (a - b))[cells], np.negative),
            )
        }
        pieces = [message.payload[i : i + triangle] for i in range(0, len(message.payload), triangle)]
        shown += sum(bytes(piece) in known for piece in pieces)
    assert shown == 6
