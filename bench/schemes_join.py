"""Private record alignment under every scheme, side by side: what `bench join` measures under one."""

from __future__ import annotations

from typing import Any

from bench import join
from bench.schemes import side_by_side, table

__all__ = ["measure", "table"]


def measure(*, repeats: int, peers: bool, large: bool = False) -> dict[str, Any]:
    """By number of rows and scheme."""
    sizes = (*join.ROWS, join.LARGE_ROWS) if large else join.ROWS
    return side_by_side({f"join_n{rows}": {"task": "join", "rows": rows} for rows in sizes}, repeats)
