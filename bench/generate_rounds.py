"""Fixed rounds of measurements for `python -m bench generate`: what AIM would measure, noise included.

AIM (McKenna, Mullins, Sheldon, Miklau 2022) on the pairs of attributes, but for the selection: it takes the worst
candidate without noise, so that the rounds are the same on every machine. Not private; for benchmarks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import pi, sqrt

import numpy as np

from bench.datasets import Dataset
from caps.basics.uniform import Uniform
from caps.data.domain import Clique, Layout
from services.coordinator.estimation import Estimator, Measured, Model

RHO = 0.014973
"""eps = 1, delta = 1e-9 (caps.dp.privacy.zcdp.cdp_rho)."""


def pairs(dataset: Dataset) -> Layout:
    """All pairs of attributes: the workload and the candidates."""
    return Layout(dataset.domain, tuple(combinations(dataset.domain.names, 2)))


def rounds(dataset: Dataset, estimator: Estimator, *, limit: int, most: int) -> Iterator[list[Measured]]:
    """The measurements of each round, the first being all attributes; fitted here to know which comes next."""
    domain, codes = dataset.domain, dataset.codes[dataset.train]
    layout, uniform = pairs(dataset), Uniform(dataset.name)
    answers = layout.marginals(codes)
    sigma, spent = sqrt(16 * len(domain.names) / (2 * 0.9 * RHO)), 0.0
    measured = [_measured(Layout(domain, ((name,),)), codes, sigma, uniform) for name in domain.names]
    spent = len(measured) / (2 * sigma**2)
    yield measured
    model = estimator.fit(measured)
    for _ in range(most):
        share = 1 / (2 * 0.9 * sigma**2)
        last = RHO - spent < 2 * share
        if last:
            sigma = sqrt(1 / (2 * 0.9 * (RHO - spent)))
        spent += 1 / (2 * 0.9 * sigma**2)
        cliques = [m.clique for m in measured]
        allowed = [c for c in layout.cliques if estimator.model_bytes([*cliques, c]) <= limit * min(1, spent / RHO)]
        clique = _worst(layout, answers, model, allowed, sigma)
        latest = _measured(Layout(domain, (clique,)), codes, sigma, uniform)
        measured.append(latest)
        yield [latest]
        before, model = model.marginal(clique), estimator.fit(measured, warm_start=model)
        if last:
            return
        if np.abs(model.marginal(clique) - before).sum() <= sqrt(2 / pi) * sigma * before.size:
            sigma /= 2


def _worst(layout: Layout, answers: np.ndarray, model: Model, allowed: list[Clique], sigma: float) -> Clique:
    errors = [
        np.abs(answers[layout.part(clique)] - mu.ravel()).sum() - sqrt(2 / pi) * sigma * mu.size
        for clique, mu in zip(allowed, model.marginals(allowed), strict=True)
    ]
    return allowed[int(np.argmax(errors))]


def _measured(layout: Layout, codes: np.ndarray, sigma: float, uniform: Uniform) -> Measured:
    radius = np.sqrt(-2 * np.log1p(-uniform.floats(layout.cells)))
    noise = sigma * radius * np.cos(2 * pi * uniform.floats(layout.cells))
    return Measured(layout.cliques[0], layout.marginals(codes) + noise, sigma)
