"""A coordinator's settings beyond those of every service. Only this module reads these variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from caps.service.environment import Variable

MOST_SAMPLES = Variable("CAPS_MOST_SAMPLES", "samples kept of one release", "100")
MOST_STREAMS = Variable("CAPS_MOST_STREAMS", "event streams open at once", "400")
MOST_TOKEN_STREAMS = Variable("CAPS_MOST_TOKEN_STREAMS", "event streams open at once with one token", "20")
VARIABLES = (MOST_SAMPLES, MOST_STREAMS, MOST_TOKEN_STREAMS)


@dataclass(frozen=True)
class Quotas:
    """samples: kept of one release. streams, token_streams: event streams open at once, in total and with one token."""

    samples: int = int(MOST_SAMPLES.default)
    streams: int = int(MOST_STREAMS.default)
    token_streams: int = int(MOST_TOKEN_STREAMS.default)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Quotas:
        """Reads `VARIABLES`."""
        return cls(
            samples=MOST_SAMPLES.whole(environment, cls.samples, digits=9),
            streams=MOST_STREAMS.whole(environment, cls.streams, digits=9),
            token_streams=MOST_TOKEN_STREAMS.whole(environment, cls.token_streams, digits=9),
        )
