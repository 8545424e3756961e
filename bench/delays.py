"""TCP relays that hold every byte back: a long or thin line between two ends of this host.

`python -m bench.delays DELAY RATE LISTEN:TARGET ...`: each connection to port LISTEN of the loopback interface goes on
to port TARGET. A byte arrives DELAY seconds after it was sent, and each direction of each connection passes RATE bytes
per second (0: any number). Written because kernels without netem cannot do it; slow start and loss are not emulated.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

_CHUNK = 1 << 16
_HOST = "127.0.0.1"


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delay: float, rate: float) -> None:
    """Bytes of one direction, in order, each at its time; the end of the stream, too."""
    loop = asyncio.get_running_loop()
    waiting: deque[tuple[float, bytes]] = deque()
    come = asyncio.Event()

    async def deliver() -> None:
        while True:
            while not waiting:
                come.clear()
                await come.wait()
            due, data = waiting.popleft()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    delivery = asyncio.create_task(deliver())
    free = 0.0
    try:
        while True:
            data = await reader.read(_CHUNK)
            free = max(free, loop.time()) + (len(data) / rate if rate else 0.0)
            waiting.append((free + delay, data))
            come.set()
            if not data:
                break
        await delivery
    except ConnectionError:
        delivery.cancel()
        writer.close()


async def relay(listen: int, target: int, *, delay: float, rate: float) -> asyncio.Server:
    """Serve one port."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward_reader, onward_writer = await asyncio.open_connection(_HOST, target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            carry(reader, onward_writer, delay=delay, rate=rate),
            carry(onward_reader, writer, delay=delay, rate=rate),
            return_exceptions=True,
        )
        for one in (writer, onward_writer):
            one.close()

    return await asyncio.start_server(accepted, _HOST, listen)


async def main(arguments: list[str]) -> None:
    """Relay until killed."""
    delay, rate = float(arguments[0]), float(arguments[1])
    pairs = [tuple(map(int, pair.split(":"))) for pair in arguments[2:]]
    servers = [await relay(listen, target, delay=delay, rate=rate) for listen, target in pairs]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
