"""What each server does for `python -m bench noise`: many cells measured with every sampler, and what was opened."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from bench.protocols_tasks import NEIGHBOURING
from bench.timing import shared, timed
from caps.data.domain import Attribute, Domain, Layout
from caps.dp.oracle import Measurement
from caps.dp.privacy.mechanisms import Gaussian
from services.mpc_server.engine.paper import mechanisms as paper
from services.mpc_server.engine.paper.fixed import decode_fixed
from services.mpc_server.engine.runtime import Runtime
from services.mpc_server.engine.steps import Steps

SAMPLERS = ("default", "paper:irwin-hall", "paper:box-muller", "paper:laplace", "paper:laplace-inverse")


async def measure(party: Runtime, cells: int, sigma: str) -> dict[str, Any]:
    """For each sampler: mean, variance and kurtosis of the noise of `cells` released cells, and its cost."""
    layout = Layout(Domain((Attribute("a", cells),)), (("a",),))
    truth = 100 * np.arange(cells)
    answers = shared(party, truth.astype(np.uint64), "answers")
    sigma2 = Fraction(sigma) ** 2
    report: dict[str, Any] = {}
    for name in SAMPLERS:
        request = Measurement("measure", ("a",), Gaussian(sigma2))
        opened: list[Any] = []

        async def release(ctx: Any, name: str = name, request: Measurement = request, to: list[Any] = opened) -> None:
            if name.startswith("paper:"):
                function = partial(paper.VARIANTS[name].function, answers=answers, scale=float(sigma2) ** 0.5)
                to.append(decode_fixed(await function(ctx)))
            else:
                to.append(await Steps(ctx, layout, NEIGHBOURING, answers).measure(request))

        entry = await timed(party, name.replace(":", "-"), release, 1)
        noise = np.asarray(opened[0], np.float64) - truth
        entry["mean"], entry["variance"] = float(noise.mean()), float(noise.var())
        entry["kurtosis"] = float(((noise - noise.mean()) ** 4).mean() / noise.var() ** 2)
        entry["largest"] = float(np.abs(noise).max())
        report[name] = entry
    return report
