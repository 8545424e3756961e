"""What holds for every test."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from pathlib import Path

import pytest

from tests.kit.draws import VARIABLE, drawn

HERE = Path(__file__).parent
LONGEST = ("adversary", "docs", "system")
"""Folders whose tests take longest."""


def pytest_report_header() -> list[str]:
    """How to have the same cases again."""
    seed = os.environ.get(VARIABLE)
    return [f"some cases of each large family; the same again: {VARIABLE}={seed}"] if seed else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `drawn(n)`, n cases; whole federations first, so that no core waits for the last of them."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn"):
            families[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item
        for name, family in families.items()
        for item in set(family) - set(drawn(name, family, family[0].get_closest_marker("drawn").args[0]))
    }
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: item.path.relative_to(HERE).parts[0] not in LONGEST)


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end: a full collection of garbage need not go through them each time.

    Some tests ask for one, and the interpreter makes its own.
    """
    gc.collect()
    gc.freeze()
