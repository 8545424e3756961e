"""The graphical-model estimator: from noisy marginals to a distribution and synthetic rows.

The only package that may import mbi and jax, and it does so only if the estimator `mbi` is chosen.
"""

from services.coordinator.generate.estimator import Estimator, Model, Where, create_estimator, loss
from services.coordinator.generate.storage import load_model
from services.coordinator.measured import Measured

__all__ = ["Estimator", "Measured", "Model", "Where", "create_estimator", "load_model", "loss"]
