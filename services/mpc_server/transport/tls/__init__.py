"""Channels over mutually authenticated TLS 1.3: one stream per pair of parties, many sessions on it.

`link` is the stream to one peer, `mesh` all of a party's streams as one, and `dialling` is how they come to be: who
calls whom, and whether it is the party expected. Exceptions of `ssl` and of the operating system end in
`link.reason_of`; only CapsErrors leave this package.
"""

from services.mpc_server.transport.tls.dialling import ROLE, Endpoint, Watch, connect, listen
from services.mpc_server.transport.tls.link import Limits, Wire
from services.mpc_server.transport.tls.mesh import Mesh

__all__ = ["ROLE", "Endpoint", "Limits", "Mesh", "Watch", "Wire", "connect", "listen"]
