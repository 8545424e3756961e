"""A holder's settings beyond those of every service. Only this module reads these variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from caps.basics.retry import Backoff
from caps.data.schema import Limits
from caps.errors import DomainError
from services.holder.retry_queue import BACKOFF


@dataclass(frozen=True)
class Options:
    """max_upload: most bytes of a table, and of what a packed file unfolds to. max_expansion: how many times its size
    a packed file may unfold to. backoff: pauses between attempts.
    """

    max_upload: int = Limits.bytes
    max_expansion: int = Limits.expansion
    backoff: Backoff = BACKOFF

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """CAPS_MAX_UPLOAD, in bytes; CAPS_MAX_EXPANSION."""
        return cls(
            max_upload=_number(environment, "CAPS_MAX_UPLOAD", cls.max_upload),
            max_expansion=_number(environment, "CAPS_MAX_EXPANSION", cls.max_expansion),
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    given = environment.get(name, str(default))
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise DomainError(f"{name} must be a whole number, at least 1")
    return int(given)
