"""Somebody at the port where servers meet: without a certificate, with another's, or with the key of a server.

The port is open while a server is away, so these moves send one away first: they play in its place.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from deploy.federation import SERVERS
from services.mpc_server.transport.framing import HEADER, MAX_PAYLOAD, NO_TAG, Frame, Kind, encode, encode_header
from services.mpc_server.transport.hello import WIRE_VERSION, Agreement, Greeting, Hello, scheme_field, session_id
from tests.adversary.outsider import CLIENT_HELLO, gather
from tests.adversary.stage import ALIEN, NOBODY, PATIENCE_FOR_ALL, Catalogue, Stage, Variant, pick

AWAY = "S3"
PARTY = SERVERS.index(AWAY)
OTHERS = SERVERS[:PARTY]


@contextmanager
def away(stage: Stage) -> Iterator[None]:
    """The last server stops, and comes back."""
    stage.away.add(AWAY)
    stage.federation.stop(AWAY)
    try:
        yield
    finally:
        stage.federation.start(AWAY)
        stage.away.discard(AWAY)
        stage.federation.wait_ready(timeout=PATIENCE_FOR_ALL)


def _greeted(stage: Stage, name: str, *, party: int = PARTY) -> bytes:
    return encode(Frame(Kind.HELLO, 0, 0, NO_TAG, bytearray(Greeting(party, SERVERS.index(name)).encode())))


def _hello(peer: int, session: str) -> Frame:
    agreement = Agreement(*(secrets.token_bytes(32) for _ in range(4)), scheme_field("rep3"))
    payload = bytearray(Hello(PARTY, peer, session, agreement, secrets.token_bytes(32)).encode())
    return Frame(Kind.HELLO, session_id(session), 0, NO_TAG, payload)


def frames(stage: Stage, name: str, variant: Variant) -> bytes:
    """What follows a greeting."""
    peer, run = SERVERS.index(name), f"run/{stage.released.run}"
    found = (
        b"",
        secrets.token_bytes(1 << 16),
        encode_header(Kind.ROUND, 7, 0, b"\1" * 8, MAX_PAYLOAD),
        HEADER.pack(b"CaPS\1\2\0\0", 7, (1 << 32) - 1, 0, b"\1" * 8),
        encode(Frame(Kind.ROUND, 7, 0, b"\1" * 8, bytearray(1 << 20))),
        encode(Frame(Kind.ABORT, 7, 0, NO_TAG, bytearray(b"\xff" * 512))),
        encode(Frame(Kind.CLOSE, 7, 0, NO_TAG, bytearray())) * 1000,
        encode(Frame(Kind.PING, 0, 0, NO_TAG, bytearray())) * 20_000,
        encode(Frame(Kind.PONG, 0, 0, NO_TAG, bytearray())) * 20_000,
        encode(_hello(peer, run)),
        encode(_hello(peer, run)) * 2,
        b"".join(encode(_hello(peer, f"run/{secrets.token_hex(16)}")) for _ in range(400)),
        encode(Frame(Kind.HELLO, 3, 0, NO_TAG, bytearray((WIRE_VERSION + 1).to_bytes(2, "little") + bytes(300)))),
        encode(_hello(peer, run)) + encode(Frame(Kind.ROUND, session_id(run), 5, b"\1" * 8, bytearray(8))),
    )
    return pick(found, variant)


def in_its_place(stage: Stage, variant: Variant) -> None:
    """With the key of the server that is away: a greeting, right or wrong, and then frames that are none."""
    with away(stage):
        for turn in range(3):
            name = pick(OTHERS, variant + turn)
            party = PARTY if (variant + turn) % 5 else 0
            with suppress(OSError):
                stream = stage.secure(name, AWAY, mesh=True)
                stream.settimeout(3.0)
                stream.sendall(_greeted(stage, name, party=party) + frames(stage, name, variant + 5 * turn))
                while stream.recv(1 << 16):
                    pass
            stage.alive()


def strangers(stage: Stage, variant: Variant) -> None:
    """Every other identity, and handshakes that never end, while a server is expected."""
    with away(stage):
        for turn, who in enumerate((NOBODY, ALIEN, "S9", "mallory", "rival", "S1", AWAY)):
            with suppress(OSError):
                stream = stage.secure(pick(OTHERS, variant + turn), who, mesh=True)
                stream.sendall(_greeted(stage, "S1", party=variant % 256))
        for name in OTHERS:
            gather(stage, name, 100, CLIENT_HELLO if variant % 2 else b"", mesh=True)


def crowd(stage: Stage, variant: Variant) -> None:
    """More connections than a process has descriptors."""
    with away(stage):
        gather(stage, pick(OTHERS, variant), 1100, mesh=True)


def beside(stage: Stage, variant: Variant) -> None:
    """While all servers are there."""
    name = pick(OTHERS, variant)
    with suppress(OSError):
        stream = stage.secure(name, pick((AWAY, "S2", "S9", "mallory", NOBODY), variant // 2), mesh=True)
        stream.settimeout(2.0)
        stream.sendall(_greeted(stage, name) + frames(stage, name, variant // 3))
        stream.recv(1 << 16)


MOVES: Catalogue = {"beside": beside}
HEAVY: Catalogue = {"in_its_place": in_its_place, "strangers": strangers, "crowd": crowd}
"""Moves for long sequences alone: a server goes, and comes back."""
