"""Whether what a service holds stays flat over many studies: a line is fitted, and its slope is judged.

A service that was killed begins anew: its samples form another stretch, with a level of its own and the same slope. The
first studies of a stretch fill caches and the allocator's arenas, and do not count. A pool of connections or threads
reaches its size step by step, which looks like growth for a while: so there is also a floor, below which what was added
in all is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

WARM = 10
"""Studies at the beginning of a stretch that do not count."""


@dataclass(frozen=True)
class Sample:
    """What was seen after a study."""

    study: int
    stretch: int
    value: float


@dataclass(frozen=True)
class Fit:
    """Growth per study, with its standard error; over so many samples."""

    slope: float
    error: float
    samples: int

    def exceeds(self, tolerance: float) -> bool:
        """Whether the growth is above the tolerance by more than twice its error: chance alone is no verdict."""
        return self.slope - 2 * self.error > tolerance


def fit(samples: Sequence[Sample]) -> Fit | None:
    """One slope for all stretches, each with a level of its own; None if too little was seen."""
    stretches: dict[int, list[Sample]] = {}
    for sample in samples:
        stretches.setdefault(sample.stretch, []).append(sample)
    kept = [stretch[WARM:] for stretch in stretches.values() if len(stretch) > WARM + 1]
    x = np.concatenate([_centred([one.study for one in stretch]) for stretch in kept] or [np.zeros(0)])
    y = np.concatenate([_centred([one.value for one in stretch]) for stretch in kept] or [np.zeros(0)])
    freedom = len(x) - len(kept) - 1
    spread = float(x @ x)
    if freedom < 1 or not spread:
        return None
    slope = float(x @ y) / spread
    residual = y - slope * x
    return Fit(slope, float(np.sqrt(residual @ residual / freedom / spread)), len(x))


@dataclass(frozen=True)
class Tolerance:
    """Growth that is tolerated per study, and over all studies that were seen."""

    each: float
    floor: float


def growing(series: Mapping[tuple[str, str], Sequence[Sample]], tolerances: Mapping[str, Tolerance]) -> list[str]:
    """What grows, in words. `series`: by service and quantity; `tolerances`: by quantity."""
    found = []
    for (service, quantity), samples in series.items():
        fitted, tolerance = fit(samples), tolerances[quantity]
        if fitted is not None and fitted.exceeds(tolerance.each) and fitted.slope * fitted.samples > tolerance.floor:
            found.append(
                f"{service}: {quantity} grows by {fitted.slope:.4g} +- {2 * fitted.error:.2g} per study over "
                f"{fitted.samples} studies; {tolerance.each:g} is tolerated"
            )
    return found


def _centred(values: Sequence[float]) -> np.ndarray:
    found = np.array(values, float)
    return found - found.mean()
