"""The reference estimator: `mbi`, private-pgm's own package, on JAX. Imported only if it is chosen.

It fits; everything that is asked of the model afterwards is answered as for the compiled estimator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from caps.errors import DomainError
from services.coordinator.estimation import Measured, Model
from services.coordinator.generate.fitting import merge_measurements
from services.coordinator.generate.kernel import KernelEstimator
from services.coordinator.generate.model import TreeModel


class MbiEstimator(KernelEstimator):
    """See `create_estimator`. Everything except the fit is the compiled estimator's."""

    def fit(
        self,
        measurements: Sequence[Measured],
        *,
        total: float | None = None,
        warm_start: Model | None = None,
        rough: bool = False,
    ) -> TreeModel:
        """As Estimator.fit; no fit is rough."""
        if self.absence.may_lack:
            raise DomainError("the reference estimator has no model of missing values")
        merged = merge_measurements(self.absence, measurements, total, self.limit)
        mbi, own = _mbi(), self.absence.domain
        domain = mbi.Domain(own.names, own.sizes)
        fitted = mbi.estimation.MirrorDescent().estimate(
            domain,
            [mbi.LinearMeasurement(m.values, m.clique, stddev=m.sigma) for m in measurements],
            known_total=merged.total,
            iters=self.iterations,
            tol=self.tolerance or None,
            warm_start=_potentials(domain, warm_start),
        )
        tables = {
            own.clique(clique): np.asarray(
                fitted.potentials[clique].transpose(own.clique(clique)).datavector(), np.float64
            )
            for clique in fitted.potentials.cliques
        }
        return TreeModel.from_potentials(self.absence, merged.total, tables, limit=self.limit)


@cache
def _mbi() -> Any:
    """mbi computes in single precision unless JAX is told otherwise before; its compilations are not worth keeping."""
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    jax.config.update("jax_enable_compilation_cache", False)  # type: ignore[no-untyped-call]
    import mbi
    import mbi.estimation

    return mbi


def _potentials(domain: Any, model: Model | None) -> Any:
    mbi = _mbi()
    if not isinstance(model, TreeModel):
        return None
    tables = {
        clique: mbi.Factor(domain.project(clique), table.reshape(model.domain.shape(clique)))
        for clique, table in model.potentials().items()
    }
    return mbi.CliqueVector(domain, tuple(tables), tables)
