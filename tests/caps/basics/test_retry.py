"""The one policy of pauses between attempts."""

import pytest

from caps.basics.retry import LONGEST_ASKED, Backoff

POLICY = Backoff(first=0.5, longest=30.0)


def test_pauses_double_up_to_the_longest():
    retries = POLICY.begin(random=lambda: 0.0)
    assert [retries.pause() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_progress_begins_anew():
    retries = POLICY.begin(random=lambda: 0.0)
    assert [retries.pause(), retries.pause()] == [0.5, 1]
    retries.reset()
    assert retries.pause() == 0.5


def test_chance_takes_up_to_half_of_a_pause():
    assert POLICY.after(3, random=lambda: 1.0) == 1.0
    pauses = {POLICY.after(3) for _ in range(50)}
    assert len(pauses) > 1
    assert all(1.0 <= pause <= 2.0 for pause in pauses)


@pytest.mark.parametrize(
    ("asked", "pause"), [(7.0, 7.0), (0.0, 0.5), (1e9, LONGEST_ASKED), (45.0, 45.0), (float("inf"), LONGEST_ASKED)]
)
def test_what_the_other_party_asks_for_counts_within_bounds(asked, pause):
    assert POLICY.after(9, asked=asked) == pause


def test_a_loop_of_a_thousand_failures_does_not_overflow():
    assert POLICY.after(10_000, random=lambda: 0.0) == 30.0


def test_some_give_up():
    retries = Backoff(first=0.5, longest=30.0, attempts=3).begin()
    assert not retries.exhausted
    retries.pause()
    assert not retries.exhausted
    retries.pause()
    assert retries.exhausted
    endless = POLICY.begin()
    endless.failures = 1000
    assert not endless.exhausted
