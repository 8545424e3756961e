"""A run's events as lines: one for each round, that fit a terminal of 80 columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from caps.cli.output import clock
from caps.cli.run import Rounds
from caps.wire.coordinator import RunChanged, RunProgress

BEGAN = datetime(2030, 5, 17, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def progress(seconds: float, number: int, stage: str, spent: float, *clique: str, **more: Any) -> RunProgress:
    members = {"model_bytes": None, "error": None, "annealed": False, **more}
    return RunProgress(
        at=at(seconds), round=number, stage=stage, clique=list(clique) or None, rho_spent=spent, rho=1.0, **members
    )


def told(*events: RunChanged | RunProgress) -> list[str]:
    rounds = Rounds()
    return [line for event in events for line in rounds.add(event)]


def state(seconds: float, name: str, **more: Any) -> RunChanged:
    return RunChanged(**{"at": at(seconds), "state": name, "party": None, "reason": None, **more})


def test_a_round_is_a_line_with_part_elapsed_and_left() -> None:
    lines = told(
        state(0, "running"),
        progress(1, 0, "initial", 0.05, "age"),
        progress(2, 0, "initial", 0.10, "smoker"),
        progress(10, 0, "generate", 0.10),
        progress(11, 1, "select", 0.15, "age", "smoker"),
        progress(12, 1, "measure", 0.2, "age", "smoker", error=123.4),
        progress(20, 1, "generate", 0.2),
        progress(50, 2, "measure", 1.0, "age", "diagnosis", error=0.0),
        state(60, "publishing"),
        state(61, "released"),
    )
    assert lines == [
        "  0%    0:00                running",
        " 10%    0:10     1:30 left  round 0: 2 tables measured",
        " 20%    0:20     1:20 left  round 1: age x smoker, off by 123",
        "100%    1:00                round 2: age x diagnosis, off by 0",
        "100%    1:00                publishing",
        "100%    1:01                released",
    ]


def test_a_long_fit_is_announced_before_it_begins() -> None:
    lines = told(
        progress(1, 1, "measure", 0.5, "age", "smoker", fit_seconds=3.0),
        progress(4, 1, "generate", 0.5),
        progress(5, 2, "measure", 1.0, "age", "diagnosis", fit_seconds=75.0),
        progress(80, 2, "generate", 1.0, fit_seconds=200.0),
    )
    assert [line.partition("round ")[2] for line in lines] == [
        "1: age x smoker",
        "2: fitting a model, in about 1:15",
        "2: age x diagnosis",
        "2: fitting the last model, in about 3:20",
    ]


def test_algorithms_without_fits_between_rounds_have_lines_too() -> None:
    lines = told(*(progress(number, number, "measure", number / 4, f"c{number}") for number in range(1, 4)))
    assert [line.partition("round ")[2] for line in lines] == ["1: c1", "2: c2"]
    lines = told(
        *(progress(number, number, "measure", number / 4, f"c{number}") for number in range(1, 4)), state(9, "x")
    )
    assert [line.partition("round ")[2] for line in lines] == ["1: c1", "2: c2", "3: c3", ""]


def test_a_line_fits_80_columns_and_has_no_letters_that_a_terminal_acts_on() -> None:
    name = "a\x1b[2J" + "long" * 30
    lines = told(progress(1, 1, "measure", 0.5, name, "b"), state(2, "waiting", party="S2\x07", reason="away " * 40))
    assert len(lines) == 2
    for line in lines:
        assert len(line) == 80
        assert line.isprintable()
        assert line.endswith("…")


def test_time_left_is_not_guessed_from_nothing() -> None:
    (line,) = told(progress(3, 1, "generate", 0.01), state(4, "waiting", party="S1", reason="away"))
    assert "left" not in line
    assert line.endswith("waiting: S1: away")


def test_spans_are_read_like_a_clock() -> None:
    assert [clock(seconds) for seconds in (-1, 0, 59.6, 61, 3599, 3661)] == [
        "0:00",
        "0:00",
        "1:00",
        "1:01",
        "59:59",
        "1:01:01",
    ]
