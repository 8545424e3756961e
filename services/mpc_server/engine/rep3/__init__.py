"""Replicated secret sharing among three parties, at most one of them corrupted and semi-honest (Araki et al. 2016).

Of x = x_0 + x_1 + x_2, or x = x_0 ^ x_1 ^ x_2 for bits, party i holds components i (`mine`) and i + 1 (`next`). So the
previous party holds a copy of `mine`, the next one a copy of `next`, and each pair of parties draws randomness that the
third does not know. Each party can multiply what it holds of two shared values, and these summands add up to the
product: that is why a sum of products costs as much as one product.

Only the modules of this package know this. They implement `engine.verbs`; the rest of the engine is written on those.
"""

from __future__ import annotations

from services.mpc_server.engine.rep3 import arithmetic, boolean, conversion, local, opening, shuffle, signs

__all__ = ["arithmetic", "boolean", "conversion", "local", "opening", "shuffle", "signs"]
