"""Connections over real TLS: strangers are many, say nothing and stay; those who belong here get in all the same."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from caps.service import connections
from caps.service import serve as serving_module
from caps.service.connections import MOST_DESCRIPTORS, Bounds, Refusals, raise_descriptors
from caps.service.metrics import Metrics
from caps.service.tokens import Scope
from caps.trust.tls import Credentials
from tests.kit.attacks import Address, asked, at_once, descriptors, heard, idle, is_open
from tests.kit.service import Sample
from tests.kit.tls import Authority, serving
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

FEW = Bounds(strangers=8, strangers_each=6, people=6, people_each=4, machines=6, machines_each=3)


class World:
    """A sample service, a stranger's address, a person's and a machine's."""

    def __init__(self, url: str, authority: Authority, sample: Sample) -> None:
        self.stranger = Address(url, authority.root)
        self.person = Address(url, authority.root, token=sample.token(Scope.OPERATOR))
        self.machine = Address(url, authority.root, me=authority.issue("holder", "caps:holder/clinic"))
        self.other = Address(url, authority.root, me=authority.issue("other", "caps:holder/other"))

    def figure(self, name: str, kind: str) -> float:
        """A metric of connections."""
        for line in asked(self.person, "GET", "/metrics").body.decode().splitlines():
            if line.startswith(f'{name}{{kind="{kind}"}} '):
                return float(line.split()[-1])
        return 0.0


@contextlib.contextmanager
def world_of(folder: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds | None = None) -> Iterator[World]:
    if bounds is not None:
        monkeypatch.setattr(Bounds, "within", classmethod(lambda _, __: bounds))
    authority, sample = Authority(folder), Sample(folder)
    service: Credentials = authority.issue("service", "caps:mpc-server/S1")
    with serving(sample.app, service) as url:
        yield World(url, authority, sample)


def test_eleven_hundred_idle_connections_shut_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 600.0)
    with world_of(tmp_path, monkeypatch) as world:
        before = descriptors("self")
        with idle(world.stranger, 1100) as held:
            assert len(held) == 1100
            assert asked(world.stranger, "GET", "/healthz").status == 200
            assert asked(world.machine, "GET", "/v1/who").status == 200
            until(lambda: sum(map(is_open, held)) <= Bounds().strangers_each)
            # The clients are in this process too: a descriptor on their side for each connection.
            until(lambda: descriptors("self") - before - len(held) <= Bounds().strangers_each + 4)
            assert world.figure("caps_connections", "strangers") <= Bounds().strangers_each
            assert world.figure("caps_connections_refused_total", "strangers") >= 1100 - Bounds().strangers_each
    said = [json.loads(record.getMessage()) for record in caplog.records if record.name == "caps.connections"]
    assert said[0] == {
        "event": "too many connections",
        "kind": "strangers",
        "refused": 1,
        "origin": "127.0.0.1",
    }


def test_those_who_come_at_once_from_everywhere_are_all_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's handshake is cut off for the next one's: they queue, and none has to come again."""
    monkeypatch.setattr(connections, "GRACE", 60.0)
    with world_of(tmp_path, monkeypatch, replace(Bounds(), strangers=8)) as world:
        places = [replace(world.stranger, origin=f"127.1.0.{number}") for number in range(1, 41)]
        assert at_once(40, lambda number: asked(places[number], "GET", "/healthz").status) == [200] * 40
        assert world.figure("caps_connections_refused_total", "strangers") == 0


def test_silent_strangers_from_everywhere_give_way_after_their_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GRACE", 0.2)
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 600.0)
    with world_of(tmp_path, monkeypatch, FEW) as world, contextlib.ExitStack() as stack:
        for number in range(1, 31):
            stack.enter_context(idle(replace(world.stranger, origin=f"127.1.0.{number}"), 1))
        assert asked(world.machine, "GET", "/v1/who").status == 200
        until(lambda: world.figure("caps_connections_refused_total", "strangers") >= 30 - FEW.strangers)


def test_a_handshake_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 0.2)
    with world_of(tmp_path, monkeypatch) as world, idle(world.stranger, 3) as held:
        for connection in held:
            connection.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        until(lambda: not any(map(is_open, held)))
        assert asked(world.stranger, "GET", "/healthz").status == 200


def test_what_is_idle_after_the_handshake_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "HEAD_TIMEOUT", 0.2)
    monkeypatch.setattr(serving_module, "KEEP_ALIVE", 0)
    with world_of(tmp_path, monkeypatch) as world, idle(world.stranger, 3, shaken=True) as held:
        held[0].sendall(world.stranger.head("GET", "/healthz"))
        assert heard(held[0]).status == 200
        until(lambda: not any(map(is_open, held)))


def test_people_cannot_take_the_room_of_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world_of(tmp_path, monkeypatch, FEW) as world, idle(world.stranger, 20, shaken=True) as held:
        with world.machine.secure() as kept:
            for _ in range(10):
                assert asked(world.person, "GET", "/healthz").status == 200
            kept.sendall(world.machine.head("GET", "/v1/who"))
            assert heard(kept).status == 200
        until(lambda: sum(map(is_open, held)) <= FEW.people_each)
        assert world.figure("caps_connections_refused_total", "people") >= 16


def test_a_machine_has_so_many_connections_and_takes_none_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        world_of(tmp_path, monkeypatch, FEW) as world,
        idle(world.other, 3, shaken=True) as others,
        idle(world.machine, 9, shaken=True) as held,
    ):
        until(lambda: sum(map(is_open, held)) <= FEW.machines_each)
        assert all(map(is_open, others))


def test_whoever_is_being_answered_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world_of(tmp_path, monkeypatch, FEW) as world, contextlib.ExitStack() as stack:
        busy = [stack.enter_context(world.person.secure()) for _ in range(FEW.people_each)]
        for connection in busy:
            connection.sendall(world.person.head("PUT", "/v1/large", Content_Length="3"))
        machine = Address(world.machine.url, world.machine.authority, me=world.machine.me, token=world.person.token)
        until(lambda: b'caps_connections{kind="people"} 4.0' in asked(machine, "GET", "/metrics").body)
        assert asked(world.person, "GET", "/healthz").status == 0
        for connection in busy:
            connection.sendall(b"abc")
            assert heard(connection).json() == {"size": 3}


@pytest.mark.parametrize("descriptors_", [64, 300, 1024, 1 << 14])
def test_bounds_leave_descriptors_for_everything_else(descriptors_: int) -> None:
    bounds = Bounds.within(descriptors_)
    assert min(vars(bounds).values()) >= 1
    taken = bounds.strangers + bounds.people + bounds.machines
    assert taken <= max(descriptors_ - 256, 3)
    assert bounds == Bounds() or descriptors_ < 1 << 14


def test_descriptors_are_raised_as_far_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        raised = raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, before[1])
        assert raised == (min(before[1], MOST_DESCRIPTORS) if before[1] > 0 else MOST_DESCRIPTORS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_refusals_are_all_counted_and_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "caps.connections")
    now, metrics = [0.0], Metrics()
    refusals = Refusals(metrics, monotonic=lambda: now[0])
    for _ in range(5):
        refusals.count("strangers", "::1")
    now[0] = connections.TELL_EVERY
    refusals.count("strangers", "::1")
    assert [json.loads(record.getMessage())["refused"] for record in caplog.records] == [1, 5]
    assert b'caps_connections_refused_total{kind="strangers"} 6.0' in metrics.text()
