"""The shared library of CaPS: what holders, MPC servers, the coordinator and clients have in common."""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("caps")
