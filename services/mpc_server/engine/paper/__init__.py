"""The paper's own protocols, kept apart: they reproduce what it measured, and protect nobody.

The samplers (Irwin-Hall, Box-Muller, Laplace), selection by softmax and pi_RC, real functions in fixed point, and
counting by comparison. `mechanisms` says why none of its mechanisms is differentially private. Counting is exact, but
what it sends grows with the rows.

The certified path never enters here: an import contract keeps the rest of the engine out, and a study whose parties all
agreed to a variant of the paper by name reaches it by `VARIANTS` only.
"""

from __future__ import annotations

from services.mpc_server.engine.paper.mechanisms import VARIANTS

__all__ = ["VARIANTS"]
