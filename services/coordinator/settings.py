"""A coordinator's settings beyond those of every service. Only this module reads these variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from caps.errors import DomainError


@dataclass(frozen=True)
class Quotas:
    """samples: kept of one release. streams, token_streams: event streams open at once, in total and with one token."""

    samples: int = 100
    streams: int = 400
    token_streams: int = 20

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Quotas:
        """CAPS_MOST_SAMPLES, CAPS_MOST_STREAMS and CAPS_MOST_TOKEN_STREAMS."""
        return cls(**{field: _count(name, environment) for field, name in _VARIABLES.items() if name in environment})


_VARIABLES = {
    "samples": "CAPS_MOST_SAMPLES",
    "streams": "CAPS_MOST_STREAMS",
    "token_streams": "CAPS_MOST_TOKEN_STREAMS",
}


def _count(name: str, environment: Mapping[str, str]) -> int:
    given = environment[name]
    if not given.isascii() or not given.isdigit() or len(given) > 9:
        raise DomainError(f"{name} must be a whole number")
    return int(given)
