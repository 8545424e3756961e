"""Days for schemas: how they are written, and the calendar's periods as bins. A day is its number; 1 is 0001-01-01."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise

from caps.errors import DomainError

EPOCH = date(1970, 1, 1).toordinal()
"""The day from which polars counts."""
_LAST = date.max.toordinal()
ISO = "%Y-%m-%d"
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
_DIRECTIVES: dict[str, tuple[str, Callable[[date], str]]] = {
    "%Y": ("[0-9]{4}", lambda day: f"{day.year:04}"),
    "%m": ("[0-9]{2}", lambda day: f"{day.month:02}"),
    "%d": ("[0-9]{2}", lambda day: f"{day.day:02}"),
    "%-m": ("[0-9]{1,2}", lambda day: str(day.month)),
    "%-d": ("[0-9]{1,2}", lambda day: str(day.day)),
}
_PARTS = re.compile(r"(%-?[a-zA-Z])")
_BETWEEN = re.compile(r"[-./ ,_]{0,4}")


def day_of(text: object) -> int:
    """The number of a day that is written as 2025-12-31. Raises DomainError."""
    if isinstance(text, str) and _ISO.fullmatch(text):
        try:
            return date.fromisoformat(text).toordinal()
        except ValueError:
            pass  # the 30th of February
    raise DomainError("must be a day of the calendar, as 2025-12-31")


@dataclass(frozen=True)
class Spelling:
    """How days are written, in the language of strptime: %Y, %m and %d, or %-m and %-d without leading zeros.

    In ISO 8601, the default, a time of the day may follow, and does not count.
    """

    format: str = ISO

    def __post_init__(self) -> None:
        first, *parts = _PARTS.split(self.format)
        found, between = parts[::2], parts[1::2]
        if first or between[-1:] != [""] or sorted(one.replace("-", "") for one in found) != ["%Y", "%d", "%m"]:
            raise DomainError("must have %Y, %m and %d (or %-m and %-d) once each, and nothing before or after them")
        if not all(one in _DIRECTIVES and _BETWEEN.fullmatch(gap) for one, gap in zip(found, between, strict=True)):
            raise DomainError("may have only blanks and - . / , _ between %Y, %m and %d (or %-m and %-d)")
        if any(not gap and "-" in one + after for (one, after), gap in zip(pairwise(found), between, strict=False)):
            raise DomainError("must separate numbers that have no leading zeros")

    @cached_property
    def pattern(self) -> str:
        """A regular expression of the texts that have this form, whether or not there is such a day."""
        parts = (
            _DIRECTIVES[part][0] if part in _DIRECTIVES else "".join(f"[{letter}]" for letter in part)
            for part in _PARTS.split(self.format)
        )
        return f"^(?:{''.join(parts)}){_TIME if self.format == ISO else ''}$"

    def write(self, day: date) -> str:
        """A day, written so."""
        return "".join(_DIRECTIVES[part][1](day) if part in _DIRECTIVES else part for part in _PARTS.split(self.format))

    def read(self, text: str) -> int | None:
        """The number of the day that a text names; None if it names none."""
        if not re.fullmatch(self.pattern, text, re.ASCII):
            return None
        numbers = iter(re.findall("[0-9]{4}|[0-9]{2}" if "%-" not in self.format else "[0-9]+", text))
        named = {part[-1]: int(next(numbers)) for part in _PARTS.split(self.format) if part in _DIRECTIVES}
        try:
            return date(named["Y"], named["m"], named["d"]).toordinal()
        except ValueError:
            return None


@dataclass(frozen=True)
class Period:
    """A period of the calendar. longest: its most days. label, begins: of the one that a day is in."""

    longest: int
    label: Callable[[date], str]
    begins: Callable[[date], date]

    def edges(self, first: int, last: int) -> list[int]:
        """Bins from one day to another, both included; the outermost periods are cut there."""
        found, start = [first], self._start(first)
        while start < (following := self._start(min(start + self.longest, _LAST))) <= last:
            found.append(following)
            start = following
        return [*found, last + 1]

    def _start(self, day: int) -> int:
        return self.begins(date.fromordinal(day)).toordinal()


def _quarter(day: date) -> int:
    return (day.month + 2) // 3


PERIODS = {
    "year": Period(366, lambda day: f"{day.year:04}", lambda day: day.replace(month=1, day=1)),
    "quarter": Period(
        92,
        lambda day: f"{day.year:04}-Q{_quarter(day)}",
        lambda day: day.replace(month=3 * _quarter(day) - 2, day=1),
    ),
    "month": Period(31, lambda day: f"{day.year:04}-{day.month:02}", lambda day: day.replace(day=1)),
    "week": Period(
        7,
        lambda day: "{:04}-W{:02}".format(*day.isocalendar()[:2]),
        lambda day: date.fromordinal(max(1, day.toordinal() - day.weekday())),
    ),
    "day": Period(1, lambda day: day.isoformat(), lambda day: day),
}
"""By which days are counted, the longest first; weeks are those of ISO 8601, from Monday."""


def spans(edges: Sequence[int]) -> list[str]:
    """The names of bins between listed edges: the first and the last day of each, as ISO 8601 writes intervals."""
    return [
        f"{date.fromordinal(low).isoformat()}/{date.fromordinal(high - 1).isoformat()}" for low, high in pairwise(edges)
    ]
