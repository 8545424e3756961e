"""One federation for all tests of pages in a process, as `caps federation new` makes it: two holders, three servers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from caps.basics.schemes import SCHEMES
from caps.federation.local import LocalFederation
from tests.kit.browser import browser, visit
from tests.kit.released import released

__all__ = ["browser", "released", "visit"]

HOLDERS = ("north", "south")


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """Up and ready. What a test does to its studies and services stays: each takes a study of its own."""
    made = LocalFederation.create(
        tmp_path_factory.mktemp("pages") / "trial", HOLDERS, scheme=SCHEMES["rep3"], now=datetime.now(UTC)
    )
    made.start(now=lambda: datetime.now(UTC))
    try:
        yield made
    finally:
        made.stop()
