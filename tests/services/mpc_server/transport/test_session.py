"""What only a slow or congested connection shows, with the connection under the test's control."""

import asyncio

import pytest

from caps.errors import DomainError, PeerStalled, SessionClosed
from services.mpc_server.transport.framing import NO_TAG, Frame, FrameDecoder, Kind, encode
from services.mpc_server.transport.hello import Greeting
from services.mpc_server.transport.session import Session
from services.mpc_server.transport.tls.link import Limits, Link, Port, Wire

TAG = b"unittest"


class FakePort:
    def __init__(self):
        self.congested = False
        self.pulse = None
        self.sent = []

    def send(self, kind, sequence, tag, pieces, size):
        self.sent.append(kind)

    def release(self):
        pass

    def progress(self):
        return self.pulse


def make(stall):
    ports = {1: FakePort(), 2: FakePort()}
    return Session(0, ports, {1: b"", 2: b""}, stall=stall), ports


def message(payload):
    return Frame(Kind.ROUND, 0, 0, TAG, bytearray(payload))


def test_a_slow_transfer_is_no_stall_while_it_moves():
    async def main():
        session, ports = make(stall=0.2)

        async def trickle():
            for tick in range(1, 16):
                ports[1].pulse = tick
                await asyncio.sleep(0.05)
            session.receive(1, message(b"at last!"))

        got, _ = await asyncio.gather(session.exchange(TAG, {}, {1: 8}), trickle())
        assert got[1] == b"at last!"

    asyncio.run(main())


def test_a_transfer_that_moves_no_more_is_a_stall():
    async def main():
        session, ports = make(stall=0.2)
        ports[1].pulse = "stuck"
        async with asyncio.timeout(5):
            with pytest.raises(PeerStalled) as raised:
                await session.exchange(TAG, {}, {1: 8})
        assert raised.value.party == 1
        assert ports[1].sent == ports[2].sent == [Kind.ABORT]

    asyncio.run(main())


def test_an_exchange_waits_while_a_peer_takes_in_nothing():
    async def main():
        session, ports = make(stall=5.0)
        ports[2].congested = True
        pending = asyncio.ensure_future(session.exchange(TAG, {2: [memoryview(b"x")]}, {}))
        await asyncio.sleep(0.05)
        assert not pending.done()
        ports[2].congested = False
        session.resume()
        await pending

    asyncio.run(main())


def test_a_peer_that_takes_in_nothing_has_stalled():
    async def main():
        session, ports = make(stall=0.1)
        ports[2].congested = True
        with pytest.raises(PeerStalled) as raised:
            await session.exchange(TAG, {2: [memoryview(b"x")]}, {})
        assert raised.value.party == 2

    asyncio.run(main())


class FullTransport:
    """Takes one write, then asks for a pause."""

    def __init__(self, link):
        self.link = link
        self.written = bytearray()

    def write(self, data):
        self.written += data
        self.link.pause_writing()


def test_memory_of_a_message_cut_off_is_not_read_later():
    """An abort in mid-message hands the memory back; what is still sent of it must be what it held then."""

    async def main():
        sessions = {}
        links = {peer: Link(0, sessions, Wire(), Limits(), None, dials=True) for peer in (1, 2)}
        for peer, link in links.items():
            link.peer, link._transport = peer, FullTransport(link)
        transport = links[1]._transport
        session = sessions[7] = Session(
            0, {peer: Port(link, 7) for peer, link in links.items()}, {1: b"", 2: b""}, stall=5.0
        )
        share = bytearray(b"A" * (1 << 20))
        pending = asyncio.ensure_future(session.exchange(TAG, {1: [memoryview(share)]}, {}))
        await asyncio.sleep(0)
        assert len(transport.written) < len(share)
        await session.close()
        with pytest.raises(SessionClosed):
            await pending
        share[:] = b"B" * len(share)
        while links[1].congested:
            links[1].resume_writing()
        first, *_ = FrameDecoder().feed(bytes(transport.written))
        assert first.payload == b"A" * (1 << 20)

    asyncio.run(main())


def test_pings_of_a_peer_that_does_not_read_are_not_answered():
    async def main():
        link = Link(0, {}, Wire(), Limits(), None, dials=False)
        link.peer, link._transport = 1, FullTransport(link)
        ping = encode(Frame(Kind.PING, 0, 0, NO_TAG, bytearray()))

        def arrive(data):
            link.get_buffer(0)[: len(data)] = data
            link.buffer_updated(len(data))

        arrive(encode(Frame(Kind.HELLO, 0, 0, NO_TAG, bytearray(Greeting(1, 0).encode()))))
        assert link.ready.done()
        arrive(100 * ping)
        link.resume_writing()
        arrive(100 * ping)
        assert [frame.kind for frame in FrameDecoder().feed(bytes(link._transport.written))] == [Kind.PONG] * 2
        assert not link._queue
        link._beat.cancel()

    asyncio.run(main())


def test_limits_leave_time_for_an_answer():
    with pytest.raises(DomainError):
        Limits(heartbeat=5.0, silence=14.0)
    with pytest.raises(DomainError):
        Limits(heartbeat=0.0)
