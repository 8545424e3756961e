"""A holder's settings beyond those of every service. Only this module reads these variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from caps.basics.retry import Backoff
from caps.errors import DomainError
from services.holder.retry_queue import BACKOFF


@dataclass(frozen=True)
class Options:
    """max_upload: most bytes of a table, and of a Parquet file once decompressed. backoff: pauses between attempts."""

    max_upload: int = 16 << 30
    backoff: Backoff = BACKOFF

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """CAPS_MAX_UPLOAD, in bytes."""
        given = environment.get("CAPS_MAX_UPLOAD", str(cls.max_upload))
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise DomainError("CAPS_MAX_UPLOAD must be a whole number of bytes")
        return cls(max_upload=int(given))
