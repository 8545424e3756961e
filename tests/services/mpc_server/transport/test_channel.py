"""What every transport must do, and how it must fail."""

import asyncio
from dataclasses import replace

import pytest

from caps.errors import (
    DomainError,
    LocalError,
    PeerAborted,
    PeerDisagrees,
    PeerError,
    PeerLost,
    PeerStalled,
    PeerViolation,
    SessionClosed,
)
from services.mpc_server.channel import swap
from services.mpc_server.transport import memory, tls
from services.mpc_server.transport.framing import HEADER
from tests.kit.channels import AGREEMENT, TAG, ring, text, views

pytestmark = pytest.mark.integration


async def outcomes(*coroutines):
    """What each ended with: its result, or the CapsError it raised."""
    return await asyncio.gather(*coroutines, return_exceptions=True)


def culprit(error):
    assert isinstance(error, PeerError), error
    return error.blames if isinstance(error, PeerAborted) and error.blames is not None else error.party


def test_ring(run):
    async def scenario(net, channels):
        for number in range(20):
            await asyncio.gather(*(ring(channel, number=number) for channel in channels))
        return [channel.traffic for channel in channels]

    for traffic in run(scenario):
        assert (traffic.rounds, traffic.sent) == (20, 20 * len(text(0, 0)))


def test_parties_may_be_rounds_apart(run):
    async def scenario(net, channels):
        async def sender():
            for number in range(50):
                await channels[0].exchange(TAG, {1: views(text(0, 1, number))}, {})

        await sender()
        for number in range(50):
            got = await channels[1].exchange(TAG, {}, {0: len(text(0, 1))})
            assert got[0] == text(0, 1, number)

    run(scenario)


def test_all_pairs_in_pieces(run):
    async def everyone(channel):
        peers = [peer for peer in range(3) if peer != channel.party]
        outgoing = {peer: views(text(channel.party, peer)[:3], b"", text(channel.party, peer)[3:]) for peer in peers}
        got = await channel.exchange(TAG, outgoing, dict.fromkeys(peers, len(text(0, 0))))
        assert {peer: bytes(view) for peer, view in got.items()} == {peer: text(peer, channel.party) for peer in peers}

    async def scenario(net, channels):
        await asyncio.gather(*map(everyone, channels))

    run(scenario)


def test_empty_rounds_and_empty_messages(run):
    async def everyone(channel):
        assert await channel.exchange(TAG, {}, {}) == {}
        got = await channel.exchange(TAG, {(channel.party - 1) % 3: []}, {(channel.party + 1) % 3: 0})
        assert [len(view) for view in got.values()] == [0]
        return channel.traffic

    async def scenario(net, channels):
        return await asyncio.gather(*map(everyone, channels))

    assert all((traffic.rounds, traffic.sent) == (2, 0) for traffic in run(scenario))


def test_big_messages_both_ways_at_once(run):
    size = 9 << 20

    async def everyone(channel):
        peers = [peer for peer in range(3) if peer != channel.party]
        for number in range(2):
            words = memoryview(bytearray([16 * number + channel.party]) * size).cast("Q")
            outgoing = {peer: [words[:100], words[100:]] for peer in peers}
            got = await channel.exchange(TAG, outgoing, dict.fromkeys(peers, size))
            for peer in peers:
                assert got[peer] == bytes([16 * number + peer]) * size

    async def scenario(net, channels):
        await asyncio.gather(*map(everyone, channels))

    run(scenario)


def test_received_memory_is_the_callers(run):
    async def scenario(net, channels):
        sent = bytearray(b"original")
        await channels[0].exchange(TAG, {1: views(sent)}, {})
        sent[:] = b"scribble"
        got = (await channels[1].exchange(TAG, {}, {0: 8}))[0]
        got[:4] = b"mine"
        await channels[0].exchange(TAG, {1: views(b"x" * 8)}, {})
        await channels[1].exchange(TAG, {}, {0: 8})
        return bytes(got)

    assert run(scenario) == b"mineinal"


@pytest.mark.parametrize(("tag", "payload"), [(b"round-02", b"12345678"), (TAG, b"1234567"), (TAG, b"123456789")])
@pytest.mark.parametrize("early", [True, False])
def test_wrong_tag_or_length_is_a_violation(run, tag, payload, early):
    async def scenario(net, channels):
        send = channels[0].exchange(tag, {1: views(payload)}, {2: 8})
        receive = channels[1].exchange(TAG, {}, {0: 8})
        bystander = channels[2].exchange(TAG, {}, {0: 8})
        order = [send, receive, bystander] if early else [receive, bystander, send]
        results = await outcomes(*order)
        sender, receiver, other = results if early else (results[2], results[0], results[1])
        assert isinstance(receiver, PeerViolation)
        assert receiver.party == 0
        assert isinstance(sender, PeerAborted)
        assert (sender.party, sender.blames) in ((1, 0), (2, 0))
        assert culprit(other) == 0
        with pytest.raises(SessionClosed):
            await channels[1].exchange(TAG, {}, {0: 8})

    run(scenario)


def test_a_peer_that_closes_early_is_lost(run):
    async def scenario(net, channels):
        waiting = asyncio.gather(*(channels[p].exchange(TAG, {}, {0: 8}) for p in (1, 2)), return_exceptions=True)
        await asyncio.sleep(0)
        await channels[0].close()
        assert [culprit(error) for error in await waiting] == [0, 0]

    run(scenario)


def test_what_was_sent_before_closing_arrives(run):
    async def scenario(net, channels):
        await channels[0].exchange(TAG, {1: views(b"farewell")}, {})
        await channels[0].close()
        await asyncio.sleep(0.05)
        assert (await channels[1].exchange(TAG, {}, {0: 8}))[0] == b"farewell"
        await asyncio.gather(
            channels[1].exchange(TAG, {2: views(b"we go on")}, {}), channels[2].exchange(TAG, {}, {1: 8})
        )
        with pytest.raises(PeerLost) as raised:
            await channels[1].exchange(TAG, {0: views(b"too late")}, {})
        assert raised.value.party == 0

    run(scenario)


def test_silence_is_blamed_on_the_silent(run):
    """Party 0 does nothing: 2 waits for it, and 1 waits for 2, which is innocent."""

    async def scenario(net, channels):
        async def rounds(channel):
            for number in range(2):
                await ring(channel, number=number)

        second, third = await outcomes(rounds(channels[1]), rounds(channels[2]))
        assert isinstance(third, PeerStalled)
        assert third.party == 0
        assert culprit(second) == 0
        with pytest.raises(PeerAborted):
            await ring(channels[0])

    run(scenario, stall=0.4)


def test_the_clock_restarts_with_each_round(run):
    async def scenario(net, channels):
        async def slow(channel):
            for number in range(5):
                await asyncio.sleep(0.2)
                await ring(channel, number=number)

        async def quick(channel):
            for number in range(5):
                await ring(channel, number=number)

        await asyncio.gather(slow(channels[0]), quick(channels[1]), quick(channels[2]))

    run(scenario, stall=0.6)


@pytest.mark.parametrize("blames", [None, 1])
def test_abort_reaches_everyone_with_its_cause(run, blames):
    async def scenario(net, channels):
        waiting = asyncio.gather(*(channels[p].exchange(TAG, {}, {0: 8}) for p in (1, 2)), return_exceptions=True)
        await asyncio.sleep(0.01)
        await channels[0].abort("ledger refused the charge", blames)
        await channels[0].abort("again")
        errors = await waiting
        for error in errors:
            assert isinstance(error, PeerAborted)
        assert any(error.party == 0 and error.cause == "ledger refused the charge" for error in errors)
        assert all(culprit(error) == (0 if blames is None else blames) for error in errors)
        with pytest.raises(SessionClosed):
            await ring(channels[0])

    run(scenario)


def test_failure_between_rounds_is_raised_by_the_next(run):
    async def scenario(net, channels):
        await channels[0].abort("gave up")
        await asyncio.sleep(0.1)
        for channel in channels[1:]:
            with pytest.raises(PeerAborted, match="gave up"):
                await ring(channel)
            with pytest.raises(SessionClosed):
                await ring(channel)

    run(scenario)


def test_use_after_close(run):
    async def scenario(net, channels):
        for channel in channels:
            await channel.close()
            await channel.close()
            with pytest.raises(SessionClosed):
                await channel.exchange(TAG, {}, {})

    run(scenario)


def test_closing_ends_the_own_pending_exchange(run):
    async def scenario(net, channels):
        pending = asyncio.ensure_future(ring(channels[0]))
        await asyncio.sleep(0.01)
        await channels[0].close()
        with pytest.raises(SessionClosed):
            await pending

    run(scenario)


def test_cancelling_a_round_aborts_the_session(run):
    async def scenario(net, channels):
        pending = asyncio.ensure_future(ring(channels[0]))
        await asyncio.sleep(0.01)
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        error, _ = await outcomes(*(channels[p].exchange(TAG, {}, {0: 8}) for p in (1, 2)))
        assert culprit(error) == 0

    run(scenario)


def test_misuse_is_a_local_error(run):
    async def scenario(net, channels):
        with pytest.raises(DomainError):
            await channels[0].exchange(b"short", {}, {})
        with pytest.raises(DomainError):
            await channels[0].exchange(TAG, {0: []}, {})
        with pytest.raises(DomainError):
            await channels[0].exchange(TAG, {}, {3: 1})
        pending = asyncio.ensure_future(ring(channels[0]))
        await asyncio.sleep(0)
        with pytest.raises(LocalError, match="before"):
            await channels[0].exchange(TAG, {}, {})
        await asyncio.gather(pending, ring(channels[1]), ring(channels[2]))

    run(scenario)


def test_secrets_are_pairwise(run):
    async def scenario(net, channels):
        pairs = [(0, 1), (0, 2), (1, 2)]
        for i, j in pairs:
            assert channels[i].secret_with(j) == channels[j].secret_with(i)
        secrets = {channels[i].secret_with(j) for i, j in pairs}
        others = await net.session("second")
        secrets |= {others[i].secret_with(j) for i, j in pairs}
        assert len(secrets) == 6
        assert {len(secret) for secret in secrets} == {32}
        for other in others:
            await other.close()

    run(scenario)


def test_two_sessions_at_once_and_one_fails(run):
    async def scenario(net, channels):
        others = await net.session("second")

        async def rounds(channel, tag):
            for number in range(30):
                await ring(channel, tag, number)

        await asyncio.gather(*(rounds(c, b"sessionA") for c in channels), *(rounds(c, b"sessionB") for c in others))
        await others[0].abort("only this one")
        await asyncio.gather(*(ring(channel) for channel in channels))
        with pytest.raises(PeerAborted):
            await ring(others[1])

    run(scenario)


def test_a_session_name_serves_again_after_all_ended_it(run):
    async def scenario(net, channels):
        for number in range(5):
            again = await net.session("again")
            await asyncio.gather(*(ring(channel, number=number) for channel in again))
            if number % 2:
                await again[number % 3].abort("on purpose")
            for channel in again:
                await channel.close()

    run(scenario)


def test_swap_tells_both_peers_the_same(run):
    def ack(party, number):
        return bytes([party, number]) * 48

    async def everyone(channel):
        for number in range(3):
            await ring(channel, number=number)
            got = await swap(channel, f"charge {number}", ack(channel.party, number))
            assert got == {peer: ack(peer, number) for peer in range(3) if peer != channel.party}
            assert all(type(message) is bytes for message in got.values())
        return channel.traffic

    async def scenario(net, channels):
        return await asyncio.gather(*map(everyone, channels))

    for traffic in run(scenario):
        assert (traffic.rounds, traffic.sent) == (6, 3 * (len(text(0, 0)) + 2 * 96))


@pytest.mark.parametrize(("name", "payload"), [("charge 2", bytes(96)), ("charge 1", bytes(95))])
def test_swapped_messages_must_have_one_name_and_length(run, name, payload):
    async def scenario(net, channels):
        honest = [swap(channels[party], "charge 1", bytes(96)) for party in (0, 1)]
        *errors, own = await outcomes(*honest, swap(channels[2], name, payload))
        assert all(isinstance(error, PeerError) for error in [*errors, own])
        assert any(isinstance(error, PeerViolation) and error.party == 2 for error in errors)
        assert [culprit(error) for error in errors] == [2, 2]

    run(scenario)


def test_intercepted_messages():
    """Only in memory: a message can be changed, delayed, or lost with all after it."""

    def interceptor(message):
        if message.source == 0 and message.round == 0:
            return memory.Delay(5, message.payload.upper())
        if message.source == 1 and message.round == 1:
            return memory.DROP
        return message.payload

    async def main():
        zero, one, two = memory.memory_channels(interceptor=interceptor, stall=0.2)
        await zero.exchange(TAG, {2: views(b"first")}, {})
        await zero.exchange(TAG, {2: views(b"second")}, {})
        assert (await two.exchange(TAG, {}, {0: 5}))[0] == b"FIRST"
        assert (await two.exchange(TAG, {}, {0: 6}))[0] == b"second"
        await one.exchange(TAG, {0: views(b"kept")}, {})
        await one.exchange(TAG, {0: views(b"lost")}, {})
        assert (await zero.exchange(TAG, {}, {1: 4}))[1] == b"kept"
        with pytest.raises(PeerStalled) as raised:
            await zero.exchange(TAG, {}, {1: 4})
        assert raised.value.party == 1

    asyncio.run(main())


def test_given_secrets_are_used():
    secrets = {(0, 1): b"a" * 32, (0, 2): b"b" * 32, (1, 2): b"c" * 32}
    channels = memory.memory_channels(secrets)
    assert channels[2].secret_with(0) == b"b" * 32
    assert channels[1].secret_with(2) == b"c" * 32


def test_running_ahead_is_bounded():
    async def main():
        zero, one, _ = memory.memory_channels(max_unread=4096)
        for _ in range(4096 // 256 - 1):
            await zero.exchange(TAG, {1: views(b"x" * 8)}, {})
        with pytest.raises(PeerAborted):
            await zero.exchange(TAG, {1: views(b"x" * 8)}, {})
        with pytest.raises(PeerViolation, match="ahead"):
            await one.exchange(TAG, {}, {0: 8})

    asyncio.run(main())


def test_wire_counters(run_tls):
    async def scenario(net):
        before = [mesh.wire.frames_sent for mesh in net.meshes], [mesh.wire.bytes_sent for mesh in net.meshes]
        channels = await net.session("counted")
        hello = [mesh.wire.bytes_sent for mesh in net.meshes]
        await asyncio.gather(*(ring(channel) for channel in channels))
        for party, mesh in enumerate(net.meshes):
            assert mesh.wire.frames_sent - before[0][party] == 3
            assert mesh.wire.bytes_sent - hello[party] == HEADER.size + len(text(0, 0))
        assert sum(m.wire.bytes_sent for m in net.meshes) == sum(m.wire.bytes_received for m in net.meshes)
        assert sum(m.wire.frames_sent for m in net.meshes) == sum(m.wire.frames_received for m in net.meshes)

    run_tls(scenario)


def test_disagreement_names_field_and_party(run_tls):
    async def scenario(net):
        odd = replace(AGREEMENT, build=b"x" * 32)
        errors = await outcomes(*(mesh.open("s", odd if mesh.party == 1 else AGREEMENT) for mesh in net.meshes))
        assert all(isinstance(error, PeerDisagrees | PeerAborted) for error in errors)
        assert any(isinstance(e, PeerDisagrees) and (e.field, e.party) == ("build", 1) for e in errors)
        assert culprit(errors[0]) == culprit(errors[2]) == 1
        assert "build" in str(errors[1])
        channels = await net.session("s")
        await asyncio.gather(*(ring(channel) for channel in channels))

    run_tls(scenario)


def test_a_session_opened_by_one_only_times_out(run_tls):
    async def scenario(net):
        with pytest.raises(PeerStalled):
            await net.meshes[0].open("alone", AGREEMENT)
        with pytest.raises(PeerAborted):
            await net.meshes[1].open("alone", AGREEMENT)
        with pytest.raises(PeerAborted):
            await net.meshes[2].open("alone", AGREEMENT)
        channels = await net.session("alone")
        await asyncio.gather(*(ring(channel) for channel in channels))

    run_tls(scenario, tls.Limits(hello=0.3))


def test_an_open_session_is_not_opened_twice(run_tls):
    async def scenario(net):
        await net.session("once")
        with pytest.raises(DomainError):
            await net.meshes[0].open("once", AGREEMENT)

    run_tls(scenario)


def test_sessions_nobody_opens_here_are_bounded(run_tls, monkeypatch):
    async def scenario(net):
        monkeypatch.setattr(tls.link, "_MAX_EARLY", 8)
        opening = [asyncio.ensure_future(net.meshes[0].open(f"flood {i}", AGREEMENT)) for i in range(12)]
        results = await asyncio.gather(*opening, return_exceptions=True)
        assert sum(isinstance(result, PeerAborted) and "too many" in result.cause for result in results) >= 4
        channels = await net.session("after")
        await asyncio.gather(*(ring(channel) for channel in channels))

    run_tls(scenario, tls.Limits(hello=0.3))


def test_a_closed_mesh_loses_its_open_sessions(run_tls):
    async def scenario(net):
        channels = await net.session("s")
        waiting = asyncio.gather(*(channels[p].exchange(TAG, {}, {0: 8}) for p in (1, 2)), return_exceptions=True)
        await asyncio.sleep(0.01)
        await net.meshes[0].close()
        assert [culprit(error) for error in await waiting] == [0, 0]
        with pytest.raises(PeerLost):
            await net.session("later")

    run_tls(scenario)


def test_each_peer_gets_its_own_contribution(run_tls, monkeypatch):
    """Were one contribution sent to both peers, each could compute the secret that the other two share."""
    drawn = []

    def entropy(size):
        drawn.append(len(drawn).to_bytes(size, "big"))
        return drawn[-1]

    async def scenario(net):
        for mesh in net.meshes:
            monkeypatch.setattr(mesh, "_entropy", entropy)
        await net.session("s")

    run_tls(scenario)
    assert len(drawn) == 6
