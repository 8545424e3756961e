"""What needs no mechanism: uniform rows, and independent columns shrunk to uniform ones. No release may be worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from bench.peers.draws import Draws, deviation, number_of_rows, spread
from bench.peers.published import Synthetic
from caps.basics.uniform import Uniform
from services.coordinator.estimation import Floats


def uniform(draws: Draws, rho: float) -> Synthetic:
    """Uniform rows, as many as a noisy count says that takes all the budget."""
    noisy = len(draws.codes) + deviation(rho) * float(draws.normal(1)[0])
    even = [np.full(size, 1 / size) for size in draws.domain.sizes]
    return Synthetic(_independent(even, max(1, round(noisy)), draws.uniform), 0)


def columns(draws: Draws, rho: float) -> Synthetic:
    """All the budget for columns, each shrunk towards uniform (James and Stein 1961); rows of independent columns."""
    sigma = deviation(rho / len(draws.domain.names))
    measured = [draws.measure((name,), sigma) for name in draws.domain.names]
    total = number_of_rows(measured)
    shares = [shrunk(one.values, sigma, total) / total for one in measured]
    return Synthetic(_independent(shares, max(1, round(total)), draws.uniform), 0)


def shrunk(values: Floats, sigma: float, total: float) -> Floats:
    """A column nearer to the uniform one by the part of its deviation that noise explains; no negative counts."""
    even = total / values.size
    beyond = values - values.mean()
    noise = (values.size - 1) * sigma**2
    counts = np.maximum(even + max(0.0, 1 - noise / max(float(beyond @ beyond), 1e-300)) * beyond, 0)
    return np.asarray(counts * (total / max(float(counts.sum()), 1e-300)), np.float64)


def _independent(shares: list[Floats], rows: int, randomness: Uniform) -> np.ndarray:
    codes = []
    for one in shares:
        numbers = spread(one[None, :], np.array([rows]), randomness)[0]
        codes.append(np.repeat(np.arange(one.size), numbers)[randomness.permutation(rows)])
    return np.stack(codes, axis=1)


MECHANISMS: Mapping[str, Callable[[Draws, float], Synthetic]] = {"uniform": uniform, "columns": columns}
