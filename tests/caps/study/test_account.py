"""What an account makes of the servers' verdicts on contributions: who took part, and whether the run may go on."""

from __future__ import annotations

from typing import Any

import pytest

from caps.dp.oracle import Compute
from caps.errors import DomainError, NotDue
from caps.study.account import Account
from tests.kit.study import COLUMNS, MIXED, ROWS, example_manifest, honest_walk

LEAVE_OUT = {"inputs": {"refused": "leave-out"}}
TWICE = (("registry", ("age", "smoker")), ("lab", ("region", "diagnosis")), ("other-lab", ("region", "diagnosis")))


def judged(verdicts: tuple[int, ...], *, least_holders: int = 1, **choices: Any) -> Account:
    manifest, _ = example_manifest(**choices)
    account = Account(manifest, [holder.name for holder in manifest.holders], least_holders=least_holders)
    account.charge(account.check(Compute()))
    account.answered(verdicts)
    return account


def test_a_refused_contribution_ends_the_run_unless_the_study_says_otherwise() -> None:
    account = judged((1, 0))
    assert (account.accepted, account.refused) == (("clinic-a",), ("clinic-b",))
    assert account.stopped is not None
    assert "the contribution of clinic-b failed the servers' checks" in account.stopped
    assert account.stopped in account.due
    manifest, _ = example_manifest()
    following = honest_walk(manifest)[1][1][0]
    with pytest.raises(NotDue, match="clinic-b failed"):
        account.check(following)
    with pytest.raises(NotDue, match="clinic-b failed"):
        account.check(Compute())
    assert not account.ended


def test_it_is_left_out_if_the_study_says_so() -> None:
    account = judged((1, 0), **LEAVE_OUT)
    assert (account.accepted, account.refused, account.stopped) == (("clinic-a",), ("clinic-b",), None)
    manifest, _ = example_manifest(**LEAVE_OUT)
    account.check(honest_walk(manifest)[1][1][0])


@pytest.mark.parametrize(
    ("holders", "verdicts", "least", "words"),
    [
        (ROWS, (0, 0), 1, "clinic-a and clinic-b failed the servers' checks, and there are no others"),
        (COLUMNS, (1, 0), 1, "lab failed the servers' checks, and nobody else brings region, diagnosis"),
        (MIXED, (1, 0, 0), 1, "nobody else brings age, smoker, region, diagnosis"),
        (ROWS, (1, 0), 2, "1 contributions passed the checks; this server requires 2"),
    ],
)
def test_even_then_it_ends_if_too_little_is_left(
    holders: Any, verdicts: tuple[int, ...], least: int, words: str
) -> None:
    account = judged(verdicts, least_holders=least, holders=holders, **LEAVE_OUT)
    assert account.stopped is not None
    assert words in account.stopped


def test_columns_that_another_holder_brings_are_not_missed() -> None:
    assert judged((1, 0, 1), holders=TWICE, **LEAVE_OUT).stopped is None


@pytest.mark.parametrize("verdicts", [(1,), (1, 1, 1), (1, 2), (1, -1)])
def test_there_is_one_verdict_for_each_contribution(verdicts: tuple[int, ...]) -> None:
    with pytest.raises(DomainError, match="1 or 0 for each contribution"):
        judged(verdicts)


def test_who_is_told_what_follows() -> None:
    """The sentence is in the plan, in the holder's preview and in the privacy statement."""
    stops, leaves_out = example_manifest()[0], example_manifest(**LEAVE_OUT)[0]
    assert "the run ends and says so" in stops.views[-1]
    assert "it is left out, and the release says so" in leaves_out.views[-1]
    assert stops.study_id != leaves_out.study_id
    assert Account(leaves_out, []).statement().views == leaves_out.views
