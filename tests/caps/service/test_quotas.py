"""Places that callers take and give back."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from caps.service.problems import Problem
from caps.service.quotas import Slots
from caps.wire.problems import Kind


def test_so_many_for_each_and_so_many_in_total() -> None:
    slots = Slots("streams", total=3, each=2, seconds=7)
    with ExitStack() as stack:
        for key in ("ann", "ann", "bob"):
            stack.enter_context(slots.taken(key))
        for key, words in (("ann", "you have 2 streams open"), ("eve", "there are 3 streams")):
            with pytest.raises(Problem, match=words) as refused, slots.taken(key):
                pass
            assert refused.value.kind is Kind.TOO_MANY
            assert refused.value.headers == {"Retry-After": "7"}
    with ExitStack() as stack:
        for key in ("eve", "eve", "bob"):
            stack.enter_context(slots.taken(key))


def test_a_place_is_given_back_whatever_happens() -> None:
    slots = Slots("streams", total=1, each=1, seconds=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), slots.taken("ann"):
            raise ZeroDivisionError
    with slots.taken("bob"):
        pass
