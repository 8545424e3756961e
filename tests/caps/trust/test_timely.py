"""Calls to parties that answer anything, over real TLS: every call comes to an end, in bounded memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import httpx
import pytest

from caps.client import AnswerRefused, ClientError, Unreachable, calls
from caps.trust import timely
from caps.trust.timely import TimelyTransport
from caps.trust.tls import Credentials, client_context
from tests.kit.attacks import ANSWERS, Answering, answer, answering, gzip_bomb, peak, slowly
from tests.kit.tls import Authority

pytestmark = pytest.mark.integration

ROLE = "caps:mpc-server/S1"


class World:
    """A party that lies, and whoever calls it."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.liar: Credentials = self.authority.issue("liar", ROLE)

    def client(self, url: str, timeout: float) -> httpx.Client:
        context = client_context(self.authority.root, role=ROLE)
        return httpx.Client(base_url=url, transport=TimelyTransport(context), timeout=timeout, trust_env=False)

    def called(self, answers: Answering, *, timeout: float = 20.0, content: bytes = b"", **options: int) -> object:
        """The parsed answer to one call."""
        with answering(self.liar, answers) as url, self.client(url, timeout) as http:
            return calls.parsed(calls.send(http, "S1", "PUT", "/", content=content, **options).content, "S1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("timely"))


def test_an_honest_answer_arrives(world: World) -> None:
    assert world.called(lambda _: answer(b'{"a": [1]}'), content=bytes(100_000)) == {"a": [1]}


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in {"null", "informational"}])
def test_whatever_a_party_answers_is_an_error_that_names_it(world: World, name: str) -> None:
    found = ANSWERS[name]()
    before = peak("self")
    with pytest.raises(ClientError) as caught:
        world.called(lambda _: found)
    assert caught.value.party == "S1"
    assert peak("self") - before < 100 << 20


def test_306_kilobytes_of_gzip_stay_what_they_are(world: World) -> None:
    bomb = answer(gzip_bomb(300 << 20), Content_Encoding="gzip")
    assert len(bomb) < 310_000
    before = peak("self")
    with pytest.raises(AnswerRefused, match="compressed"):
        world.called(lambda _: bomb)
    assert peak("self") - before < 50 << 20


def test_200000_brackets_are_refused(world: World) -> None:
    with pytest.raises(AnswerRefused, match="nested"):
        world.called(lambda _: answer(b"[" * 200_000))


@pytest.mark.parametrize("body", [b"\xff", b"{", b"1" * 50, b"[" + b"[]," * 600_000 + b"0]"], ids=lambda b: str(b)[:9])
def test_what_is_not_bounded_json_is_refused(body: bytes) -> None:
    with pytest.raises(AnswerRefused):
        calls.parsed(body, "S1")


def test_an_answer_drop_by_drop_is_given_up_although_it_never_pauses_for_long(world: World) -> None:
    for drip in (
        lambda _: slowly(answer(b" " * 2000), every=0.05),  # the head
        lambda _: chain([answer(length=2000)], slowly(b" " * 2000, every=0.05)),
    ):
        with pytest.raises(Unreachable) as caught:
            world.called(lambda head, drip=drip: drip(head), timeout=0.5)  # type: ignore[misc]
        assert caught.value.timed_out


def test_an_answer_that_keeps_the_rate_may_take_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timely, "LEAST_RATE", 1)
    assert world.called(lambda _: slowly(answer(b"[1, 2]"), every=0.05, piece=4), timeout=0.5) == [1, 2]


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """A party that takes connections and says what the test makes it say."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: accepted.append(listener.accept()[0]), daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}", accepted
        thread.join(10)
    for one in accepted:
        one.close()


def test_a_handshake_drop_by_drop_is_given_up(world: World, silent: tuple[str, list[socket.socket]]) -> None:
    url, accepted = silent
    over = threading.Event()

    def drip() -> None:
        for byte in b"\x16\x03\x03\x40\x00" + bytes(1000):  # a long record of a handshake
            if over.wait(0.05):
                return
            if accepted:
                accepted[0].send(bytes([byte]))

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    with world.client(url, 0.5) as http, pytest.raises(Unreachable) as caught:
        calls.send(http, "S1", "GET", "/")
    over.set()
    thread.join(10)
    assert caught.value.timed_out


def test_a_request_that_nobody_reads_is_given_up(world: World) -> None:
    over = threading.Event()

    def answers(_: bytes) -> list[bytes]:
        over.wait(20)
        return []

    with answering(world.liar, answers) as url, world.client(url, 0.5) as http:
        with pytest.raises(Unreachable) as caught:
            calls.send(http, "S1", "PUT", "/", content=bytes(50 << 20))
        over.set()
    assert caught.value.timed_out
