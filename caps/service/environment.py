"""The environment variables of services, as data: settings read them by these, and docs/reference.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caps.errors import DomainError


@dataclass(frozen=True)
class Variable:
    """A variable: its name, what it means, and what holds without it, in words. Required if that is empty."""

    name: str
    meaning: str
    default: str = ""

    def given(self, environment: Mapping[str, str]) -> str | None:
        """Its value, if it is set."""
        return environment.get(self.name)

    def whole(self, environment: Mapping[str, str], default: int, *, least: int = 0, digits: int = 18) -> int:
        """Its value as a whole number of at most so many digits. Raises DomainError."""
        given = self.given(environment)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or len(given) > digits or int(given) < least:
            raise DomainError(f"{self.name} must be a whole number, at least {least}")
        return int(given)
