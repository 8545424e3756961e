"""The interface between algorithms and estimators: measurements go in, a model comes out.

The loops (`services.coordinator.algorithms`) see only this much of `services.coordinator.generate`, which they never
import; so a loop runs with any estimator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from caps.data.domain import Clique, Codes, Domain
from caps.errors import DomainError

Floats: TypeAlias = npt.NDArray[np.float64]

Where: TypeAlias = Mapping[str, int | Iterable[int]]
"""Attributes with the code, or the set of codes, that each is restricted to."""


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
            raise DomainError("a measured count is not a finite number")
        if not (np.isfinite(self.sigma) and self.sigma > 0):
            raise DomainError(f"the standard deviation of noise must be positive, not {self.sigma}")


class ImpossibleConditions(DomainError):
    """No row that the model can draw meets the conditions."""


class Model(Protocol):
    """A distribution over the domain, times the number of rows it stands for."""

    @property
    def domain(self) -> Domain:
        """The attributes."""

    @property
    def total(self) -> float:
        """Number of rows."""

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """The maximal cliques of its junction tree."""

    def marginal(self, clique: Iterable[str]) -> Floats:
        """The expected counts of any clique, in the shape domain.shape(clique)."""

    def marginals(self, cliques: Iterable[Iterable[str]]) -> list[Floats]:
        """The expected counts of many cliques, which share the work."""

    def sample(
        self, rows: int | None = None, *, seed: int | str | bytes | None = None, where: Where | None = None
    ) -> Codes:
        """Synthetic rows, as many as the model stands for unless given; only rows that agree with `where`."""

    def save(self, path: str | PathLike[str]) -> None:
        """Store the model in a file that `generate.load_model` reads."""


class Estimator(Protocol):
    """Finds the distribution that fits noisy marginals best."""

    def fit(
        self,
        measurements: Sequence[Measured],
        *,
        total: float | None = None,
        warm_start: Model | None = None,
        rough: bool = False,
    ) -> Model:
        """The least-squares fit; among several, the one with the greatest entropy. `warm_start` only saves time.

        rough: it may end as soon as noise alone changes the loss by far more than what is left to gain. That does where
        the model only decides what is measured next.
        """

    def smoothed(self, model: Model, measurements: Sequence[Measured]) -> Model:
        """The most probable model given these measurements and a prior, what columns and pairs are like.

        A fit reproduces what it was given, noise and all. Where noise is large, what it says about a cell is closer to
        the truth once it is pulled towards what the columns alone say; where noise is small, this changes nothing.
        """

    def model_bytes(self, cliques: Iterable[Clique]) -> int:
        """Memory of a model of these cliques: 8 bytes per cell of its junction tree. Nothing is fitted."""

    def fit_seconds(self, cliques: Iterable[Clique], *, prior: bool = False) -> float:
        """About how long a fit to these cliques will take on this machine, as far as the fits before tell; or, with a
        prior, how long `smoothed` will."""
