"""The graphical-model estimator: from noisy marginals to a distribution and synthetic rows.

The only package that may import mbi and jax, and it does so only if the estimator `mbi` is chosen.
"""

from services.coordinator.generate.create import create_estimator, load_model
from services.coordinator.generate.fitting import loss
from services.coordinator.generate.size import Size, size_of

__all__ = ["Size", "create_estimator", "load_model", "loss", "size_of"]
