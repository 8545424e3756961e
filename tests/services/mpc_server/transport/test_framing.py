import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.mpc_server.transport.framing import (
    HEADER,
    MAX_ABORT,
    MAX_HELLO,
    MAX_PAYLOAD,
    NO_TAG,
    Frame,
    FrameDecoder,
    FrameError,
    Kind,
    decode_abort,
    encode,
    encode_abort,
    encode_header,
)
from services.mpc_server.transport.hello import Agreement, Greeting, Hello

pytestmark = pytest.mark.property

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
digests = st.binary(min_size=32, max_size=32)
limits = {Kind.HELLO: MAX_HELLO, Kind.ROUND: 5000, Kind.ABORT: MAX_ABORT, Kind.CLOSE: 0, Kind.PING: 0, Kind.PONG: 0}


@st.composite
def frames(draw):
    kind = draw(st.sampled_from(Kind))
    tag = draw(st.binary(min_size=8, max_size=8)) if kind is Kind.ROUND else NO_TAG
    payload = draw(st.binary(max_size=draw(st.integers(0, limits[kind]))))
    session, sequence = (0, 0) if kind in (Kind.PING, Kind.PONG) else (draw(u32), draw(u64))
    return Frame(kind, session, sequence, tag, bytearray(payload))


def chunks(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def decode_all(pieces, max_payload=5000):
    decoder = FrameDecoder(max_payload)
    return [frame for piece in pieces for frame in decoder.feed(piece)], decoder


@given(st.lists(frames(), max_size=5), st.lists(u32, max_size=20))
def test_any_chunking_yields_the_frames_sent(sent, cuts):
    got, decoder = decode_all(chunks(b"".join(map(encode, sent)), cuts))
    assert got == sent
    assert decoder.partial == 0


@given(frames())
def test_byte_by_byte(frame):
    got, _ = decode_all([bytes([byte]) for byte in encode(frame)])
    assert got == [frame]


@given(frames())
def test_frames_do_not_refer_to_the_input(frame):
    data = bytearray(encode(frame))
    (got,) = FrameDecoder(5000).feed(memoryview(data))
    data[:] = bytes(len(data))
    assert got == frame


@given(st.lists(frames(), min_size=1, max_size=3), st.lists(u32, max_size=8), u32, st.integers(1, 255))
def test_corruption_never_escapes_as_anything_but_a_frame_error(sent, cuts, where, flip):
    data = bytearray(b"".join(map(encode, sent)))
    data[where % len(data)] ^= flip
    decoder = FrameDecoder(5000)
    try:
        for piece in chunks(bytes(data), cuts):
            for frame in decoder.feed(piece):
                assert len(frame.payload) <= limits[frame.kind]
    except FrameError as first:
        with pytest.raises(FrameError, match=str(first)):
            list(decoder.feed(b""))


@given(st.binary(max_size=200), st.lists(u32, max_size=8))
def test_noise(data, cuts):
    try:
        got, _ = decode_all(chunks(data, cuts))
    except FrameError:
        assert len(data) >= HEADER.size
    else:
        assert not got or data.startswith(b"CaPS")


@given(frames(), st.integers(0, 3), st.integers(1, 255))
def test_damaged_magic_or_version_is_refused(frame, where, flip):
    data = bytearray(encode(frame))
    data[where] ^= flip
    with pytest.raises(FrameError):
        decode_all([bytes(data)])
    data = bytearray(encode(frame))
    data[4] ^= flip
    with pytest.raises(FrameError, match="version"):
        decode_all([bytes(data)])


def test_frames_before_a_violation_are_yielded():
    good = Frame(Kind.CLOSE, 1, 0, NO_TAG, bytearray())
    got = []
    with pytest.raises(FrameError):
        got.extend(FrameDecoder().feed(encode(good) + bytes(HEADER.size)))
    feed = FrameDecoder().feed(encode(good) + bytes(HEADER.size))
    assert next(feed) == good


def test_a_large_payload_is_held_once():
    size = 32 << 20
    decoder = FrameDecoder()
    chunk = bytes(1 << 18)
    tracemalloc.start()
    try:
        assert list(decoder.feed(encode_header(Kind.ROUND, 1, 0, bytes(8), size))) == []
        for _ in range(size // len(chunk)):
            got = list(decoder.feed(chunk))
        assert tracemalloc.get_traced_memory()[1] < size + size // 8 + (1 << 20)
    finally:
        tracemalloc.stop()
    assert len(got[0].payload) == size


def test_nothing_is_allocated_for_what_was_only_announced():
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert list(decoder.feed(encode_header(Kind.ROUND, 1, 0, bytes(8), MAX_PAYLOAD) + bytes(100))) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert decoder.partial == HEADER.size + 100


def test_nothing_is_allocated_for_a_payload_over_the_limit():
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="limit"):
            list(FrameDecoder(1 << 20).feed(encode_header(Kind.ROUND, 1, 0, bytes(8), 1 << 31)))
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


@given(st.text(max_size=1000), st.none() | st.integers(0, 2))
def test_abort_round_trip(cause, blames):
    payload = encode_abort(cause, blames)
    text, blamed = decode_abort(payload)
    assert blamed == blames
    assert len(payload) <= MAX_ABORT
    assert text.isprintable()
    if len(cause) <= 100 and cause.isprintable():
        assert text == cause


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=60), digests, digests, digests)
def test_hello_round_trip(name, one, two, three):
    hello = Hello(0, 2, name, Agreement(one, two, three, one, two), two)
    assert Hello.decode(hello.encode()) == hello


@pytest.mark.parametrize("decode", [Hello.decode, Greeting.decode, decode_abort])
@given(data=st.data())
def test_structured_payloads_refuse_damage_with_their_own_error(decode, data):
    good = {
        Hello.decode: Hello(0, 1, "run", Agreement(*[bytes(32)] * 5), bytes(32)).encode(),
        Greeting.decode: Greeting(1, 0).encode(),
        decode_abort: encode_abort("cause", 1),
    }[decode]
    with pytest.raises(FrameError):
        decode(good + data.draw(st.binary(min_size=1, max_size=5)))
    with pytest.raises(FrameError):
        decode(good[: data.draw(st.integers(0, len(good) - 1))])
    with suppress(FrameError):
        decode(data.draw(st.binary(max_size=300)))
