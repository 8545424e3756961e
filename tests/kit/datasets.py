"""The paper's tables, where they are at hand, and what others reach on them."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("CAPS_DATA", Path(__file__).parents[3] / "shared" / "data"))
REFERENCE = {
    ("breast-cancer.caps", "aim"): (0.264, 0.051),
    ("breast-cancer.caps", "mwem"): (0.247, 0.033),
    ("compas-caps", "aim"): (0.017, 0.002),
    ("compas-caps", "mwem"): (0.022, 0.002),
    ("diabetes.caps", "aim"): (0.139, 0.024),
    ("diabetes.caps", "mwem"): (0.147, 0.010),
}
"""Workload error of another compiled mirror descent, mean and spread of ten seeds (../shared/data/README.md), measured
at epsilon 1, delta 1e-9, all two-way marginals, 80/20 split."""
