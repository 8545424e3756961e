"""Three connected parties over each transport, behind one interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from services.mpc_server.channel import Channel
from services.mpc_server.transport import memory, tls
from services.mpc_server.transport.hello import Agreement
from services.mpc_server.transport.session import Session
from tests.kit.tls import Authority

AGREEMENT = Agreement(*(bytes([i]) * 32 for i in range(5)))
OUTER = 30.0


class MemoryNet:
    def __init__(self, stall):
        self._stall = stall

    async def session(self, name):
        return memory.memory_channels(stall=self._stall)

    async def close(self):
        pass


class TlsNet:
    def __init__(self, meshes):
        self.meshes = meshes

    async def session(self, name):
        return tuple(await asyncio.gather(*(mesh.open(name, AGREEMENT) for mesh in self.meshes)))

    async def close(self):
        await asyncio.gather(*(mesh.close() for mesh in self.meshes))


async def tls_net(credentials, limits):
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    endpoints = [tls.Endpoint("127.0.0.1", port) for port in [*ports, 9]]
    meshes = await asyncio.gather(
        *(
            tls.connect(party, credentials[party], endpoints, limits, listener=listener)
            for party, listener in enumerate([*listeners, None])
        )
    )
    return TlsNet(meshes)


@pytest.fixture(scope="session")
def credentials(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki"))
    return [authority.party(party) for party in range(3)]


def loop_factory(kind):
    return uvloop.new_event_loop if kind.endswith("uvloop") else asyncio.SelectorEventLoop


def run_bounded(kind, main):
    async def bounded():
        async with asyncio.timeout(OUTER):
            return await main()

    with asyncio.Runner(loop_factory=loop_factory(kind)) as runner:
        return runner.run(bounded())


@pytest.fixture(params=["memory", "tls-asyncio", "tls-uvloop"])
def run(request, credentials) -> Callable[..., object]:
    """`run(scenario, stall=...)` awaits `scenario(net, channels)` with three open channels, then closes everything."""

    def run(scenario: Callable[..., Awaitable[object]], stall: float = 20.0, max_unread: int = 1 << 30) -> object:
        async def main() -> object:
            if request.param == "memory":
                net = MemoryNet(stall)
            else:
                net = await tls_net(credentials, tls.Limits(stall=stall))
            try:
                channels: tuple[Session, ...] = await net.session("first")
                result = await scenario(net, channels)
                for channel in channels:
                    await channel.close()
                return result
            finally:
                await net.close()

        return run_bounded(request.param, main)

    return run


@pytest.fixture(params=["tls-asyncio", "tls-uvloop"])
def run_tls(request, credentials):
    """`run_tls(scenario, limits)` awaits `scenario(net)` with three meshes."""

    def run(scenario, limits=None):
        async def main():
            net = await tls_net(credentials, limits or tls.Limits())
            try:
                return await scenario(net)
            finally:
                await net.close()

        return run_bounded(request.param, main)

    return run


TAG = b"round-01"


def views(*parts):
    return [memoryview(part) for part in parts]


def text(party, peer, number=0):
    return f"{party}->{peer}#{number:03}".encode()


async def ring(channel: Channel, tag=TAG, number=0):
    """Send to the previous party, receive from the next."""
    party = channel.party
    back, ahead = (party - 1) % 3, (party + 1) % 3
    got = await channel.exchange(tag, {back: views(text(party, back, number))}, {ahead: len(text(0, 0))})
    assert {peer: bytes(view) for peer, view in got.items()} == {ahead: text(ahead, party, number)}
