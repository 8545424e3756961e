"""Meshes that are lost and made anew, over cables that can be cut without a word."""

import asyncio
import gc
import os
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count

import pytest

from caps.errors import LocalError, PeerError, PeerLost, PeerStalled, PeerUnreachable, SessionClosed
from caps.federation.ports import free_ports
from caps.trust.pki import read_certificate, spki_pin
from caps.trust.tls import Credentials
from services.mpc_server.transport import keeper as keeper_module
from services.mpc_server.transport import tls
from services.mpc_server.transport.keeper import MeshKeeper
from services.mpc_server.transport.tls import dialling
from tests.kit.channels import AGREEMENT, OUTER, ring, run_bounded

pytestmark = pytest.mark.integration

QUICK = tls.Limits(heartbeat=0.05, silence=0.25, stall=0.25, connect=10.0, hello=5.0)


@pytest.fixture(params=["tls-asyncio", "tls-uvloop"])
def run_loop(request):
    return lambda main: run_bounded(request.param, main)


def free_endpoints():
    """Ports that nobody listens on now."""
    return [tls.Endpoint("127.0.0.1", port) for port in [*free_ports(2), 9]]


async def until(condition):
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Cable:
    """Forwards a port. Once cut it keeps its connections and carries nothing, like a machine that vanished."""

    def __init__(self, target):
        self._target = target
        self._cut = False
        self._tasks = set()
        self._writers = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def endpoint(self):
        return tls.Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    def cut(self):
        self._cut = True

    async def _serve(self, reader, writer):
        self._writers.append(writer)
        self._tasks.add(asyncio.current_task())
        there, back = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers.append(back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)

    async def _forward(self, source, sink):
        try:
            while data := await source.read(1 << 16):
                if not self._cut:
                    sink.write(data)
        except OSError:
            pass
        if not self._cut:
            sink.close()

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def meshes(credentials):
    endpoints = free_endpoints()
    made = await asyncio.gather(*(tls.connect(p, credentials[p], endpoints, QUICK) for p in range(3)))
    try:
        yield made
    finally:
        await asyncio.gather(*(mesh.close() for mesh in made))


@asynccontextmanager
async def cabled(credentials, limits):
    """Three meshes, and the cables on which S3 hangs."""
    endpoints = free_endpoints()
    async with AsyncExitStack() as stack:
        cables = [await stack.enter_async_context(Cable(endpoint)) for endpoint in endpoints[:2]]
        seen = [endpoints, endpoints, [*(cable.endpoint for cable in cables), endpoints[2]]]
        made = await asyncio.gather(*(tls.connect(p, credentials[p], seen[p], limits) for p in range(3)))
        try:
            yield made, cables
        finally:
            await asyncio.gather(*(mesh.close() for mesh in made))


def test_a_mesh_knows_its_peers_pins_and_its_end(run_loop, credentials):
    async def main():
        async with meshes(credentials) as (first, second, third):
            pins = [spki_pin(read_certificate(paths.certificate)) for paths in credentials]
            assert [first.pin(1), first.pin(2), third.pin(0), third.pin(1)] == [pins[1], pins[2], pins[0], pins[1]]
            waiting = [asyncio.ensure_future(mesh.lost()) for mesh in (first, second, second)]
            assert first.whole
            await third.close()
            for error in await asyncio.gather(*waiting):
                assert isinstance(error, PeerLost)
                assert error.party == 2
            assert not first.whole
            with pytest.raises(SessionClosed):
                await third.lost()

    run_loop(main)


def test_a_peer_is_told_for_whose_sake_a_mesh_is_closed(run_loop, credentials):
    async def main():
        async with meshes(credentials) as (first, second, third):
            await first.close(PeerLost(2, "fell silent"))
            told, accused = await second.lost(), await third.lost()
            assert (told.party, accused.party) == (0, 0)
            assert "S3: fell silent" in told.what
            assert "silent" not in accused.what

    run_loop(main)


def test_an_idle_mesh_stays(run_loop, credentials):
    async def main():
        async with meshes(credentials) as made:
            goals = [mesh.wire.frames_received + 40 for mesh in made]
            await until(lambda: all(m.wire.frames_received >= goal for m, goal in zip(made, goals, strict=True)))
            assert all(mesh.whole for mesh in made)

    run_loop(main)


def test_nobody_is_blamed_for_our_own_computation(run_loop, credentials):
    async def main():
        async with meshes(credentials) as made:
            for _ in range(3):
                time.sleep(4 * QUICK.silence)  # noqa: ASYNC251
                goal = made[0].wire.frames_received + 4
                await until(lambda goal=goal: made[0].wire.frames_received >= goal)
            assert all(mesh.whole for mesh in made)

    run_loop(main)


def test_a_peer_that_vanished_is_noticed_on_idle_streams(run_loop, credentials):
    async def main():
        async with cabled(credentials, QUICK) as (made, cables):
            for cable in cables:
                cable.cut()
            errors = await asyncio.gather(*(mesh.lost() for mesh in made))
            assert all(isinstance(error, PeerStalled) for error in errors)
            assert [error.party for error in errors[:2]] == [2, 2]
            assert {error.what for error in errors} == {"silent for 0.25 s"}

    run_loop(main)


def test_an_open_session_is_given_its_own_limit(run_loop, credentials):
    """A peer within a session may be computing."""

    async def main():
        limits = tls.Limits(heartbeat=0.05, silence=0.25, stall=0.75, connect=10.0, hello=5.0)
        async with cabled(credentials, limits) as (made, cables):
            channels = await asyncio.gather(*(mesh.open("s", AGREEMENT) for mesh in made))
            await asyncio.gather(*map(ring, channels))
            for cable in cables:
                cable.cut()
            assert {(await mesh.lost()).what for mesh in made[:2]} == {"silent for 0.75 s"}

    run_loop(main)


def test_meshes_come_and_go_without_leaving_anything(run_loop, credentials):
    async def main():
        endpoints = free_endpoints()

        async def once():
            made = await asyncio.gather(*(tls.connect(p, credentials[p], endpoints, QUICK) for p in range(3)))
            await asyncio.gather(*(mesh.close() for mesh in made))
            await asyncio.sleep(0)
            gc.collect()
            return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())

        first = await once()
        assert [await once() for _ in range(8)] == [first] * 8

    run_loop(main)


def test_a_stream_lost_while_the_mesh_is_made_is_dialled_anew(run_loop, credentials):
    """S1 meets S2, gives up for want of S3, and comes back; S2 has waited all along."""

    async def main():
        endpoints = free_endpoints()
        seen = []
        second = asyncio.create_task(
            tls.connect(1, credentials[1], endpoints, QUICK, report=lambda peer, trouble: seen.append((peer, trouble)))
        )
        impatient = tls.Limits(connect=0.5)
        with pytest.raises(PeerUnreachable) as raised:
            await tls.connect(0, credentials[0], endpoints, impatient)
        assert raised.value.party == 2
        assert (0, None) in seen
        others = await asyncio.gather(*(tls.connect(p, credentials[p], endpoints, QUICK) for p in (0, 2)))
        made = [others[0], await second, others[1]]
        assert any(peer == 0 and isinstance(trouble, PeerLost) for peer, trouble in seen)
        channels = await asyncio.gather(*(mesh.open("s", AGREEMENT) for mesh in made))
        await asyncio.gather(*map(ring, channels))
        await asyncio.gather(*(mesh.close() for mesh in made))

    run_loop(main)


def test_who_never_came_is_blamed_before_who_left(run_loop, credentials):
    async def main():
        endpoints = free_endpoints()
        second = asyncio.create_task(tls.connect(1, credentials[1], endpoints, tls.Limits(connect=1.0)))
        with pytest.raises(PeerUnreachable):
            await tls.connect(0, credentials[0], endpoints, tls.Limits(connect=0.5))
        with pytest.raises(PeerUnreachable) as raised:
            await second
        assert raised.value.party == 2

    run_loop(main)


class Kept:
    """Keepers of some parties, each with its task."""

    def __init__(self, credentials, limits=QUICK):
        self.endpoints = free_endpoints()
        self.keepers, self._tasks = {}, {}
        self._credentials, self._limits = credentials, limits
        self.ticks = 0

    def _clock(self):
        self.ticks += 1
        return float(self.ticks)

    def start(self, party, endpoints=None, **options):
        endpoints = endpoints or self.endpoints
        keeper = MeshKeeper(party, self._credentials[party], endpoints, self._limits, clock=self._clock, **options)
        self.keepers[party] = keeper
        self._tasks[keeper] = asyncio.create_task(keeper.run())

    async def stop(self, party):
        await self._end(self.keepers[party])

    async def _end(self, keeper):
        task = self._tasks.pop(keeper)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def ring(self):
        """The whole mesh works. A mesh that is lost, or that a party has yet to notice is lost, is waited out."""
        for attempt in count():
            made = await asyncio.gather(*(self.keepers[party].ready(10.0) for party in range(3)))
            opening = (mesh.open(f"attempt {attempt}", AGREEMENT) for mesh in made)
            channels = await asyncio.gather(*opening, return_exceptions=True)
            if not any(isinstance(channel, PeerError) for channel in channels):
                break
        await asyncio.gather(*map(ring, channels))
        for channel in channels:
            await channel.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for keeper in list(self._tasks):
            await self._end(keeper)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_keepers_find_together_again_and_again(run_loop, credentials, victim):
    async def main():
        async with Kept(credentials) as kept:
            for party in range(3):
                kept.start(party)
            await kept.ring()
            survivors = [kept.keepers[party] for party in range(3) if party != victim]
            for _ in range(3):
                before = [keeper.state for keeper in survivors]
                assert [state.phase for state in before] == ["connected"] * 2
                assert all(set(state.troubles.values()) == {None} for state in before)
                await kept.stop(victim)
                await until(lambda: all(keeper.state.phase == "connecting" for keeper in survivors))
                assert all(k.state.since > b.since for k, b in zip(survivors, before, strict=True))
                assert any(keeper.state.troubles[victim] for keeper in survivors)
                kept.start(victim)
                await kept.ring()
                assert all(k.state.meshes > b.meshes for k, b in zip(survivors, before, strict=True))

    run_loop(main)


def test_a_party_that_vanished_may_return_before_the_others_notice(run_loop, credentials):
    async def main():
        async with Kept(credentials) as kept, AsyncExitStack() as stack:
            cables = [await stack.enter_async_context(Cable(endpoint)) for endpoint in kept.endpoints[:2]]
            kept.start(0)
            kept.start(1)
            kept.start(2, [*(cable.endpoint for cable in cables), kept.endpoints[2]])
            await kept.ring()
            for cable in cables:
                cable.cut()
            kept.start(2)
            await kept.keepers[2].ready(20.0)
            await kept.ring()
            assert [kept.keepers[party].state.meshes > 1 for party in range(3)] == [True, True, False]

    run_loop(main)


def test_a_keeper_says_who_is_missing_and_why(run_loop, credentials):
    async def main():
        async with Kept(credentials, replace(QUICK, connect=2 * OUTER)) as kept:
            kept.start(1)
            kept.start(2)
            keeper = kept.keepers[2]
            assert {str(trouble) for trouble in keeper.state.troubles.values()} == {
                "S1: not connected yet",
                "S2: not connected yet",
            }
            await until(lambda: keeper.state.troubles[1] is None and "refused" in str(keeper.state.troubles[0]))
            with pytest.raises(PeerUnreachable, match=r"S1: no mesh within 0.05 s; .*refused"):
                await keeper.ready(0.05)
            kept.start(0)
            await kept.ring()
            assert set(keeper.state.troubles.values()) == {None}

    run_loop(main)


def test_a_keeper_that_cannot_begin_says_so(run_loop, credentials, tmp_path):
    async def main():
        endpoints = free_endpoints()
        broken = Credentials(tmp_path / "none", credentials[0].private_key, credentials[0].authority)
        keeper = MeshKeeper(0, broken, endpoints, QUICK)
        with pytest.raises(LocalError, match="credentials"):
            await keeper.run()
        with pytest.raises(LocalError, match="credentials"):
            await keeper.ready(5.0)
        with socket.create_server((endpoints[0].host, endpoints[0].port)):
            keeper = MeshKeeper(0, credentials[0], endpoints, QUICK)
            with pytest.raises(LocalError, match="listen"):
                await keeper.run()

    run_loop(main)


def test_a_thousand_silent_strangers_do_not_keep_the_parties_apart(run_loop, credentials):
    async def main():
        crowded = []
        async with Kept(credentials) as kept:
            kept.start(0, watch=tls.Watch(crowded=crowded.append))
            await until(lambda: is_listening(kept.endpoints[0].port))
            strangers = []
            try:
                await asyncio.to_thread(crowd, kept.endpoints[0].port, strangers)
                for party in (1, 2):
                    kept.start(party)
                await kept.ring()
            finally:
                for one in strangers:
                    one.close()
        assert set(crowded) == {"127.0.0.1"}
        assert len(crowded) > 1000

    run_loop(main)


def crowd(port, strangers):
    for _ in range(1100):
        strangers.append(socket.create_connection(("127.0.0.1", port)))


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_an_unexpected_error_is_noticed_and_does_not_end_the_keeping(run_loop, credentials, monkeypatch, caplog):
    errors, connect = [RecursionError("4711"), ValueError("4711")], keeper_module.connect

    async def failing(party, *given, **options):
        if party == 0 and errors:
            options["listener"].close()
            raise errors.pop(0)
        return await connect(party, *given, **options)

    monkeypatch.setattr(keeper_module, "connect", failing)

    async def main():
        async with Kept(credentials) as kept:
            for party in range(3):
                kept.start(party)
            await kept.ring()

    run_loop(main)
    said = [record.getMessage() for record in caplog.records if record.name == "caps.supervisor"]
    assert ["RecursionError" in said[0], "ValueError" in said[1], "4711" in caplog.text] == [True, True, False]


@pytest.mark.parametrize("place", ["_dial", "_accept"])
def test_a_task_of_a_mesh_that_fails_begins_it_again(run_loop, credentials, monkeypatch, place):
    errors = [RuntimeError("unexpected")]
    honest = getattr(dialling._Joining, place)

    async def failing(self, *given):
        if self._mesh.party == 1 and errors:
            raise errors.pop()
        await honest(self, *given)

    monkeypatch.setattr(dialling._Joining, place, failing)

    async def main():
        async with Kept(credentials) as kept:
            for party in range(3):
                kept.start(party)
            await kept.ring()

    run_loop(main)
    assert not errors


def test_a_peer_whose_key_is_denied_is_left_and_not_met_again(run_loop, credentials, monkeypatch):
    monkeypatch.setattr(keeper_module, "_RECHECK", 0.02)
    pins = [spki_pin(read_certificate(paths.certificate)).hex() for paths in credentials]
    denied = set()

    async def main():
        endpoints = free_endpoints()
        keepers = [
            MeshKeeper(p, credentials[p], endpoints, QUICK, denies=denied.__contains__ if p == 0 else None)
            for p in range(3)
        ]
        tasks = [asyncio.create_task(keeper.run()) for keeper in keepers]
        try:
            for keeper in keepers:
                await keeper.ready(10)
            denied.add(pins[2])
            await until(lambda: "its key is denied here" in str(keepers[0].state.troubles[2]))
            with pytest.raises(PeerError):
                await keepers[0].ready(0.5)
            await until(lambda: keepers[1].state.phase == "connecting")
            denied.clear()
            for keeper in keepers:
                await keeper.ready(20)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run_loop(main)


@pytest.mark.parametrize("party", [0, 2])
def test_neither_who_dials_nor_who_is_dialled_accepts_a_denied_key(run_loop, credentials, party):
    other = 2 - party
    pin = spki_pin(read_certificate(credentials[other].certificate)).hex()

    async def main():
        endpoints = free_endpoints()
        brief = replace(QUICK, connect=1.0)
        made = [
            asyncio.create_task(
                tls.connect(p, credentials[p], endpoints, brief, denies=pin.__eq__ if p == party else None)
            )
            for p in range(3)
        ]
        found = await asyncio.gather(*made, return_exceptions=True)
        assert "denied here" in str(found[party])
        assert found[party].party == other
        for mesh in found:
            if not isinstance(mesh, BaseException):
                await mesh.close()

    run_loop(main)
