"""Which cases of a large family are tried this time.

`make test` sets CAPS_TEST_DRAW to a number that it draws, and a family of cases tries some of its members, others each
time; the number makes the same choice again. Without it every case is tried: so it is in `make test-slow`, and when
somebody names a test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random
from typing import TypeVar

VARIABLE = "CAPS_TEST_DRAW"
T = TypeVar("T")


def drawn(family: str, cases: Iterable[T], number: int) -> list[T]:
    """At most `number` of a family's cases, in their order; all of them where nothing is drawn."""
    found = list(cases)
    seed = os.environ.get(VARIABLE)
    if not seed or len(found) <= number:
        return found
    kept = sorted(Random(f"{seed} {family}").sample(range(len(found)), number))
    return [found[place] for place in kept]
