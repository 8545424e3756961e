"""A mesh of four servers: sessions among all of them, and among the first three."""

from __future__ import annotations

import asyncio
import socket

import pytest

from caps.basics.schemes import REP3, REP4, SCHEMES, Scheme
from caps.errors import DomainError, PeerDisagrees, PeerError
from services.mpc_server.channel import swap
from services.mpc_server.settings import ServerSettings
from services.mpc_server.transport import memory, tls
from services.mpc_server.transport.framing import Kind, encode_header
from services.mpc_server.transport.hello import Agreement, scheme_field, session_id
from tests.kit.channels import run_bounded
from tests.kit.tls import Authority

pytestmark = pytest.mark.integration

DIGESTS = [bytes([i]) * 32 for i in range(4)]


def agreement(scheme: Scheme) -> Agreement:
    return Agreement(*DIGESTS, scheme_field(scheme.name))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki"))
    return [authority.party(party) for party in range(4)]


def meshes(four, scenario):
    """Await `scenario(meshes)` with four meshes."""

    async def main():
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        endpoints = [tls.Endpoint("127.0.0.1", one.getsockname()[1]) for one in listeners] + [
            tls.Endpoint("127.0.0.1", 9)
        ]
        found = await asyncio.gather(
            *(
                tls.connect(party, four[party], endpoints, tls.Limits(stall=10.0, hello=5.0), listener=listener)
                for party, listener in enumerate([*listeners, None])
            )
        )
        try:
            return await scenario(found)
        finally:
            await asyncio.gather(*(mesh.close() for mesh in found))

    return run_bounded("tls-uvloop", main)


async def opened(found, scheme, name="session"):
    return await asyncio.gather(
        *(mesh.open(name, agreement(scheme), scheme.peers_of(mesh.party)) for mesh in found[: scheme.parties])
    )


async def all_heard(channels):
    got = await asyncio.gather(*(swap(channel, "name", bytes([channel.party])) for channel in channels))
    for channel, heard in zip(channels, got, strict=True):
        assert heard == {peer: bytes([peer]) for peer in range(len(channels)) if peer != channel.party}


def test_sessions_of_four_and_of_three_share_the_streams(four) -> None:
    async def scenario(found):
        all_four, three = await opened(found, REP4, "four"), await opened(found, REP3, "three")
        for _ in range(5):
            await asyncio.gather(all_heard(all_four), all_heard(three))
        assert [set(channel.peers) for channel in three] == [{1, 2}, {0, 2}, {0, 1}]
        for channel in (*all_four, *three):
            await channel.close()
        await all_heard(await opened(found, REP3, "three"))  # the name is free again

    meshes(four, scenario)


def test_the_fourth_has_no_part_in_a_session_of_three(four) -> None:
    """What it sends under that session's number is refused; it does not reach the session."""

    async def scenario(found):
        three = await opened(found, REP3, "three")
        header = encode_header(Kind.ROUND, session_id("three"), 0, b"12345678", 0)
        found[3]._links[0]._transport.write(header)
        error = await found[0].lost()
        assert error.party == 3
        with pytest.raises(PeerError) as raised:
            await all_heard(three[1:])
        assert raised.value.party == 0  # it closed its streams to the others, and they start over

    meshes(four, scenario)


def test_a_stream_that_is_lost_ends_the_mesh_but_is_no_failure_of_a_session_without_it(four) -> None:
    async def scenario(found):
        three = await opened(found, REP3, "three")
        await found[3].close()
        await asyncio.gather(*(mesh.lost() for mesh in found[:3]))
        await all_heard(three)  # until their keepers close the meshes

    meshes(four, scenario)


def test_servers_that_disagree_on_the_scheme_do_not_meet(four) -> None:
    async def scenario(found):
        def view(mesh):
            return agreement(SCHEMES["rep3-active" if mesh.party == 1 else "rep3"])

        errors = await asyncio.gather(
            *(mesh.open("s", view(mesh), REP3.peers_of(mesh.party)) for mesh in found[:3]), return_exceptions=True
        )
        told = [error for error in errors if isinstance(error, PeerDisagrees)]
        assert told
        assert {error.field for error in told} == {"scheme"}
        assert any("'rep3-active'" in str(error) and "'rep3'" in str(error) for error in told)

    meshes(four, scenario)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=list(SCHEMES))
def test_a_swap_reaches_all_peers_in_memory_too(scheme: Scheme) -> None:
    async def scenario():
        await all_heard(memory.memory_channels(scheme=scheme))

    asyncio.run(scenario())


@pytest.mark.parametrize(("count", "fine"), [(0, False), (2, False), (3, True), (4, True), (5, False)])
def test_a_mesh_has_as_many_addresses_as_a_scheme_has_servers(tmp_path, count: int, fine: bool) -> None:
    listed = " ".join(f"s{i}.example:9443" for i in range(1, count + 1))
    environment = {"CAPS_HOME": str(tmp_path), "CAPS_MESH": listed}
    if fine:
        assert len(ServerSettings.from_environment(environment).mesh) == count
    else:
        with pytest.raises(DomainError, match="CAPS_MESH must list 3 or 4 addresses"):
            ServerSettings.from_environment(environment)
