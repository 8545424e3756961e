"""What each server does for `python -m bench protocols`: COMPUTE ANSWERS, SELECT and MEASURE, ours and the paper's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.timing import shared, timed, timed_after, values
from caps.data.domain import Attribute, Clique, Domain, Layout
from caps.dp.oracle import Measurement, Selection, rounded_estimate
from caps.dp.privacy.mechanisms import Gaussian, NoisyMax
from caps.dp.privacy.neighbouring import Neighbouring, Relation
from caps.shares.ring import Z64
from services.mpc_server.engine.context import Context
from services.mpc_server.engine.counting import count
from services.mpc_server.engine.paper import mechanisms as paper
from services.mpc_server.engine.paper.counting import count_paper
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.steps import Steps, Wanted

CATEGORIES = 5
SIGMA2 = Fraction(731, 10) ** 2  # AIM at epsilon 1 with nine attributes
EPSILON = Fraction(1, 20)
NEIGHBOURING = Neighbouring(Relation.UNBOUNDED)


def layout_of(queries: int) -> Layout:
    """One- and two-way marginals of attributes with five categories: the first `queries` of them."""
    attributes = next(d for d in range(1, 100) if d + d * (d - 1) // 2 >= queries)
    domain = Domain(tuple(Attribute(f"a{i}", CATEGORIES) for i in range(attributes)))
    cliques: list[Clique] = [(name,) for name in domain.names]
    cliques += combinations(domain.names, 2)
    return Layout(domain, tuple(cliques[:queries]))


def codes_of(layout: Layout, rows: int) -> npt.NDArray[np.int64]:
    """A public table for the benchmark."""
    drawn = values(f"codes {rows}", (rows, len(layout.domain.names)), Z64) % np.uint64(CATEGORIES)
    return drawn.astype(np.int64)


def selection(layout: Layout, counts: npt.NDArray[np.int64], kind: str) -> Selection:
    """AIM's scores have weights and the expected noise as bias, MWEM+PGM's the number of cells."""
    cells = counts[layout.positions(layout.cliques)]
    drift = values("drift", (cells.size,), Z64) % np.uint64(64)
    estimate = rounded_estimate(np.maximum(0, cells + drift.astype(np.int64) - 32))
    sizes = np.array(layout.sizes)
    if kind == "aim":
        bias = rounded_estimate((2 / np.pi) ** 0.5 * float(SIGMA2) ** 0.5 * sizes)
        weights = np.array([1 + len(clique) for clique in layout.cliques])
    else:
        bias, weights = rounded_estimate(sizes), np.ones(len(sizes), np.int64)
    return Selection("select", layout.cliques, estimate, bias, weights, NoisyMax.of_star(EPSILON))


async def counted(ctx: Context, columns: Sequence[AShare], layout: Layout) -> AShare:
    """`count`, with its columns by name."""
    return await count(ctx, *columns, layout=layout)


async def measure(party: Runtime, repeats: int, queries: list[int], rows: list[int]) -> dict[str, Any]:
    """Every measurement, at this party."""
    report: dict[str, Any] = {}
    nine = layout_of(45)
    for n in rows:
        codes = codes_of(nine, n)
        columns = shared(party, nine.domain.one_hot(codes), f"columns {n}")
        report[f"compute_vertical_n{n}"] = await timed(
            party, f"compute{n}", partial(counted, columns=[columns], layout=nine), repeats
        )
        if n <= 1000:
            raw = shared(party, codes.astype(np.uint64), f"codes {n}")
            report[f"compute_vertical_n{n}"]["paper"] = await timed(
                party, f"paper-compute{n}", partial(count_paper, codes=raw, layout=nine), 1
            )
    for q in queries:
        layout = layout_of(q)
        counts = layout.marginals(codes_of(layout, 614))
        answers = shared(party, counts.astype(np.uint64), f"counts {q}")
        for kind in ("aim", "mwem"):
            report[f"select_{kind}_q{q}"] = await select(party, layout, counts, answers, kind, repeats)
        report[f"measure_q{q}"] = await measure_one(party, layout, answers, repeats)
    return report


async def pooled(
    party: Runtime,
    name: str,
    layout: Layout,
    answers: AShare,
    wanted: Sequence[Wanted],
    work: Callable[[Steps], Coroutine[Any, Any, object]],
    repeats: int,
) -> dict[str, Any]:
    """Work with the noise drawn beforehand, and as `offline` the drawing itself."""

    async def ready(ctx: Context) -> Steps:
        steps = Steps(ctx, layout, NEIGHBOURING, answers)
        await party.execute(steps.prepare())
        await party.execute(steps.pool.fill(ctx, wanted))
        return steps

    async def fill(ctx: Context) -> None:
        await Steps(ctx, layout, NEIGHBOURING, answers).pool.fill(ctx, wanted)

    entry = await timed_after(party, name, ready, lambda _, steps: work(steps), repeats)
    entry["offline"] = await timed(party, f"{name}-offline", fill, repeats)
    return entry


async def select(
    party: Runtime, layout: Layout, counts: npt.NDArray[np.int64], answers: AShare, kind: str, repeats: int
) -> dict[str, Any]:
    """A selection with a filled pool, the filling itself, and the paper's chain."""
    request = selection(layout, counts, kind)
    name = f"{kind}{len(layout.cliques)}"
    entry = await select_pooled(party, name, layout, answers, request, repeats)
    sizes = np.array(layout.sizes)
    cells = answers[layout.positions(layout.cliques)]
    if kind == "aim":

        def chain(ctx: Context) -> Any:
            return paper.paper_select_aim(
                ctx,
                cells,
                estimate=request.estimate,
                sizes=sizes,
                weights=request.weights,
                biases=request.bias,
                unit=256,
                epsilon=EPSILON,
                sensitivity=int(request.weights.max()),
            )
    else:

        def chain(ctx: Context) -> Any:
            return paper.paper_select_mwem(
                ctx, cells, estimate=request.estimate, sizes=sizes, unit=256, epsilon=EPSILON
            )

    entry["paper"] = await timed(party, f"{name}-paper", chain, max(1, repeats // 2))
    return entry


async def select_pooled(
    party: Runtime, name: str, layout: Layout, answers: AShare, request: Selection, repeats: int
) -> dict[str, Any]:
    """A selection with a filled pool, and the filling itself."""
    wanted = [Wanted("select", request.plan(NEIGHBOURING), len(layout.cliques))]
    return await pooled(party, name, layout, answers, wanted, lambda steps: steps.select(request), repeats)


def measurement(layout: Layout) -> Measurement:
    """Of the largest marginal."""
    return Measurement("measure", max(layout.cliques, key=layout.domain.cells), Gaussian(SIGMA2))


async def measure_pooled(
    party: Runtime, name: str, layout: Layout, answers: AShare, request: Measurement, repeats: int
) -> dict[str, Any]:
    """A measurement with a filled pool, and the filling itself."""
    wanted = [Wanted("measure", request.plan(), layout.domain.cells(request.clique))]
    return await pooled(party, name, layout, answers, wanted, lambda steps: steps.measure(request), repeats)


async def measure_one(party: Runtime, layout: Layout, answers: AShare, repeats: int) -> dict[str, Any]:
    """The largest marginal measured with a filled pool, the filling itself, and the paper's samplers."""
    request = measurement(layout)
    name = f"measure{len(layout.cliques)}"
    entry = await measure_pooled(party, name, layout, answers, request, repeats)
    part = answers[layout.part(request.clique)]
    for variant in ("paper:irwin-hall", "paper:box-muller", "paper:laplace", "paper:laplace-inverse"):
        function = paper.VARIANTS[variant].function
        entry[variant] = await timed(
            party,
            f"{name}-{variant.partition(':')[2]}",
            partial(function, answers=part, scale=float(SIGMA2) ** 0.5),
            max(1, repeats // 2),
        )
    return entry
