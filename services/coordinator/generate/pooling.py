"""How strong members of a family are, each by what is known of it and by what is known of the others.

Of each member it is known how likely its noisy counts are for each of several strengths, which are ordered. Members of
one table are alike: their strengths lie about one that is common, and how far they stray is common to them too. Neither
is known, so all possibilities are weighed by how likely they make all members together. So where noise hides how strong
a member is, it is taken to be as strong as those of which more is known, and where it hides nothing, for what it is.
This is empirical Bayes, by exact sums: what is common is not assumed for every table, but learnt from this one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.coordinator.estimation import Floats

_LEAST = 1e-300


def priors(evidence: Floats, strays: Sequence[float]) -> Floats:
    """How probable each strength is of each member, by what is known of the others; they sum to 1 for a member.

    evidence: by member and strength, the logarithm of how likely a member's counts are. strays: how common a strength
    may be beside the next one that is closer to the common one.
    """
    strengths = np.arange(evidence.shape[1])
    away = np.abs(np.subtract.outer(strengths, strengths))
    about = np.concatenate([stray**away for stray in strays])  # by common strength and stray, of each strength
    about /= about.sum(axis=1, keepdims=True)
    each = np.maximum(_likely(evidence) @ about.T, _LEAST)
    together = np.log(each).sum(axis=0)
    found = (np.exp(together - together.max()) / each) @ about
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def pooled(evidence: Floats, strays: Sequence[float]) -> Floats:
    """The same, once what is known of the member itself counts too."""
    found = _likely(evidence) * priors(evidence, strays)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _likely(evidence: Floats) -> Floats:
    return np.asarray(np.exp(evidence - evidence.max(axis=1, keepdims=True)))
