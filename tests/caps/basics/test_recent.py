"""A cache that does not grow with those who ask."""

from __future__ import annotations

from caps.basics.recent import Recent


def test_the_one_that_was_not_used_for_longest_gives_way() -> None:
    recent: Recent[str, int] = Recent(2)
    assert recent.find("a") is None
    assert recent.keep("a", 1) == 1
    recent.keep("b", 2)
    assert recent.find("a") == 1
    recent.keep("c", 3)
    assert (recent.find("a"), recent.find("b"), recent.find("c")) == (1, None, 3)
    assert len(recent) == 2


def test_another_value_takes_the_place_of_the_first() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.keep("a", 1)
    recent.keep("b", 2)
    recent.keep("a", 3)
    recent.keep("c", 4)
    assert (recent.find("a"), recent.find("b")) == (3, None)
