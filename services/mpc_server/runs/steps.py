"""Computing the steps of a run: from the shares of the inputs to counts, and from counts to what a request opens.

This module knows nothing of requests, charges and records, only what to compute; `session` decides when.
"""

from __future__ import annotations

import numpy as np

from caps.dp.oracle import Batch, Comparison, Integers, Measurement, Request, Selection, overlaps_plan
from caps.dp.privacy import Gaussian
from caps.shares.ring import Z64
from caps.study import Manifest
from caps.study.account import Account
from services.mpc_server.engine.alignment import Dummies, sets_of
from services.mpc_server.engine.compute import ColumnsInput, HorizontalInput, compute_answers
from services.mpc_server.engine.join import JoinInput, Mode, compute_joined_answers
from services.mpc_server.engine.paper import VARIANTS
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.shares import AShare
from services.mpc_server.engine.steps import Steps, Wanted, draw_noise, noise_context, request_context
from services.mpc_server.runs import pool
from services.mpc_server.runs.material import NO_ATTEMPT, Kept, Material, Share, Verdicts
from services.mpc_server.runs.record import value_of

_FRAC = 16


class Computation:
    """What one session computes. Counts are available once `compute` or `resume` is done."""

    def __init__(self, runtime: Runtime, manifest: Manifest, account: Account, material: Material) -> None:
        self._runtime = runtime
        self._manifest = manifest
        self._account = account
        self._material = material
        self._steps: Steps | None = None
        self.verdicts: Verdicts = ()
        self.attempt = NO_ATTEMPT
        """The name under which this session keeps counts."""

    async def compute(self) -> None:
        """COMPUTE ANSWERS: count the inputs, decide which are valid, and keep both for a later session."""
        context, manifest = self._runtime.context, self._manifest
        counted: list[HorizontalInput] = []
        columns: list[ColumnsInput] = []
        tables: list[JoinInput] = []
        order: list[str] = []
        for holder, form, attributes, share in self._material.inputs():
            order.append(form)
            if form == "marginals":
                counted.append(HorizontalInput(holder, context.share(*share)))
            elif form == "columns":
                columns.append(ColumnsInput(holder, attributes, context.share(*share)))
            else:
                tables.append(JoinInput(holder, attributes, context.rows(*share)))
        whole, bits = manifest.layout.cliques if columns or tables else None, manifest.counted_bits
        if tables:
            assert manifest.join is not None
            mode = Mode(manifest.join.mode)
            joined: list[HorizontalInput | JoinInput] = [*counted, *tables]
            dummies = await self._dummies(len(tables))
            protocol = compute_joined_answers(
                context.step("compute"),
                joined,
                layout=manifest.layout,
                mode=mode,
                counted=whole,
                bits=bits,
                dummies=dummies,
            )
        else:
            protocol = compute_answers(
                context.step("compute"),
                [*counted, *columns],
                layout=manifest.layout,
                counted=whole,
                bits=bits,
            )
        answers = await self._runtime.execute(protocol)
        # The engine had the counted contributions first; verdicts are in the order of the seal.
        flags = [int(flag) for flag in answers.accepted]
        first, others = iter(flags[: len(counted)]), iter(flags[len(counted) :])
        verdicts = tuple(next(first if form == "marginals" else others) for form in order)
        counts = answers.marginals.components
        self._material.keep_counts(Kept(self.attempt, counts, verdicts))
        await self.resume(counts, verdicts)

    async def _dummies(self, tables: int) -> Dummies | None:
        """Noise for the numbers that a join of this many tables reveals."""
        overlaps = self._manifest.overlaps
        if overlaps is None or tables < 2:
            return None
        plan = overlaps_plan(overlaps)
        context = noise_context(self._runtime.context, "compute", plan)
        return Dummies(await self._runtime.execute(draw_noise(context, plan.noise, len(sets_of(tables)))), plan.reach)

    async def resume(self, counts: Share, verdicts: Verdicts) -> None:
        """Be ready for comparisons, selections and measurements on these counts."""
        context, manifest = self._runtime.context, self._manifest
        shared = context.share(*(np.asarray(part, Z64.dtype) for part in counts))
        self._steps = Steps(
            context.step("run"), manifest.layout, manifest.task.neighbouring, shared, manifest.task.largest_count
        )
        self.verdicts = verdicts
        if manifest.program.candidates(manifest.task):
            await self._runtime.execute(self._steps.prepare())

    async def open(self, request: Request) -> int | tuple[int, ...]:
        """What a request opens. Pre-conditions: `compute` or `resume` was done."""
        assert self._steps is not None
        if isinstance(request, Comparison):
            return value_of(await self._runtime.execute(self._steps.compare(request)))
        if isinstance(request, Batch):
            return value_of(await self._runtime.execute(self._steps.measure_batch(request)))
        if isinstance(request, Selection):
            # What follows is due already, whatever is selected: a measurement of it, or in MST another selection.
            ahead = (
                pool.wanted(self._manifest, self._account, self._steps.pool) if pool.is_pooled(self._manifest) else []
            )
            return await self._runtime.execute(self._steps.select(request, ahead))
        noise = self._manifest.algorithm.noise
        if noise != "joint":
            return value_of(await self._paper(request, noise))
        return value_of(await self._runtime.execute(self._steps.measure(request)))

    async def _paper(self, request: Measurement, noise: str) -> Integers:
        """One of the paper's samplers, without a guarantee; rounded to integers once it is open."""
        assert self._steps is not None
        counts: AShare = self._steps.counts[self._manifest.layout.part(request.clique)]
        context = request_context(self._steps.run, request).step("paper")
        assert isinstance(request.mechanism, Gaussian)  # manifests refuse these samplers with other accounting
        scale = float(request.mechanism.sigma_squared) ** 0.5
        opened = await self._runtime.execute(VARIANTS[noise].function(context, counts, scale=scale, frac=_FRAC))
        return (np.asarray(opened).view(np.int64) + (1 << (_FRAC - 1))) >> _FRAC

    async def draw_ahead(self) -> None:
        """Draw the noise of what may be asked next."""
        if self._steps is None or self._manifest.algorithm.noise != "joint":
            return
        if wanted := self._wanted(self._steps):
            await self._runtime.execute(self._steps.pool.fill(self._steps.run, wanted))

    def _wanted(self, steps: Steps) -> list[Wanted]:
        return pool.wanted(self._manifest, self._account, steps.pool)
