"""What each server does for `python -m bench protocols --schemes`: one task at a time, as the starting process asks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bench import join_tasks
from bench.protocols_tasks import (
    codes_of,
    counted,
    layout_of,
    measure_pooled,
    measurement,
    select_pooled,
    selection,
)
from bench.timing import shared, timed
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.local import Requests


async def serve(party: Runtime, requests: Requests) -> int:
    """Answer requests, each with what this party measured; return how many there were."""
    asked = 0
    async for request in requests:
        asked += 1
        requests.answer(await _TASKS[request["task"]](party, f"{request['task']}{asked}", request))
    return asked


async def _compute(party: Runtime, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """COMPUTE ANSWERS of a table in columns: marginals of one or two attributes, of five categories each."""
    layout = layout_of(request["queries"])
    columns = shared(party, layout.domain.one_hot(codes_of(layout, request["rows"])), f"columns {request['rows']}")
    return await timed(party, name, partial(counted, columns=[columns], layout=layout), request["repeats"])


async def _select(party: Runtime, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """SELECT, as AIM or as MWEM+PGM, with the noise drawn beforehand."""
    layout = layout_of(request["queries"])
    counts = layout.marginals(codes_of(layout, 614))
    answers = shared(party, counts.astype(np.uint64), "counts")
    chosen = selection(layout, counts, request["kind"])
    return await select_pooled(party, name, layout, answers, chosen, request["repeats"])


async def _measure(party: Runtime, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """MEASURE of the largest marginal, with the noise drawn beforehand."""
    layout = layout_of(request["queries"])
    answers = shared(party, layout.marginals(codes_of(layout, 614)).astype(np.uint64), "counts")
    return await measure_pooled(party, name, layout, answers, measurement(layout), request["repeats"])


async def _join(party: Runtime, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """COMPUTE ANSWERS of two tables whose rows are in no common order (`bench join`)."""
    layout, plan = join_tasks.layout_of(), join_tasks.plan_of()
    tables = [join_tasks.table(party, layout, holder, request["rows"]) for holder in range(2)]
    step = partial(join_tasks.joined, tables=tables, layout=layout, plan=plan)
    return await timed(party, name, step, request["repeats"])


_TASKS = {"compute": _compute, "select": _select, "measure": _measure, "join": _join}
