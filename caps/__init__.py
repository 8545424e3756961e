"""The shared library of CaPS: what holders, MPC servers, the coordinator and clients have in common."""

from __future__ import annotations

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """The version, once somebody asks: to read it takes longer than most commands."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("caps")
    except PackageNotFoundError:  # what analysts install has the client alone
        return version("caps-client")
