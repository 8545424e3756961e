"""A study: the manifest all parties agree on, how it is written and planned, and a party's own policy."""

from caps.study.manifest import (
    AlgorithmChoice,
    Alignment,
    Coordinator,
    Holder,
    Manifest,
    Privacy,
    Publication,
    Query,
    Server,
)
from caps.study.policy import Policy

__all__ = [
    "AlgorithmChoice",
    "Alignment",
    "Coordinator",
    "Holder",
    "Manifest",
    "Policy",
    "Privacy",
    "Publication",
    "Query",
    "Server",
]
