"""Who did what when, as lanes on a time axis: where each box of the picture stands, and the table of the same spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

LEFT, WIDE, HIGH, GAP = 110.0, 600.0, 22.0, 8.0
"""Of the picture, in its own units: room for names, the axis, a lane, and the space between two."""
_LEAST = 1.5
_TICKS = 7
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)

Kind = Literal["work", "fit", "wait", "blamed", "quiet"]
KINDS: dict[Kind, str] = {
    "work": "servers compute",
    "fit": "the coordinator fits or publishes",
    "wait": "waits for another",
    "blamed": "is waited for",
    "quiet": "queued",
}
"""What the colours mean."""


@dataclass(frozen=True)
class Span:
    """Something that took time, and whose lanes it stands in."""

    names: tuple[str, ...]
    begin: datetime
    end: datetime
    kind: Kind
    text: str

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True)
class Box:
    """A span in one lane of the picture."""

    x: float
    y: float
    width: float
    kind: Kind
    text: str


@dataclass(frozen=True)
class Chart:
    """The picture and its table. level: the points of a line that fills from 0 to 1, in a lane of its own."""

    names: tuple[str, ...]
    kinds: tuple[tuple[Kind, str], ...]
    boxes: tuple[Box, ...]
    ticks: tuple[tuple[float, str], ...]
    level: tuple[tuple[float, float], ...]
    rows: tuple[tuple[str, str, str, str], ...]
    left: float = LEFT
    wide: float = WIDE
    high: float = HIGH
    gap: float = GAP

    @property
    def height(self) -> float:
        """Of all lanes, with the one that fills."""
        return (len(self.names) + bool(self.level)) * (HIGH + GAP)


def chart(
    names: Sequence[str], spans: Sequence[Span], level: Sequence[tuple[datetime, float]] = (), *, words: bool = True
) -> Chart:
    """Lanes of these names. level: times at which a part of a whole was reached. words: whether kinds are explained."""
    if not spans:
        return Chart(tuple(names), (), (), (), (), ())
    begin, end = min(one.begin for one in spans), max(one.end for one in spans)
    whole = max((end - begin).total_seconds(), 1.0)

    def x(at: datetime) -> float:
        return round(LEFT + WIDE * min(max((at - begin).total_seconds() / whole, 0.0), 1.0), 1)

    rows_of = {name: place for place, name in enumerate(names)}
    boxes = [
        Box(
            x(one.begin), rows_of[name] * (HIGH + GAP), round(max(x(one.end) - x(one.begin), _LEAST), 1), one.kind, told
        )
        for one in spans
        for told in [f"{one.text}: {lasting(one.seconds)}"]
        for name in one.names
        if name in rows_of
    ]
    step = next((one for one in _STEPS if whole / one <= _TICKS), int(whole / _TICKS / 86400 + 1) * 86400)
    ticks = [(x(begin + timedelta(seconds=at)), lasting(at)) for at in range(0, int(whole) + 1, step)]
    used = {one.kind for one in spans}
    return Chart(
        tuple(names),
        tuple((kind, text) for kind, text in KINDS.items() if kind in used and words),
        tuple(boxes),
        tuple(ticks),
        tuple((x(at), round(part, 4)) for at, part in [*level, *((end, part) for _, part in level[-1:])]),
        tuple(
            (one.text, ", ".join(one.names), lasting((one.begin - begin).total_seconds()), lasting(one.seconds))
            for one in spans
        ),
    )


def lasting(seconds: float) -> str:
    """A time span in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 172_800 else f"{seconds / 86400:.3g} days"
