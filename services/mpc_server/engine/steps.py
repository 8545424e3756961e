"""The steps of a run on shares: what `caps.dp.oracle` asks for, and noise drawn before it is needed.

A step's noise is labelled by the step and by the plan it follows. So it is the same whether it was drawn ahead or on
demand, a repeated step repeats it, and it cannot be used twice: every label is used once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from caps.data.domain import Layout
from caps.dp.bounds import MOST_COUNTED
from caps.dp.noise.plans import DummyPlan, GaussianPlan, GumbelPlan, LaplacePlan
from caps.dp.oracle import Batch, Comparison, Integers, Measurement, Plan, Request, Selection, request_digest, sendable
from caps.dp.privacy.neighbouring import Neighbouring
from caps.errors import DomainError
from caps.shares.ring import Z64
from services.mpc_server.engine import size
from services.mpc_server.engine.context import Branch, Context, together
from services.mpc_server.engine.registry import protocol
from services.mpc_server.engine.release import (
    count_bits,
    error_scores,
    noisy_argmax,
    noisy_counts,
    noisy_errors,
)
from services.mpc_server.engine.sampling import discrete_gaussian, discrete_laplace, geometric, gumbel
from services.mpc_server.engine.shares import AShare, BShare, concatenate
from services.mpc_server.engine.verbs import from_bits


@protocol(
    "two's complement: flip the top bit, subtract its weight",
    lambda of: of(from_bits, {size.ring_bits: 64}),
)
async def signed_from_bits(ctx: Context, x: BShare) -> AShare:
    """[[x]] over Z_2^64 from w bits in two's complement.

    Pre-conditions: 1 <= w <= 64.
    Leaks: nothing.
    """
    top = np.zeros((x.width, 1), np.uint8)
    top[-1] = 1
    return await from_bits(ctx, x.flip(top), ring=Z64) - (1 << (x.width - 1))


async def draw_noise(ctx: Context, plan: Plan, draws: int) -> AShare:
    """[[`draws` noise values]] of a plan over Z_2^64. Data-independent."""
    shape = (draws,)
    if isinstance(plan, GaussianPlan):
        return await discrete_gaussian(ctx, plan=plan, shape=shape)
    if isinstance(plan, LaplacePlan):
        return await discrete_laplace(ctx, plan=plan, shape=shape)
    if isinstance(plan, GumbelPlan):
        return await signed_from_bits(ctx.step("ring"), await gumbel(ctx, plan=plan, shape=shape))
    return await from_bits(ctx.step("ring"), await geometric(ctx, plan=plan, shape=shape), ring=Z64)


def request_context(run: Context, request: Request) -> Context:
    """Where a step is computed: bound to the run's keys, the step, and everything that was asked."""
    return run.step(request.step).step(request_digest(request).hex()[:32])


def noise_context(run: Context, step: str, plan: Plan | DummyPlan) -> Context:
    """Where the noise of a step is drawn: bound to the run's keys, the step, and the law with its parameters."""
    return run.step(step).step("noise").step(plan.digest[:16])


@dataclass(frozen=True, slots=True)
class Wanted:
    """Noise that a later step may need."""

    step: str
    plan: Plan
    draws: int


@dataclass(slots=True, repr=False)
class NoisePool:
    """Noise drawn while the servers would idle. At most `limit` values are held; what is taken is gone."""

    limit: int = 1 << 20
    _held: dict[tuple[str, str], AShare] = field(default_factory=dict)
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    def has(self, wanted: Wanted) -> bool:
        """Whether this noise is held."""
        return (wanted.step, wanted.plan.digest) in self._held

    async def fill(self, run: Context, wanted: Iterable[Wanted]) -> None:
        """Draw all that is wanted, in shared rounds. If there is no room for all, nothing is drawn and this is refused.

        Pre-conditions: all parties fill with equal requests in equal order.
        """
        requests = list(wanted)
        total = sum(request.draws for request in requests)
        if self._size + total > self.limit:
            raise DomainError(
                f"the noise pool holds {self._size} of at most {self.limit} values and has no room for {total} more"
            )
        self._size += total
        branches: list[Branch[AShare]] = [
            draw_noise(noise_context(run, request.step, request.plan), request.plan, request.draws)
            for request in requests
        ]
        for request, noise in zip(requests, await together(*branches), strict=True):
            self._held[request.step, request.plan.digest] = noise

    def take(self, step: str, plan: Plan, draws: int) -> AShare | None:
        """The noise drawn for this step and plan, or None. Other noise drawn for the step is discarded with it."""
        found = self._held.get((step, plan.digest))
        if found is not None and found.size < draws:
            raise DomainError(f"{found.size} noise values were drawn for step {step}, but {draws} are needed")
        for key in [key for key in self._held if key[0] == step]:
            self._size -= self._held.pop(key).size
        return found


@dataclass(slots=True, repr=False)
class Steps:
    """One party's side of the steps of one run, on the counts that COMPUTE ANSWERS left shared."""

    run: Context
    layout: Layout
    neighbouring: Neighbouring
    counts: AShare
    largest_count: int = MOST_COUNTED
    """No count is larger, whatever holders sent."""
    pool: NoisePool = field(default_factory=NoisePool)
    _bits: BShare | None = None

    async def prepare(self) -> None:
        """Bring the counts into the form that comparisons and selections need, once."""
        if self._bits is None:
            self._bits = await count_bits(self.run.step("prepare"), self.counts)

    async def select(self, selection: Selection, ahead: Iterable[Wanted] = ()) -> int:
        """SELECT. Opens the position of the selected candidate, nothing else.

        ahead: noise of what follows, which is drawn in the same rounds.
        """
        selected, _ = await together(self._select(selection), self.pool.fill(self.run, ahead))
        return int(selected)

    async def _select(self, selection: Selection) -> int:
        selection.check(self.layout, self.largest_count)
        ctx, bits = request_context(self.run, selection), self._prepared()
        cells = self.layout.positions(selection.candidates)
        plan = selection.plan(self.neighbouring)
        noise = await self._noise(selection.step, plan, selection.noise_values)
        scores = await error_scores(
            ctx.step("scores"),
            self.counts[cells],
            bits.take(cells),
            estimate=selection.estimate,
            starts=selection.starts(self.layout),
            bias=selection.bias,
            weights=selection.weights,
        )
        return await noisy_argmax(ctx.step("argmax"), scores, noise[: len(selection.candidates)])

    async def compare(self, comparison: Comparison) -> Integers:
        """COMPARE. Opens the error of every candidate's estimate plus noise."""
        comparison.check(self.layout, self.largest_count)
        ctx, bits = request_context(self.run, comparison), self._prepared()
        cells = self.layout.positions(comparison.candidates)
        noise = await self._noise(comparison.step, comparison.plan(), len(comparison.candidates))
        opened = await noisy_errors(
            ctx.step("errors"),
            self.counts[cells],
            bits.take(cells),
            noise,
            estimate=comparison.estimate,
            starts=comparison.starts(self.layout),
        )
        return sendable(opened)

    async def measure(self, measurement: Measurement) -> Integers:
        """MEASURE. Opens the marginal plus noise."""
        ctx = request_context(self.run, measurement)
        counts = self.counts[self.layout.part(measurement.clique)]
        draws, plan = measurement.noise_values(self.layout), measurement.plan()
        noise = await self._noise(measurement.step, plan, draws)
        return await noisy_counts(ctx.step("open"), counts, noise[: counts.size])

    async def measure_batch(self, batch: Batch) -> Integers:
        """MEASURE several. Opens each marginal plus noise; all noise is drawn in the same rounds."""
        batch.check(self.layout)
        ctx = request_context(self.run, batch)
        kinds = batch.noise(self.layout, self.neighbouring)
        drawn: list[Branch[AShare]] = [self._noise(batch.step, plan, len(cells)) for plan, cells in kinds]
        noise = concatenate(await together(*drawn))
        order = np.argsort(np.concatenate([cells for _, cells in kinds]))
        return await noisy_counts(ctx.step("open"), self.counts[self.layout.positions(batch.cliques)], noise[order])

    def _prepared(self) -> BShare:
        if self._bits is None:
            raise DomainError("call prepare() before select() or compare()")
        return self._bits

    async def _noise(self, step: str, plan: Plan, draws: int) -> AShare:
        found = self.pool.take(step, plan, draws)
        return found if found is not None else await draw_noise(noise_context(self.run, step, plan), plan, draws)
