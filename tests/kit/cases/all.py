"""Every case of every protocol: importing the modules registers theirs."""

from __future__ import annotations

from tests.kit.cases import compute, join, paper, release, sampling
from tests.kit.cases.base import CASES

__all__ = ["CASES", "compute", "join", "paper", "release", "sampling"]
