"""A holder's settings beyond those of every service. Only this module reads these variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from caps.basics.retry import Backoff
from caps.data.schema import Limits
from caps.service.environment import Variable
from caps.service.news import SILENT, NewsSettings
from services.holder.retry_queue import BACKOFF

MAX_UPLOAD = Variable("CAPS_MAX_UPLOAD", "the most bytes of a table", str(Limits.bytes))
MAX_EXPANSION = Variable(
    "CAPS_MAX_EXPANSION", "how many times its size a packed table may unfold to", str(Limits.expansion)
)
VARIABLES = (MAX_UPLOAD, MAX_EXPANSION)


@dataclass(frozen=True)
class Options:
    """max_upload: most bytes of a table, and of what a packed file unfolds to. max_expansion: how many times its size
    a packed file may unfold to. backoff: pauses between attempts. news: how the owner is told of them.
    """

    max_upload: int = Limits.bytes
    max_expansion: int = Limits.expansion
    backoff: Backoff = BACKOFF
    news: NewsSettings = SILENT

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Reads `VARIABLES`."""
        return cls(
            max_upload=MAX_UPLOAD.whole(environment, cls.max_upload, least=1),
            max_expansion=MAX_EXPANSION.whole(environment, cls.max_expansion, least=1),
            news=NewsSettings.from_environment(environment),
        )
