"""The two ways to a model: an estimator that fits one, and a file that one was saved to.

Implementations are imported where they are chosen: numba, and even more so JAX, take seconds to load.
"""

from __future__ import annotations

from os import PathLike

from caps.data.domain import Domain
from caps.errors import DomainError
from services.coordinator.estimation import Estimator, Model
from services.coordinator.generate.fitting import MAX_MODEL_LIMIT, MODEL_LIMIT
from services.coordinator.generate.storage import read_model


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
    raise DomainError(f"there is no estimator {name!r}; choose `kernel` or `mbi`")


def load_model(path: str | PathLike[str], *, limit: int = MODEL_LIMIT) -> Model:
    """A model that was saved. Raises DomainError for all but a whole file of this version within `limit` bytes."""
    domain, total, potentials = read_model(path, limit)
    from services.coordinator.generate.model import TreeModel

    return TreeModel.from_potentials(domain, total, potentials, limit=limit)
