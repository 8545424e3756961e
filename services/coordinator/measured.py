"""A noisy marginal: what the loops pass from the oracle to the estimator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.domain import Clique
from caps.errors import DomainError

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """One noisy marginal, flat and row-major; `sigma` is the standard deviation of the noise in each cell."""

    clique: Clique
    values: Floats = field(repr=False)
    sigma: float

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, np.float64).ravel()
        object.__setattr__(self, "values", values)
        if not np.isfinite(values).all():
            raise DomainError("a measured count is not a number")
        if not (np.isfinite(self.sigma) and self.sigma > 0):
            raise DomainError(f"noise has a positive standard deviation, not {self.sigma}")
