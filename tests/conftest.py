"""What holds for every test."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end: a full collection of garbage need not go through them each time.

    Every service in a thread ends with one (`tests.kit.tls.serving`), and the interpreter makes its own.
    """
    gc.collect()
    gc.freeze()
