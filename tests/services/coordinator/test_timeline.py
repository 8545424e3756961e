"""Lanes follow from a run's events: who worked, who was waited for, and how the budget filled."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from services.coordinator.store import Event
from services.coordinator.timeline import timeline
from tests.kit.study import example_manifest


def state(second: float, name: str, party: str | None = None, reason: str | None = None) -> tuple[float, str, Any]:
    return second, "state", {"state": name, "party": party, "reason": reason}


def progress(second: float, stage: str, spent: float, clique: list[str] | None = None) -> tuple[float, str, Any]:
    return second, "progress", {"stage": stage, "round": 1, "clique": clique, "rho_spent": spent, "rho": 2.0}


def events(*told: tuple[float, str, Any]) -> list[Event]:
    return [
        Event(number, kind, body, datetime.fromtimestamp(second, UTC).isoformat())
        for number, (second, kind, body) in enumerate(told)
    ]


TOLD = (
    state(0, "queued"),
    state(1, "running"),
    progress(4, "initial", 0.5, ["age"]),
    progress(6, "generate", 0.5),
    state(7, "waiting", "S2", "is out of reach"),
)


def test_whoever_is_waited_for_stands_out_and_the_wait_grows() -> None:
    manifest, _ = example_manifest()
    for now in (17.0, 27.0):
        found = timeline(events(*TOLD), manifest, datetime.fromtimestamp(now, UTC))
        rows = {(row[0], row[1]): row[3] for row in found.rows}
        assert rows["waiting for S2: is out of reach", "S2"] == f"{now - 7:.0f} s"
        assert rows["waiting for S2: is out of reach", "S1, S3, coordinator"] == f"{now - 7:.0f} s"
        assert rows["round 1: measured first tables age", "S1, S2, S3"] == "3 s"
        assert rows["round 1: fitted the model", "coordinator"] == "2 s"
        blamed = [box for box in found.boxes if box.kind == "blamed"]
        assert [box.y for box in blamed] == [found.high + found.gap]  # the second lane
    assert found.level[-1][1] == 0.25


def test_what_has_ended_does_not_grow_and_fills_to_the_end() -> None:
    manifest, _ = example_manifest()
    told = (*TOLD, state(9, "running"), progress(11, "measure", 2.0, ["age", "sex"]), state(12, "publishing"))
    charts = [
        timeline(events(*told, state(15, "released")), manifest, datetime.fromtimestamp(now, UTC)) for now in (15, 99)
    ]
    assert charts[0] == charts[1]
    assert charts[0].level[-1] == (charts[0].left + charts[0].wide, 1.0)
    assert ("publishing", "coordinator", "12 s", "3 s") in charts[0].rows


def test_a_run_that_has_just_begun_has_nothing_to_show() -> None:
    manifest, _ = example_manifest()
    assert timeline([], manifest, datetime.fromtimestamp(0, UTC)).boxes == ()
    assert timeline(events(state(0, "queued")), manifest, datetime.fromtimestamp(0, UTC)).boxes
