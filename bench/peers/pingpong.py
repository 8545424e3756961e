"""The bare floor of a protocol round: asyncio streams over mutual TLS 1.3, and nothing else.

`ping_pong`: two processes on one connection, a message of 8 bytes there and one back. `ring`: three processes, each
writes 8 bytes to the previous party and reads 8 from the next, in every round. The standard library's event loop.
"""

import asyncio
import ssl
from typing import Any

from bench.peers.tasks import Task
from bench.peers.worker import Commands, serve

MESSAGE = 8
CONNECT_ATTEMPTS = 200
HOST = "127.0.0.1"


class PingPong:
    """One process. Each batch counts its rounds in the messages, so that the last one received tells all arrived."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._rank: int = config["rank"]
        self._ports: list[int] = config["ports"]
        self._server_side = _context(ssl.PROTOCOL_TLS_SERVER, config)
        self._client_side = _context(ssl.PROTOCOL_TLS_CLIENT, config)
        self._received = b""

    async def prepare(self, task: Task) -> None:
        self._task = task
        accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result((reader, writer))

        listens = task.kind == "ring" or self._rank == 1
        if listens:
            self._server = await asyncio.start_server(accept, HOST, self._ports[self._rank], ssl=self._server_side)
        if task.kind == "ring":
            _, self._writer = await self._connect(self._ports[self._rank - 1])
            self._reader, self._incoming = await accepted
        else:
            self._reader, self._writer = await accepted if listens else await self._connect(self._ports[1])

    async def _connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(CONNECT_ATTEMPTS):
            try:
                return await asyncio.open_connection(HOST, port, ssl=self._client_side, server_hostname="localhost")
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
        raise ConnectionRefusedError(f"nobody listens on port {port}")

    async def run(self) -> None:
        reader, writer = self._reader, self._writer
        answers = self._task.kind == "ping_pong" and self._rank == 1
        received = b""
        for turn in range(self._task.rows):
            if answers:
                received = await reader.readexactly(MESSAGE)
                writer.write(received)
            else:
                writer.write(turn.to_bytes(MESSAGE, "little"))
                received = await reader.readexactly(MESSAGE)
        self._received = received

    async def cost(self) -> dict[str, int]:
        return {"bytes": MESSAGE * self._task.rows, "messages": self._task.rows}

    async def verify(self) -> bool:
        return int.from_bytes(self._received, "little") == self._task.rows - 1


def _context(side: int, config: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(config["certificate"], config["key"])
    context.load_verify_locations(config["ca"])
    return context


def main() -> None:
    commands = Commands()
    config = commands.read()
    if config is not None:
        asyncio.run(serve(commands, PingPong(config)))


if __name__ == "__main__":
    main()
