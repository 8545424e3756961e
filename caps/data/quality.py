"""The quality of synthetic data: its workload error.

Nothing here is private, because it compares with the real rows. Use it on invented data, in benchmarks and tests only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from caps.data.domain import Codes, Layout


def workload_error(layout: Layout, real: Codes, synthetic: Codes) -> float:
    """Returns half the mean L1 distance between normalised marginals.

    A row with a missing value (-1) does not count in the marginals of that attribute.

    The paper's formula has no half; its published values do.
    """
    return marginals_error(layout, layout.marginals(real), layout.marginals(synthetic))


def marginals_error(layout: Layout, real: npt.NDArray[Any], synthetic: npt.NDArray[Any]) -> float:
    """Returns the workload error of marginals in the order of the layout, for example a model's exact answers."""
    parts = [layout.part(clique) for clique in layout.cliques]
    return float(np.mean([0.5 * np.abs(_share(real[part]) - _share(synthetic[part])).sum() for part in parts]))


def _share(cells: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(cells / max(cells.sum(), 1), np.float64)
