"""Ports of the loopback interface for services that are about to start."""

from __future__ import annotations

import secrets
import socket

# Below the ports that Linux assigns to listeners on port 0 and to outgoing connections: one of those could be taken at
# any moment between our finding a port free and a service listening on it.
_CHOICE = range(20_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens. They are not reserved, only unlikely to be taken."""
    found: list[int] = []
    for port in secrets.SystemRandom().sample(_CHOICE, len(_CHOICE)):
        if len(found) == count:
            return found
        try:
            # The services listen like this: with SO_REUSEADDR, a connection in TIME_WAIT does not block a port.
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
    raise OSError(f"no {count} free ports between {_CHOICE.start} and {_CHOICE.stop - 1}")
