"""Every case of every protocol: importing the modules registers theirs."""

from __future__ import annotations

from tests import cases_compute, cases_join, cases_paper, cases_release, cases_sampling
from tests.cases import CASES

__all__ = ["CASES", "cases_compute", "cases_join", "cases_paper", "cases_release", "cases_sampling"]
