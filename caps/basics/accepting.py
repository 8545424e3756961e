"""Taking connections on a socket, so that none is lost.

`loop.sock_accept` takes the connection in one turn of the event loop and hands it over in the next; whoever is
cancelled in between leaves it open, with nobody who knows of it.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any


async def accepted(listener: socket.socket) -> tuple[socket.socket, Any]:
    """The next connection and where it comes from. Raises OSError. One who is cancelled has taken none."""
    loop = asyncio.get_running_loop()
    descriptor = listener.fileno()  # remembered, since it may be closed while we wait
    while True:
        try:
            connection, address = listener.accept()
        except (BlockingIOError, InterruptedError):
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)
            continue
        connection.setblocking(False)
        return connection, address
