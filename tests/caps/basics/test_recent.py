"""A cache that does not grow with those who ask."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

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


def test_what_many_ask_for_at_once_is_made_once() -> None:
    recent: Recent[str, object] = Recent(2)
    made: list[object] = []
    together = Barrier(8)

    def make() -> object:
        Event().wait(0.05)  # long enough for the others to ask, too
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        together.wait()
        return recent.obtain("a", make)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(8)))
    assert len(made) == 1
    assert all(one is made[0] for one in found)


def test_what_cannot_be_made_is_not_kept() -> None:
    recent: Recent[str, int] = Recent(2)
    with pytest.raises(ZeroDivisionError):
        recent.obtain("a", lambda: 1 // 0)
    assert recent.obtain("a", lambda: 7) == 7
