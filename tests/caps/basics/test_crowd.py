"""Bounds on what anybody may cause: whoever comes gets in, and one origin cannot shut out the others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from caps.basics.crowd import Crowd


def test_the_oldest_of_an_origin_with_too_many_gives_way() -> None:
    crowd: Crowd[int] = Crowd(10, 2)
    assert [crowd.enter(member, "here") for member in range(4)] == [None, None, 0, 1]
    assert crowd.enter(4, "there") is None
    assert len(crowd) == 3


def test_if_there_are_too_many_the_origin_with_most_of_them_gives_way() -> None:
    crowd: Crowd[int] = Crowd(4, 3)
    for member in range(3):
        crowd.enter(member, "many")
    assert crowd.enter(3, "few") is None
    assert [crowd.enter(4, "few"), crowd.enter(5, "new")] == [0, 1]


def test_the_busy_stay_and_if_all_are_the_newcomer_goes() -> None:
    busy = {0, 1}
    crowd: Crowd[int] = Crowd(10, 3, busy=busy.__contains__)
    for member in range(3):
        crowd.enter(member, "here")
    assert crowd.enter(3, "here") == 2
    busy.add(3)
    assert crowd.enter(4, "here") == 4
    assert len(crowd) == 3


def test_who_has_left_counts_no_more_and_may_leave_twice() -> None:
    crowd: Crowd[int] = Crowd(1, 1)
    crowd.enter(0, "here")
    crowd.leave(0)
    crowd.leave(0)
    assert crowd.enter(1, "here") is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans())))
def test_the_bounds_hold_whatever_happens(moves: list[tuple[int, bool]]) -> None:
    crowd: Crowd[int] = Crowd(5, 3)
    inside: dict[int, int] = {}
    for member, (origin, leaves) in enumerate(moves):
        if leaves and inside:
            crowd.leave(oldest := next(iter(inside)))
            del inside[oldest]
        inside[member] = origin
        gone = crowd.enter(member, origin)
        if gone is not None:
            del inside[gone]
        assert gone != member
        assert len(crowd) == len(inside) <= 5
        assert max(Counter(inside.values()).values()) <= 3
