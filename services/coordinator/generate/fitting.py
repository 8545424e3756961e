"""What every fit needs: measurements checked and merged, the number of rows, limits of size, and the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from caps.data.domain import Clique
from caps.data.junction import model_bytes
from caps.errors import DomainError
from services.coordinator.estimation import Floats, Measured, Model
from services.coordinator.generate.absence import Absence

MODEL_LIMIT = 2 << 30
MAX_MODEL_LIMIT = 8 << 30
"""Cells are numbered by 32-bit integers."""


@dataclass(frozen=True)
class MergedMeasurements:
    """What a fit is to explain. Measurements of the same clique are merged into their inverse-variance mean."""

    cliques: tuple[Clique, ...]
    values: tuple[Floats, ...]
    weights: tuple[float, ...]
    """1 / sigma^2."""
    total: float
    fixed: Mapping[Clique, Floats]
    """Potentials that say what cannot be."""

    @property
    def cells(self) -> int:
        """Of all measured marginals."""
        return sum(table.size for table in self.values)

    @property
    def spread(self) -> float:
        """Of the true model's loss, which is half the number of cells on average: its standard deviation."""
        return sqrt(self.cells / 2)


def merge_measurements(
    absence: Absence, measurements: Sequence[Measured], total: float | None, limit: int
) -> MergedMeasurements:
    """Refuse measurements that do not fit the domain, and models that do not fit into `limit` bytes."""
    domain = absence.domain
    merged: dict[Clique, tuple[Floats, float]] = {}
    for measured in measurements:
        clique, weight = domain.clique(measured.clique), measured.sigma**-2
        if clique != tuple(measured.clique) or measured.values.size != domain.cells(clique):
            raise DomainError("a measurement's clique must be in domain order, with one value per cell")
        values, sum_of_weights = merged.get(clique, (np.zeros(measured.values.size), 0.0))
        merged[clique] = values + weight * measured.values, sum_of_weights + weight
    check_size(model_bytes(absence.wide, [*merged, *absence.structure]), limit)
    persons = absence.persons(measurements, total)
    total = persons.total
    if not (np.isfinite(total) and total > 0):
        raise DomainError(f"a model must stand for a positive number of rows, not {total}")
    means = tuple(values / weight for values, weight in merged.values())
    weights = tuple(weight for _, weight in merged.values())
    fixed = absence.everybody if persons.everybody else absence.structure
    return MergedMeasurements(tuple(merged), means, weights, float(total), fixed)


def check_size(size: int, limit: int) -> None:
    """Refuse tables of more than `limit` bytes."""
    if size > limit:
        raise DomainError(f"the model would take {size} bytes ({size / 2**20:.1f} MiB), more than the limit of {limit}")


def loss(model: Model, measurements: Sequence[Measured]) -> float:
    """What a fit minimises: the sum of |mu - y|^2 / (2 sigma^2)."""
    marginals = model.marginals(measured.clique for measured in measurements)
    return sum(
        0.5 * float(np.square((mu.ravel() - measured.values) / measured.sigma).sum())
        for mu, measured in zip(marginals, measurements, strict=True)
    )
