"""What every service says about itself."""

from __future__ import annotations

from pydantic import BaseModel


class Health(BaseModel):
    """Whether a service is alive or ready and, if it is not ready, why."""

    status: str
    service: str
    name: str
    version: str
    reasons: list[str] = []
