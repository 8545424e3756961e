"""Modules that are imported when they are first used: commands must answer at once, and analysts may lack polars."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module until a member of it is needed.

    if TYPE_CHECKING:
        import polars as pl
    else:
        pl = Later("polars")
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        value = getattr(import_module(self._name), member)
        self.__dict__[member] = value
        return value
