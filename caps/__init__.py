"""CaPS, the shared library: what holders, MPC servers, the coordinator and clients have in common."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caps.client import Client

__all__ = ["Client", "__version__"]

__version__ = version("caps")


def __getattr__(name: str) -> object:
    # The engine imports this package too, and has no use for an HTTP client.
    if name == "Client":
        from caps.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
