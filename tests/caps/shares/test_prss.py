"""Orders that holders of one component draw in common, and parts of what is expanded."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caps.errors import DomainError, LabelReused
from caps.shares.prss import Prss, expand, expand_part
from caps.shares.ring import Z8, Z64


def drawn() -> Prss:
    return Prss({0: bytes(32), 1: bytes([1]) * 32})


def test_every_order_is_as_frequent() -> None:
    prss = drawn()
    orders = Counter(tuple(prss.order(0, b"/%d/" % label, 4).tolist()) for label in range(4800))
    assert stats.chisquare([orders[order] for order in permutations(range(4))]).pvalue > 1e-6


def test_equal_sort_keys_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tie would favour the order in which rows came."""
    draws = iter([np.array([5, 1, 5], np.uint64), np.array([1, 1, 0], np.uint64), np.array([9, 3, 4], np.uint64)])
    labels = []

    def draw(prss: Prss, number: int, label: bytes, shape: tuple[int, ...], ring: Any) -> np.ndarray:
        assert (number, shape, ring) == (1, (3,), Z64)
        labels.append(label)
        return next(draws)

    monkeypatch.setattr(Prss, "component", draw)
    assert drawn().order(1, b"order", 3).tolist() == [1, 2, 0]
    assert len(set(labels)) == 3


def test_an_order_is_drawn_once() -> None:
    prss = drawn()
    prss.order(0, b"order", 5)
    with pytest.raises(LabelReused):
        prss.order(0, b"order", 5)


@pytest.mark.property
@given(st.integers(0, 300), st.data())
def test_a_part_of_a_stream_is_what_lies_there(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = expand(bytes(range(32)), b"label", (size,), Z8).tobytes()
    assert bytes(expand_part(bytes(range(32)), b"label", size, start, stop)) == whole[start:stop]


def test_a_part_beyond_the_first_pieces_is_what_lies_there() -> None:
    size = 300_001
    whole = expand(bytes(range(32)), b"label", (size,), Z8).tobytes()
    for start, stop in ((65_531, 200_005), (299_990, size), (size, size)):
        assert bytes(expand_part(bytes(range(32)), b"label", size, start, stop)) == whole[start:stop]
    for start, stop in ((5, 4), (-1, 4), (0, size + 1)):
        with pytest.raises(DomainError, match="cannot be expanded"):
            expand_part(bytes(range(32)), b"label", size, start, stop)
