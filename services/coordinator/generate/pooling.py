"""How strong members of a family are, each by what is known of it and by what is known of the others.

Of each member it is known how likely its noisy counts are for each of several strengths, which are ordered. Members of
one table are alike: their strengths lie about one that is common, and how far they stray is common to them too. Neither
is known, so all possibilities are weighed by how likely they make all members together. So where noise hides how strong
a member is, it is taken to be as strong as those of which more is known, and where it hides nothing, for what it is.
This is empirical Bayes, by exact sums: what is common is not assumed for every table, but learnt from this one.
"""

from __future__ import annotations

import numpy as np

from services.coordinator.estimation import Floats

STRAYS = (1 / 2, 1 / 8, 1 / 32)
"""How common a strength is beside the next one that is closer to the common one: members differ much, or hardly."""
_LEAST = 1e-300


def pooled(evidence: Floats) -> Floats:
    """The probability of each kind and strength of each member; they sum to 1 for a member.

    evidence: by member, kind and strength, the logarithm of how likely a member's counts are. All members are of one
    kind, which is not known either.
    """
    likely = np.exp(evidence - evidence.max(axis=(1, 2), keepdims=True))
    strengths = np.arange(evidence.shape[2])
    away = np.abs(np.subtract.outer(strengths, strengths))
    about = np.concatenate([stray**away for stray in STRAYS])  # by common strength and stray, of each strength
    about /= about.sum(axis=1, keepdims=True)
    each = np.maximum(likely @ about.T, _LEAST)
    together = np.log(each).sum(axis=0)
    odds = np.exp(together - together.max())
    found = likely * ((odds / odds.sum() / each) @ about)
    return np.asarray(found / found.sum(axis=(1, 2), keepdims=True))
