"""Bodies over real TLS: who may send is decided before any of it is read, and no body is slow or swells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Request

from caps.service import app as frame
from caps.service.app import Limit, create_app
from caps.service.identity import Caller
from caps.service.problems import Problem
from caps.service.tokens import Scope, Tokens
from caps.wire.problems import Kind
from tests.kit.attacks import BODIES, Address, Reply, announced, asked, dripped, empty_lists, heard, peak
from tests.kit.service import ByHolder, Sample, Thing
from tests.kit.tls import Authority, serving
from tests.kit.waiting import until

pytestmark = pytest.mark.integration

RUN = "a" * 32
OWN = 300_000
"""What the coordinator of the run may send."""


def router(seen: list[str]) -> APIRouter:
    api = APIRouter(prefix="/v1")

    @api.put("/runs/{run}")
    async def keep(run: str, request: Request, caller: ByHolder) -> int:
        seen.append(run)
        return len(await request.body())

    @api.post("/things")
    def things(thing: Thing, caller: ByHolder) -> Thing:
        seen.append(thing.name)
        return thing

    return api


def admit(run: str, caller: Caller) -> int:
    if caller.machine is None or caller.machine.name != "own":
        raise Problem(Kind.FORBIDDEN, "only the coordinator of this run may do this", run=run)
    return OWN


class World:
    """A service where runs have an owner, and four who call it."""

    def __init__(self, url: str, authority: Authority, tokens: Tokens, seen: list[str]) -> None:
        self.seen = seen
        self.own = Address(url, authority.root, me=authority.issue("own", "caps:holder/own"))
        self.foreign = Address(url, authority.root, me=authority.issue("foreign", "caps:holder/foreign"))
        self.server = Address(url, authority.root, me=authority.issue("server", "caps:mpc-server/S2"))
        self.nobody = Address(url, authority.root)

    def callers(self) -> list[tuple[Address, int]]:
        return [(self.nobody, 401), (self.server, 403), (self.foreign, 403)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("bodies")
    authority, tokens, seen = Authority(folder), Tokens(folder / "tokens.json"), list[str]()
    app = create_app(
        service="sample",
        name="one",
        description="",
        routers=[router(seen)],
        tokens=tokens,
        limits=[Limit("/v1/runs/(?P<run>[0-9a-f]{32})", admit)],
    )
    with serving(app, authority.issue("service", "caps:mpc-server/S1")) as url:
        yield World(url, authority, tokens, seen)


def problem(reply: Reply, kind: Kind) -> dict[str, Any]:
    assert (reply.status, reply.json()["type"]) == (kind.value.status, kind.urn), reply
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.parametrize("way", ["length", "chunked", "expect"])
def test_role_and_party_are_decided_before_the_body(world: World, way: str) -> None:
    world.seen.clear()
    for caller, status in world.callers():
        assert announced(caller, "PUT", f"/v1/runs/{RUN}", way=way).status == status
    for caller, status in world.callers()[:2]:  # where nothing but the role decides
        assert announced(caller, "POST", "/v1/things", way=way).status == status
    assert world.seen == []


def test_the_right_caller_is_asked_for_its_body(world: World) -> None:
    with world.own.secure() as connection:
        connection.sendall(world.own.head("PUT", f"/v1/runs/{RUN}", Content_Length="3", Expect="100-continue"))
        assert heard(connection, within=0.5).body == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert heard(connection).json() == 3


def test_the_limit_is_the_callers_own(world: World) -> None:
    assert asked(world.own, "PUT", f"/v1/runs/{RUN}", b" " * OWN).json() == OWN
    found = problem(announced(world.own, "PUT", f"/v1/runs/{RUN}", length=OWN + 1), Kind.TOO_LARGE)
    assert f"{OWN} bytes" in found["detail"]


def test_48_megabytes_of_empty_lists_cost_nothing(world: World) -> None:
    body = empty_lists(48_000_000)
    before = peak("self")
    for caller, status in [*world.callers(), (world.own, 413)]:
        assert asked(caller, "PUT", f"/v1/runs/{RUN}", body).status == status
    # Client and service are one process: a gigabyte and more, had the lists been made.
    assert peak("self") - before < 200 << 20
    assert asked(world.nobody, "GET", "/healthz").status == 200


@pytest.mark.parametrize("name", [name for name in BODIES if name != "nothing"])
def test_bodies_that_swell_get_a_clear_answer(world: World, name: str) -> None:
    body = BODIES[name]()
    assert asked(world.own, "POST", "/v1/things", body).status in (400, 413, 422)
    cut = body[:OWN]
    reply = asked(world.own, "PUT", f"/v1/runs/{RUN}", cut)
    bounded = name in {"nested", "nested objects", "digits", "fraction"}
    assert reply.status == (400 if bounded else 200)
    if bounded:
        assert "JSON" in problem(reply, Kind.MALFORMED)["detail"]


@pytest.mark.parametrize("path", [f"/v1/runs/{RUN}", "/v1/things"])
def test_a_body_that_drips_is_cut_although_it_never_pauses_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(frame, "BODY_STALLS", 0.5)
    method = "POST" if path.endswith("things") else "PUT"
    problem(dripped(world.own, method, path, length=1000, every=0.1), Kind.TIMEOUT)


def test_a_body_that_keeps_the_rate_may_take_longer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "BODY_STALLS", 1.0)
    monkeypatch.setattr(frame, "LEAST_RATE", 1)
    reply = dripped(world.own, "PUT", f"/v1/runs/{RUN}", length=15, every=0.1)
    assert (reply.status, reply.json()) == (200, 15)


def test_a_refused_body_that_goes_on_and_on_ends_with_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from caps.service import serve as serving_module

    monkeypatch.setattr(serving_module, "HEAD_TIMEOUT", 0.3)
    with world.foreign.secure() as connection:
        connection.sendall(world.foreign.head("PUT", f"/v1/runs/{RUN}", Content_Length="1000000"))
        assert heard(connection).status == 403

        def ended() -> bool:
            try:
                connection.sendall(b" ")
                return heard(connection, within=0.05).body == b"" and connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(ended)


def test_bodies_in_memory_are_bounded_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "BODIES_AT_ONCE", 150_000)
    authority, sample = Authority(tmp_path), Sample(tmp_path)
    with serving(sample.app, authority.issue("service", "caps:mpc-server/S1")) as url, contextlib.ExitStack() as stack:
        person = Address(url, authority.root, token=sample.token(Scope.OPERATOR))
        first = stack.enter_context(person.secure())
        first.sendall(person.head("PUT", "/v1/large", Content_Length="100000"))

        def refused() -> bool:
            return announced(person, "PUT", "/v1/large", length=90_000).status == 503

        with person.secure() as second:  # small bodies always find room
            second.sendall(person.head("PUT", "/v1/large", Content_Length="3") + b"abc")
            assert heard(second).json() == {"size": 3}
        until(refused)
        first.sendall(bytes(100_000))
        assert heard(first).json() == {"size": 100_000}
        assert asked(person, "PUT", "/v1/large", bytes(90_000)).json() == {"size": 90_000}
