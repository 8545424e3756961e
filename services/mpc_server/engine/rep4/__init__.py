"""Replicated secret sharing among four parties, one of them malicious (Dalskov, Escudero and Keller 2021).

Of x = x_0 + x_1 + x_2 + x_3, or the XOR of four for bits, party i holds all components but component i. So whatever
depends on two components is known to two parties. Both of them make it a shared value (`joint`): one sends, and what
the other would have sent is compared before anything is opened (`checks`). A sum of products is six such inputs.

Only the modules of this package know this. They implement `engine.verbs`; the rest of the engine is written on those.
"""

from __future__ import annotations

from services.mpc_server.engine.rep4 import (
    arithmetic,
    boolean,
    checks,
    conversion,
    joint,
    local,
    matrices,
    shuffle,
    signs,
)

__all__ = ["arithmetic", "boolean", "checks", "conversion", "joint", "local", "matrices", "shuffle", "signs"]
