"""`proto/vectors/frames.json`: this implementation makes the good bytes from their fields, and refuses the bad ones."""

import json
from pathlib import Path

import pytest

from services.mpc_server.transport.framing import (
    Frame,
    FrameDecoder,
    FrameError,
    Kind,
    decode_abort,
    encode,
    encode_abort,
)
from services.mpc_server.transport.hello import Agreement, Greeting, Hello, meet, session_id

VECTORS = json.loads((Path(__file__).parents[4] / "proto/vectors/frames.json").read_text())


def cases(section):
    return [pytest.param(case, id=case["name"]) for case in VECTORS[section]]


def frame_of(case):
    return Frame(
        Kind[case["kind"]],
        case["session"],
        case["sequence"],
        bytes.fromhex(case["tag"]),
        bytearray.fromhex(case["payload"]),
    )


def hello_of(case):
    agreement = Agreement(*(bytes.fromhex(case[name]) for name in ("study", "inputs", "build", "ledger", "scheme")))
    return Hello(case["party"], case["peer"], case["session"], agreement, bytes.fromhex(case["contribution"]))


def decode_frame(data):
    decoder = FrameDecoder(VECTORS["max_payload"])
    frames = list(decoder.feed(data))
    if decoder.partial:
        raise FrameError("incomplete")
    return frames


DECODERS = {"frame": decode_frame, "hello": Hello.decode, "greeting": Greeting.decode, "abort": decode_abort}


def test_version():
    assert VECTORS["version"] == 1


@pytest.mark.parametrize("case", cases("frames"))
def test_good_frame(case):
    assert encode(frame_of(case)).hex() == case["bytes"]
    assert decode_frame(bytes.fromhex(case["bytes"])) == [frame_of(case)]


@pytest.mark.parametrize("case", cases("hellos"))
def test_good_hello(case):
    assert hello_of(case).encode().hex() == case["bytes"]
    assert Hello.decode(bytes.fromhex(case["bytes"])) == hello_of(case)


@pytest.mark.parametrize("case", cases("greetings"))
def test_good_greeting(case):
    greeting = Greeting(case["party"], case["peer"])
    assert greeting.encode().hex() == case["bytes"]
    assert Greeting.decode(bytes.fromhex(case["bytes"])) == greeting


@pytest.mark.parametrize("case", cases("aborts"))
def test_good_abort(case):
    assert encode_abort(case["cause"], case["blames"]).hex() == case["bytes"]
    assert decode_abort(bytes.fromhex(case["bytes"])) == (case["cause"], case["blames"])


@pytest.mark.parametrize("case", cases("session_ids"))
def test_session_id(case):
    assert session_id(case["session"]) == case["number"]


@pytest.mark.parametrize("case", cases("pair_secrets"))
def test_pair_secret(case):
    one, other = hello_of(case["one"]), hello_of(case["other"])
    assert meet(one, other.encode()).hex() == meet(other, one.encode()).hex() == case["secret"]


@pytest.mark.parametrize("case", cases("bad"))
def test_bad_bytes_are_refused_for_the_reason_given(case):
    with pytest.raises(FrameError) as raised:
        DECODERS[case["what"]](bytes.fromhex(case["bytes"]))
    assert str(raised.value) == case["reason"]
