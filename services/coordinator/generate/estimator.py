"""What an algorithm sees of the estimator: measurements go in, a model comes out, and its size is known beforehand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Protocol, TypeAlias

import numpy as np

from caps.data.domain import Clique, Codes, Domain
from caps.errors import DomainError
from services.coordinator.generate.junction import model_bytes
from services.coordinator.measured import Floats, Measured

Where: TypeAlias = Mapping[str, int | Iterable[int]]
"""Attributes that are fixed to a code, or to be among some."""

MODEL_LIMIT = 2 << 30
MAX_MODEL_LIMIT = 8 << 30
"""Cells are numbered by 32-bit integers."""


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
        """The same of many cliques, which share the work."""

    def sample(
        self, rows: int | None = None, *, seed: int | str | bytes | None = None, where: Where | None = None
    ) -> Codes:
        """Synthetic rows: as many as the model stands for, unless told; only such as agree with `where`."""

    def save(self, path: str | PathLike[str]) -> None:
        """Store the model in a file that generate.load reads."""


class Estimator(Protocol):
    """Finds the distribution that fits noisy marginals best."""

    def fit(
        self, measurements: Sequence[Measured], *, total: float | None = None, warm_start: Model | None = None
    ) -> Model:
        """The least-squares fit; of all such, the one of greatest entropy. `warm_start` only saves time."""

    def smoothed(self, model: Model, measurements: Sequence[Measured]) -> Model:
        """The most probable model after these measurements if one of independent columns, like `model`'s, is before.

        A fit reproduces what it was given, noise and all. Where noise is large, what it says about a cell is closer to
        the truth once it is drawn to what the columns alone would say; where it is small, this changes nothing.
        """

    def model_bytes(self, cliques: Iterable[Clique]) -> int:
        """Memory of the model of these cliques: 8 bytes a cell of its junction tree. Nothing is fitted."""


@dataclass(frozen=True)
class Problem:
    """Measurements in order: those of one clique merged into their inverse-variance mean."""

    cliques: tuple[Clique, ...]
    values: tuple[Floats, ...]
    weights: tuple[float, ...]
    """1 / sigma^2."""
    total: float


def check_problem(domain: Domain, measurements: Sequence[Measured], total: float | None, limit: int) -> Problem:
    """Refuse measurements that do not fit the domain, and models that do not fit into `limit` bytes."""
    merged: dict[Clique, tuple[Floats, float]] = {}
    for measured in measurements:
        clique, weight = domain.clique(measured.clique), measured.sigma**-2
        if clique != tuple(measured.clique) or measured.values.size != domain.cells(clique):
            raise DomainError("a measurement's clique is in domain order, with one value a cell")
        values, sum_of_weights = merged.get(clique, (np.zeros(measured.values.size), 0.0))
        merged[clique] = values + weight * measured.values, sum_of_weights + weight
    check_size(model_bytes(domain, merged), limit)
    if total is None:
        total = estimate_total(measurements)
    if not (np.isfinite(total) and total > 0):
        raise DomainError(f"a model stands for a positive number of rows, not {total}")
    values_ = tuple(values / weight for values, weight in merged.values())
    return Problem(tuple(merged), values_, tuple(weight for _, weight in merged.values()), float(total))


def check_size(size: int, limit: int) -> None:
    """Refuse tables of more than `limit` bytes."""
    if size > limit:
        raise DomainError(f"the model would take {size} bytes ({size / 2**20:.1f} MiB), more than {limit}")


def estimate_total(measurements: Sequence[Measured]) -> float:
    """The unbiased estimate of least variance from the sums of all marginals; at least 1."""
    if not measurements:
        return 1.0
    weights = [1 / (measured.values.size * measured.sigma**2) for measured in measurements]
    return max(1.0, float(np.average([measured.values.sum() for measured in measurements], weights=weights)))


def loss(model: Model, measurements: Sequence[Measured]) -> float:
    """What a fit minimises: the sum of |mu - y|^2 / (2 sigma^2)."""
    marginals = model.marginals(measured.clique for measured in measurements)
    return sum(
        0.5 * float(np.square((mu.ravel() - measured.values) / measured.sigma).sum())
        for mu, measured in zip(marginals, measurements, strict=True)
    )


def create_estimator(
    name: str, domain: Domain, *, limit: int = MODEL_LIMIT, tolerance: float = 2e-5, iterations: int = 1000
) -> Estimator:
    """`kernel`, the compiled one, or `mbi`, the reference: private-pgm's own package, which needs JAX.

    limit: bytes of the model. tolerance: a fit ends when its last iterations improved the loss by less than this part.
    iterations: at most.
    """
    if not 0 < limit <= MAX_MODEL_LIMIT:
        raise DomainError(f"the limit of a model is 1 to {MAX_MODEL_LIMIT} bytes, not {limit}")
    if not (tolerance >= 0 and iterations >= 0):
        raise DomainError("tolerance and iterations are not negative")
    match name:
        case "kernel":
            from services.coordinator.generate.kernel import KernelEstimator

            return KernelEstimator(domain, limit, tolerance, iterations)
        case "mbi":
            from services.coordinator.generate.reference import MbiEstimator

            return MbiEstimator(domain, limit, tolerance, iterations)
    raise DomainError(f"there is no estimator {name!r}, but `kernel` and `mbi`")
