"""A connection is handed over, or still waits: whenever the one who waits for it is cancelled."""

from __future__ import annotations

import asyncio
import socket

import pytest

from caps.basics.accepting import accepted


@pytest.mark.parametrize("turns", range(6))
def test_whoever_is_cancelled_has_taken_none(turns: int) -> None:
    async def main(listener: socket.socket) -> None:
        waiting = asyncio.create_task(accepted(listener))
        await asyncio.sleep(0.01)
        with socket.create_connection(listener.getsockname()):
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            (found,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(found, asyncio.CancelledError):
                found = await asyncio.wait_for(accepted(listener), 20)
            connection, address = found
            with connection:
                assert connection.getpeername() == address
                assert not connection.getblocking()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        asyncio.run(main(listener))


def test_a_listener_that_is_closed_meanwhile_leaves_nothing_behind() -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        waiting = asyncio.create_task(accepted(listener))
        await asyncio.sleep(0.01)
        waiting.cancel()
        listener.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
