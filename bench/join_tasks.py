"""What each server does for `python -m bench join`: two tables joined and counted, and each phase of it by itself."""

from __future__ import annotations

import resource
import time
from collections.abc import Generator
from fractions import Fraction
from itertools import combinations
from types import coroutine
from typing import Any, TypeVar

import numpy as np

from bench.timing import dealt_to, timed_after, values
from caps.data.domain import Attribute, Clique, Domain, Layout
from caps.data.linkage import ID_BYTES, RowFormat
from caps.dp.noise.plans import DummyPlan
from caps.dp.oracle import overlaps_plan
from caps.dp.privacy import GaussianOverlaps, Neighbouring, Relation, calibrate
from caps.dp.privacy.rational import grid_down
from caps.shares.ring import Z8, Z64
from caps.shares.sharing import Algebra
from caps.study.manifest import OVERLAPS_SHARE
from services.mpc_server.engine import alignment, join
from services.mpc_server.engine.alignment import Dummies, sets_of
from services.mpc_server.engine.compute import Answers
from services.mpc_server.engine.context import Branch, Context, Replies, Round
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.steps import draw_noise

T = TypeVar("T")

ATTRIBUTES, CATEGORIES = 10, 5
OVERLAP = 2
"""One row in this many of each holder is of a person whom the other holder has, too."""
EPSILON, DELTA = Fraction(1), Fraction(1, 10**9)
PHASES = {
    "order": (join, "check_ids"),
    "dummies": (join, "plant_dummies"),
    "shuffle": (alignment, "shuffle"),
    "encrypt": (alignment, "encrypt"),
    "expand": (join, "one_hot_columns"),
    "count": (join, "count"),
}


def layout_of() -> Layout:
    """Ten attributes of five categories, five at each holder: all their one- and two-way marginals."""
    domain = Domain(tuple(Attribute(f"a{i}", CATEGORIES) for i in range(ATTRIBUTES)))
    cliques: list[Clique] = [(name,) for name in domain.names]
    return Layout(domain, (*cliques, *combinations(domain.names, 2)))


def table(party: Runtime, layout: Layout, holder: int, rows: int) -> JoinInput:
    """This party's share of public benchmark rows, as a holder would have dealt them."""
    attributes = layout.domain.names[holder * ATTRIBUTES // 2 : (holder + 1) * ATTRIBUTES // 2]
    own, common = values(f"ids {holder}", (rows, ID_BYTES), Z8), values("ids", (rows // OVERLAP, ID_BYTES), Z8)
    ids = np.concatenate([common, own[len(common) :]])
    codes = (values(f"codes {holder}", (rows, len(attributes)), Z64) % np.uint64(CATEGORIES)).astype(np.int64)
    octets = RowFormat(layout.domain.project(attributes)).pack(ids, codes)
    components = dealt_to(party, octets, str(holder), Algebra.XOR)
    return JoinInput(f"H{holder}", attributes, party.context.rows(*components))


def plan_of() -> DummyPlan:
    """The dummies of a study of this epsilon and delta, in which a person is one row."""
    rho = grid_down(OVERLAPS_SHARE * calibrate(EPSILON, DELTA))
    return overlaps_plan(GaussianOverlaps.costing(rho, Neighbouring(Relation.UNBOUNDED)))


async def joined(ctx: Context, tables: list[JoinInput], layout: Layout, plan: DummyPlan) -> Answers:
    """COMPUTE ANSWERS as a run does it: noise for the numbers that servers see, then the join."""
    noise = await draw_noise(ctx.step("noise"), plan.noise, len(sets_of(len(tables))))
    dummies = Dummies(noise, plan.reach)
    return await compute_joined_answers(ctx.step("join"), tables, layout=layout, mode=Mode.UNION, dummies=dummies)


class Clock:
    """Seconds that this party spends in each phase, waiting for its peers included. Side by side counts once."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PHASES, 0.0)
        self._running = dict.fromkeys(PHASES, 0)

    def watched(self, phase: str, protocol: Any) -> Any:
        """The protocol, its time added to the phase's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._timed(phase, protocol(*args, **kwargs))

        return call

    @coroutine
    def _timed(self, phase: str, branch: Branch[T]) -> Generator[Round, Replies, T]:
        if not self._running[phase]:
            self.spent[phase] -= time.perf_counter()
        self._running[phase] += 1
        try:
            return (yield from branch.__await__())
        finally:
            self._running[phase] -= 1
            if not self._running[phase]:
                self.spent[phase] += time.perf_counter()


async def measure(party: Runtime, repeats: int, rows: list[int]) -> dict[str, Any]:
    """Every measurement, at this party."""
    layout, plan = layout_of(), plan_of()
    originals = {phase: getattr(module, name) for phase, (module, name) in PHASES.items()}
    report: dict[str, Any] = {}
    for n in rows:
        tables = [table(party, layout, holder, n) for holder in range(2)]
        clock = Clock()
        for phase, (module, name) in PHASES.items():
            setattr(module, name, clock.watched(phase, originals[phase]))

        async def ready(ctx: Context, clock: Clock = clock) -> None:
            clock.spent = dict.fromkeys(PHASES, 0.0)

        def step(ctx: Context, _: None, tables: list[JoinInput] = tables) -> Any:
            return joined(ctx, tables, layout, plan)

        entry = await timed_after(party, f"join{n}", ready, step, repeats)
        entry["phases"] = clock.spent
        entry["peak_memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        report[str(n)] = entry
    return report
