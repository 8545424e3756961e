"""One MPC server as a process of its own, told by a JSON argument what to do; prints one JSON line per event.

plan: {party, certificate, private_key, authority, ports, pins, limits, listener (a file descriptor), act, arguments}
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import uvloop

from caps.errors import CapsError
from caps.trust.tls import Credentials
from services.mpc_server.transport import hello, tls
from services.mpc_server.transport.framing import Kind, encode_header
from services.mpc_server.transport.keeper import MeshKeeper

TAG = b"chaosrng"
DIGESTS = {name: name.encode().ljust(32, b".") for name in ("study", "inputs", "build", "ledger", "scheme")}


def say(**event):
    print(json.dumps(event), flush=True)


def say_error(error, **more):
    say(
        event="error",
        type=type(error).__name__,
        message=str(error),
        party=getattr(error, "party", None),
        blames=getattr(error, "blames", None),
        field=getattr(error, "field", None),
        **more,
    )


async def ring(mesh, rounds, announce=10):
    """Run rounds of 8 bytes, for ever if `rounds` is None."""
    channel = await mesh.open("ring", hello.Agreement(**DIGESTS))
    party, number = mesh.party, 0
    while rounds is None or number < rounds:
        word = memoryview(number.to_bytes(8, "little"))
        got = await channel.exchange(TAG, {(party - 1) % 3: [word]}, {(party + 1) % 3: 8})
        assert got[(party + 1) % 3] == word
        number += 1
        if number == announce:
            say(event="running")
    await channel.close()


async def transfer(mesh, size):
    """Announce, then exchange messages so large that the signal falls into one."""
    channel = await mesh.open("transfer", hello.Agreement(**DIGESTS))
    party = mesh.party
    block = memoryview(bytes(size))
    say(event="running")
    while True:
        await channel.exchange(TAG, {(party - 1) % 3: [block]}, {(party + 1) % 3: size})


async def misbehave(mesh, how):
    """Run a few good rounds, then send what the protocol forbids."""
    channel = await mesh.open("ring", hello.Agreement(**DIGESTS))
    party = mesh.party
    for number in range(5):
        word = memoryview(number.to_bytes(8, "little"))
        await channel.exchange(TAG, {(party - 1) % 3: [word]}, {(party + 1) % 3: 8})
    session = hello.session_id("ring")
    forbidden = {
        "noise": b"GET / HTTP/1.1\r\nHost: s1.example\r\n\r\n",
        "version": b"CaPS\x02" + bytes(27),
        "oversize": encode_header(Kind.ROUND, session, 5, TAG, 0xFFFFFFFF),
        "sequence": encode_header(Kind.ROUND, session, 7, TAG, 8) + (5).to_bytes(8, "little"),
        "unopened": encode_header(Kind.ROUND, 12345, 0, TAG, 0),
        "hello": encode_header(Kind.HELLO, session, 5, bytes(8), 4) + b"word",
    }[how]
    for link in mesh._links.values():
        link._transport.write(forbidden)
    await asyncio.sleep(60)


async def disagree(mesh, odd):
    """Open a session per field, in each of which party `odd` holds another digest of that field.

    All meet first: two that quarrel could otherwise be gone before the third has its streams.
    """
    await (await mesh.open("all are here", hello.Agreement(**DIGESTS))).close()
    for field in DIGESTS:
        digests = {**DIGESTS, **({field: b"x" * 32} if mesh.party == odd else {})}
        try:
            await mesh.open(f"disagree on {field}", hello.Agreement(**digests))
        except CapsError as error:
            say_error(error, about=field)


ACTS = {"ring": ring, "transfer": transfer, "misbehave": misbehave, "disagree": disagree}


async def keep(keeper):
    """Keep a mesh for ever; run a few rounds on each, then wait until it is lost."""
    running = asyncio.create_task(keeper.run())
    while not running.done():
        try:
            mesh = await keeper.ready(60.0)
            await ring(mesh, 20, announce=None)
            say(event="met", meshes=keeper.state.meshes)
            raise await mesh.lost()
        except CapsError as error:
            say_error(error, troubles={peer: str(trouble) for peer, trouble in keeper.state.troubles.items()})


async def main(plan):
    if "wire_version" in plan:
        hello.WIRE_VERSION = plan["wire_version"]
    credentials = Credentials(*(Path(plan[name]) for name in ("certificate", "private_key", "authority")))
    pins = [bytes.fromhex(pin) if pin else None for pin in plan["pins"]]
    endpoints = [tls.Endpoint("127.0.0.1", port, pin) for port, pin in zip(plan["ports"], pins, strict=True)]
    listener = socket.socket(fileno=plan["listener"]) if plan["listener"] is not None else None
    if plan["act"] == "keep":
        limits = tls.Limits(**plan["limits"])
        await keep(MeshKeeper(plan["party"], credentials, endpoints, limits, listener=listener))
        return
    try:
        mesh = await tls.connect(plan["party"], credentials, endpoints, tls.Limits(**plan["limits"]), listener=listener)
    except CapsError as error:
        say_error(error)
        return
    try:
        say(event="connected")
        await ACTS[plan["act"]](mesh, **plan["arguments"])
        say(event="done")
    except CapsError as error:
        say_error(error)
    finally:
        await mesh.close()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
