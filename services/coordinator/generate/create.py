"""The two ways to get a model: fit one with an estimator, or load one from a file.

Implementations are imported where they are chosen: numba, and even more so JAX, take seconds to load.
"""

from __future__ import annotations

from os import PathLike

from caps.basics.loading import load
from caps.data.domain import Clique, Domain
from caps.errors import DomainError
from services.coordinator.estimation import Estimator, Model
from services.coordinator.generate.absence import Absence
from services.coordinator.generate.fitting import MAX_MODEL_LIMIT, MODEL_LIMIT
from services.coordinator.generate.storage import read_model

KERNEL = "services.coordinator.generate.kernel"
"""The module with all that is compiled."""


def create_estimator(
    name: str,
    domain: Domain,
    *,
    groups: tuple[Clique, ...] = (),
    limit: int = MODEL_LIMIT,
    tolerance: float = 5e-5,
    iterations: int = 1000,
) -> Estimator:
    """`kernel`, the compiled one, or `mbi`, the reference: private-pgm's own package, which needs JAX.

    groups: attributes that a person may lack together, as where tables are joined. limit: bytes of the model.
    tolerance: a fit ends when its last iterations improved the loss by less than this part. iterations: the most that a
    fit may take.
    """
    if not 0 < limit <= MAX_MODEL_LIMIT:
        raise DomainError(f"a model's limit must be 1 to {MAX_MODEL_LIMIT} bytes, not {limit}")
    if not (tolerance >= 0 and iterations >= 0):
        raise DomainError("tolerance and iterations must not be negative")
    absence = Absence(domain, groups)
    match name:
        case "kernel":
            load(KERNEL)
            from services.coordinator.generate.kernel import KernelEstimator

            return KernelEstimator(absence, limit, tolerance, iterations)
        case "mbi":
            from services.coordinator.generate.reference import MbiEstimator

            return MbiEstimator(absence, limit, tolerance, iterations)
    raise DomainError(f"there is no estimator {name!r}; choose `kernel` or `mbi`")


def load_model(path: str | PathLike[str], *, limit: int = MODEL_LIMIT) -> Model:
    """Load a saved model. Raises DomainError unless the file is whole, of this version, and within `limit` bytes."""
    absence, total, potentials = read_model(path, limit)
    load(KERNEL)
    from services.coordinator.generate.model import TreeModel

    return TreeModel.from_potentials(absence, total, potentials, limit=limit)
